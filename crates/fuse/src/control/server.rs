//! The daemon's end: texts by name, and snapshots of those that are being read.

use super::wire::{ControlIn, PAGE_BYTES, answer};
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Snapshots kept for readers of long texts. One more pushes out the oldest, whose reader has to
/// start again.
const SNAPSHOTS_MAX: usize = 16;

type Provider = Arc<dyn Fn(&Asker<'_>) -> Result<String, i32> + Send + Sync>;
type Command = Arc<dyn Fn(u64) -> Result<(), i32> + Send + Sync>;

/// The process that asks for a text, and its argument.
#[derive(Clone, Copy, Debug)]
pub struct Asker<'a> {
    /// The file through which the question came: the asker could open it for reading.
    pub ino: u64,
    /// The asker's user.
    pub uid: u32,
    /// The asker is root or runs the daemon.
    pub is_owner: bool,
    /// The part after the text's name and a colon.
    pub argument: &'a str,
}

impl Asker<'_> {
    /// A user, asking through a file.
    pub(crate) fn new(ino: u64, uid: u32) -> Self {
        Self { ino, uid, is_owner: uid == 0 || uid == crate::mount::own_uid(), argument: "" }
    }
}

/// The texts and commands that the daemon offers through its mount.
#[derive(Default)]
pub struct Control {
    providers: Mutex<BTreeMap<String, Provider>>,
    commands: Mutex<BTreeMap<String, Command>>,
    receiver: Mutex<Option<Arc<dyn Receiver>>>,
    snapshots: Mutex<Snapshots>,
}

/// Takes streams that come through the mount. Errors are errnos: EAGAIN if it is to be asked again in a
/// moment. It runs on threads that serve requests: it must not wait.
pub trait Receiver: Send + Sync {
    /// Begins a transfer, which gets a number other than 0.
    fn begin(&self, request: &str) -> Result<u64, i32>;
    /// Takes the next bytes; none say that the sender is still there.
    fn take(&self, transfer: u64, bytes: &[u8]) -> Result<(), i32>;
    /// The stream has ended: how it went.
    fn end(&self, transfer: u64) -> Result<String, i32>;
}

#[derive(Default)]
struct Snapshots {
    kept: VecDeque<Snapshot>,
    last_id: u64,
}

/// A text as it was when first asked for.
struct Snapshot {
    id: u64,
    /// The asker's user and the kind of question: ids can be guessed, and not everybody may ask
    /// everything.
    asked: (u32, u32),
    text: Arc<[u8]>,
}

impl Control {
    /// Makes `provider` answer for the text `name` (at most 32 bytes), replacing an earlier
    /// provider of that name. It runs on a thread that serves requests: it must be quick and must
    /// not block.
    pub fn register(&self, name: &str, provider: impl Fn() -> String + Send + Sync + 'static) {
        self.register_about(name, move |_| Ok(provider()));
    }

    /// Registers a text that depends on the asker and on an argument; the provider may answer with
    /// an errno. Name, colon and argument have at most 32 bytes together.
    pub fn register_about(
        &self,
        name: &str,
        provider: impl Fn(&Asker<'_>) -> Result<String, i32> + Send + Sync + 'static,
    ) {
        self.providers.lock().insert(name.to_owned(), Arc::new(provider));
    }

    /// Makes `command` run for the name `name` (at most 32 bytes), given a number; it returns an
    /// errno if it fails. It runs on a thread that serves requests, so it may only start long work,
    /// not do it.
    pub fn register_command(
        &self,
        name: &str,
        command: impl Fn(u64) -> Result<(), i32> + Send + Sync + 'static,
    ) {
        self.commands.lock().insert(name.to_owned(), Arc::new(command));
    }

    /// Makes `receiver` take streams.
    pub fn register_receiver(&self, receiver: Arc<dyn Receiver>) {
        *self.receiver.lock() = Some(receiver);
    }

    /// Passes part of a stream on, or returns an errno.
    pub(crate) fn receive(&self, question: &ControlIn, rest: &[u8]) -> Result<Vec<u8>, i32> {
        let receiver = self.receiver.lock().clone().ok_or(libc::EOPNOTSUPP)?;
        let bytes = usize::try_from(question.offset).ok().and_then(|length| rest.get(..length));
        let bytes = bytes.ok_or(libc::EINVAL)?;
        match question.name() {
            b"begin" => {
                let request = std::str::from_utf8(bytes).map_err(|_| libc::EINVAL)?;
                Ok(answer(receiver.begin(request)?, 0, &[]))
            }
            b"take" => receiver.take(question.snapshot, bytes).map(|()| question.empty_answer()),
            b"end" => {
                let text = receiver.end(question.snapshot)?;
                let page = &text.as_bytes()[..text.len().min(PAGE_BYTES)];
                Ok(answer(question.snapshot, page.len() as u64, page))
            }
            _ => Err(libc::EINVAL),
        }
    }

    /// Runs the requested command, or returns an errno.
    pub(crate) fn command(&self, question: &ControlIn) -> Result<Vec<u8>, i32> {
        let name = std::str::from_utf8(question.name()).map_err(|_| libc::ENOENT)?;
        let command = self.commands.lock().get(name).cloned().ok_or(libc::ENOENT)?;
        catch_unwind(AssertUnwindSafe(|| command(question.offset))).map_err(|_| {
            tracing::error!(name, "a command panicked");
            libc::EIO
        })??;
        Ok(question.empty_answer())
    }

    /// The current text `name`.
    pub fn text(&self, name: &str) -> Option<String> {
        let provider = self.providers.lock().get(name).cloned()?;
        provider(&Asker { ino: 1, uid: crate::mount::own_uid(), is_owner: true, argument: "" }).ok()
    }

    /// Answers a question for a page of text, or returns an errno.
    pub(crate) fn page(&self, question: &ControlIn, asker: Asker<'_>) -> Result<Vec<u8>, i32> {
        match question.snapshot {
            0 => Ok(self.first_page(question, asker.uid, self.provided(question, asker)?)),
            _ => self.kept_page(question, asker.uid),
        }
    }

    /// A page of a snapshot that the same user asked for with the same kind of question.
    pub(crate) fn kept_page(&self, question: &ControlIn, uid: u32) -> Result<Vec<u8>, i32> {
        let text = self.snapshots.lock().get(question, uid).ok_or(libc::ESTALE)?;
        Ok(self.page_of(question, question.snapshot, &text))
    }

    /// Keeps a snapshot, and answers with a page of it.
    pub(crate) fn first_page(&self, question: &ControlIn, uid: u32, text: Arc<[u8]>) -> Vec<u8> {
        let id = self.snapshots.lock().keep((uid, question.question), text.clone());
        self.page_of(question, id, &text)
    }

    fn page_of(&self, question: &ControlIn, id: u64, text: &[u8]) -> Vec<u8> {
        let start = usize::try_from(question.offset).unwrap_or(usize::MAX).min(text.len());
        let end = text.len().min(start.saturating_add(PAGE_BYTES));
        if end == text.len() {
            self.snapshots.lock().drop_one(id);
        }
        answer(id, text.len() as u64, &text[start..end])
    }

    fn provided(&self, question: &ControlIn, asker: Asker<'_>) -> Result<Arc<[u8]>, i32> {
        let question = std::str::from_utf8(question.name()).map_err(|_| libc::ENOENT)?;
        let (name, argument) = question.split_once(':').unwrap_or((question, ""));
        let asker = Asker { argument, ..asker };
        let provider = self.providers.lock().get(name).cloned().ok_or(libc::ENOENT)?;
        // No lock is held here: a provider may take long or panic.
        let text = catch_unwind(AssertUnwindSafe(|| provider(&asker))).map_err(|_| {
            tracing::error!(name, "the provider of a text panicked");
            libc::EIO
        })??;
        Ok(text.into_bytes().into())
    }
}

impl Snapshots {
    fn keep(&mut self, asked: (u32, u32), text: Arc<[u8]>) -> u64 {
        self.last_id += 1;
        if self.kept.len() == SNAPSHOTS_MAX {
            self.kept.pop_front();
        }
        self.kept.push_back(Snapshot { id: self.last_id, asked, text });
        self.last_id
    }

    fn get(&self, question: &ControlIn, uid: u32) -> Option<Arc<[u8]>> {
        let asked = |kept: &&Snapshot| kept.id == question.snapshot && kept.asked == (uid, question.question);
        self.kept.iter().find(asked).map(|kept| kept.text.clone())
    }

    fn drop_one(&mut self, id: u64) {
        self.kept.retain(|kept| kept.id != id);
    }
}

#[cfg(test)]
mod tests {
    use super::super::wire::{ControlOut, MESSAGE_BYTES, Question};
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};
    use zerocopy::FromBytes;

    fn ask(control: &Control, snapshot: u64, offset: u64) -> Result<(ControlOut, Vec<u8>), i32> {
        ask_as(control, 0, "long", snapshot, offset)
    }

    fn ask_as(
        control: &Control,
        uid: u32,
        name: &str,
        snapshot: u64,
        offset: u64,
    ) -> Result<(ControlOut, Vec<u8>), i32> {
        let question = ControlIn::new(Question::Text, name, snapshot, offset).unwrap();
        let message = control.page(&question, Asker::new(7, uid))?;
        assert_eq!(message.len(), MESSAGE_BYTES);
        let (header, rest) = ControlOut::read_from_prefix(&message).unwrap();
        Ok((header, rest[..header.len as usize].to_vec()))
    }

    #[test]
    fn pages_come_from_one_snapshot() {
        let control = Control::default();
        let calls = AtomicU32::new(0);
        control.register("long", move || {
            (calls.fetch_add(1, Ordering::Relaxed)).to_string().repeat(2 * PAGE_BYTES + 5)
        });
        let (first, page) = ask(&control, 0, 0).unwrap();
        assert_eq!((page.len(), first.total), (PAGE_BYTES, 2 * PAGE_BYTES as u64 + 5));
        let (other, _) = ask(&control, 0, 0).unwrap();
        assert_ne!(other.snapshot, first.snapshot);
        let (last, page) = ask(&control, first.snapshot, 2 * PAGE_BYTES as u64).unwrap();
        assert_eq!((last.snapshot, page), (first.snapshot, b"00000".to_vec()));
        // The snapshot goes once it has been read to its end.
        assert_eq!(ask(&control, first.snapshot, 0).unwrap_err(), libc::ESTALE);
    }

    #[test]
    fn texts_may_depend_on_who_asks_and_about_what() {
        let control = Control::default();
        control.register_about("about", |asker| match asker.argument {
            "secret" if !asker.is_owner => Err(libc::EPERM),
            argument => Ok(format!("{}{argument}", asker.ino).repeat(PAGE_BYTES)),
        });
        let stranger = crate::mount::own_uid() + 1;
        assert_eq!(ask_as(&control, stranger, "about:secret", 0, 0).unwrap_err(), libc::EPERM);
        assert!(ask_as(&control, stranger, "about:x", 0, 0).unwrap().1.starts_with(b"7x7x"));
        let (first, page) = ask_as(&control, 0, "about:secret", 0, 0).unwrap();
        assert!(page.starts_with(b"7secret7"));
        let guessed = ask_as(&control, stranger, "about:x", first.snapshot, PAGE_BYTES as u64);
        assert_eq!(guessed.unwrap_err(), libc::ESTALE);
        assert!(ask_as(&control, 0, "about:secret", first.snapshot, PAGE_BYTES as u64).is_ok());
    }

    #[test]
    fn snapshots_answer_only_the_sort_of_question_that_they_were_taken_for() {
        let control = Control::default();
        let paths = ControlIn::new(Question::Paths, "17", 0, 0).unwrap();
        let secret: Arc<[u8]> = vec![b'x'; 2 * PAGE_BYTES].into();
        let (first, _) = ControlOut::read_from_prefix(&control.first_page(&paths, 0, secret)).unwrap();
        let other = ControlIn::new(Question::Text, "long", first.snapshot, 0).unwrap();
        assert_eq!(control.kept_page(&other, 0).unwrap_err(), libc::ESTALE);
        let same = ControlIn::new(Question::Paths, "17", first.snapshot, PAGE_BYTES as u64).unwrap();
        assert!(control.kept_page(&same, 0).is_ok());
    }

    #[test]
    fn commands_get_their_argument_and_unknown_ones_are_refused() {
        let control = Control::default();
        control.register_command("even", |number| if number % 2 == 0 { Ok(()) } else { Err(libc::EDOM) });
        control.register_command("panics", |_| panic!("on purpose"));
        let ask = |name: &str, number| {
            control.command(&ControlIn::new(Question::Command, name, 0, number).unwrap()).map(drop)
        };
        assert_eq!(ask("even", 4), Ok(()));
        assert_eq!(ask("even", 5), Err(libc::EDOM));
        assert_eq!(ask("odd", 5), Err(libc::ENOENT));
        assert_eq!(ask("panics", 0), Err(libc::EIO));
    }

    #[test]
    fn snapshots_are_few_and_strange_questions_harmless() {
        let control = Control::default();
        control.register("long", || "x".repeat(3 * PAGE_BYTES));
        let (first, _) = ask(&control, 0, 0).unwrap();
        for _ in 0..SNAPSHOTS_MAX {
            ask(&control, 0, 0).unwrap();
        }
        assert_eq!(ask(&control, first.snapshot, 1).unwrap_err(), libc::ESTALE);
        assert_eq!(control.snapshots.lock().kept.len(), SNAPSHOTS_MAX);
        assert_eq!(ask(&control, 0, u64::MAX).unwrap().1, b"");
        let unknown = ControlIn::new(Question::Text, "unknown", 0, 0).unwrap();
        assert_eq!(control.page(&unknown, Asker::new(1, 0)).unwrap_err(), libc::ENOENT);
        control.register("long", || panic!("on purpose"));
        assert_eq!(ask(&control, 0, 0).unwrap_err(), libc::EIO);
    }
}
