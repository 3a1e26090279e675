//! Whether a block device that somebody claims may be in use, or is only left over from a process that has ended.

use super::strangers;
use crate::parse_mounts;
use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// True if the kernel or a process may have a block device, one that it is a part of, or a part of it. Flushes that a process asked
/// for before it ended are none of that: the kernel counts them nowhere.
pub(super) fn may_be_in_use(device: &Path) -> bool {
    let Some(number) = number_of(device) else { return true };
    let numbers = related(number);
    numbers.iter().any(|&number| has_holders(number))
        || swaps().any(|swap| number_of(&swap).is_some_and(|number| numbers.contains(&number)))
        || processes().any(|process| has_open(&process, &numbers))
        || is_mounted(&numbers)
}

fn number_of(device: &Path) -> Option<u64> {
    let metadata = fs::metadata(device).ok().filter(|metadata| metadata.file_type().is_block_device());
    Some(metadata?.rdev())
}

fn in_sysfs(number: u64) -> PathBuf {
    format!("/sys/dev/block/{}:{}", libc::major(number), libc::minor(number)).into()
}

/// It, the disk that it is a partition of, and its own partitions: who claims one claims the others.
fn related(number: u64) -> Vec<u64> {
    let own = in_sysfs(number);
    let number_in = |directory: &Path| {
        let text = fs::read_to_string(directory.join("dev")).ok()?;
        let (major, minor) = text.trim().split_once(':')?;
        Some(libc::makedev(major.parse().ok()?, minor.parse().ok()?))
    };
    let mut numbers = vec![number];
    if own.join("partition").exists()
        && let Ok(own) = fs::canonicalize(&own)
    {
        numbers.extend(own.parent().and_then(number_in));
    }
    let parts = fs::read_dir(&own).into_iter().flatten().flatten().map(|entry| entry.path());
    numbers.extend(parts.filter(|part| part.join("partition").exists()).filter_map(|part| number_in(&part)));
    numbers
}

/// True if a block device of the kernel's is made of this one: of RAID, LVM or encryption.
fn has_holders(number: u64) -> bool {
    fs::read_dir(in_sysfs(number).join("holders")).is_ok_and(|mut holders| holders.next().is_some())
}

fn swaps() -> impl Iterator<Item = PathBuf> {
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    let paths: Vec<PathBuf> =
        swaps.lines().skip(1).filter_map(|line| line.split_whitespace().next().map(PathBuf::from)).collect();
    paths.into_iter()
}

fn processes() -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let is_process = |path: &PathBuf| {
        path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.parse::<u32>().is_ok())
    };
    entries.map(|entry| entry.path()).filter(is_process)
}

/// By their names: to look at the files themselves would be to wait for filesystems that are slow or dead.
fn has_open(process: &Path, numbers: &[u64]) -> bool {
    let pid = process.file_name().and_then(|name| name.to_str()).and_then(|name| name.parse().ok());
    let descriptors = pid.and_then(|pid| strangers::descriptors(pid).ok()).unwrap_or_default();
    descriptors.iter().any(|descriptor| {
        let link = fs::read_link(process.join(format!("fd/{descriptor}")));
        link.is_ok_and(|link| {
            link.starts_with("/dev") && number_of(&link).is_some_and(|number| numbers.contains(&number))
        })
    })
}

/// In the mount namespace of any process.
fn is_mounted(numbers: &[u64]) -> bool {
    let names: Vec<String> = numbers.iter().map(|&number| device_number(number)).collect();
    let mut seen = HashSet::new();
    processes().any(|process| {
        let Ok(namespace) = fs::read_link(process.join("ns/mnt")) else { return false };
        if !seen.insert(namespace) {
            return false;
        }
        let table = fs::read(process.join("mountinfo")).unwrap_or_default();
        // Some filesystems of several devices have a number of their own.
        parse_mounts(&table).any(|mount| {
            let source = Path::new(&mount.source);
            let by_name = source.starts_with("/dev") && !mount.filesystem_type.starts_with("fuse");
            names.contains(&mount.device)
                || (by_name && number_of(source).is_some_and(|number| numbers.contains(&number)))
        })
    })
}

/// As mount tables write it.
fn device_number(number: u64) -> String {
    format!("{}:{}", libc::major(number), libc::minor(number))
}
