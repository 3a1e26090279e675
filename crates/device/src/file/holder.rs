//! The processes that use an image, as far as /proc lists them, so that a refusal can name them.

use super::open::Refusal;
use super::{claimed, lock, strangers};
use crate::{FILESYSTEM_TYPES, MountEntry, mounts, parse_mounts};
use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The user of an image, of a device below it, or of one above it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Holder {
    /// A process.
    Process {
        /// Its process id.
        pid: u32,
        /// Its command name.
        command: String,
        /// Where it has the image mounted.
        mount_point: Option<PathBuf>,
        /// It is in another mount namespace: the mount is not visible from here.
        elsewhere: bool,
    },
    /// A filesystem that is mounted here from a block device over the same bytes.
    Mount {
        /// The kind of filesystem.
        filesystem_type: String,
        /// The block device.
        device: PathBuf,
        /// Where it is mounted.
        mount_point: PathBuf,
    },
    /// An unknown user, through a block device over the same bytes.
    Device {
        /// The block device.
        device: PathBuf,
    },
    /// This user may not see who it is, or the holder has just released it.
    Unknown,
}

impl fmt::Display for Holder {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Process { pid, .. } if *pid == std::process::id() => write!(out, "this process itself"),
            Self::Process { pid, command, mount_point, elsewhere } => {
                write!(out, "process {pid} ({command})")?;
                let Some(mount_point) = mount_point else { return Ok(()) };
                write!(out, ", which has it mounted at {}", mount_point.display())?;
                match elsewhere {
                    true => out.write_str(" in another mount namespace"),
                    false => Ok(()),
                }
            }
            Self::Mount { filesystem_type, device, mount_point } => write!(
                out,
                "the {filesystem_type} filesystem of {} at {}",
                device.display(),
                mount_point.display()
            ),
            Self::Device { device } => write!(out, "a process that has {}", device.display()),
            Self::Unknown => out.write_str("another process"),
        }
    }
}

impl Holder {
    /// The mount point, if it is a mount of ours that this process sees.
    pub fn mount_point(&self) -> Option<&Path> {
        match self {
            Self::Process { mount_point, elsewhere: false, .. } => mount_point.as_deref(),
            _ => None,
        }
    }

    /// The next step for a user who is refused because of this holder.
    pub fn next_step(&self) -> String {
        match self {
            Self::Process { pid, .. } if *pid == std::process::id() => "close it there first".into(),
            Self::Process { pid, mount_point: Some(_), elsewhere: true, .. } => {
                format!("'kill {pid}' unmounts it there")
            }
            Self::Process { mount_point: None, .. } => {
                "wait until it ends; a daemon whose mount is gone ends when the files that are open there are closed"
                    .into()
            }
            Self::Mount { filesystem_type, mount_point, .. }
                if FILESYSTEM_TYPES.contains(&&**filesystem_type) =>
            {
                format!("its daemon has gone: 'syncline umount -l {}' removes it", mount_point.display())
            }
            Self::Device { device } => {
                format!("'lsblk {0}' and 'fuser -v {0}' tell more", device.display())
            }
            Self::Unknown if !strangers::is_root() => "unmount it first, or ask root, who can see the process".into(),
            _ => "unmount it first".into(),
        }
    }

    /// True if the holder is a process that has ended: its open files stay open until the device
    /// has answered its last requests.
    pub(super) fn is_left_over(&self, refusal: &Refusal) -> bool {
        if !strangers::can_be_told() {
            return false;
        }
        match (self, refusal) {
            (Self::Unknown, Refusal::Locked(file)) => {
                lock::place(file).is_some_and(|place| strangers::all_are_ours(&place))
            }
            (Self::Device { device }, _) => !claimed::may_be_in_use(device),
            _ => false,
        }
    }

    /// Finds the holder behind a refusal.
    pub(super) fn of(refusal: &Refusal) -> Self {
        match refusal {
            Refusal::Locked(file) => {
                let place = lock::place(file);
                place.and_then(|place| process_with_lock(&place)).unwrap_or(Self::Unknown)
            }
            Refusal::Claimed(device) => Self::of_claimed(device),
            Refusal::Failed(_) => Self::Unknown,
        }
    }

    fn of_claimed(device: &Path) -> Self {
        let number = fs::metadata(device).map_or(0, |metadata| metadata.rdev());
        let number = format!("{}:{}", libc::major(number), libc::minor(number));
        // Some filesystems of several devices have a device number of their own, so the source
        // counts too. FUSE mounts don't: their process tells more.
        let is_it = |mount: &MountEntry| {
            let named = Path::new(&mount.source) == device && !mount.filesystem_type.starts_with("fuse");
            mount.device == number || named
        };
        let mount = mounts().ok().and_then(|mounts| mounts.into_iter().rfind(is_it));
        let process = || {
            process_with(|pid, descriptor| {
                fs::read_link(format!("/proc/{pid}/fd/{descriptor}")).is_ok_and(|link| link == device)
            })
        };
        // A mount of ours has a daemon, unless that has died.
        match mount {
            Some(mount) if mount.is_ours() => process().unwrap_or_else(|| Self::of_mount(mount, device)),
            Some(mount) => Self::of_mount(mount, device),
            None => process().unwrap_or_else(|| Self::Device { device: device.to_owned() }),
        }
    }

    fn of_mount(mount: MountEntry, device: &Path) -> Self {
        let MountEntry { mount_point, filesystem_type, .. } = mount;
        Self::Mount { filesystem_type, device: device.to_owned(), mount_point }
    }
}

/// The process that holds a lock on the file that the kernel calls `place`.
fn process_with_lock(place: &str) -> Option<Holder> {
    process_with(|pid, descriptor| {
        // The kernel knows this by itself; looking at the file could mean waiting for a filesystem
        // that is slow or dead.
        let about = fs::read_to_string(format!("/proc/{pid}/fdinfo/{descriptor}"));
        about.is_ok_and(|about| strangers::locks(&about).any(|lock| strangers::place(lock) == Some(place)))
    })
}

/// A process that has such a descriptor; if several do, preferably one with a mount.
fn process_with(has: impl Fn(u32, i32) -> bool) -> Option<Holder> {
    let pids = fs::read_dir("/proc").ok()?.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let mut found = None;
    for pid in pids {
        let descriptors = strangers::descriptors(pid).unwrap_or_default();
        if !descriptors.iter().any(|&descriptor| has(pid, descriptor)) {
            continue;
        }
        let holder = describe(pid, &descriptors);
        if matches!(holder, Holder::Process { mount_point: Some(_), .. }) {
            return Some(holder);
        }
        found = found.or(Some(holder));
    }
    found
}

fn describe(pid: u32, descriptors: &[i32]) -> Holder {
    let process = PathBuf::from(format!("/proc/{pid}"));
    let command = fs::read(process.join("comm")).unwrap_or_default();
    let command = String::from_utf8_lossy(&command).trim_end().to_owned();
    let links = descriptors.iter().filter_map(|fd| fs::read_link(process.join(format!("fd/{fd}"))).ok());
    let links: Vec<PathBuf> = links.collect();
    // A mount of ours is identified by the path of its image, which its daemon has open.
    let is_its =
        |mount: &MountEntry| mount.is_ours() && links.iter().any(|link| link == Path::new(&mount.image));
    let table = fs::read(process.join("mountinfo")).unwrap_or_default();
    let mount_point = parse_mounts(&table).filter(is_its).last().map(|mount| mount.mount_point);
    let namespace = |process: &Path| fs::read_link(process.join("ns/mnt")).ok();
    let elsewhere = namespace(&process) != namespace(Path::new("/proc/self"));
    Holder::Process { pid, command, mount_point, elsewhere }
}
