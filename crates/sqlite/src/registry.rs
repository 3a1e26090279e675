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
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};
use syncline::{Filesystem, FormatOptions, ImageOptions};

/// The Linux errnos.
const EPERM: i32 = 1;
const ENOENT: i32 = 2;
const EACCES: i32 = 13;
const EBUSY: i32 = 16;
const EROFS: i32 = 30;

/// Images by their names. Locked for a moment only: an image that is slow to open or to close keeps nobody from
/// the others.
static IMAGES: LazyLock<Mutex<HashMap<String, Arc<Slot>>>> = LazyLock::new(Mutex::default);

/// The place of an image. It stays locked while the image is opened or closed, so that a second connection
/// waits for that.
#[derive(Default)]
struct Slot {
    entry: Mutex<Option<Entry>>,
    /// A program in Rust has opened the image, and closes it.
    served: AtomicBool,
}

struct Entry {
    image: Arc<Image>,
    /// Device and inode of its file; None on a network.
    file: Option<(u64, u64)>,
    uses: usize,
}

/// A use of an open image.
pub(crate) struct Use {
    /// Always there, up to its end.
    image: Option<Arc<Image>>,
}

impl std::ops::Deref for Use {
    type Target = Image;

    fn deref(&self) -> &Image {
        self.image.as_ref().expect("only its end takes it")
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        let Some(image) = self.image.take() else { return };
        let key = image.key().to_owned();
        release(&key, |_, entry| {
            entry.uses -= 1;
            // The last one closes the image, and the next connection to it waits for that.
            drop(image);
        });
    }
}

/// Ends a use, and closes the image after the last one.
fn release(key: &str, end: impl FnOnce(&Slot, &mut Entry)) {
    let Some(slot) = IMAGES.lock().get(key).cloned() else { return };
    let mut entry = slot.entry.lock();
    let Some(open) = entry.as_mut() else { return };
    end(&slot, open);
    if open.uses == 0 && !slot.served.load(Ordering::Acquire) {
        *entry = None;
        forget_empty(key, &slot);
    }
}

/// Removes a slot without an image, unless somebody is about to use it. The caller has locked it.
fn forget_empty(key: &str, slot: &Arc<Slot>) {
    let mut images = IMAGES.lock();
    // The references of the caller and of the table.
    if Arc::strong_count(slot) == 2 {
        images.remove(key);
    }
}

impl Entry {
    fn another(&mut self) -> Use {
        self.uses += 1;
        Use { image: Some(self.image.clone()) }
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
    let slot = IMAGES.lock().entry(name.to_owned()).or_default().clone();
    let mut entry = slot.entry.lock();
    assert!(entry.is_none(), "an image {name} is open already");
    *entry = Some(Entry { image, file: None, uses: 0 });
    slot.served.store(true, Ordering::Release);
    Served { name: name.to_owned() }
}

/// An image that [`serve`] offers.
#[must_use = "dropping it ends the offer"]
pub struct Served {
    name: String,
}

impl Drop for Served {
    fn drop(&mut self) {
        release(&self.name, |slot, _| slot.served.store(false, Ordering::Release));
    }
}

/// The name of the image that a URI's parameter means.
pub(crate) fn key_of(image: &str, snapshot: Option<&str>) -> String {
    let is_served = IMAGES.lock().get(image).is_some_and(|slot| slot.served.load(Ordering::Acquire));
    // Looking at the path may take long.
    if is_served { image.to_owned() } else { names::key(image, snapshot) }
}

/// The image of a file with this full name, if it is open, and the file's path in it. The name of an image on a
/// network may begin like that of another one: then the longest fits.
pub(crate) fn find(name: &str) -> Option<(Use, String)> {
    let mut found: Vec<_> = {
        let images = IMAGES.lock();
        let within = |(key, slot): (&String, &Arc<Slot>)| {
            names::within(name, key).map(|path| (path.to_owned(), slot.clone()))
        };
        images.iter().filter_map(within).collect()
    };
    found.sort_by_key(|(path, _)| path.len());
    found.into_iter().find_map(|(path, slot)| {
        let image = slot.entry.lock().as_mut().map(Entry::another)?;
        Some((image, path))
    })
}

/// An image, opened unless it is open.
pub(crate) fn open(key: &str, path: &str, options: &Options) -> Result<Use> {
    let slot = IMAGES.lock().entry(key.to_owned()).or_default().clone();
    let mut entry = slot.entry.lock();
    if let Some(open) = entry.as_mut() {
        if open.file.is_some_and(|file| Some(file) != file_at(path)) {
            let text = format!(
                "{path} is not the file that this process has open as an image: it was moved or replaced. Close all \
                 connections first"
            );
            return Err(Failure::cannot_open(text));
        }
        return Ok(open.another());
    }
    fork::watch();
    let (fs, read_only) = open_as(path, options).inspect_err(|_| forget_empty(key, &slot))?;
    let core = Core { fs, cache: Cache::new(options.memory_bytes) };
    let image = Arc::new(Image::new(key, core, read_only));
    Ok(entry.insert(Entry { image, file: file_at(path), uses: 0 }).another())
}

/// Opens an image or a snapshot of it; true if it is read-only.
fn open_as(path: &str, options: &Options) -> Result<(Filesystem, bool)> {
    let Some(snapshot) = &options.snapshot else { return open_filesystem(path, options) };
    let opened = Filesystem::open_snapshot(path, snapshot, ImageOptions::read_only());
    opened.map(|fs| (fs, true)).map_err(|error| refusal(path, options, error))
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
            match Filesystem::open(path, ImageOptions::read_only()) {
                Ok(fs) => Ok((fs, true)),
                // It could not be made either.
                Err(missing) if missing.errno() == ENOENT => Err(Failure::of(code::CANTOPEN)(error)),
                Err(error) => Err(refusal(path, options, error)),
            }
        }
        Err(error) => Err(refusal(path, options, error)),
    }
}

/// Why an image could not be opened, and what to do.
fn refusal(path: &str, options: &Options, error: syncline::Error) -> Failure {
    match error.errno() {
        // A snapshot is missing, not the image.
        ENOENT if options.snapshot.is_some() && file_at(path).is_some() => Failure::of(code::CANTOPEN)(error),
        ENOENT if options.create.is_some() => Failure::cannot_open(format!("{error}: make its folder first")),
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
        let monday = Options { snapshot: Some("monday".into()), ..Options::default() };
        let refused = |path: &str, options: &Options| open("refused", path, options).err().unwrap().text;
        let nowhere = folder.path().join("none/app.img").display().to_string();
        let made = Options { create: Some(32 << 20), ..Options::default() };
        assert!(refused(&nowhere, &made).contains("make its folder first"), "{}", refused(&nowhere, &made));
        let options = Options { create: Some(32 << 20), ..Options::default() };
        let small = Options { create: Some(1 << 20), ..Options::default() };
        assert!(refused(&path, &small).contains("at least 16 MiB"), "{}", refused(&path, &small));
        let first = open(&key, &path, &options).unwrap();
        let wrong = refused(&path, &monday);
        assert!(wrong.contains("no snapshot") && !wrong.contains("mkfs"), "{wrong}");
        let second = open(&key, &path, &Options::default()).unwrap();
        assert!(std::ptr::eq(&*first, &*second));
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
