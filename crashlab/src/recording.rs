//! Recordings, and their file: a header, and then one frame after the other, each written when its
//! action happened. So the memory that a recording takes does not grow with it, and one that is cut off
//! is good up to its last whole frame. FORMAT.md has the layout.

use crate::Error;
use crate::action::{Action, Event, Stored};
use crate::history::clean;
use crate::stack::{Module, Place, Stacks};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// Begins every recording.
pub const MAGIC: [u8; 8] = *b"CRASHLAB";
/// Version of the format.
pub const VERSION: u32 = 2;
const HEADER_BYTES: u64 = 12;
/// Bytes of the checksum behind the bytes of a write.
const SUM_BYTES: usize = 4;
/// The longest name.
const NAME_BYTES_MAX: usize = 255;
/// The longest frame.
const FRAME_BYTES_MAX: u32 = 32 << 20;
/// The longest write.
const WRITE_BYTES_MAX: u32 = 1 << 30;

/// A recording.
pub struct Recording {
    /// Everything that happened, in order.
    pub events: Vec<Event>,
    /// The first event of the program; what came before is durable.
    pub begin: usize,
    /// The frames behind the last event are incomplete: the recording was cut off.
    pub is_cut_off: bool,
    /// The stacks that events name.
    pub stacks: Arc<Stacks>,
    file: Arc<File>,
    path: PathBuf,
}

impl Recording {
    /// The same bytes with other events.
    pub fn with_events(&self, events: Vec<Event>) -> Self {
        let begin = begin_of(&events);
        let (stacks, file, path) = (self.stacks.clone(), self.file.clone(), self.path.clone());
        Self { events, begin, is_cut_off: self.is_cut_off, stacks, file, path }
    }

    /// Opens a recording.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let failed = |error| Error::file(path, error);
        let file = File::open(path).map_err(failed)?;
        let len = file.metadata().map_err(failed)?.len();
        let mut reader = BufReader::new(&file);
        let mut header = [0; HEADER_BYTES as usize];
        match reader.read_exact(&mut header) {
            Ok(()) if header.starts_with(&MAGIC) => {}
            Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => return Err(failed(error)),
            _ => return Err(Error::NotARecording(path.to_owned())),
        }
        let found = u32::from_le_bytes([header[8], header[9], header[10], header[11]]);
        if found != VERSION {
            return Err(Error::Version { path: path.to_owned(), found, supported: VERSION });
        }
        let mut frames = Frames { reader, at: HEADER_BYTES, len, path, stacks: Stacks::default() };
        let mut events = Vec::new();
        let is_cut_off = loop {
            match frames.next_event()? {
                Next::Event(event) => events.push(event),
                Next::Stack => {}
                Next::End => break false,
                Next::CutOff => break true,
            }
        };
        let begin = begin_of(&events);
        if events[..begin].iter().any(|event| matches!(event.action, Action::Printed(_) | Action::End { .. }))
        {
            return Err(frames.damaged("the program printed before it began"));
        }
        let stacks = Arc::new(frames.stacks);
        Ok(Self { events, begin, is_cut_off, stacks, file: Arc::new(file), path: path.to_owned() })
    }

    /// The bytes of a write.
    pub fn bytes(&self, action: &Action) -> Result<Vec<u8>, Error> {
        let Action::Write { len, stored, .. } = action else { return Ok(Vec::new()) };
        let mut bytes = vec![0; *len as usize + SUM_BYTES];
        self.file.read_exact_at(&mut bytes, stored.at).map_err(|error| Error::file(&self.path, error))?;
        let sum = bytes.split_off(*len as usize);
        if crc32c::crc32c(&bytes).to_le_bytes()[..] != sum[..] {
            let (path, detail) = (self.path.clone(), "written bytes do not match their checksum".to_owned());
            return Err(Error::Damaged { path, at: stored.at, detail });
        }
        Ok(bytes)
    }

    /// Position of the event at which the program ended.
    pub fn end(&self) -> usize {
        let end = self.events.iter().rposition(|event| matches!(event.action, Action::End { .. }));
        end.unwrap_or(self.events.len())
    }
}

/// True if the kernel could have asked for it: recordings may come from strangers.
fn is_possible(action: &Action) -> bool {
    let is_name = |name: &[u8]| {
        !matches!(name, b"" | b"." | b"..")
            && name.len() <= NAME_BYTES_MAX
            && !name.iter().any(|byte| matches!(byte, 0 | b'/'))
    };
    let is_size = |size: u64| size <= i64::MAX as u64;
    let is_end = |offset: u64, len: u64| offset.checked_add(len).is_some_and(is_size);
    let sizes = match action {
        Action::Write { offset, len, size, .. } => {
            *len > 0 && is_end(*offset, (*len).into()) && is_size(*size)
        }
        Action::SyncRange { offset, len, .. } => is_end(*offset, *len),
        Action::Zero { offset, len, size, .. } => is_end(*offset, *len) && is_size(*size),
        Action::Truncate { from, to, .. } => is_size(*from) && is_size(*to),
        _ => true,
    };
    sizes && action.names().iter().all(|(_, name)| is_name(name))
}

/// The event after [`Action::Begin`].
fn begin_of(events: &[Event]) -> usize {
    events.iter().position(|event| event.action == Action::Begin).map_or(events.len(), |at| at + 1)
}

/// The contents of a frame.
#[derive(Serialize, Deserialize)]
enum Entry {
    Event(Event),
    /// The next module.
    Module(Module),
    /// The next stack.
    Stack(Vec<Place>),
}

enum Next {
    Event(Event),
    /// Nothing happened: a stack, or a part of one.
    Stack,
    End,
    CutOff,
}

/// The frames of a file.
struct Frames<'a> {
    reader: BufReader<&'a File>,
    at: u64,
    len: u64,
    path: &'a Path,
    stacks: Stacks,
}

impl Frames<'_> {
    fn next_event(&mut self) -> Result<Next, Error> {
        if self.at == self.len {
            return Ok(Next::End);
        }
        let mut head = [0; 8];
        if self.len - self.at < head.len() as u64 {
            return Ok(Next::CutOff);
        }
        self.read(&mut head)?;
        let len = u32::from_le_bytes([head[0], head[1], head[2], head[3]]);
        let sum = u32::from_le_bytes([head[4], head[5], head[6], head[7]]);
        if len > FRAME_BYTES_MAX {
            return Err(self.damaged("a frame is too long"));
        }
        if self.len - self.at < u64::from(len) {
            return Ok(Next::CutOff);
        }
        let mut frame = vec![0; len as usize];
        self.read(&mut frame)?;
        if crc32c::crc32c(&frame) != sum {
            return Err(self.damaged("a checksum does not match"));
        }
        let entry = postcard::from_bytes(&frame)
            .map_err(|error| self.damaged(&format!("a frame is invalid ({error})")))?;
        let mut event = match entry {
            Entry::Event(event) => event,
            Entry::Module(module) => {
                self.stacks.modules.push(module);
                return Ok(Next::Stack);
            }
            Entry::Stack(stack) => match self.stacks.push(stack) {
                true => return Ok(Next::Stack),
                false => return Err(self.damaged("a stack is impossible")),
            },
        };
        if !self.stacks.has(event.stack) || !is_possible(&event.action) {
            return Err(self.damaged("an action is impossible"));
        }
        // A process chooses its name, which terminals must not obey.
        event.program = event.program.map(|program| clean(program.as_bytes()));
        if let Action::Write { len, stored, .. } = &mut event.action {
            let bytes = u64::from(*len) + SUM_BYTES as u64;
            if *len > WRITE_BYTES_MAX {
                return Err(self.damaged("a write is too long"));
            }
            if self.len - self.at < bytes {
                return Ok(Next::CutOff);
            }
            *stored = Stored { at: self.at };
            self.at += bytes;
            let skipped = self.reader.seek_relative(bytes as i64);
            skipped.map_err(|error| Error::file(self.path, error))?;
        }
        Ok(Next::Event(event))
    }

    fn read(&mut self, bytes: &mut [u8]) -> Result<(), Error> {
        self.at += bytes.len() as u64;
        self.reader.read_exact(bytes).map_err(|error| Error::file(self.path, error))
    }

    fn damaged(&self, detail: &str) -> Error {
        Error::Damaged { path: self.path.to_owned(), at: self.at, detail: detail.to_owned() }
    }
}

/// Nanoseconds since 1970.
pub fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// Who asks for a change.
#[derive(Clone, Copy, Debug)]
pub struct Caller {
    /// The thread, or zero.
    pub thread: u32,
    /// Its stack, or zero.
    pub stack: u32,
    /// It runs the same program as at its last change.
    pub is_known: bool,
}

impl From<u32> for Caller {
    fn from(thread: u32) -> Self {
        Self { thread, stack: 0, is_known: false }
    }
}

/// Writes a recording while it happens.
pub struct Recorder(Mutex<Inner>);

struct Inner {
    file: BufWriter<File>,
    /// Changes and syncs.
    actions: u64,
    /// The process of each thread.
    processes: HashMap<u32, u32>,
    /// The program of each process.
    programs: HashMap<u32, String>,
    /// The first error: the recording ends there.
    failed: Option<io::Error>,
}

impl Recorder {
    /// Begins a recording in an empty file.
    pub fn new(file: File) -> io::Result<Self> {
        let mut file = BufWriter::with_capacity(1 << 20, file);
        file.write_all(&MAGIC)?;
        file.write_all(&VERSION.to_le_bytes())?;
        file.flush()?;
        let (processes, programs) = (HashMap::new(), HashMap::new());
        Ok(Self(Mutex::new(Inner { file, actions: 0, processes, programs, failed: None })))
    }

    /// Records an action of a thread, or of nobody (0); that of a write with its bytes. Returns the time.
    pub fn record(&self, caller: impl Into<Caller>, action: Action, bytes: &[u8]) -> u64 {
        let time_ns = now();
        self.record_at(time_ns, caller.into(), action, bytes);
        time_ns
    }

    /// Records an action of this time.
    pub fn record_at(&self, time_ns: u64, caller: Caller, action: Action, bytes: &[u8]) {
        let mut inner = self.0.lock();
        let (pid, program) = match caller.thread {
            0 => (0, None),
            thread => match inner.processes.get(&thread).filter(|_| caller.is_known) {
                Some(pid) => (*pid, None),
                None => inner.process(thread),
            },
        };
        let stack = caller.stack;
        inner.actions += u64::from(action.ino().is_some() || action == Action::SyncAll);
        inner.add(&Entry::Event(Event { time_ns, pid, program, stack, action }), bytes);
    }

    /// Records the next module of stacks.
    pub fn add_module(&self, module: Module) {
        self.0.lock().add(&Entry::Module(module), &[]);
    }

    /// Records the next stack.
    pub fn add_stack(&self, stack: Vec<Place>) {
        self.0.lock().add(&Entry::Stack(stack), &[]);
    }

    /// Number of changes and syncs so far.
    pub fn actions(&self) -> u64 {
        self.0.lock().actions
    }

    /// Writes what is still in memory, and returns the first error.
    pub fn finish(&self) -> io::Result<()> {
        let mut inner = self.0.lock();
        match inner.failed.take() {
            Some(error) => Err(error),
            None => inner.file.flush(),
        }
    }
}

impl Inner {
    /// The process of a thread, and its program unless it is known to run it.
    fn process(&mut self, thread: u32) -> (u32, Option<String>) {
        let status = std::fs::read_to_string(format!("/proc/{thread}/status")).unwrap_or_default();
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let pid = field("Tgid:").and_then(|pid| pid.parse().ok()).unwrap_or(thread);
        self.processes.insert(thread, pid);
        let name = field("Name:").filter(|_| thread != 0).map(str::to_owned);
        let is_new = name.is_some() && self.programs.get(&pid) != name.as_ref();
        if let Some(name) = name.clone().filter(|_| is_new) {
            self.programs.insert(pid, name);
        }
        (pid, name.filter(|_| is_new))
    }

    fn add(&mut self, entry: &Entry, bytes: &[u8]) {
        if self.failed.is_none() {
            self.failed = self.write(entry, bytes).err();
        }
    }

    fn write(&mut self, entry: &Entry, bytes: &[u8]) -> io::Result<()> {
        let frame = postcard::to_allocvec(entry).map_err(io::Error::other)?;
        self.file.write_all(&(frame.len() as u32).to_le_bytes())?;
        self.file.write_all(&crc32c::crc32c(&frame).to_le_bytes())?;
        self.file.write_all(&frame)?;
        self.file.write_all(bytes)?;
        if matches!(entry, Entry::Event(event) if event.action.is_write()) {
            self.file.write_all(&crc32c::crc32c(bytes).to_le_bytes())?;
        }
        // Whatever ends this process, the recording is good up to here.
        self.file.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::action::{ROOT, What};
    use crate::stack::FRAMES_MAX;

    fn module() -> Module {
        Module { path: b"/bin/save".into(), build_id: Some(vec![1; 20]), size: 5, mtime_ns: 6 }
    }

    fn sample(path: &Path) -> Vec<Action> {
        let recorder = Recorder::new(File::create(path).unwrap()).unwrap();
        recorder.add_module(module());
        recorder.add_stack(vec![Place { module: 0, address: 0x1234 }]);
        let create = |ino, name: &[u8]| {
            let (what, name) = (What::File, name.to_vec());
            Action::Create { parent: ROOT, name, ino, what, mode: 0o644, uid: 0, gid: 0 }
        };
        let stored = Stored::default();
        let write = Action::Write { ino: 2, offset: 5, len: 3, size: 0, mapped: false, stored };
        let actions = vec![
            create(2, b"old"),
            Action::Begin,
            write,
            Action::Printed(b"done\n".into()),
            create(3, b"new"),
        ];
        for action in &actions {
            let caller = Caller { thread: 7, stack: u32::from(action.is_write()), is_known: false };
            recorder.record(caller, action.clone(), if action.is_write() { b"abc" } else { b"" });
        }
        recorder.finish().unwrap();
        actions
    }

    #[test]
    fn a_recording_comes_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("r");
        let actions = sample(&path);
        let recording = Recording::open(&path).unwrap();
        assert_eq!((recording.begin, recording.is_cut_off), (2, false));
        assert_eq!(recording.bytes(&recording.events[2].action).unwrap(), b"abc");
        assert_eq!(recording.stacks.modules, [module()]);
        let stacks = recording.events.iter().map(|event| recording.stacks.get(event.stack).len());
        assert_eq!(stacks.collect::<Vec<_>>(), [0, 0, 1, 0, 0]);
        let other = |action: &&Action| !action.is_write();
        let found: Vec<&Action> = recording.events.iter().map(|event| &event.action).filter(other).collect();
        assert_eq!(found, actions.iter().filter(other).collect::<Vec<_>>());
    }

    #[test]
    fn a_stack_that_is_not_there_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("r");
        let refused = |write: &dyn Fn(&Recorder)| {
            let recorder = Recorder::new(File::create(&path).unwrap()).unwrap();
            recorder.add_module(module());
            write(&recorder);
            recorder.finish().unwrap();
            matches!(Recording::open(&path), Err(Error::Damaged { .. }))
        };
        let place = |module| Place { module, address: u64::MAX };
        assert!(!refused(&|recorder| recorder.add_stack(vec![place(0)])));
        assert!(refused(&|recorder| recorder.add_stack(vec![place(1)])));
        assert!(refused(&|recorder| recorder.add_stack(vec![place(0); FRAMES_MAX + 1])));
        let caller = Caller { thread: 7, stack: 1, is_known: false };
        assert!(refused(&|recorder| {
            recorder.record(caller, Action::Begin, &[]);
        }));
    }

    #[test]
    fn a_recording_that_is_cut_off_is_good_up_to_there_and_a_changed_one_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("r");
        sample(&path);
        let whole = std::fs::read(&path).unwrap();
        for len in 0..whole.len() {
            std::fs::write(&path, &whole[..len]).unwrap();
            match Recording::open(&path) {
                Ok(recording) => assert!(recording.events.len() < 5),
                Err(error) => assert!(matches!(error, Error::NotARecording(_)) && len < 12, "{error}"),
            }
        }
        for at in 0..whole.len() {
            let mut changed = whole.clone();
            changed[at] ^= 0x10;
            std::fs::write(&path, &changed).unwrap();
            let is_noticed = match Recording::open(&path) {
                Ok(recording) => {
                    let broken = |event: &Event| recording.bytes(&event.action).is_err();
                    recording.is_cut_off || recording.events.iter().any(broken)
                }
                Err(_) => true,
            };
            assert!(is_noticed, "byte {at} was changed, and nobody noticed");
        }
    }
}
