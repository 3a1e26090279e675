//! The contents of a filesystem, byte for byte, for comparing before and after.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use syncline::{Filesystem, ImageOptions, OpenOptions};
use syncline_device::{Device, MemoryDevice};

/// Everything visible of a file, a directory or a symlink.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Seen {
    pub path: PathBuf,
    pub nlink: u32,
    /// Size and contents of a file, without holes at both ends; `None` if unreadable.
    pub contents: Option<(u64, Vec<u8>)>,
    pub target: Option<PathBuf>,
    pub xattrs: BTreeMap<String, Vec<u8>>,
    pub directory: bool,
}

/// All inodes, by number.
pub type Survey = BTreeMap<u64, Seen>;

/// Surveys a copy of the device.
pub fn survey(device: &Arc<MemoryDevice>) -> Survey {
    survey_of(device.snapshot())
}

/// Surveys everything, which changes the image.
pub fn survey_of(device: Arc<dyn Device>) -> Survey {
    survey_with(device, ImageOptions::default())
}

/// Surveys everything that a read-only mount shows.
pub fn survey_for_reading(device: Arc<dyn Device>) -> Survey {
    survey_with(device, ImageOptions::read_only())
}

fn survey_with(device: Arc<dyn Device>, options: ImageOptions) -> Survey {
    let fs = Filesystem::open_device(device, options).unwrap();
    let mut survey = Survey::new();
    look(&fs, Path::new("/"), &mut survey);
    fs.close().unwrap();
    survey
}

fn look(fs: &Filesystem, path: &Path, survey: &mut Survey) {
    let metadata = fs.symlink_metadata(path).unwrap();
    let mut xattrs = BTreeMap::new();
    if !metadata.is_symlink() {
        for name in fs.xattrs(path).unwrap() {
            let value = fs.xattr(path, &name).unwrap().unwrap();
            xattrs.insert(name.to_string_lossy().into_owned(), value);
        }
    }
    let seen = Seen {
        path: path.to_owned(),
        nlink: metadata.nlink(),
        contents: metadata.is_file().then(|| contents(fs, path, metadata.len())).flatten(),
        target: metadata.is_symlink().then(|| fs.read_link(path).unwrap()),
        xattrs,
        directory: metadata.is_dir(),
    };
    // A file with two names is the same under both.
    survey.entry(metadata.ino()).or_insert(seen);
    if metadata.is_dir() {
        for entry in fs.read_dir(path).unwrap() {
            let entry = entry.unwrap();
            look(fs, &path.join(entry.file_name()), survey);
        }
    }
}

/// Reads the last megabyte of a file, which is all that the samples write at once.
fn contents(fs: &Filesystem, path: &Path, size: u64) -> Option<(u64, Vec<u8>)> {
    let from = size.saturating_sub(1 << 20);
    let mut bytes = vec![0; (size - from) as usize];
    let file = OpenOptions::new().read(true).open(fs, path).ok()?;
    file.read_exact_at(&mut bytes, from).ok()?;
    Some((size, bytes))
}

/// Asserts that everything readable before is readable after.
#[track_caller]
pub fn assert_kept(before: &Survey, after: &Survey, what: &str) {
    for (inode, seen) in before {
        let now = after.get(inode).unwrap_or_else(|| panic!("{what}: {seen:?} is gone"));
        assert_eq!((&now.contents, &now.xattrs), (&seen.contents, &seen.xattrs), "{what}");
    }
}
