//! What is known of the kernel's page cache while it keeps writes (`-o writeback_cache`): which
//! files are open for writing through it, and so may have contents that have not come here; which
//! contents came and could not be taken; and the times of writes, which are the kernel's.
//!
//! The kernel writes back what it has of a file before it tells of the last close, so a file that
//! is not listed here has nothing to come.
//!
//! A write moves mtime and ctime as it comes, and SETATTR brings the right ones, mostly afterwards.
//! It may also come first: write-back in the background waits for no answer. So the times that came
//! last are kept here, and hold once the kernel has nothing left to hand over.

mod losses;

use losses::Losses;
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use syncline_fs::types::{Ino, Timestamp, WrittenTimes};

/// Marks a handle that writes through the cache.
pub const HANDLE_WRITES: u64 = 1 << 63;

/// The files of a mount whose kernel keeps writes.
#[derive(Default)]
pub struct WriteCache {
    is_on: bool,
    files: Mutex<Files>,
    /// The number of open files, readable without the lock.
    len: AtomicUsize,
    /// The number of files of which something is missing, likewise.
    losses: AtomicUsize,
    /// How often the kernel has handed something over.
    progress: AtomicU64,
}

#[derive(Default)]
struct Files {
    /// Files that are open for writing through the cache.
    open: HashMap<Ino, OpenFile>,
    /// Files that were closed, with the times that hold since and are yet to be taken.
    closed: HashMap<Ino, WrittenTimes>,
    /// Files that are about to become of class `strict`: nobody opens them for writing through the
    /// cache any more.
    becoming_strict: HashSet<Ino>,
    /// Files that were written past the cache, each with the mtime that the kernel knows: it does
    /// not move that for such writes, and would hand it over as if it had.
    known_mtimes: HashMap<Ino, Timestamp>,
    /// Contents that came and could not be taken.
    losses: Losses,
}

/// A file that is open for writing through the cache.
#[derive(Default)]
struct OpenFile {
    /// How many times it is open.
    handles: usize,
    /// The times that the kernel handed over last.
    times: Option<WrittenTimes>,
    /// Contents came since.
    is_written_since: bool,
    /// Nobody may write to it any more.
    is_immutable: bool,
    /// If it is append-only: its size when the kernel had nothing left of it, or when the first
    /// contents came since.
    appended_from: Option<u64>,
}

impl WriteCache {
    /// With `is_on`, the kernel keeps writes.
    pub fn new(is_on: bool) -> Self {
        Self { is_on, ..Self::default() }
    }

    /// True if the kernel keeps writes.
    pub fn is_on(&self) -> bool {
        self.is_on
    }

    /// Counts an opening of a file for writing. False, and not counted, if it may not go through
    /// the cache.
    pub fn opened(&self, ino: Ino) -> bool {
        let mut files = self.files.lock();
        if files.becoming_strict.contains(&ino) {
            return false;
        }
        let times = files.closed.remove(&ino);
        let file = files.open.entry(ino).or_default();
        file.handles += 1;
        if times.is_some() {
            (file.times, file.is_written_since) = (times, true);
        }
        self.len.store(files.open.len(), Ordering::Release);
        true
    }

    /// Counts a close. The kernel has nothing left of what was written through that handle. After the
    /// last one it has nothing left at all: true if the file has other times than those that hold now,
    /// which are to be [taken](Self::times_at_close).
    pub fn closed(&self, ino: Ino) -> bool {
        let mut files = self.files.lock();
        let Some(file) = files.open.get_mut(&ino) else { return false };
        file.handles -= 1;
        if file.handles > 0 {
            return false;
        }
        let times = file.times.filter(|_| file.is_written_since);
        files.open.remove(&ino);
        files.losses.closed(ino);
        self.len.store(files.open.len(), Ordering::Release);
        let Some(times) = times else { return false };
        files.closed.insert(ino, times);
        true
    }

    /// The times that hold since the last close, unless a program has set others since, or has opened
    /// the file: it brings its own, or leaves these to its close. Told once. Asked when nothing else
    /// can change the file's.
    pub fn times_at_close(&self, ino: Ino) -> Option<WrittenTimes> {
        self.files.lock().closed.remove(&ino)
    }

    /// True if the kernel may have contents of the file that have not come.
    pub fn is_open(&self, ino: Ino) -> bool {
        self.len.load(Ordering::Acquire) > 0 && self.files.lock().open.contains_key(&ino)
    }

    /// True if the kernel has nothing of any file.
    pub fn is_empty(&self) -> bool {
        self.len.load(Ordering::Acquire) == 0
    }

    /// Every file of which the kernel may have something.
    pub fn open_files(&self) -> Vec<Ino> {
        self.files.lock().open.keys().copied().collect()
    }

    /// Records that whole pages came and were taken.
    pub fn pages_came(&self, ino: Ino, range: &Range<u64>) {
        self.progress.fetch_add(1, Ordering::Relaxed);
        self.change(ino, |file| file.is_written_since = true);
        self.change_losses(|losses| losses.pages_came(ino, range));
    }

    /// Records that exactly this range was written in another way.
    pub fn written(&self, ino: Ino, range: &Range<u64>) {
        self.change(ino, |file| file.is_written_since = true);
        self.replaced(ino, range);
    }

    /// Records that a range was given other contents, or was cut off.
    pub fn replaced(&self, ino: Ino, range: &Range<u64>) {
        self.change_losses(|losses| losses.replaced(ino, range));
    }

    /// Called for a read that fills pages of the cache, before it is carried out.
    pub fn read(&self, ino: Ino, range: &Range<u64>) {
        self.change_losses(|losses| losses.read(ino, range));
    }

    /// Records that contents could not be taken. True if nothing of the file was missing before.
    pub fn failed(&self, ino: Ino, range: Range<u64>, errno: i32) -> bool {
        self.progress.fetch_add(1, Ordering::Relaxed);
        let mut files = self.files.lock();
        let is_open = files.open.contains_key(&ino);
        let is_first = files.losses.add(ino, range, errno, is_open);
        self.losses.store(files.losses.len(), Ordering::Release);
        is_first
    }

    /// Changes whenever the kernel hands something over of any file.
    pub fn progress(&self) -> u64 {
        self.progress.load(Ordering::Relaxed)
    }

    /// Why contents of the file are missing, if somebody may have it open who wrote them.
    pub fn lost(&self, ino: Ino) -> Option<i32> {
        self.change_losses(|losses| losses.of_open(ino)).flatten()
    }

    /// Why contents of the file are missing, whoever wrote them.
    pub fn missing(&self, ino: Ino) -> Option<i32> {
        self.change_losses(|losses| losses.of(ino)).flatten()
    }

    /// The same, as long as the kernel has not forgotten the file.
    pub fn missing_of_known(&self, ino: Ino) -> Option<i32> {
        self.change_losses(|losses| losses.of_known(ino)).flatten()
    }

    /// True if something is missing of some file.
    pub fn has_losses(&self) -> bool {
        self.losses.load(Ordering::Acquire) > 0
    }

    /// Why the next write(2) to the file has to fail: something was lost, and none has failed since.
    pub fn untold(&self, ino: Ino) -> Option<i32> {
        self.change_losses(|losses| losses.tell(ino)).flatten()
    }

    /// The size that an append-only file had before the kernel began to hand over what it has of it,
    /// if it has `size` now.
    pub fn appended_from(&self, ino: Ino, size: u64) -> u64 {
        self.change(ino, |file| *file.appended_from.get_or_insert(size)).unwrap_or(size)
    }

    /// Records that the kernel has nothing left of the file.
    pub fn has_come(&self, ino: Ino) {
        self.change(ino, |file| file.appended_from = None);
    }

    /// Records whether an open file has become immutable.
    pub fn set_immutable(&self, ino: Ino, is_immutable: bool) {
        self.change(ino, |file| file.is_immutable = is_immutable);
    }

    /// True if the next write(2) to the file has to fail. So the kernel must ask for attributes before
    /// it, whoever was told them meanwhile.
    pub fn refuses_next(&self, ino: Ino) -> bool {
        let is_untold = self.change_losses(|losses| losses.is_untold(ino)).unwrap_or(false);
        is_untold || self.change(ino, |file| file.is_immutable).unwrap_or(false)
    }

    /// Records times that the kernel hands over; returns those to take. (It may have an mtime that
    /// is older than the file's, because it was written past the cache.)
    pub fn handed_over(&self, ino: Ino, times: WrittenTimes, mtime: Timestamp) -> WrittenTimes {
        let mut files = self.files.lock();
        let is_stale = files.known_mtimes.get(&ino) == Some(&times.mtime);
        if !is_stale {
            files.known_mtimes.remove(&ino);
        }
        let taken = if is_stale { WrittenTimes { mtime, ..times } } else { times };
        files.closed.remove(&ino);
        if let Some(file) = files.open.get_mut(&ino) {
            (file.times, file.is_written_since) = (Some(taken), false);
        }
        taken
    }

    /// Records that a program is about to set the times: those of earlier writes no longer matter.
    pub fn times_are_set(&self, ino: Ino) {
        if !self.is_on {
            return;
        }
        let mut files = self.files.lock();
        files.known_mtimes.remove(&ino);
        files.closed.remove(&ino);
        if let Some(file) = files.open.get_mut(&ino) {
            (file.times, file.is_written_since) = (None, false);
        }
    }

    /// Records that a program is about to change something else, which moves the kernel's ctime.
    pub fn ctime_moves(&self, ino: Ino, ctime: Timestamp) {
        let mut files = self.files.lock();
        let files = &mut *files;
        let open = files.open.get_mut(&ino).and_then(|file| file.times.as_mut());
        for times in open.into_iter().chain(files.closed.get_mut(&ino)) {
            times.ctime = ctime;
        }
    }

    /// True if times came before contents of the file did.
    pub fn is_unsettled(&self, ino: Ino) -> bool {
        self.change(ino, |file| file.is_written_since && file.times.is_some()).unwrap_or(false)
    }

    /// The times that hold now that the kernel has nothing left to hand over, if the file has
    /// others.
    pub fn settled_times(&self, ino: Ino) -> Option<WrittenTimes> {
        self.change(ino, |file| if std::mem::take(&mut file.is_written_since) { file.times } else { None })
            .flatten()
    }

    /// Records a write past the cache to a file that had this mtime, before it is carried out.
    pub fn written_past(&self, ino: Ino, mtime: Timestamp) {
        self.files.lock().known_mtimes.entry(ino).or_insert(mtime);
    }

    /// True if the kernel's mtime is known to be older than the file's.
    pub fn is_known_to_be_stale(&self, ino: Ino) -> bool {
        self.files.lock().known_mtimes.contains_key(&ino)
    }

    /// Keeps a file out of the cache while it becomes of class `strict`; `None` if it is open for
    /// writing there.
    pub fn become_strict(&self, ino: Ino) -> Option<BecomingStrict<'_>> {
        let mut files = self.files.lock();
        if files.open.contains_key(&ino) {
            return None;
        }
        files.becoming_strict.insert(ino);
        Some(BecomingStrict { cache: self, ino })
    }

    /// Called when the kernel has forgotten the file; `is_gone` if it has no name either.
    pub fn forget(&self, ino: Ino, is_gone: bool) {
        if self.is_on {
            self.files.lock().known_mtimes.remove(&ino);
            self.change_losses(|losses| if is_gone { losses.remove(ino) } else { losses.forget(ino) });
        }
    }

    fn change<T>(&self, ino: Ino, change: impl FnOnce(&mut OpenFile) -> T) -> Option<T> {
        if self.is_empty() { None } else { self.files.lock().open.get_mut(&ino).map(change) }
    }

    fn change_losses<T>(&self, change: impl FnOnce(&mut Losses) -> T) -> Option<T> {
        if !self.has_losses() {
            return None;
        }
        let mut files = self.files.lock();
        let changed = change(&mut files.losses);
        self.losses.store(files.losses.len(), Ordering::Release);
        Some(changed)
    }
}

/// Held while a file becomes of class `strict`.
pub struct BecomingStrict<'a> {
    cache: &'a WriteCache,
    ino: Ino,
}

impl Drop for BecomingStrict<'_> {
    fn drop(&mut self) {
        self.cache.files.lock().becoming_strict.remove(&self.ino);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp { seconds, nanoseconds: 0 }
    }

    fn times(seconds: i64) -> WrittenTimes {
        WrittenTimes { mtime: at(seconds), ctime: at(seconds) }
    }

    #[test]
    fn a_file_is_open_until_its_last_handle_is_closed() {
        let cache = WriteCache::new(true);
        assert!(cache.is_empty() && cache.opened(7) && cache.opened(7));
        cache.closed(7);
        assert!(cache.is_open(7) && !cache.is_open(8) && !cache.is_empty());
        cache.closed(7);
        cache.closed(7);
        assert!(!cache.is_open(7) && cache.is_empty() && cache.open_files().is_empty());
    }

    #[test]
    fn contents_are_lost_until_they_are_written_again_or_cut_off() {
        let cache = WriteCache::new(true);
        cache.opened(7);
        assert!(cache.failed(7, 0..8192, libc::ENOSPC));
        assert!(!cache.failed(7, 8192..12288, libc::EDQUOT));
        cache.pages_came(7, &(0..4096));
        cache.pages_came(7, &(8192..20_000));
        assert_eq!(cache.lost(7), Some(libc::EDQUOT));
        cache.written(7, &(5000..6000));
        cache.replaced(7, &(6000..u64::MAX));
        assert_eq!(cache.lost(7), Some(libc::EDQUOT), "some of the second page is missing");
        cache.written(7, &(4096..5000));
        assert_eq!((cache.lost(7), cache.has_losses()), (None, false));
        assert_eq!(cache.untold(7), None);
        cache.failed(7, 0..1, libc::EIO);
        assert_eq!((cache.untold(7), cache.untold(7)), (Some(libc::EIO), None));
        cache.closed(7);
        assert_eq!((cache.lost(7), cache.missing(7)), (None, Some(libc::EIO)), "its programs were told");
        cache.forget(7, false);
        assert_eq!((cache.missing(7), cache.missing_of_known(7)), (Some(libc::EIO), None));
        cache.forget(7, true);
        assert_eq!(cache.missing(7), None);
    }

    #[test]
    fn an_append_only_file_has_one_end_while_contents_come() {
        let cache = WriteCache::new(true);
        assert_eq!(cache.appended_from(7, 10), 10);
        cache.opened(7);
        assert_eq!((cache.appended_from(7, 10), cache.appended_from(7, 5000)), (10, 10));
        cache.has_come(7);
        assert_eq!(cache.appended_from(7, 5000), 5000);
    }

    /// Write-back in the background hands times over while the contents are still on their way.
    #[test]
    fn times_that_came_before_their_contents_hold_in_the_end() {
        let cache = WriteCache::new(true);
        cache.opened(7);
        cache.pages_came(7, &(0..1));
        assert_eq!(cache.settled_times(7), None, "none came");
        assert_eq!(cache.handed_over(7, times(5), at(9)), times(5));
        assert_eq!(cache.settled_times(7), None, "they are the file's");
        cache.pages_came(7, &(0..1));
        assert!(cache.is_unsettled(7));
        assert_eq!(cache.settled_times(7), Some(times(5)));
        assert!(!cache.is_unsettled(7));
        assert_eq!(cache.settled_times(7), None, "told once");
        cache.pages_came(7, &(0..1));
        cache.times_are_set(7);
        assert_eq!(cache.settled_times(7), None);
        assert_eq!(cache.handed_over(7, times(6), at(9)), times(6));
        cache.opened(7);
        cache.pages_came(7, &(0..1));
        assert!(!cache.closed(7), "another one may have more");
        assert!(cache.closed(7));
        assert_eq!((cache.times_at_close(7), cache.times_at_close(7)), (Some(times(6)), None));
    }

    /// A RELEASE comes when close(2) has long returned. Between the two, programs may do anything.
    #[test]
    fn times_at_a_close_give_way_to_later_ones() {
        let cache = WriteCache::new(true);
        let close = || {
            cache.opened(7);
            cache.handed_over(7, times(5), at(9));
            cache.pages_came(7, &(0..1));
            assert!(cache.closed(7));
        };
        close();
        cache.times_are_set(7);
        assert_eq!(cache.times_at_close(7), None);
        close();
        cache.handed_over(7, times(6), at(9));
        assert_eq!(cache.times_at_close(7), None);
        close();
        cache.ctime_moves(7, at(8));
        assert_eq!(cache.times_at_close(7), Some(WrittenTimes { mtime: at(5), ctime: at(8) }));
        // Whoever opens it may write nothing.
        close();
        cache.opened(7);
        assert_eq!(cache.times_at_close(7), None);
        assert!(cache.is_unsettled(7) && cache.closed(7));
        assert_eq!(cache.times_at_close(7), Some(times(5)));
        assert!(cache.files.lock().closed.is_empty());
    }

    #[test]
    fn a_time_that_the_kernel_did_not_move_is_not_taken() {
        let cache = WriteCache::new(true);
        cache.written_past(7, at(3));
        cache.written_past(7, at(4));
        assert!(cache.is_known_to_be_stale(7));
        let taken = cache.handed_over(7, WrittenTimes { mtime: at(3), ctime: at(8) }, at(6));
        assert_eq!(taken, WrittenTimes { mtime: at(6), ctime: at(8) });
        assert_eq!(cache.handed_over(7, times(9), at(6)), times(9), "a store into a mapping moved it");
        assert!(!cache.is_known_to_be_stale(7));
        cache.written_past(7, at(9));
        cache.forget(7, false);
        assert!(!cache.is_known_to_be_stale(7));
    }

    #[test]
    fn what_becomes_strict_is_not_opened_through_the_cache() {
        let cache = WriteCache::new(true);
        cache.opened(7);
        assert!(cache.become_strict(7).is_none());
        cache.closed(7);
        let becoming = cache.become_strict(7).unwrap();
        assert!(!cache.opened(7) && cache.opened(8));
        drop(becoming);
        assert!(cache.opened(7));
    }
}
