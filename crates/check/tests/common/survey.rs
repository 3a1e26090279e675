//! What a filesystem holds, byte for byte, to compare before and after.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use syncline::{Filesystem, ImageOptions, OpenOptions};
use syncline_device::{Device, MemoryDevice};

/// Everything that can be seen of a file, a directory or a symbolic link.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Seen {
    pub path: PathBuf,
    pub nlink: u32,
    /// Of a file its size and contents, without what is a hole at both ends; `None` when it can't be read.
    pub contents: Option<(u64, Vec<u8>)>,
    pub target: Option<PathBuf>,
    pub xattrs: BTreeMap<String, Vec<u8>>,
    pub directory: bool,
}

/// All inodes, by number.
pub type Survey = BTreeMap<u64, Seen>;

/// Looks at everything on a copy of the device.
pub fn survey(device: &Arc<MemoryDevice>) -> Survey {
    survey_of(device.snapshot())
}

/// Looks at everything. The image is changed by that.
pub fn survey_of(device: Arc<dyn Device>) -> Survey {
    survey_with(device, ImageOptions::default())
}

/// Looks at everything as a mount for reading shows it.
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

/// The last megabyte of a file is all that the samples write in one.
fn contents(fs: &Filesystem, path: &Path, size: u64) -> Option<(u64, Vec<u8>)> {
    let from = size.saturating_sub(1 << 20);
    let mut bytes = vec![0; (size - from) as usize];
    let file = OpenOptions::new().read(true).open(fs, path).ok()?;
    file.read_exact_at(&mut bytes, from).ok()?;
    Some((size, bytes))
}

/// All that could be read before can be read after it.
#[track_caller]
pub fn assert_kept(before: &Survey, after: &Survey, what: &str) {
    for (inode, seen) in before {
        let now = after.get(inode).unwrap_or_else(|| panic!("{what}: {seen:?} is gone"));
        assert_eq!((&now.contents, &now.xattrs), (&seen.contents, &seen.xattrs), "{what}");
    }
}
