//! The contestants: Syncline, Syncline without one of its mechanisms, the kernel's filesystems, and
//! one that keeps nothing.

use crate::{BenchError, command};
use std::ffi::OsString;
use std::fmt;
use std::path::Path;
use std::process::Command;
use std::str::FromStr;

/// A filesystem of the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Peer {
    /// ext4 with its defaults.
    Ext4,
    /// ext4 with its fast commits.
    Ext4FastCommit,
    /// xfs with its defaults.
    Xfs,
    /// btrfs with its defaults.
    Btrfs,
}

impl Peer {
    /// All peers.
    pub const ALL: [Self; 4] = [Self::Ext4, Self::Ext4FastCommit, Self::Xfs, Self::Btrfs];

    /// Its name here.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ext4 => "ext4",
            Self::Ext4FastCommit => "ext4-fc",
            Self::Xfs => "xfs",
            Self::Btrfs => "btrfs",
        }
    }

    /// The kernel's name for it.
    pub fn filesystem_type(self) -> &'static str {
        match self {
            Self::Ext4 | Self::Ext4FastCommit => "ext4",
            Self::Xfs => "xfs",
            Self::Btrfs => "btrfs",
        }
    }

    /// Its mkfs, and the Debian package that contains it.
    fn maker(self) -> (&'static str, &'static str) {
        match self {
            Self::Ext4 | Self::Ext4FastCommit => ("mkfs.ext4", "e2fsprogs"),
            Self::Xfs => ("mkfs.xfs", "xfsprogs"),
            Self::Btrfs => ("mkfs.btrfs", "btrfs-progs"),
        }
    }

    /// The command that makes it on a device, with room for this many files. Nothing is discarded:
    /// the device stays written. ext4 initialises at once what it would otherwise initialise in the
    /// background during the measurement.
    pub fn mkfs(self, device: &Path, files: u64) -> Result<Command, BenchError> {
        let (program, package) = self.maker();
        let mut command = Command::new(command::require(program, package)?);
        match self {
            Self::Ext4 | Self::Ext4FastCommit => {
                command.args(["-q", "-F", "-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0"]);
                if self == Self::Ext4FastCommit {
                    command.args(["-O", "fast_commit"]);
                }
                if files > 0 {
                    command.arg("-N").arg((files + files / 8 + 1024).to_string());
                }
            }
            Self::Xfs | Self::Btrfs => {
                command.args(["-q", "-f", "-K"]);
            }
        }
        command.arg(device);
        Ok(command)
    }
}

/// As a mechanism to switch off, names an image without parent pointers.
pub const PARENT_POINTERS: &str = "parent-pointers";
/// The prefix of the one option that is for mkfs rather than for the mount.
const NODE_SIZE: &str = "node-size=";
/// As an option, names the library.
const LIBRARY: &str = "library";
/// The prefix of the path of another Syncline's program, which makes and mounts the image instead
/// of this one.
const PROGRAM: &str = "program=";
/// The names of the filesystem that keeps nothing, and of the one that flushes the device
/// nevertheless.
const NULL: &str = "null";
const NULL_FLUSH: &str = "null-flush";

/// A filesystem that is measured.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Contestant {
    /// Syncline, mounted through its own daemon.
    Syncline(Variant),
    /// A filesystem of the kernel.
    Peer(Peer),
    /// The filesystem that keeps nothing, behind Syncline's transports: see [`null`](crate::null).
    Null(Null),
}

/// How the filesystem that keeps nothing is served.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Null {
    /// Written data goes to the device, at no particular place, and a sync flushes it.
    pub flushes: bool,
    /// The transport of requests; `None`: the same as Syncline's.
    pub transport: Option<Transport>,
}

/// The transport of requests from the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Transport {
    /// Over io_uring.
    Uring,
    /// Over /dev/fuse.
    Classic,
}

impl Transport {
    const ALL: [Self; 2] = [Self::Uring, Self::Classic];

    fn name(self) -> &'static str {
        match self {
            Self::Uring => "uring",
            Self::Classic => "classic",
        }
    }
}

/// How Syncline is made and mounted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Variant {
    /// With the defaults.
    Plain,
    /// Without a mechanism, by its name in `mount -o ablate=`; or [`PARENT_POINTERS`].
    Without(String),
    /// With an option of `mount -o`, `node-size=SIZE`, or `program=PATH`.
    With(String),
    /// The library, in the process of the load.
    Library,
}

impl Contestant {
    /// Syncline, Syncline without each of these mechanisms and with each of these options, and the
    /// others.
    pub fn line_up(ablations: &[String], options: &[String], others: &[Self]) -> Vec<Self> {
        let ablated = ablations.iter().cloned().map(Variant::Without);
        let optional = options.iter().map(|option| match option.as_str() {
            LIBRARY => Variant::Library,
            _ => Variant::With(option.clone()),
        });
        let variants = std::iter::once(Variant::Plain).chain(ablated).chain(optional);
        variants.map(Self::Syncline).chain(others.iter().cloned()).collect()
    }

    /// True for a filesystem of the kernel.
    pub fn is_peer(&self) -> bool {
        matches!(self, Self::Peer(_))
    }

    /// True if it keeps synced data on the device.
    pub fn keeps(&self) -> bool {
        !matches!(self, Self::Null(_))
    }

    /// True if a sync writes and flushes the device, even if nothing is kept.
    pub fn flushes(&self) -> bool {
        !matches!(self, Self::Null(Null { flushes: false, .. }))
    }

    /// True for the library in the process of the load.
    pub fn is_library(&self) -> bool {
        *self == Self::Syncline(Variant::Library)
    }

    /// True unless it is Syncline.
    pub fn is_other(&self) -> bool {
        !matches!(self, Self::Syncline(_))
    }

    /// Fails if the program that makes it is missing.
    pub fn require(&self) -> Result<(), BenchError> {
        let Self::Peer(peer) = self else { return Ok(()) };
        let (program, package) = peer.maker();
        command::require(program, package).map(|_| ())
    }
}

impl Variant {
    /// Its mount options.
    pub fn mount_options(&self) -> Vec<OsString> {
        match self {
            Self::Without(name) if name != PARENT_POINTERS => {
                vec!["-o".into(), format!("ablate={name}").into()]
            }
            Self::With(option) if !option.starts_with(NODE_SIZE) && self.program().is_none() => {
                vec!["-o".into(), option.into()]
            }
            _ => Vec::new(),
        }
    }

    /// The program that makes and mounts it, if it is another one.
    pub fn program(&self) -> Option<&Path> {
        match self {
            Self::With(option) => option.strip_prefix(PROGRAM).map(Path::new),
            _ => None,
        }
    }

    /// Its mkfs options.
    pub fn mkfs_options(&self) -> Vec<OsString> {
        match self {
            Self::Without(name) if name == PARENT_POINTERS => vec!["--parent-pointers".into(), "off".into()],
            Self::With(option) => option
                .strip_prefix(NODE_SIZE)
                .map_or(Vec::new(), |size| vec!["--node-size".into(), size.into()]),
            _ => Vec::new(),
        }
    }
}

impl Null {
    /// The options of its process, with this device.
    pub fn options(self, device: &Path) -> Vec<OsString> {
        let mut options = Vec::new();
        if self.flushes {
            options.extend(["--device".into(), device.into()]);
        }
        if let Some(transport) = self.transport {
            options.extend(["--transport".into(), transport.name().into()]);
        }
        options
    }
}

impl fmt::Display for Null {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = if self.flushes { NULL_FLUSH } else { NULL };
        match self.transport {
            Some(transport) => f.pad(&format!("{name}/{}", transport.name())),
            None => f.pad(name),
        }
    }
}

impl fmt::Display for Contestant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Syncline(Variant::Plain) => f.pad("syncline"),
            Self::Syncline(Variant::Without(name)) => f.pad(&format!("syncline -{name}")),
            Self::Syncline(Variant::With(option)) => f.pad(&format!("syncline +{option}")),
            Self::Syncline(Variant::Library) => f.pad(LIBRARY),
            Self::Peer(peer) => f.pad(peer.name()),
            Self::Null(null) => null.fmt(f),
        }
    }
}

/// Parses a filesystem to compare Syncline with, by its name on the command line.
impl FromStr for Contestant {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let transports = std::iter::once(None).chain(Transport::ALL.map(Some));
        let nulls = transports.flat_map(|transport| [false, true].map(|flushes| Null { flushes, transport }));
        let mut all = Peer::ALL.into_iter().map(Self::Peer).chain(nulls.map(Self::Null));
        let names = Peer::ALL.map(Peer::name).join(", ");
        let why =
            || format!("choose among {names}, {NULL}, {NULL_FLUSH}, and these two with /uring or /classic");
        all.find(|one| one.to_string() == text).ok_or_else(why)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contestants_have_names_and_an_order() {
        let options =
            ["direct_io=write", "node-size=64KiB", "program=/old/syncline", "library"].map(str::to_owned);
        let ablations = ["flush-elide".to_owned(), PARENT_POINTERS.to_owned()];
        let others = ["xfs", "ext4-fc", "null", "null-flush/uring"].map(|name| name.parse().unwrap());
        let line_up = Contestant::line_up(&ablations, &options, &others);
        let names: Vec<String> = line_up.iter().map(ToString::to_string).collect();
        assert_eq!(
            names,
            [
                "syncline",
                "syncline -flush-elide",
                "syncline -parent-pointers",
                "syncline +direct_io=write",
                "syncline +node-size=64KiB",
                "syncline +program=/old/syncline",
                "library",
                "xfs",
                "ext4-fc",
                "null",
                "null-flush/uring"
            ]
        );
        let arguments: Vec<_> = line_up
            .iter()
            .filter_map(|contestant| match contestant {
                Contestant::Syncline(variant) => Some((variant.mkfs_options(), variant.mount_options())),
                _ => None,
            })
            .collect();
        let expected: [(&[&str], &[&str]); 7] = [
            (&[], &[]),
            (&[], &["-o", "ablate=flush-elide"]),
            (&["--parent-pointers", "off"], &[]),
            (&[], &["-o", "direct_io=write"]),
            (&["--node-size", "64KiB"], &[]),
            (&[], &[]),
            (&[], &[]),
        ];
        assert!(line_up[6].is_library() && !line_up[6].is_other());
        for ((mkfs, mount), (expected_mkfs, expected_mount)) in arguments.iter().zip(expected) {
            assert_eq!((&mkfs[..], &mount[..]), (&os(expected_mkfs)[..], &os(expected_mount)[..]));
        }
    }

    fn os(words: &[&str]) -> Vec<OsString> {
        words.iter().map(OsString::from).collect()
    }

    #[test]
    fn others_are_read_by_name() {
        let nulls = [
            Null::default(),
            Null { flushes: true, transport: None },
            Null { flushes: false, transport: Some(Transport::Uring) },
            Null { flushes: true, transport: Some(Transport::Classic) },
        ];
        for other in Peer::ALL.map(Contestant::Peer).into_iter().chain(nulls.map(Contestant::Null)) {
            assert_eq!(other.to_string().parse(), Ok(other));
        }
        assert_eq!(nulls.map(|null| Contestant::Null(null).flushes()), [false, true, false, true]);
        assert!(Contestant::Peer(Peer::Xfs).flushes() && Contestant::Syncline(Variant::Plain).flushes());
        let options = nulls[3].options(Path::new("/dev/loop7"));
        assert_eq!(options, os(&["--device", "/dev/loop7", "--transport", "classic"]));
        assert!("ext3".parse::<Contestant>().unwrap_err().contains("ext4-fc"));
        assert!("syncline".parse::<Contestant>().is_err());
    }
}
