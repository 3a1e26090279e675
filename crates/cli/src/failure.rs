//! Why a command failed: one line that names the cause and the next step, and an exit code.

use crate::commands::image::known_contents;
use crate::known::{FILESYSTEM, STREAM};
use std::borrow::Cow;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use syncline_check::CheckError;
use syncline_device::DeviceError;
use syncline_fs::FsError;
use syncline_fuse::control::ControlError;
use syncline_fuse::{MountError, daemon_has_gone};
use syncline_image::ForkError;
use syncline_store::{SnapshotError, StoreError};
use syncline_stream::{Cut, StreamError};

/// The result of every command.
pub type Outcome = Result<ExitCode, Failure>;

/// Classes of failure; the numbers are exit codes and final.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cause {
    /// Anything else.
    Other = 1,
    /// The command was called wrongly.
    Usage = 2,
    /// The image, the device or the mount point is in use.
    InUse = 3,
    /// A block does not match its checksum.
    Damaged = 4,
    /// There is no image that this program can use: none at all, a truncated one, a newer format,
    /// or one without a superblock.
    NotAnImage = 5,
    /// The mount point, or the path on a mount, can't be used.
    MountPoint = 6,
    /// FUSE can't be used here.
    Fuse = 7,
    /// The device failed. (`check`: the check could not be done, as in fsck(8).)
    Device = 8,
    /// The operating system refuses permission.
    Permission = 9,
    /// There is no room.
    NoSpace = 10,
    /// A stream is damaged or cut off, or does not fit the image.
    Stream = 11,
}

/// A cause and the next step.
#[derive(Debug)]
pub struct Failure {
    text: String,
    next: Option<Cow<'static, str>>,
    code: u8,
    /// Where the image is mounted, if it is in use.
    mounted_at: Option<PathBuf>,
}

impl Failure {
    /// A failure of this class; `text` names the cause.
    pub fn of(cause: Cause, text: impl fmt::Display) -> Self {
        Self { text: text.to_string(), next: None, code: cause as u8, mounted_at: None }
    }

    /// A failure of no particular class.
    pub fn new(text: impl fmt::Display) -> Self {
        Self::of(Cause::Other, text)
    }

    /// The command was called wrongly.
    pub fn usage(text: impl fmt::Display) -> Self {
        Self::of(Cause::Usage, text)
    }

    /// Sets the next step.
    pub fn next(self, step: impl Into<Cow<'static, str>>) -> Self {
        Self { next: Some(step.into()), ..self }
    }

    /// For a command that also works on a mounted filesystem: if the image is mounted, suggests its
    /// directory.
    pub fn or_its_directory(self) -> Self {
        match &self.mounted_at {
            Some(directory) => {
                let step = format!("or name {} instead", directory.display());
                self.next(step)
            }
            None => self,
        }
    }

    /// Adds a path that the text does not name. Never suggests making a filesystem where there is
    /// another one.
    pub fn about(self, path: &Path) -> Self {
        if self.is_told() {
            return self;
        }
        let says = |words| self.text.contains(words);
        let nothing_found = self.code == Cause::NotAnImage as u8
            && (says("no superblock found") || says("or no Syncline image"));
        if let Some(what) = nothing_found.then(|| known_contents(path)).flatten() {
            if what.starts_with(FILESYSTEM) {
                let text = format!("{}: the image is truncated: only its start is there", path.display());
                return self.with_text(text).next("get the rest from where it came, or use a backup");
            }
            let text = format!("{}: not a Syncline image: it holds {what}", path.display());
            return self.with_text(text).next(match what == STREAM {
                true => "name an image that it is for: 'syncline receive IMAGE -i FILE'",
                false => "name another image, or mount it as the filesystem that it is",
            });
        }
        let path = path.display().to_string();
        let text = if self.text.contains(&path) { self.text } else { format!("{path}: {}", self.text) };
        Self { text, ..self }
    }

    /// Replaces the text.
    pub fn with_text(self, text: impl fmt::Display) -> Self {
        Self { text: text.to_string(), ..self }
    }

    /// Replaces the next step of a damaged image for a user who already mounts read-only.
    pub fn of_reading_only(self) -> Self {
        match self.code == Cause::Damaged as u8 {
            true => self.next(
                "'syncline check' lists all damage, 'syncline check --repair --dry-run' the possible repairs",
            ),
            false => self,
        }
    }

    /// A failure that has already been reported.
    pub fn told(code: u8) -> Self {
        Self::new("").with_code(code)
    }

    /// The text without the next step.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// True if there is nothing left to report.
    pub fn is_told(&self) -> bool {
        self.text.is_empty()
    }

    /// Replaces the exit code.
    pub fn with_code(self, code: u8) -> Self {
        Self { code, ..self }
    }

    /// The exit code's number.
    pub fn code(&self) -> u8 {
        self.code
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Always one line, whatever an error contains.
        out.write_str(&without_numbers(&self.text).replace('\n', " "))?;
        match &self.next {
            Some(next) => write!(out, "; {next}"),
            None => Ok(()),
        }
    }
}

/// The text without the numbers that the standard library appends to the system's error messages.
fn without_numbers(text: &str) -> String {
    let mut words = text.to_owned();
    while let Some(start) = words.find(" (os error ") {
        let Some(len) = words[start..].find(')') else { break };
        words.replace_range(start..=start + len, "");
    }
    words
}

impl From<&io::Error> for Cause {
    fn from(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::PermissionDenied => Self::Permission,
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::NoSpace,
            _ => Self::Other,
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        if daemon_has_gone(&error) {
            return Self::of(Cause::MountPoint, error).next(DAEMON_HAS_GONE);
        }
        Self::of(Cause::from(&error), error)
    }
}

impl From<rustix::io::Errno> for Failure {
    fn from(errno: rustix::io::Errno) -> Self {
        io::Error::from(errno).into()
    }
}

const EIO: i32 = rustix::io::Errno::IO.raw_os_error();
/// The next step for a mount that its daemon has left behind.
const DAEMON_HAS_GONE: &str =
    "its daemon has gone: remove the mount with 'syncline umount', and mount the image again";

/// The next step for a device that fails or refuses requests.
const DEVICE_FAILED: &str = "the device failed: see the kernel's log ('dmesg'), and save the readable files";

/// The next step where a daemon answers EIO.
const DAEMON_TELLS: &str = "the device failed, the host of the image file is full, or something is damaged: \
     the daemon's messages tell which (syslog, the journal, or '-o log=FILE')";

/// The next steps for an image without room, and for one without room for a stream.
const DELETE_SOMETHING: &str = "delete something, or enlarge it with 'syncline resize'";
const MAKE_ROOM: &str = "enlarge the image with 'syncline resize', or delete snapshots there";

/// True for the errors of a device that is there and fails, or has just gone.
fn is_failing(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let errno = error.raw_os_error().map(Errno::from_raw_os_error);
    matches!(errno, Some(Errno::IO | Errno::NXIO | Errno::NODEV | Errno::NOMEDIUM | Errno::TIMEDOUT))
}

fn of_fork(why: &ForkError) -> Cause {
    match why {
        ForkError::Store(StoreError::Snapshot(
            SnapshotError::InUse { .. } | SnapshotError::ForkInUse { .. },
        )) => Cause::InUse,
        ForkError::Store(_) => Cause::Other,
        ForkError::Cycle { .. } => Cause::Usage,
        _ => Cause::NotAnImage,
    }
}

impl From<DeviceError> for Failure {
    fn from(error: DeviceError) -> Self {
        let kind = error.io_error().map(|error| error.kind());
        if let Some(why) = syncline_image::key_error(&error) {
            return crate::keys::failure(why, &error);
        }
        let of = |cause| Self::of(cause, &error);
        if let Some(why) = syncline_image::fork_error(&error) {
            return of(of_fork(why));
        }
        match (&error, kind) {
            _ if syncline_image::is_unreachable(&error) => {
                of(Cause::Device).next("check the address, and that the server runs")
            }
            // Storage on a network, and the leases on it: these texts name the next step themselves.
            _ if syncline_image::tells_next_step(&error) => of(match kind {
                Some(io::ErrorKind::ResourceBusy) => Cause::InUse,
                Some(io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem) => {
                    Cause::Permission
                }
                Some(io::ErrorKind::NotFound) => Cause::NotAnImage,
                Some(io::ErrorKind::InvalidInput) => Cause::Usage,
                Some(io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) => Cause::NoSpace,
                _ => Cause::Device,
            }),
            (_, Some(io::ErrorKind::PermissionDenied)) => {
                of(Cause::Permission).next(crate::permission::next_step(&error))
            }
            (DeviceError::Create { .. }, Some(io::ErrorKind::ReadOnlyFilesystem)) => {
                of(Cause::Permission).next("nothing can be made there: choose another place")
            }
            (_, Some(io::ErrorKind::ReadOnlyFilesystem)) => of(Cause::Permission)
                .next("it is read-only, so it can only be looked at: 'mount -o ro', 'info', 'check'"),
            (DeviceError::Open { source, .. }, _) if daemon_has_gone(source) => {
                of(Cause::MountPoint).next(DAEMON_HAS_GONE)
            }
            (DeviceError::Open { .. }, Some(io::ErrorKind::NotFound)) => {
                of(Cause::NotAnImage).next("check the path, or make an image with 'syncline mkfs'")
            }
            (DeviceError::Open { .. }, Some(io::ErrorKind::InvalidInput | io::ErrorKind::IsADirectory)) => {
                of(Cause::NotAnImage).next("name an image file or a block device")
            }
            (DeviceError::Open { .. }, Some(io::ErrorKind::NotADirectory)) => {
                of(Cause::NotAnImage).next("check the path: a part of it is a file")
            }
            (DeviceError::Open { source, .. }, _) if is_failing(source) => {
                of(Cause::Device).next(DEVICE_FAILED)
            }
            (DeviceError::Open { .. }, _) => of(Cause::Device).next("name an image file or a block device"),
            (
                DeviceError::Create { .. } | DeviceError::TakeOver { .. },
                Some(io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded),
            ) => of(Cause::NoSpace)
                .next("free some space there, choose a smaller --size, or make it with --sparse"),
            (DeviceError::Create { .. }, Some(io::ErrorKind::AlreadyExists)) => {
                of(Cause::Other).next("choose another name")
            }
            (DeviceError::Create { .. }, Some(io::ErrorKind::NotFound)) => {
                of(Cause::Other).next("create the folder first")
            }
            (
                DeviceError::Create { .. } | DeviceError::TakeOver { .. },
                Some(io::ErrorKind::FileTooLarge | io::ErrorKind::InvalidInput),
            ) => match error.io_error().and_then(|error| error.raw_os_error()) {
                Some(_) => of(Cause::Usage).next("choose another --size"),
                // Our own text names the next step.
                None => of(Cause::Usage),
            },
            (DeviceError::Create { .. } | DeviceError::TakeOver { .. }, _) => of(Cause::Other),
            (DeviceError::Extend { .. }, Some(io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)) => {
                of(Cause::NoSpace)
                    .next("free some space there, or choose a smaller size; nothing has changed")
            }
            (DeviceError::Extend { .. }, Some(io::ErrorKind::InvalidInput | io::ErrorKind::FileTooLarge)) => {
                of(Cause::Usage).next("choose a smaller size or 'max', or enlarge the device first")
            }
            (DeviceError::Extend { .. }, _) => of(Cause::Other).next("nothing has changed"),
            (DeviceError::InUse { holder, .. }, _) => {
                let mounted_at = holder.mount_point().map(Path::to_owned);
                Self { mounted_at, ..of(Cause::InUse) }
            }
            (DeviceError::SnapshotInUse { .. }, _) => of(Cause::InUse),
            (DeviceError::NotEmpty { path }, _) => Self::new(format!("{path} holds data of an unknown kind"))
                .next("add --force if it is not needed any more"),
            // On a block device, or on an image file whose host never gave it all of its space.
            (_, Some(io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)) => of(Cause::NoSpace)
                .next("free space where the image lies: it has less room there than its size promises"),
            _ => of(Cause::Device).next(DEVICE_FAILED),
        }
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Device(error) => error.into(),
            StoreError::Corrupt { .. } => Self::of(Cause::Damaged, error)
                .next("'syncline check' lists all damage; mount with -o ro to save the readable files"),
            StoreError::NoSpace => Self::of(Cause::NoSpace, error).next(DELETE_SOMETHING),
            StoreError::ReadOnly { .. } => Self::of(Cause::Other, error),
            StoreError::KeepsRoom => Self::of(Cause::Other, error)
                .next("'syncline trim --punch' gives free blocks back to its host"),
            StoreError::Snapshot(
                SnapshotError::InUse { .. }
                | SnapshotError::Forked(_)
                | SnapshotError::ForkInUse { .. }
                | SnapshotError::IsBase { .. },
            ) => Self::of(Cause::InUse, error),
            StoreError::Snapshot(_) => Self::of(Cause::Other, error),
            // These texts name the next step themselves.
            StoreError::Damaged(_) => Self::of(Cause::Damaged, error),
            StoreError::Unusable(_) => Self::of(Cause::NotAnImage, error),
        }
    }
}

impl From<FsError> for Failure {
    fn from(error: FsError) -> Self {
        match error {
            FsError::Store(error) => error.into(),
            FsError::Corrupt { .. }
            | FsError::CorruptCount { .. }
            | FsError::Undecodable { .. }
            | FsError::Stale => Self::of(Cause::Damaged, format!("the image is damaged: {error}"))
                .next("'syncline check' tells all that is damaged"),
            FsError::QuotaExceeded => Self::of(Cause::NoSpace, error)
                .next("delete something there, or raise the limit with 'syncline quota set'"),
            error => Self::new(error),
        }
    }
}

impl From<StreamError> for Failure {
    fn from(error: StreamError) -> Self {
        match error {
            StreamError::Filesystem(FsError::Store(StoreError::NoSpace)) => {
                Self::of(Cause::NoSpace, StoreError::NoSpace).next(MAKE_ROOM)
            }
            StreamError::Filesystem(error) => error.into(),
            StreamError::Io(error) => {
                let error = std::io::Error::new(error.kind(), format!("the stream: {error}"));
                Self::from(error).next("send it again")
            }
            StreamError::Order { .. }
            | StreamError::Unrelated(_)
            | StreamError::Numbers
            | StreamError::Token => Self::of(Cause::Usage, error),
            StreamError::Nothing => Self::of(Cause::Stream, error).next("look at the sender's messages"),
            StreamError::NotAStream => Self::of(Cause::Stream, error).next("make one with 'syncline send'"),
            // These texts name the next step themselves.
            error => Self::of(Cause::Stream, error),
        }
    }
}

/// A stream that was not received wholly, and how it goes on.
impl From<Cut> for Failure {
    fn from(cut: Cut) -> Self {
        let Cut { error, kept } = cut;
        let Some(token) = kept else { return error.into() };
        let records = token.position.records;
        let is_kept = format!("the stream up to record {records} is saved");
        let rest = format!("send the rest with 'syncline send … --resume {token}'");
        if matches!(error, StreamError::Filesystem(_)) {
            let lacks_room = matches!(error, StreamError::Filesystem(FsError::Store(StoreError::NoSpace)));
            let failure = Self::from(error);
            let next =
                if lacks_room { Some(format!("{MAKE_ROOM}, then {rest}").into()) } else { failure.next };
            return Self { text: format!("{}; {is_kept}", failure.text), next, ..failure };
        }
        if !error.is_cut() {
            return error.into();
        }
        let cause = match &error {
            StreamError::Io(error) => Cause::from(&**error),
            _ => Cause::Stream,
        };
        let what = match &error {
            StreamError::Truncated(record) => format!("the stream ends too early, after record {record}"),
            StreamError::Damaged { record, what } => {
                format!("the stream is damaged at record {record}: {what}")
            }
            error => format!("the stream: {error}"),
        };
        Self::of(cause, format!("{what}; {is_kept}")).next(rest)
    }
}

impl From<syncline::Error> for Failure {
    fn from(error: syncline::Error) -> Self {
        match error {
            syncline::Error::At { path, cause, .. } => Self::from(*cause).about(&path),
            syncline::Error::Filesystem(error) => error.into(),
            syncline::Error::Store(error) => error.into(),
            syncline::Error::Device(error) => error.into(),
            error => Self::new(error),
        }
    }
}

impl From<CheckError> for Failure {
    fn from(error: CheckError) -> Self {
        match error {
            CheckError::Device(error) => error.into(),
            CheckError::Store(error) => error.into(),
            // Each text says what is wrong with the file that was named.
        }
    }
}

impl From<MountError> for Failure {
    fn from(error: MountError) -> Self {
        let cause = match &error {
            MountError::MountPointMissing { .. }
            | MountError::NotDirectory { .. }
            | MountError::NotEmpty { .. }
            | MountError::DeadMount { .. }
            | MountError::MountPoint { .. }
            | MountError::MountPointOfAnother { .. }
            | MountError::PathWithNul { .. } => Cause::MountPoint,
            MountError::AlreadyMounted { .. } | MountError::Busy { .. } | MountError::DeviceTaken { .. } => {
                Cause::InUse
            }
            MountError::DeviceLost { .. } => Cause::Device,
            MountError::NoFuseDevice
            | MountError::FuseDevice { .. }
            | MountError::FusermountMissing
            | MountError::Fusermount { .. }
            | MountError::KernelTooOld { .. }
            | MountError::NoUring { .. }
            | MountError::NotPermitted { .. } => Cause::Fuse,
            _ => Cause::Other,
        };
        let barred = matches!(&error, MountError::MountPoint { source, .. } if source.kind() == io::ErrorKind::PermissionDenied);
        let fusermounts = match &error {
            MountError::Fusermount { message } => next_of_fusermount(message),
            _ => None,
        };
        let failure = Self::of(cause, error);
        if let Some(next) = fusermounts {
            return failure.next(next);
        }
        if barred { failure.next("name a directory that you may enter, or mount as root") } else { failure }
    }
}

/// The next step for a message of fusermount3 about the host rather than about the user.
pub fn next_of_fusermount(message: &str) -> Option<&'static str> {
    // It names the file as well where a mount has no entry in it.
    message
        .contains("failed to open /etc/mtab")
        .then_some("make that file: 'ln -s /proc/self/mounts /etc/mtab', as root")
}

impl From<ControlError> for Failure {
    fn from(error: ControlError) -> Self {
        let next = "name a directory that an image is mounted at ('syncline status' lists them)";
        match error {
            ControlError::Open { ref source, .. } if source.kind() == io::ErrorKind::NotFound => {
                Self::of(Cause::MountPoint, error).next("check the path")
            }
            ControlError::Open { ref source, .. } if source.kind() == io::ErrorKind::PermissionDenied => {
                Self::of(Cause::Permission, error).next(crate::permission::of_asking())
            }
            // The daemon has died and left its mount behind.
            ControlError::Open { ref source, .. } | ControlError::Failed { ref source, .. }
                if daemon_has_gone(source) =>
            {
                Self::of(Cause::MountPoint, error).next(DAEMON_HAS_GONE)
            }
            ControlError::Failed { ref source, .. } if source.kind() == io::ErrorKind::ReadOnlyFilesystem => {
                Self::of(Cause::Permission, error)
                    .next("mount it for writing; if it was, 'syncline stats' says why it turned read-only")
            }
            ControlError::Failed { ref source, .. } if source.kind() == io::ErrorKind::StorageFull => {
                Self::of(Cause::NoSpace, error).next(DELETE_SOMETHING)
            }
            // Where opening a file is a request, that fails already.
            ControlError::Open { ref source, ref path } | ControlError::Failed { ref source, ref path }
                if source.raw_os_error() == Some(EIO) =>
            {
                match crate::commands::remote::lost_by(path) {
                    Some(lost) => lost,
                    None => Self::of(Cause::Device, error).next(DAEMON_TELLS),
                }
            }
            ControlError::Open { .. } | ControlError::NotSyncline { .. } => {
                Self::of(Cause::MountPoint, error).next(next)
            }
            ControlError::Unknown { .. } => {
                Self::new(error).next("unmount, and mount again with this version of the program")
            }
            error => Self::new(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use syncline_device::Holder;

    #[test]
    fn failures_are_one_line_with_a_next_step() {
        let failure = Failure::new("two\nlines").next("do this").about(Path::new("/image"));
        assert_eq!(failure.to_string(), "/image: two lines; do this");
        assert_eq!(failure.about(Path::new("/image")).to_string(), "/image: two lines; do this");
    }

    #[test]
    fn classes_follow_the_cause() {
        let code = |failure: Failure| failure.code();
        assert_eq!(code(DeviceError::InUse { path: "x".into(), holder: Holder::Unknown.into() }.into()), 3);
        assert_eq!(code(StoreError::Damaged("a hole in the log".into()).into()), 4);
        assert_eq!(code(StoreError::Unusable("no image".into()).into()), 5);
        assert_eq!(code(MountError::NotEmpty { path: PathBuf::from("x") }.into()), 6);
        assert_eq!(code(MountError::NoFuseDevice.into()), 7);
        let message = "failed to open /etc/mtab: No such file or directory".to_owned();
        let failure = Failure::from(MountError::Fusermount { message });
        assert!(failure.to_string().contains("ln -s /proc/self/mounts /etc/mtab"), "{failure}");
        assert_eq!(code(io::Error::from(io::ErrorKind::StorageFull).into()), 10);
        assert_eq!(code(StoreError::NoSpace.into()), 10);
    }

    #[test]
    fn a_device_that_fails_is_not_called_misnamed() {
        let open = |errno: i32| {
            let source = io::Error::from_raw_os_error(errno).into();
            Failure::from(DeviceError::Open { path: "/dev/loop2".into(), source })
        };
        let failure = open(EIO);
        assert_eq!(failure.code(), 8);
        assert!(failure.to_string().contains("dmesg") && !failure.to_string().contains("name an image"));
        let other = open(rustix::io::Errno::ISDIR.raw_os_error());
        assert!(other.to_string().contains("name an image"), "{other}");
    }

    #[test]
    fn the_systems_words_stand_without_its_numbers() {
        let failure = Failure::from(io::Error::from_raw_os_error(2)).about(Path::new("/a"));
        assert_eq!(failure.to_string(), "/a: No such file or directory");
        assert_eq!(without_numbers("a (os error 2): b (os error 13)"), "a: b");
        assert_eq!(without_numbers("a (os error 2"), "a (os error 2");
    }
}
