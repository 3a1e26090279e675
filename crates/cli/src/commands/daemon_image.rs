//! The image that a daemon has open, which may have another name by now.

use serde_json::Value;
use std::fs::{self, File, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use syncline_device::{Device, FileDevice, OpenOptions, block_on};
use syncline_store::read_superblocks;
use uuid::Uuid;

/// The path of an image, from the text that its daemon reports: a path may be any bytes, and the
/// text replaces some of them.
pub fn path(daemon: &Value, told: &str) -> PathBuf {
    if !told.contains(char::REPLACEMENT_CHARACTER) {
        return told.into();
    }
    let links = descriptors(daemon).into_iter().flat_map(fs::read_link);
    let mut named = links.filter(|path| path.to_string_lossy() == told);
    named.next().unwrap_or_else(|| told.into())
}

/// The image file that a daemon has open and that is no longer at `image`, if it has a name still:
/// it was renamed, or lost one of its names. It has this UUID.
pub fn moved(daemon: &Value, image: &Path, uuid: Option<Uuid>) -> Option<File> {
    let opened: Vec<(PathBuf, Metadata)> = descriptors(daemon)
        .into_iter()
        .filter_map(|descriptor| fs::metadata(&descriptor).ok().map(|found| (descriptor, found)))
        .collect();
    let same = |one: &Metadata, other: &Metadata| (one.dev(), one.ino()) == (other.dev(), other.ino());
    if image.metadata().is_ok_and(|there| opened.iter().any(|(_, found)| same(found, &there))) {
        return None;
    }
    let named = opened.iter().filter(|(_, found)| found.is_file() && found.nlink() > 0);
    let (descriptor, _) = named.into_iter().find(|(descriptor, _)| uuid_of(descriptor) == uuid)?;
    File::open(descriptor).ok()
}

/// The descriptors of a daemon, as paths; none if it may not be asked.
fn descriptors(daemon: &Value) -> Vec<PathBuf> {
    let Some(pid) = daemon["pid"].as_i64() else { return Vec::new() };
    let entries = fs::read_dir(format!("/proc/{pid}/fd"));
    entries.into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

/// The UUID of an image that is in use, if the file is one.
fn uuid_of(file: &Path) -> Option<Uuid> {
    let how = OpenOptions { read_only: true, beside_writer: true, ..OpenOptions::default() };
    let device: Arc<dyn Device> = FileDevice::open(file, how).ok()?;
    let slots = block_on(read_superblocks(&device)).ok()?;
    Some(Uuid::from_bytes(slots.superblock.uuid))
}
