//! The images that are open in this process. The first connection opens an image, the last one closes it.

use crate::cache::Cache;
use crate::failure::{Failure, Result, code};
use crate::ffi::fork;
use crate::file::Core;
use crate::image::Image;
use crate::names;
use crate::options::Options;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, LazyLock};
use syncline::{Filesystem, FormatOptions, ImageOptions};

/// The Linux errnos.
const EPERM: i32 = 1;
const ENOENT: i32 = 2;
const EACCES: i32 = 13;
const EBUSY: i32 = 16;
const EROFS: i32 = 30;

/// Images by their names. It stays locked while one is opened or closed, so that a second connection waits for that.
static OPEN: LazyLock<Mutex<HashMap<String, Entry>>> = LazyLock::new(Mutex::default);

struct Entry {
    image: Arc<Image>,
    /// Device and inode of its file; None on a network.
    file: Option<(u64, u64)>,
    uses: usize,
    /// A program in Rust has opened it, and closes it.
    served: bool,
}

/// A use of an open image.
pub(crate) struct Use {
    image: Arc<Image>,
}

impl std::ops::Deref for Use {
    type Target = Image;

    fn deref(&self) -> &Image {
        &self.image
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        release(self.image.key(), |entry| entry.uses -= 1);
    }
}

/// Ends a use, and closes the image after the last one.
fn release(key: &str, end: impl FnOnce(&mut Entry)) {
    let mut open = OPEN.lock();
    let Some(entry) = open.get_mut(key) else { return };
    end(entry);
    if entry.uses == 0 && !entry.served {
        open.remove(key);
    }
}

impl Entry {
    fn another(&mut self) -> Use {
        self.uses += 1;
        Use { image: self.image.clone() }
    }
}

/// Offers an image that the program has open itself: `image=NAME` finds its databases, until the result is
/// dropped and the last connection is closed. A program must not change a database's files by other ways
/// meanwhile.
///
/// # Panics
///
/// If the name is in use.
pub fn serve(name: &str, fs: &Filesystem) -> Served {
    let core = Core { fs: fs.clone(), cache: Cache::new(Options::default().memory_bytes) };
    let image = Arc::new(Image::new(name, core, false));
    let entry = Entry { image, file: None, uses: 0, served: true };
    let before = OPEN.lock().insert(name.to_owned(), entry);
    assert!(before.is_none(), "an image {name} is open already");
    Served { name: name.to_owned() }
}

/// An image that [`serve`] offers.
#[must_use = "dropping it ends the offer"]
pub struct Served {
    name: String,
}

impl Drop for Served {
    fn drop(&mut self) {
        release(&self.name, |entry| entry.served = false);
    }
}

/// The name of the image that a URI's parameter means.
pub(crate) fn key_of(image: &str, snapshot: Option<&str>) -> String {
    match OPEN.lock().get(image) {
        Some(entry) if entry.served => image.to_owned(),
        _ => names::key(image, snapshot),
    }
}

/// The image of a file with this full name, if it is open, and the file's path in it.
pub(crate) fn find(name: &str) -> Option<(Use, String)> {
    let mut open = OPEN.lock();
    open.iter_mut().find_map(|(key, entry)| {
        let path = names::within(name, key)?;
        Some((entry.another(), path.to_owned()))
    })
}

/// An image, opened unless it is open.
pub(crate) fn open(key: &str, path: &str, options: &Options) -> Result<Use> {
    let mut open = OPEN.lock();
    if let Some(entry) = open.get_mut(key) {
        if entry.file.is_some_and(|file| Some(file) != file_at(path)) {
            let text = format!(
                "{path} is not the file that this process has open as an image: it was moved or replaced. Close all \
                 connections first"
            );
            return Err(Failure::cannot_open(text));
        }
        return Ok(entry.another());
    }
    fork::watch();
    let (fs, read_only) = match &options.snapshot {
        Some(snapshot) => {
            let opened = Filesystem::open_snapshot(path, snapshot, ImageOptions::read_only());
            (opened.map_err(|error| refusal(path, error))?, true)
        }
        None => open_filesystem(path, options)?,
    };
    let core = Core { fs, cache: Cache::new(options.memory_bytes) };
    let image = Arc::new(Image::new(key, core, read_only));
    let mut entry = Entry { image, file: file_at(path), uses: 0, served: false };
    let image = entry.another();
    open.insert(key.to_owned(), entry);
    Ok(image)
}

/// Device and inode of the file at a path.
fn file_at(path: &str) -> Option<(u64, u64)> {
    std::fs::metadata(path).ok().map(|metadata| (metadata.dev(), metadata.ino()))
}

/// Opens an image, read-only if this process may not write to it.
fn open_filesystem(path: &str, options: &Options) -> Result<(Filesystem, bool)> {
    let how = ImageOptions::new();
    let opened = match options.create {
        Some(bytes) => Filesystem::open_or_create(path, bytes, &FormatOptions::default(), how),
        None => Filesystem::open(path, how),
    };
    match opened {
        Ok(fs) => Ok((fs, false)),
        Err(error) if [EPERM, EACCES, EROFS].contains(&error.errno()) => {
            let opened = Filesystem::open(path, ImageOptions::read_only());
            opened.map(|fs| (fs, true)).map_err(|error| refusal(path, error))
        }
        Err(error) => Err(refusal(path, error)),
    }
}

/// Why an image could not be opened, and what to do.
fn refusal(path: &str, error: syncline::Error) -> Failure {
    match error.errno() {
        ENOENT => Failure::cannot_open(format!(
            "{error}: 'syncline mkfs {path} --size 1GiB' makes an image, or '&create=1GiB' behind the name of the database"
        )),
        EBUSY => Failure::new(
            code::BUSY,
            format!(
                "{error}. Processes share an image by a mount: 'syncline mount {path} DIR', and open the databases \
                 below DIR, without vfs=syncline"
            ),
        ),
        _ => Failure::of(code::CANTOPEN)(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_use_closes_an_image() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("app.img").display().to_string();
        let key = key_of(&path, None);
        let missing = open(&key, &path, &Options::default()).err().unwrap();
        assert_eq!(missing.code, code::CANTOPEN);
        assert!(missing.text.contains("syncline mkfs"), "{missing}");
        let options = Options { create: Some(32 << 20), ..Options::default() };
        let first = open(&key, &path, &options).unwrap();
        let second = open(&key, &path, &Options::default()).unwrap();
        assert!(Arc::ptr_eq(&first.image, &second.image));
        first.fs().write("/note", "kept").unwrap();
        drop(first);
        let (third, inside) = find(&format!("{key}/a/b")).unwrap();
        assert_eq!(inside, "/a/b");
        drop((second, third));
        assert!(find(&format!("{key}/a/b")).is_none());
        let fs = Filesystem::open(&path, ImageOptions::new()).unwrap();
        assert_eq!(fs.read("/note").unwrap(), b"kept");
        assert!(fs.recovery().clean, "it was closed: {:?}", fs.recovery());
        let busy = open(&key, &path, &Options::default()).err().unwrap();
        assert_eq!(busy.code, code::BUSY);
        assert!(busy.text.contains("syncline mount"), "{busy}");
    }
}
