//! The keys of encrypted images: where a command gets them.

use crate::failure::{Cause, Failure};
use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::termios::{LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcsetattr};
use signal_hook::consts::SIGINT;
use std::fmt;
use std::fs::File;
use std::io::{self, IsTerminal, PipeReader, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use syncline_image::{KeyError, Question, Secret};

/// How often a person is asked for a passphrase.
const ATTEMPTS: usize = 3;
/// The byte that Ctrl-C types.
const INTERRUPT: u8 = 3;
/// The credential that systemd gives a service for its image.
const CREDENTIAL: &str = "syncline.key";

/// Choices that every command knows.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct KeyChoices {
    /// File with the key of an encrypted image: '-' for standard input, /dev/fd/N for a descriptor
    #[arg(long, global = true, value_name = "FILE", help_heading = "Encrypted images")]
    key_file: Option<PathBuf>,
    /// Command whose output is the key of an encrypted image
    #[arg(long, global = true, value_name = "COMMAND", help_heading = "Encrypted images")]
    #[arg(conflicts_with = "key_file")]
    key_command: Option<String>,
}

/// Choices of a new key.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct NewKeyChoices {
    /// File with the new key; without it, you are asked for a passphrase
    #[arg(long, value_name = "FILE")]
    new_key_file: Option<PathBuf>,
    /// Command whose output is the new key
    #[arg(long, value_name = "COMMAND", conflicts_with = "new_key_file")]
    new_key_command: Option<String>,
}

/// A place with a key in it.
#[derive(Clone, Debug)]
enum Source {
    File(PathBuf),
    Command(String),
}

static CHOSEN: Mutex<Option<Source>> = Mutex::new(None);

impl Source {
    fn of(file: Option<PathBuf>, command: Option<String>) -> Option<Self> {
        file.map(Self::File).or(command.map(Self::Command))
    }

    fn read(&self) -> Result<Secret, KeyError> {
        let secret = match self {
            Self::File(path) if path.as_os_str() == "-" => {
                // Without the buffer of the standard library, which is not wiped.
                let input = io::stdin().as_fd().try_clone_to_owned().map(File::from);
                let read = input.and_then(|mut input| Secret::read(&mut input));
                read.map_err(|error| KeyError::Source(format!("the key on standard input: {error}")))
            }
            Self::File(path) => {
                let read = File::open(path).and_then(|mut file| Secret::read(&mut file));
                read.map_err(|error| KeyError::Source(format!("the key file {}: {error}", path.display())))
            }
            Self::Command(command) => output(command),
        };
        secret?.ok_or(KeyError::Length)
    }
}

/// The output of a command, which a shell runs.
fn output(command: &str) -> Result<Option<Secret>, KeyError> {
    let failed = |why: String| KeyError::Source(format!("the key command '{command}': {why}"));
    let mut child = Command::new("sh")
        .arg("-c")
        .arg(command)
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| failed(error.to_string()))?;
    let mut pipe = child.stdout.take().expect("it was asked for");
    let secret = Secret::read(&mut pipe);
    // A command that writes more than a key ends by that.
    drop(pipe);
    let status = child.wait().map_err(|error| failed(error.to_string()))?;
    match status.success() {
        true => secret.map_err(|error| failed(error.to_string())),
        false => Err(failed(format!("it failed ({status})"))),
    }
}

/// Takes the choices of the command line.
pub fn start(choices: KeyChoices) {
    choose(choices.key_file, choices.key_command);
    syncline_image::ask_for_keys(Arc::new(answer));
}

/// Chooses the place with the key, unless neither is given.
fn choose(file: Option<PathBuf>, command: Option<String>) {
    if let Some(source) = Source::of(file, command) {
        syncline_image::need_keys();
        *CHOSEN.lock().expect("nobody panics with it") = Some(source);
    }
}

/// Takes the options that say where the key is out of those of a mount. So neither a daemon's command line nor its
/// figures have them. Returns the others, one by one.
pub fn take_options(options: &[String]) -> Result<Vec<String>, Failure> {
    let mut others = Vec::new();
    for option in options.iter().flat_map(|list| list.split(',')).map(str::trim) {
        match option.split_once('=') {
            Some(("key-file" | "key-command", "")) => {
                return Err(Failure::usage(format!("-o {option}: say where the key is")));
            }
            Some(("key-file", path)) => choose(Some(path.into()), None),
            Some(("key-command", command)) => choose(None, Some(command.to_owned())),
            _ => others.push(option.to_owned()),
        }
    }
    Ok(others)
}

/// True if the user names a key.
pub fn is_chosen() -> bool {
    CHOSEN.lock().expect("nobody panics with it").is_some()
}

/// The place with the key that was chosen, or that a service has.
fn source() -> Option<Source> {
    let chosen = CHOSEN.lock().expect("nobody panics with it").clone();
    let credential = || {
        let path = PathBuf::from(std::env::var_os("CREDENTIALS_DIRECTORY")?).join(CREDENTIAL);
        path.exists().then_some(Source::File(path))
    };
    chosen.or_else(credential)
}

/// Answers the question for the key of an image.
fn answer(question: Question<'_>) -> Result<Option<Secret>, KeyError> {
    match source() {
        Some(source) if question.attempt == 0 => source.read().map(Some),
        Some(_) => Ok(None),
        None if question.unattended || question.attempt >= ATTEMPTS => Ok(None),
        None => {
            if question.attempt > 0 {
                note!("syncline: this passphrase does not open the image");
            }
            prompt(&format!("Passphrase of {}: ", question.image.display()))
        }
    }
}

/// Asks a person; `None` if there is no terminal.
fn prompt(text: &str) -> Result<Option<Secret>, KeyError> {
    let failed = |error: io::Error| KeyError::Source(format!("the terminal: {error}"));
    let Ok(terminal) = File::options().read(true).write(true).open("/dev/tty") else { return Ok(None) };
    let quiet = Quiet::of(&terminal).map_err(failed)?;
    (&terminal).write_all(text.as_bytes()).map_err(failed)?;
    let typed = Secret::read(&mut Line { terminal: &terminal, is_read: false }).map_err(failed);
    drop(quiet);
    let secret = typed?.ok_or(KeyError::Length)?;
    if secret.as_bytes().ends_with(&[INTERRUPT]) {
        // Ends the program as the signal would have.
        let _ = signal_hook::low_level::emulate_default_handler(SIGINT);
    }
    Ok(Some(secret))
}

/// The next line that is typed.
struct Line<'a> {
    terminal: &'a File,
    is_read: bool,
}

impl Read for Line<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if std::mem::replace(&mut self.is_read, true) {
            return Ok(0);
        }
        // A terminal gives one line at a time.
        self.terminal.read(buf)
    }
}

/// A terminal that does not show what is typed, and asks one question at a time. It is as before when this is dropped.
/// Ctrl-C ends a line instead of the program, which would leave the terminal like that.
struct Quiet<'a> {
    terminal: &'a File,
    before: Termios,
    /// Locked while this process asks: in a pipeline, both sides may want to.
    _locked: Option<File>,
}

impl<'a> Quiet<'a> {
    fn of(terminal: &'a File) -> io::Result<Self> {
        let (input, errors) = (io::stdin(), io::stderr());
        let seen = [errors.as_fd(), input.as_fd()].into_iter().find(|fd| fd.is_terminal());
        // Opened again: a lock belongs to all who have inherited a descriptor.
        let open = |fd: BorrowedFd<'_>| {
            let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
            File::options().read(true).custom_flags(OFlags::NOCTTY.bits() as i32).open(path)
        };
        let locked = seen.map(open).transpose()?;
        if let Some(terminal) = &locked {
            flock(terminal, FlockOperation::LockExclusive)?;
        }
        let before = tcgetattr(terminal)?;
        let mut quiet = before.clone();
        quiet.local_modes.remove(LocalModes::ECHO | LocalModes::ISIG);
        quiet.local_modes.insert(LocalModes::ECHONL | LocalModes::ICANON);
        quiet.special_codes[SpecialCodeIndex::VEOL] = INTERRUPT;
        // Discards input that was typed before the question.
        tcsetattr(terminal, OptionalActions::Flush, &quiet)?;
        Ok(Self { terminal, before, _locked: locked })
    }
}

impl Drop for Quiet<'_> {
    fn drop(&mut self) {
        let _ = tcsetattr(self.terminal, OptionalActions::Now, &self.before);
    }
}

/// A new key: from the place that was chosen for it, or typed twice.
fn new_key(source: Option<Source>) -> Result<Secret, KeyError> {
    if let Some(source) = source {
        return source.read();
    }
    let new = prompt("New passphrase: ")?.ok_or(KeyError::Missing)?;
    let again = prompt("The same passphrase again: ")?.ok_or(KeyError::Missing)?;
    match new == again {
        true => Ok(new),
        false => Err(KeyError::Source("the two passphrases differ".to_owned())),
    }
}

/// The key of an image that is to be made.
pub fn of_new_image() -> Result<Secret, Failure> {
    new_key(source()).map_err(|error| match error {
        KeyError::Missing => Failure::usage("--encrypt needs a key, and there is no terminal to ask for one")
            .next("give it with --key-file or --key-command"),
        error => error.into(),
    })
}

impl NewKeyChoices {
    /// The new key.
    pub fn secret(self) -> Result<Secret, KeyError> {
        new_key(Source::of(self.new_key_file, self.new_key_command))
    }
}

/// Passes the key of this image to a command of this program, which can't ask for it. Returns the command's standard
/// input; `None` if the image is not encrypted.
pub fn hand_over(image: &Path, command: &mut Command) -> Result<Option<PipeReader>, Failure> {
    let Some(record) = syncline_image::peek_keys(image) else {
        // It refuses a plain image then, and tells what else is wrong.
        command.args(is_chosen().then_some(["--key-file", "/dev/null"]).into_iter().flatten());
        return Ok(None);
    };
    let secret =
        syncline_image::secret_for(image, &record).map_err(|error| Failure::from(error).about(image))?;
    let (reader, mut writer) = io::pipe()?;
    // A pipe has room for more than the longest key. A line break at its end would not count.
    writer.write_all(secret.as_bytes())?;
    writer.write_all(b"\n")?;
    command.args(["--key-file", "-"]);
    Ok(Some(reader))
}

/// The class of a failure that is about a key, and the next step.
fn cause(why: &KeyError) -> (Cause, Option<&'static str>) {
    match why {
        KeyError::Missing => (
            Cause::Permission,
            Some(
                "give one with --key-file or --key-command, or run the command in a terminal, where it asks",
            ),
        ),
        KeyError::Wrong => {
            (Cause::Permission, Some("check the key: 'syncline key list' names those of the image"))
        }
        KeyError::Full => (Cause::Other, Some("remove one that nobody needs: 'syncline key remove'")),
        KeyError::NoSlot { .. } => (Cause::Usage, Some("'syncline key list' shows their numbers")),
        KeyError::Last => (Cause::Other, Some("add another one first: 'syncline key add'")),
        KeyError::TooSmall => (Cause::Usage, Some("choose a larger --size")),
        KeyError::NotEncrypted => {
            (Cause::Permission, Some("check that it is the right image, or leave the key out"))
        }
        KeyError::Incomplete(_) => {
            (Cause::Device, Some("save the files: 'syncline send' copies them into another image"))
        }
        KeyError::Length | KeyError::Name => (Cause::Usage, None),
        KeyError::Memory { .. } => (Cause::Other, Some("end other programs, and try again")),
        // No repair helps.
        KeyError::Damaged(_) => (
            Cause::NotAnImage,
            Some("restore the image from a backup: without its key record nothing in it can be read"),
        ),
        KeyError::Source(_) => (Cause::Other, None),
        KeyError::Device(_) => (Cause::Device, None),
    }
}

/// The failure with this text, which is about a key.
pub fn failure(why: &KeyError, text: impl fmt::Display) -> Failure {
    let (cause, next) = cause(why);
    next.into_iter().fold(Failure::of(cause, text), Failure::next)
}

impl From<KeyError> for Failure {
    fn from(error: KeyError) -> Self {
        match error {
            KeyError::Device(error) => error.into(),
            error => failure(&error, &error),
        }
    }
}
