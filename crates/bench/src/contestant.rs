//! Who is compared: Syncline, Syncline without one of its mechanisms, and the kernel's filesystems.

use crate::{BenchError, command};
use std::ffi::OsString;
use std::fmt;
use std::path::Path;
use std::process::Command;
use std::str::FromStr;

/// A filesystem of the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Peer {
    /// ext4 as it comes.
    Ext4,
    /// ext4 with its fast commits.
    Ext4FastCommit,
    /// xfs as it comes.
    Xfs,
    /// btrfs as it comes.
    Btrfs,
}

impl Peer {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Ext4, Self::Ext4FastCommit, Self::Xfs, Self::Btrfs];

    /// What it is called here.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ext4 => "ext4",
            Self::Ext4FastCommit => "ext4-fc",
            Self::Xfs => "xfs",
            Self::Btrfs => "btrfs",
        }
    }

    /// What the kernel calls it.
    pub fn filesystem_type(self) -> &'static str {
        match self {
            Self::Ext4 | Self::Ext4FastCommit => "ext4",
            Self::Xfs => "xfs",
            Self::Btrfs => "btrfs",
        }
    }

    /// Its mkfs and Debian's package that has it.
    fn maker(self) -> (&'static str, &'static str) {
        match self {
            Self::Ext4 | Self::Ext4FastCommit => ("mkfs.ext4", "e2fsprogs"),
            Self::Xfs => ("mkfs.xfs", "xfsprogs"),
            Self::Btrfs => ("mkfs.btrfs", "btrfs-progs"),
        }
    }

    /// Fails where its mkfs is missing.
    pub fn require(self) -> Result<(), BenchError> {
        let (program, package) = self.maker();
        command::require(program, package).map(|_| ())
    }

    /// The command that makes it on a device, with room for so many files. Nothing is discarded: the device stays written. ext4
    /// does at once what it would else do in the background of the measurement.
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

impl FromStr for Peer {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|peer| peer.name() == text);
        found.ok_or_else(|| format!("choose among {}", Self::ALL.map(Self::name).join(", ")))
    }
}

/// Names the image that keeps no parent pointers, among the mechanisms that are switched off.
pub const PARENT_POINTERS: &str = "parent-pointers";

/// One who is measured.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Contestant {
    /// Syncline, mounted through its own daemon; perhaps without one of its mechanisms.
    Syncline {
        /// The mechanism that is switched off, by the name that `mount -o ablate=` knows; or [`PARENT_POINTERS`].
        without: Option<String>,
    },
    /// A filesystem of the kernel.
    Peer(Peer),
}

impl Contestant {
    /// Syncline, Syncline without each of these, and the peers.
    pub fn line_up(ablations: &[String], peers: &[Peer]) -> Vec<Self> {
        let whole = Self::Syncline { without: None };
        let ablated = ablations.iter().map(|name| Self::Syncline { without: Some(name.clone()) });
        std::iter::once(whole).chain(ablated).chain(peers.iter().copied().map(Self::Peer)).collect()
    }

    /// True for a filesystem of the kernel.
    pub fn is_peer(&self) -> bool {
        matches!(self, Self::Peer(_))
    }

    /// The options of Syncline's mount.
    pub fn mount_options(&self) -> Vec<OsString> {
        match self {
            Self::Syncline { without: Some(name) } if name != PARENT_POINTERS => {
                vec!["-o".into(), format!("ablate={name}").into()]
            }
            _ => Vec::new(),
        }
    }

    /// The options of Syncline's mkfs.
    pub fn mkfs_options(&self) -> &'static [&'static str] {
        match self {
            Self::Syncline { without: Some(name) } if name == PARENT_POINTERS => {
                &["--parent-pointers", "off"]
            }
            _ => &[],
        }
    }
}

impl fmt::Display for Contestant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Syncline { without: None } => f.pad("syncline"),
            Self::Syncline { without: Some(name) } => f.pad(&format!("syncline -{name}")),
            Self::Peer(peer) => f.pad(peer.name()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contestants_have_names_and_an_order() {
        let line_up = Contestant::line_up(&["flush-elide".into()], &[Peer::Xfs, Peer::Ext4FastCommit]);
        let names: Vec<String> = line_up.iter().map(ToString::to_string).collect();
        assert_eq!(names, ["syncline", "syncline -flush-elide", "xfs", "ext4-fc"]);
        assert_eq!(line_up[1].mount_options(), ["-o", "ablate=flush-elide"]);
        assert!(line_up[0].mount_options().is_empty() && line_up[0].mkfs_options().is_empty());
        let plain = &Contestant::line_up(&[PARENT_POINTERS.into()], &[])[1];
        assert!(plain.mount_options().is_empty());
        assert_eq!(plain.mkfs_options(), ["--parent-pointers", "off"]);
    }

    #[test]
    fn peers_are_read_by_name() {
        for peer in Peer::ALL {
            assert_eq!(peer.name().parse(), Ok(peer));
        }
        assert!("ext3".parse::<Peer>().unwrap_err().contains("ext4-fc"));
    }
}
