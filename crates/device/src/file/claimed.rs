//! Whether a block device that is claimed may be in use, or is only left over from a process that
//! has ended.

use super::strangers;
use crate::parse_mounts;
use std::collections::HashSet;
use std::ffi::CString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// True if the kernel or a process may be using a block device, one that it is a part of, or a part
/// of it. Flushes requested by a process that has ended do not count: the kernel does not show them
/// anywhere.
///
/// Names that other processes use are compared, never looked up, and about their open files only
/// facts that the kernel knows by itself are asked: more would mean waiting for filesystems that
/// are slow or dead. A user who is missed here is refused later, because a claim of a device
/// excludes everyone else.
pub(super) fn may_be_in_use(device: &Path) -> bool {
    let metadata = fs::metadata(device).ok().filter(|metadata| metadata.file_type().is_block_device());
    let Some(metadata) = metadata else { return true };
    let own = format!("{}:{}", libc::major(metadata.rdev()), libc::minor(metadata.rdev()));
    let disks: Vec<Disk> = related(own).into_iter().filter_map(Disk::new).collect();
    let names: Vec<&Path> = disks.iter().map(|disk| disk.name.as_path()).collect();
    disks.iter().any(Disk::has_holders)
        || swaps().any(|swap| names.contains(&swap.as_path()))
        || disks.iter().any(Disk::is_in_btrfs)
        || processes().any(|process| uses(&process, &disks))
        || is_mounted(&disks)
}

/// A block device as the kernel identifies it.
struct Disk {
    /// Its number, as in `8:1`.
    number: String,
    /// Its node below /dev.
    name: PathBuf,
}

impl Disk {
    fn new(number: String) -> Option<Self> {
        let about = fs::read_to_string(in_sysfs(&number).join("uevent")).ok()?;
        let name = about.lines().find_map(|line| line.strip_prefix("DEVNAME="))?;
        Some(Self { number, name: Path::new("/dev").join(name) })
    }

    /// True if another block device is built on this one: by RAID, LVM or encryption.
    fn has_holders(&self) -> bool {
        fs::read_dir(in_sysfs(&self.number).join("holders")).is_ok_and(|mut holders| holders.next().is_some())
    }

    /// Needed because the mount tables name only one device of a multi-device filesystem.
    fn is_in_btrfs(&self) -> bool {
        let filesystems = fs::read_dir("/sys/fs/btrfs").into_iter().flatten().flatten();
        let name = self.name.file_name().unwrap_or_default();
        filesystems.into_iter().any(|filesystem| filesystem.path().join("devices").join(name).exists())
    }
}

fn in_sysfs(number: &str) -> PathBuf {
    Path::new("/sys/dev/block").join(number)
}

/// The numbers of the device, of the disk that it is a partition of, and of its own partitions:
/// claiming one claims the others.
fn related(own: String) -> Vec<String> {
    let directory = in_sysfs(&own);
    let number_in =
        |directory: &Path| Some(fs::read_to_string(directory.join("dev")).ok()?.trim().to_owned());
    let mut numbers = vec![own];
    if directory.join("partition").exists()
        && let Ok(directory) = fs::canonicalize(&directory)
    {
        numbers.extend(directory.parent().and_then(number_in));
    }
    let parts = fs::read_dir(&directory).into_iter().flatten().flatten().map(|entry| entry.path());
    numbers.extend(parts.filter(|part| part.join("partition").exists()).filter_map(|part| number_in(&part)));
    numbers
}

fn swaps() -> impl Iterator<Item = PathBuf> {
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    let name = |line: &str| line.split_whitespace().next().map(PathBuf::from);
    swaps.lines().skip(1).filter_map(name).collect::<Vec<_>>().into_iter()
}

fn processes() -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let is_process = |path: &PathBuf| {
        path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.parse::<u32>().is_ok())
    };
    entries.map(|entry| entry.path()).filter(is_process)
}

/// True if a process has one of the devices open, by whatever name, or is in a filesystem that is
/// on one, mounted or not.
fn uses(process: &Path, disks: &[Disk]) -> bool {
    let pid = process.file_name().and_then(|name| name.to_str()).and_then(|name| name.parse().ok());
    let descriptors = pid.and_then(|pid| strangers::descriptors(pid).ok()).unwrap_or_default();
    let opened = descriptors.iter().map(|descriptor| process.join(format!("fd/{descriptor}")));
    let places = ["cwd", "root", "exe"].map(|place| process.join(place));
    opened.chain(places).filter_map(|link| numbers_known(&link)).any(|(device, filesystem)| {
        let is = |number: &str| disks.iter().any(|disk| disk.number == number);
        device.is_some_and(|device| is(&device)) || is(&filesystem)
    })
}

/// For a link in /proc: the number of the block device that it leads to, if it is one, and of the
/// device that the file is on, as far as the kernel knows them without asking a filesystem's
/// server.
fn numbers_known(link: &Path) -> Option<(Option<String>, String)> {
    let path = CString::new(link.as_os_str().as_bytes()).ok()?;
    // SAFETY: it consists of numbers, for which zeros are valid.
    let mut found: libc::statx = unsafe { std::mem::zeroed() };
    let flags = libc::AT_STATX_DONT_SYNC | libc::AT_NO_AUTOMOUNT;
    // SAFETY: `path` ends with a NUL, and `found` outlives the call.
    let result =
        unsafe { libc::statx(libc::AT_FDCWD, path.as_ptr(), flags, libc::STATX_TYPE, &raw mut found) };
    let number = |major: u32, minor: u32| format!("{major}:{minor}");
    let is_device = u32::from(found.stx_mode) & libc::S_IFMT == libc::S_IFBLK;
    let device = is_device.then(|| number(found.stx_rdev_major, found.stx_rdev_minor));
    (result == 0).then(|| (device, number(found.stx_dev_major, found.stx_dev_minor)))
}

/// True if one is mounted in the mount namespace of any process.
fn is_mounted(disks: &[Disk]) -> bool {
    let mut seen = HashSet::new();
    processes().any(|process| {
        let Ok(namespace) = fs::read_link(process.join("ns/mnt")) else { return false };
        if seen.contains(&namespace) {
            return false;
        }
        // A process that is just ending shows nothing; its namespace may have other processes.
        let Ok(table) = fs::read(process.join("mountinfo")) else { return false };
        if !table.is_empty() {
            seen.insert(namespace);
        }
        // Some filesystems have a device number of their own, so the source counts too. FUSE mounts
        // don't: their process tells more.
        let of = |mount: &crate::MountEntry, disk: &Disk| {
            let named = Path::new(&mount.source) == disk.name && !mount.filesystem_type.starts_with("fuse");
            mount.device == disk.number || named
        };
        parse_mounts(&table).any(|mount| disks.iter().any(|disk| of(&mount, disk)))
    })
}
