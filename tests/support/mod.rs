//! Runs the program under test and removes what it leaves: mounts, daemons, loop devices, folders.
#![allow(dead_code)] // Each test program uses another part.

pub mod ceph;

use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{OnceLock, PoisonError, RwLock, RwLockReadGuard};
use std::time::{Duration, Instant};

/// Longest time for any command; a test that waits longer has failed.
pub const LIMIT: Duration = Duration::from_secs(600);
/// An ordinary user.
pub const NOBODY: u32 = 65534;

/// Shared by tests that start a separate mount namespace: all mounts are in it until it has
/// detached them ([`ALONE`]).
static NAMESPACES: RwLock<()> = RwLock::new(());

/// Held while a mount namespace is started.
pub fn starting_a_namespace() -> RwLockReadGuard<'static, ()> {
    NAMESPACES.read().unwrap_or_else(PoisonError::into_inner)
}

/// The result of running a program.
pub struct Answer {
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "exit code {}\nstdout: {}\nstderr: {}", self.code, self.out, self.err)
    }
}

impl Answer {
    /// Fails the test unless the program succeeded.
    #[track_caller]
    pub fn ok(self) -> Self {
        assert_eq!(self.code, 0, "{self:?}");
        self
    }

    /// Fails the test unless the program failed with this code and a single line on standard error
    /// that contains all these words.
    #[track_caller]
    pub fn fails(self, code: i32, words: &[&str]) -> Self {
        assert_eq!(self.code, code, "{self:?}");
        assert_eq!(self.err.trim().lines().count(), 1, "one line: {self:?}");
        let name = self.err.split(": ").next().unwrap_or_default();
        assert!(["syncline", "syncline-lab"].contains(&name), "{self:?}");
        for word in words {
            assert!(self.err.contains(word), "{word:?} is missing: {self:?}");
        }
        assert!(!self.err.contains("panicked"), "{self:?}");
        self
    }
}

/// Where the program `syncline` is: for the tests of another package, beside the program of that.
pub fn syncline_path() -> PathBuf {
    let own = option_env!("CARGO_BIN_EXE_syncline").or(option_env!("CARGO_BIN_EXE_syncline-lab"));
    Path::new(own.expect("it is a package with a program")).with_file_name("syncline")
}

/// The program under test.
pub fn program() -> Command {
    Command::new(syncline_path())
}

/// Runs the program under test.
pub fn syncline<A: AsRef<OsStr>>(arguments: impl IntoIterator<Item = A>) -> Answer {
    let mut command = program();
    command.args(arguments);
    run(command)
}

/// Runs a command to its end; if it hangs, it is killed and the test fails.
#[track_caller]
pub fn run(mut command: Command) -> Answer {
    let _starting = (command.get_program() == "unshare").then(starting_a_namespace);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = spawn(&mut command).unwrap_or_else(|error| panic!("{command:?}: {error}"));
    // Read concurrently, so that a full pipe blocks neither side.
    let out = reader(child.stdout.take().expect("piped"));
    let err = reader(child.stderr.take().expect("piped"));
    let code = wait(&mut child, LIMIT).unwrap_or_else(|| {
        let _ = child.kill();
        panic!("{command:?} hangs");
    });
    Answer { code, out: out.join().expect("no panic"), err: err.join().expect("no panic") }
}

/// Starts a command. A program that was just copied may be busy for a moment: a child being started
/// by another test's thread has the copy open for writing until it executes its own program.
fn spawn(command: &mut Command) -> std::io::Result<Child> {
    let started = Instant::now();
    loop {
        match command.spawn() {
            Err(error) if error.kind() == ErrorKind::ExecutableFileBusy && started.elapsed() < LIMIT => {
                std::thread::sleep(Duration::from_millis(5));
            }
            spawned => return spawned,
        }
    }
}

fn reader(mut from: impl Read + Send + 'static) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = from.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// The exit code of a child, or `None` if it did not end in time. If a signal killed it: 128 plus
/// the signal's number, as in a shell.
pub fn wait(child: &mut Child, limit: Duration) -> Option<i32> {
    use std::os::unix::process::ExitStatusExt;
    let started = Instant::now();
    loop {
        if let Some(status) = child.try_wait().expect("it is our child") {
            return Some(status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0)));
        }
        if started.elapsed() > limit {
            return None;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Runs a system tool; `None` if it is missing or fails.
pub fn tool(name: &str, arguments: &[&OsStr]) -> Option<String> {
    let output = Command::new(name).args(arguments).stdin(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// The first command of a shell in a separate mount namespace: it detaches the mounts of concurrent
/// tests, which otherwise could not end before it.
pub const ALONE: &str = "umount -a -i -l -t fuse.syncline,fuseblk.syncline 2>/dev/null || true; ";

/// Makes a file that all users can run. Another process writes it: a child that another thread forks
/// meanwhile inherits this process's descriptors, and no one can run a file that is open for writing.
pub fn executable(path: &Path, content: &[u8]) {
    let mut command = Command::new("install");
    command.args(["-m", "755", "/dev/stdin"]).arg(path).stdin(Stdio::piped());
    let mut child = command.spawn().expect("install is a part of coreutils");
    child.stdin.take().expect("piped").write_all(content).expect("install reads it");
    assert!(child.wait().expect("it is our child").success(), "{command:?}");
}

/// Compiles a C program that includes the headers of `include/`.
pub fn c_program(place: &Place, text: &str) -> PathBuf {
    let (source, binary) = (place.path().join("program.c"), place.path().join("program"));
    fs::write(&source, text).expect("it is ours");
    let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../include");
    let mut cc = Command::new("cc");
    cc.args(["-Wall", "-Wextra", "-Werror", "-I"]).arg(include).arg("-o").arg(&binary).arg(&source);
    let compiled = cc.output().expect("there is a compiler");
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    binary
}

/// True for root.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// The reason why nothing can be mounted here, if so.
pub fn no_fuse() -> Option<String> {
    static WHY: OnceLock<Option<String>> = OnceLock::new();
    WHY.get_or_init(try_fuse).clone()
}

fn try_fuse() -> Option<String> {
    if !Path::new("/dev/fuse").exists() {
        return Some("there is no /dev/fuse".into());
    }
    if !is_root() && tool("fusermount3", &[OsStr::new("--version")]).is_none() {
        return Some("fusermount3 is not installed, and this is not root".into());
    }
    // Containers often have the device but not the right to use it.
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (image, mount) = (folder.path().join("image"), folder.path().join("mount"));
    fs::create_dir(&mount).expect("it is ours");
    syncline([OsStr::new("mkfs"), image.as_ref(), OsStr::new("--size"), OsStr::new("16MiB")]).ok();
    let leave = ["-o", "transport=available"].map(OsStr::new);
    let answer = syncline([OsStr::new("mount"), image.as_ref(), mount.as_ref(), leave[0], leave[1]]);
    if answer.code == 0 {
        Mount::of(&mount).unmount().ok();
        return None;
    }
    assert!(matches!(answer.code, 7 | 9), "mounting fails, but not for want of FUSE: {answer:?}");
    Some(answer.err)
}

/// Returns from the test, with a message, if one of its conditions is not met.
#[macro_export]
macro_rules! skip_if {
    ($why:expr) => {
        if let Some(why) = $why {
            eprintln!("skipped: {}", why.to_string().trim());
            return;
        }
    };
}

/// The reason why operations that need root are impossible, if so.
pub fn not_root() -> Option<&'static str> {
    (!is_root()).then_some("this needs root")
}

/// The reason why root's mounts are impossible, if so.
pub fn no_mounts() -> Option<String> {
    no_fuse().or_else(|| not_root().map(str::to_owned))
}

/// Names the first of these programs that is not installed, if any.
pub fn missing_of(programs: &[&str]) -> Option<String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let there = |name: &&&str| std::env::split_paths(&path).any(|folder| folder.join(name).exists());
    programs.iter().find(|name| !there(name)).map(|name| format!("{name} is not installed"))
}

/// A folder with an image in it.
pub struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    /// An empty folder.
    pub fn new() -> Self {
        Self {
            folder: tempfile::Builder::new().prefix("syncline-test-").tempdir().expect("a temporary folder"),
        }
    }

    /// A folder with an image of this size.
    pub fn with_image(size: &str) -> Self {
        let place = Self::new();
        syncline([OsStr::new("mkfs"), place.image().as_ref(), OsStr::new("--size"), OsStr::new(size)]).ok();
        place
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    pub fn image(&self) -> PathBuf {
        self.path().join("image")
    }

    /// A new directory.
    pub fn directory(&self, name: &str) -> PathBuf {
        let path = self.path().join(name);
        fs::create_dir(&path).expect("the name is new");
        path
    }

    /// A copy of the program under test that all users can run, once they may enter the place.
    pub fn copy_of_program(&self, name: &str) -> PathBuf {
        let path = self.path().join(name);
        executable(&path, &fs::read(syncline_path()).expect("it is built"));
        path
    }

    /// Mounts the image at a new directory.
    #[track_caller]
    pub fn mount(&self, name: &str) -> Mount {
        Mount::new(&self.image(), &self.directory(name), &[])
    }

    /// Checks the image.
    #[track_caller]
    pub fn check_clean(&self) {
        syncline([OsStr::new("check"), self.image().as_ref()]).ok();
    }
}

/// A mount; dropping it removes it and its daemon, whatever state they are in.
pub struct Mount {
    pub path: PathBuf,
    daemon: Option<Pid>,
}

impl Mount {
    /// Mounts an image, also with the options of SYNCLINE_TEST_OPTIONS. Leaves the machine's switch for
    /// FUSE over io_uring alone.
    #[track_caller]
    pub fn new(image: &Path, directory: &Path, options: &[&str]) -> Self {
        let leave = ["-o", "transport=available"].map(OsStr::new);
        let arguments = [OsStr::new("mount"), image.as_ref(), directory.as_ref(), leave[0], leave[1]];
        // They are for mounts that can be written.
        let is_snapshot = options.iter().any(|option| option.contains("snapshot"));
        let more = std::env::var_os("SYNCLINE_TEST_OPTIONS").filter(|_| !is_snapshot);
        let more = more.iter().flat_map(|options| [OsStr::new("-o"), options]);
        syncline(arguments.into_iter().chain(more).chain(options.iter().map(OsStr::new))).ok();
        let mut mount = Self { path: directory.to_owned(), daemon: None };
        mount.daemon = Some(mount.pid());
        mount
    }

    /// An existing mount.
    #[track_caller]
    pub fn of(directory: &Path) -> Self {
        let mut mount = Self { path: directory.to_owned(), daemon: None };
        mount.daemon = Some(mount.pid());
        mount
    }

    /// The output of `stats --json`.
    pub fn stats(&self) -> serde_json::Value {
        let answer = syncline([OsStr::new("stats"), self.path.as_ref(), OsStr::new("--json")]).ok();
        serde_json::from_str(&answer.out).expect("JSON")
    }

    /// The daemon's process.
    pub fn pid(&self) -> Pid {
        let pid = self.stats()["daemon"]["pid"].as_i64().expect("a number");
        Pid::from_raw(i32::try_from(pid).expect("a process id")).expect("not zero")
    }

    /// Kills the daemon, like a crash of it.
    pub fn kill(&mut self) {
        let pid = self.daemon.take().expect("it is alive");
        kill_process(pid, Signal::KILL).expect("it is alive");
        wait_for_end(pid);
    }

    /// Unmounts, and waits for the end of the daemon. A program that another test is just starting
    /// briefly holds all files open here.
    #[track_caller]
    pub fn unmount(mut self) -> Answer {
        let unmount = || syncline([OsStr::new("umount"), self.path.as_ref()]);
        let mut answer = unmount();
        for _ in 0..1500 {
            if !answer.err.contains("is in use") {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
            answer = unmount();
        }
        // A shell that another test has just started in a separate mount namespace still has it,
        // and will detach it at once.
        if answer.err.contains("still mounted in the mount namespace of")
            && let Some(daemon) = self.daemon
        {
            wait_for_end(daemon);
            answer = Answer { code: 0, out: String::new(), err: String::new() };
        }
        if answer.code == 0 {
            self.daemon = None;
        }
        answer
    }

    /// Like `unmount`, for tests that compare the output: no other test starts a mount namespace
    /// meanwhile.
    #[track_caller]
    pub fn unmount_alone(self) -> Answer {
        let _alone = NAMESPACES.write().unwrap_or_else(PoisonError::into_inner);
        self.unmount()
    }
}

/// Waits for something that happens in the background.
pub fn eventually(what: &str, mut happened: impl FnMut() -> bool) {
    let started = Instant::now();
    while !happened() {
        assert!(started.elapsed() < LIMIT, "{what}: not within {LIMIT:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Stops a process, and returns when none of its threads runs any more: the kernel stops each of them when it next
/// runs, and until then it may answer a request.
pub fn stop(process: Pid) {
    kill_process(process, Signal::STOP).unwrap();
    let tasks = PathBuf::from(format!("/proc/{}/task", process.as_raw_nonzero()));
    eventually("it has stopped", || {
        let tasks = fs::read_dir(&tasks).unwrap().flatten();
        let stats = tasks.filter_map(|task| fs::read_to_string(task.path().join("stat")).ok());
        // The state follows the name, which may have any characters. The kernel's own threads of io_uring do not stop.
        stats.into_iter().all(|stat| {
            let (name, state) = stat.rsplit_once(") ").unwrap();
            name.contains("(iou-") || state.starts_with(['T', 'Z', 'X'])
        })
    });
}

/// Waits until a daemon's log has these words, which a thread of its own writes. Returns the log.
pub fn wait_for_log(log: &Path, words: &str) -> String {
    let text = || fs::read_to_string(log).unwrap();
    eventually(words, || text().contains(words));
    text()
}

/// Waits until a process is gone or only needs to be reaped.
pub fn wait_for_end(pid: Pid) {
    let stat = format!("/proc/{}/stat", pid.as_raw_nonzero());
    let started = Instant::now();
    while fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z ")) {
        assert!(started.elapsed() < LIMIT, "process {pid:?} does not end");
        std::thread::sleep(Duration::from_millis(5));
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // If nothing is mounted any more, this fails without harm.
        let path = self.path.as_os_str();
        if is_root() {
            tool("umount", &[OsStr::new("-l"), path]);
        } else {
            tool("fusermount3", &[OsStr::new("-uz"), path]);
        }
        if let Some(pid) = self.daemon.take() {
            // Once unmounted it ends by itself; a hanging one must not outlive the test.
            let started = Instant::now();
            while rustix::process::test_kill_process(pid).is_ok()
                && started.elapsed() < Duration::from_secs(10)
            {
                std::thread::sleep(Duration::from_millis(5));
            }
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

/// A loop device; detached when dropped.
pub struct Loop {
    pub device: PathBuf,
}

impl Loop {
    /// A loop device over a file, or `None` if there are none here.
    pub fn new(file: &Path) -> Option<Self> {
        Self::with(file, &[])
    }

    /// A loop device with further options of losetup(8).
    pub fn with(file: &Path, options: &[&str]) -> Option<Self> {
        let mut words = vec![OsStr::new("--find"), OsStr::new("--show")];
        words.extend(options.iter().map(OsStr::new));
        words.push(file.as_ref());
        Some(Self { device: tool("losetup", &words)?.into() })
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        tool("losetup", &[OsStr::new("--detach"), self.device.as_ref()]);
    }
}

/// A small filesystem in memory; unmounted when dropped.
pub struct Tmpfs {
    pub path: PathBuf,
}

impl Tmpfs {
    /// Mounts it at `path`; `None` if that is not permitted.
    pub fn new(path: PathBuf, size: &str) -> Option<Self> {
        let options = format!("size={size}");
        let words = ["-t", "tmpfs", "-o", &options, "none"].map(OsStr::new);
        tool("mount", &[&words[..], &[path.as_ref()]].concat())?;
        Some(Self { path })
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        tool("umount", &[OsStr::new("-l"), self.path.as_ref()]);
    }
}

/// A command to be run as an ordinary user; needs root.
pub fn as_nobody(mut command: Command) -> Command {
    command.uid(NOBODY).gid(NOBODY);
    command
}

/// Changes the blocks of an image that `is_one` finds: both copies of a tree node, for example.
pub fn edit_blocks(path: &Path, is_one: impl Fn(&[u8]) -> bool, change: impl Fn(&mut [u8])) {
    const BLOCK: usize = 4096;
    let bytes = fs::read(path).expect("it exists");
    let found: Vec<u64> =
        (0..).zip(bytes.chunks(BLOCK)).filter(|(_, block)| is_one(block)).map(|(number, _)| number).collect();
    assert!(!found.is_empty(), "no such block");
    found.into_iter().for_each(|number| edit(path, number * BLOCK as u64, BLOCK, &change));
}

/// Changes the bytes of a file at an offset.
pub fn edit(path: &Path, offset: u64, len: usize, change: impl FnOnce(&mut [u8])) {
    use std::os::unix::fs::FileExt;
    let file = fs::File::options().read(true).write(true).open(path).expect("it exists");
    let mut bytes = vec![0; len];
    file.read_exact_at(&mut bytes, offset).expect("it is that long");
    change(&mut bytes);
    file.write_all_at(&bytes, offset).expect("it can be written");
}
