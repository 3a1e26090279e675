//! A process that does what it is told, one line at a time: the program, or a witness of it. It is a
//! process of its own, since a fault on a mapped page ends it.

use super::contents::contents;
use rustix::fs::{Advice, AtFlags, CWD, FallocateFlags, Mode, OFlags, RenameFlags, Timespec, Timestamps};
use rustix::io::Errno;
use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

const SOCKET: &str = "SYNCLINE_PROGRAMS_SOCKET";
const ROOT: &str = "SYNCLINE_PROGRAMS_ROOT";
/// Longest time for an answer; nothing may hang.
const LIMIT: Duration = Duration::from_secs(120);

/// A worker's answer: bytes, or an errno.
pub type Answer = Result<Vec<u8>, i32>;

/// The other end of a worker.
pub struct Worker {
    process: Child,
    stream: UnixStream,
}

impl Worker {
    /// Starts one for the mount at `root`; `socket` is a new path.
    pub fn start(root: &Path, socket: &Path) -> Self {
        let listener = UnixListener::bind(socket).unwrap();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--ignored", "--exact", "programs::worker_process"]);
        command.env(SOCKET, socket).env(ROOT, root).stdin(Stdio::null()).stdout(Stdio::null());
        let process = command.spawn().unwrap();
        let (stream, _) = listener.accept().unwrap();
        std::fs::remove_file(socket).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        Self { process, stream }
    }

    /// Sends a line to the worker, without waiting for the answer.
    pub fn tell(&mut self, line: &str) -> Result<(), String> {
        let told = self.stream.write_all(format!("{line}\n").as_bytes());
        told.map_err(|_| self.why_it_ended())
    }

    /// Waits for an answer.
    pub fn hear(&mut self) -> Result<Answer, String> {
        let mut header = [0; 8];
        self.receive(&mut header)?;
        let (errno, len) = header.split_at(4);
        let mut bytes = vec![0; u32::from_ne_bytes(len.try_into().unwrap()) as usize];
        self.receive(&mut bytes)?;
        let errno = i32::from_ne_bytes(errno.try_into().unwrap());
        Ok(if errno == 0 { Ok(bytes) } else { Err(errno) })
    }

    /// Has it do something.
    pub fn ask(&mut self, line: &str) -> Result<Answer, String> {
        self.tell(line)?;
        self.hear()
    }

    fn receive(&mut self, bytes: &mut [u8]) -> Result<(), String> {
        match self.stream.read_exact(bytes) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Err("it hangs".into()),
            Err(_) => Err(self.why_it_ended()),
        }
    }

    fn why_it_ended(&mut self) -> String {
        match self.process.wait() {
            Ok(status) => format!("it ended: {status}"),
            Err(error) => error.to_string(),
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A worker's whole life. Called by the test named `worker_process`.
pub fn run() {
    let Some(socket) = std::env::var_os(SOCKET) else { return };
    let stream = UnixStream::connect(socket).unwrap();
    let mut hands = Hands {
        root: PathBuf::from(std::env::var_os(ROOT).unwrap()),
        files: HashMap::new(),
        maps: HashMap::new(),
        directories: HashMap::new(),
        restless: None,
    };
    let mut answers = stream.try_clone().unwrap();
    for line in BufReader::new(stream).lines() {
        let Ok(line) = line else { return };
        let (errno, bytes) = match hands.act(&line) {
            Ok(bytes) => (0, bytes),
            Err(errno) => (errno.raw_os_error(), Vec::new()),
        };
        let mut answer = errno.to_ne_bytes().to_vec();
        answer.extend((bytes.len() as u32).to_ne_bytes());
        answer.extend(bytes);
        if answers.write_all(&answer).is_err() {
            return;
        }
    }
}

/// Everything that a worker has open.
struct Hands {
    root: PathBuf,
    files: HashMap<u64, File>,
    maps: HashMap<u64, Map>,
    /// Directories that are listed again and again.
    directories: HashMap<PathBuf, rustix::fs::Dir>,
    /// A thread that goes on until it is told to rest.
    restless: Option<(Arc<AtomicBool>, JoinHandle<()>)>,
}

type Done = Result<Vec<u8>, Errno>;

fn errno(error: std::io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

/// The words of a line.
struct Words<'a>(std::str::SplitWhitespace<'a>);

impl<'a> Words<'a> {
    fn word(&mut self) -> &'a str {
        self.0.next().expect("a word is missing")
    }

    fn number(&mut self) -> u64 {
        self.word().parse().expect("a number")
    }
}

impl Hands {
    fn act(&mut self, line: &str) -> Done {
        let mut words = Words(line.split_whitespace());
        match words.word() {
            verb @ ("create" | "open") => self.open(verb, &mut words),
            verb @ ("close" | "unmap" | "drop" | "fsync" | "fdatasync" | "msync" | "seek") => {
                self.with_slot(verb, words.number())
            }
            verb @ ("write" | "read" | "map" | "store" | "load" | "truncate" | "allocate") => {
                self.with_data(verb, &mut words)
            }
            "copy" => self.copy(&mut words),
            verb @ ("list" | "relist" | "spin" | "count" | "rest") => {
                let dir = self.root.join(words.0.next().unwrap_or("."));
                self.list(verb, dir)
            }
            verb => self.with_path(verb, &mut words),
        }
    }

    fn file(&self, slot: u64) -> &File {
        &self.files[&slot]
    }

    fn open(&mut self, verb: &str, words: &mut Words<'_>) -> Done {
        let (slot, path) = (words.number(), self.root.join(words.word()));
        let mut flags = OFlags::RDWR | OFlags::CLOEXEC;
        if verb == "create" {
            flags |= OFlags::CREATE | OFlags::EXCL;
        }
        for letter in words.word().chars() {
            flags |= match letter {
                'd' => OFlags::DIRECT,
                's' => OFlags::SYNC,
                'y' => OFlags::DSYNC,
                'a' => OFlags::APPEND,
                't' => OFlags::TRUNC,
                _ => OFlags::empty(),
            };
        }
        let file = rustix::fs::open(path, flags, Mode::from_raw_mode(0o644))?;
        self.files.insert(slot, file.into());
        Ok(Vec::new())
    }

    fn with_slot(&mut self, verb: &str, slot: u64) -> Done {
        match verb {
            "close" => drop(self.files.remove(&slot)),
            "unmap" => drop(self.maps.remove(&slot)),
            "drop" => rustix::fs::fadvise(self.file(slot), 0, None, Advice::DontNeed)?,
            "fsync" => rustix::fs::fsync(self.file(slot))?,
            "fdatasync" => rustix::fs::fdatasync(self.file(slot))?,
            "msync" => self.maps[&slot].sync()?,
            _ => return seek(self.file(slot)),
        }
        Ok(Vec::new())
    }

    fn with_data(&mut self, verb: &str, words: &mut Words<'_>) -> Done {
        let (slot, offset) = (words.number(), words.number());
        match verb {
            // A size, in place of an offset.
            "map" => {
                let map = Map::new(self.file(slot), offset as usize)?;
                self.maps.insert(slot, map);
                return Ok(Vec::new());
            }
            "truncate" => return rustix::fs::ftruncate(self.file(slot), offset).map(|()| Vec::new()),
            _ => {}
        }
        let len = words.number() as usize;
        match verb {
            "write" => {
                let data = contents(words.number(), offset, len);
                let written = self.file(slot).write_at(&data, offset).map_err(errno)?;
                return Ok((written as u64).to_ne_bytes().to_vec());
            }
            "read" => return read(self.file(slot), offset, len),
            "store" => self.maps[&slot].store(offset as usize, &contents(words.number(), offset, len)),
            "load" => return Ok(self.maps[&slot].load(offset as usize, len)),
            _ => {
                let mode = FallocateFlags::from_bits_retain(words.number() as u32);
                rustix::fs::fallocate(self.file(slot), mode, offset, len as u64)?;
            }
        }
        Ok(Vec::new())
    }

    fn copy(&mut self, words: &mut Words<'_>) -> Done {
        let (from, mut from_at, to, mut to_at, len) =
            (words.number(), words.number(), words.number(), words.number(), words.number());
        let mut copied = 0;
        while copied < len {
            let (from, to) = (self.file(from), self.file(to));
            let len = (len - copied) as usize;
            match rustix::fs::copy_file_range(from, Some(&mut from_at), to, Some(&mut to_at), len)? {
                0 => break,
                more => copied += more as u64,
            }
        }
        Ok(copied.to_ne_bytes().to_vec())
    }

    fn list(&mut self, verb: &str, dir: PathBuf) -> Done {
        match verb {
            "list" => return list(&dir),
            // Through a directory that stays open, from its beginning.
            "relist" => {
                let known = self.directories.contains_key(&dir);
                if !known {
                    let opened = rustix::fs::open(&dir, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
                    self.directories.insert(dir.clone(), rustix::fs::Dir::new(opened)?);
                }
                let open = self.directories.get_mut(&dir).expect("it was just put there");
                open.rewind();
                return names(open);
            }
            "spin" => self.restless = Some(lister(dir)),
            "count" => {
                rustix::fs::mkdir(&dir, Mode::from_raw_mode(0o755))?;
                self.restless = Some(counter(dir).map_err(errno)?);
            }
            _ => {
                let (stop, thread) = self.restless.take().expect("it goes on");
                stop.store(true, Ordering::Relaxed);
                thread.join().expect("it does not panic");
            }
        }
        Ok(Vec::new())
    }

    fn with_path(&mut self, verb: &str, words: &mut Words<'_>) -> Done {
        let path = self.root.join(words.word());
        match verb {
            "rename" => rustix::fs::rename(path, self.root.join(words.word()))?,
            "exchange" => {
                let other = self.root.join(words.word());
                rustix::fs::renameat_with(CWD, path, CWD, other, RenameFlags::EXCHANGE)?;
            }
            "link" => rustix::fs::link(path, self.root.join(words.word()))?,
            "unlink" => rustix::fs::unlink(path)?,
            "mkdir" => rustix::fs::mkdir(path, Mode::from_raw_mode(0o755))?,
            "rmdir" => {
                self.directories.remove(&path);
                rustix::fs::rmdir(path)?;
            }
            "chmod" => rustix::fs::chmod(path, Mode::from_raw_mode(words.number() as u32))?,
            "times" => {
                let time = Timespec { tv_sec: words.number() as i64, tv_nsec: 0 };
                let times = Timestamps { last_access: time, last_modification: time };
                rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)?;
            }
            "syncdir" => rustix::fs::fsync(File::open(path).map_err(errno)?)?,
            "stat" => {
                let found = std::fs::symlink_metadata(path).map_err(errno)?;
                let (size, nlink, mode) = (found.size(), found.nlink(), found.mode() & 0o7777);
                return Ok(format!("{size} {nlink} {mode} {} {}", found.mtime(), found.blocks()).into());
            }
            "readpath" => {
                let mut bytes = Vec::new();
                File::open(path).and_then(|mut file| file.read_to_end(&mut bytes)).map_err(errno)?;
                return Ok(bytes);
            }
            "mappath" => {
                let file = File::options().read(true).write(true).open(path).map_err(errno)?;
                let len = file.metadata().map_err(errno)?.len() as usize;
                return Ok(if len == 0 { Vec::new() } else { Map::new(&file, len)?.load(0, len) });
            }
            other => panic!("no such step: {other}"),
        }
        Ok(Vec::new())
    }
}

fn read(file: &File, offset: u64, len: usize) -> Done {
    let mut bytes = vec![0; len];
    let mut read = 0;
    while read < len {
        match file.read_at(&mut bytes[read..], offset + read as u64).map_err(errno)? {
            0 => break,
            more => read += more,
        }
    }
    bytes.truncate(read);
    Ok(bytes)
}

/// The ranges of data, as SEEK_DATA and SEEK_HOLE tell them.
fn seek(file: &File) -> Done {
    use rustix::fs::SeekFrom;
    let (mut at, mut text) = (0, String::new());
    loop {
        let start = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Err(Errno::NXIO) => return Ok(text.into()),
            start => start?,
        };
        at = rustix::fs::seek(file, SeekFrom::Hole(start))?;
        text.push_str(&format!("{start} {at}\n"));
        if at <= start {
            return Ok(text.into());
        }
    }
}

fn list(dir: &Path) -> Done {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(errno)? {
        names.push(entry.map_err(errno)?.file_name().into_string().expect("ours are text"));
    }
    Ok(names.join("\n").into())
}

fn names(dir: &mut rustix::fs::Dir) -> Done {
    let mut names = Vec::new();
    while let Some(entry) = dir.read() {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name != "." && name != ".." {
            names.push(name);
        }
    }
    Ok(names.join("\n").into())
}

/// Does something again and again, with 1, 2, 3 and so on, until that fails or it is told to stop.
fn again(act: impl Fn(u64) -> std::io::Result<()> + Send + 'static) -> (Arc<AtomicBool>, JoinHandle<()>) {
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = stop.clone();
    let thread = std::thread::spawn(move || {
        let mut numbers = 1..;
        while !stopped.load(Ordering::Relaxed) && numbers.next().is_some_and(|number| act(number).is_ok()) {}
    });
    (stop, thread)
}

/// Lists a directory and its subdirectories, as other processes do whose listings the kernel keeps.
fn lister(dir: PathBuf) -> (Arc<AtomicBool>, JoinHandle<()>) {
    again(move |_| {
        for entry in std::fs::read_dir(&dir)?.flatten() {
            let _ = std::fs::read_dir(entry.path()).map(Iterator::count);
        }
        Ok(())
    })
}

/// Counts in a file, and after each number makes a name of it in the same directory. Returns when it has
/// begun. It writes to other files, too, so that a snapshot takes a while.
fn counter(dir: PathBuf) -> std::io::Result<(Arc<AtomicBool>, JoinHandle<()>)> {
    const OTHERS: u64 = 64;
    let count = File::create(dir.join("count"))?;
    // The oldest is written back first.
    count.write_all_at(b"0", 0)?;
    let others = (0..OTHERS).map(|other| File::create(dir.join(format!("other{other}"))));
    let others = others.collect::<Result<Vec<_>, _>>()?;
    others.iter().try_for_each(|other| other.write_all_at(&contents(1, 0, 32_768), 0))?;
    let (begun, begins) = mpsc::channel();
    let counts = again(move |number| {
        count.write_all_at(format!("{number:020}").as_bytes(), 0)?;
        File::create(dir.join(number.to_string()))?;
        let other = &others[(number % OTHERS) as usize];
        other.write_all_at(&contents(number, 0, 8192), 0)?;
        // Nobody listens after the first.
        let _ = begun.send(());
        Ok(())
    });
    // If it ends at once, the look at the snapshot tells.
    let _ = begins.recv();
    Ok(counts)
}

/// A shared mapping of a file, from its beginning.
struct Map {
    start: *mut u8,
    len: usize,
}

impl Map {
    fn new(file: &File, len: usize) -> Result<Self, Errno> {
        let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        // SAFETY: a new mapping, wherever the kernel puts it.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len, access, kind, file.as_raw_fd(), 0) };
        if start == libc::MAP_FAILED {
            return Err(errno(std::io::Error::last_os_error()));
        }
        Ok(Self { start: start.cast(), len })
    }

    fn store(&self, offset: usize, data: &[u8]) {
        assert!(offset + data.len() <= self.len);
        // SAFETY: the range lies in the mapping, and nobody has references into that.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), self.start.add(offset), data.len()) }
    }

    fn load(&self, offset: usize, len: usize) -> Vec<u8> {
        assert!(offset + len <= self.len);
        let mut bytes = vec![0; len];
        // SAFETY: the range lies in the mapping, and the destination is as long.
        unsafe { std::ptr::copy_nonoverlapping(self.start.add(offset), bytes.as_mut_ptr(), len) };
        bytes
    }

    fn sync(&self) -> Result<(), Errno> {
        // SAFETY: the mapping as a whole.
        match unsafe { libc::msync(self.start.cast(), self.len, libc::MS_SYNC) } {
            0 => Ok(()),
            _ => Err(errno(std::io::Error::last_os_error())),
        }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: the mapping as a whole, which nobody uses any more.
        unsafe { libc::munmap(self.start.cast(), self.len) };
    }
}
