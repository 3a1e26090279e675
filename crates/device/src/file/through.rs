//! Which block devices flush everything after a write with `RWF_DSYNC`.
//!
//! Linux turns such a write into one with FUA. A disk that supports FUA makes only that write
//! persistent. For one that does not, the kernel's flush machinery sends the write, waits for it,
//! and flushes the disk: exactly what an fsync with nothing but a batch to write needs, in one
//! request, without waking a thread of ours in between. A stack of devices (md, most of dm) would
//! flush only the member that the write went to; it is recognised by having no request queue of its
//! own.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// True if a write with that flag to this open block device ends with a flush of everything that
/// the device holds.
pub(super) fn flushes_with_write(file: &File) -> io::Result<bool> {
    let number = file.metadata()?.rdev();
    let (major, minor) = (libc::major(number), libc::minor(number));
    let mut device = fs::canonicalize(format!("/sys/dev/block/{major}:{minor}"))?;
    if device.join("partition").exists() {
        // A partition uses the queue of its disk.
        device.pop();
    }
    queue_flushes_with_write(&device)
}

/// The same check on a disk's directory in `/sys`.
fn queue_flushes_with_write(device: &Path) -> io::Result<bool> {
    let fua = fs::read_to_string(device.join("queue/fua"))?;
    Ok(device.join("mq").is_dir() && fua.trim() == "0")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_disks_with_a_queue_of_their_own_and_without_fua() {
        let disk = tempfile::tempdir().unwrap();
        assert!(queue_flushes_with_write(disk.path()).is_err());
        fs::create_dir(disk.path().join("queue")).unwrap();
        let fua = |value| fs::write(disk.path().join("queue/fua"), value).unwrap();
        fua("0\n");
        assert!(!queue_flushes_with_write(disk.path()).unwrap(), "a stack of devices");
        fs::create_dir(disk.path().join("mq")).unwrap();
        assert!(queue_flushes_with_write(disk.path()).unwrap());
        fua("1\n");
        assert!(!queue_flushes_with_write(disk.path()).unwrap(), "this write alone would be persistent");
    }
}
