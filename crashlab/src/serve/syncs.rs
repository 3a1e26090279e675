//! Watches the program's syncs that don't reach a FUSE filesystem.

use super::Recorded;
use crate::action::{Action, Ino};
use crate::kernel::{Asked, Call, Listener};
use std::ffi::OsStr;
use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::thread::Builder;

/// With these flags, the call returns when the writes have ended.
const WAITS: u32 = libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
const ALL_FLAGS: u32 = libc::SYNC_FILE_RANGE_WAIT_BEFORE | WAITS;

/// True for a descriptor that was opened with O_PATH, of which the kernel syncs nothing.
fn is_path_only(thread: u32, descriptor: i32) -> bool {
    let told = fs::read_to_string(format!("/proc/{thread}/fdinfo/{descriptor}")).unwrap_or_default();
    let flags = told.lines().find_map(|line| line.strip_prefix("flags:"));
    let flags = flags.and_then(|flags| i32::from_str_radix(flags.trim(), 8).ok());
    flags.is_none_or(|flags| flags & libc::O_PATH != 0)
}

impl Recorded {
    /// Records, in a thread of its own and until all processes of the program have ended, the syncs of the
    /// mount at `directory` that the listener hears of.
    pub fn watch(self, listener: Listener, directory: PathBuf) -> io::Result<()> {
        let device = fs::metadata(&directory)?.dev();
        let watch = move || {
            let own = rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned();
            self.watcher.store(own, Ordering::Relaxed);
            while let Some(call) = listener.next() {
                self.saw(&call, device, &directory);
                listener.go_on(&call);
            }
        };
        Builder::new().name("crashlab-syncs".into()).spawn(watch)?;
        Ok(())
    }

    fn saw(&self, call: &Call, device: u64, directory: &Path) {
        // Of an inode of the mount.
        let ino = |descriptor: i32| {
            let metadata = fs::metadata(format!("/proc/{}/fd/{descriptor}", call.thread)).ok()?;
            (metadata.dev() == device && !is_path_only(call.thread, descriptor)).then(|| metadata.ino())
        };
        let action = match call.what {
            Asked::All => Some(Action::SyncAll),
            Asked::Filesystem(descriptor) => ino(descriptor).map(|_| Action::SyncAll),
            Asked::Range { descriptor, offset, len, flags }
                if flags & !ALL_FLAGS == 0 && flags & WAITS == WAITS =>
            {
                ino(descriptor).and_then(|ino| self.range(ino, offset, len))
            }
            Asked::Range { .. } => None,
        };
        if let Some(action) = action {
            self.write_back(directory, action.ino());
            // Only a change of contents can fail.
            let _ = self.act(&mut self.state.lock(), call.thread, action, &[]);
        }
    }

    /// The range of a file, unless the kernel refuses it.
    fn range(&self, ino: Ino, offset: i64, len: i64) -> Option<Action> {
        offset.checked_add(len)?;
        let (offset, len) = (u64::try_from(offset).ok()?, u64::try_from(len).ok()?);
        let size = self.state.lock().tree.contents(ino)?.len();
        let len = if len == 0 { size.saturating_sub(offset) } else { len };
        Some(Action::SyncRange { ino, offset, len })
    }

    /// Has the kernel write what the program has stored to mappings of a file, or of all. An fsync is the only
    /// call that waits for these writes on every kernel.
    fn write_back(&self, directory: &Path, only: Option<Ino>) {
        let state = self.state.lock();
        let is_wanted = |ino: &Ino| only.is_none_or(|only| only == *ino) && state.writers.contains_key(ino);
        let tree = if state.writers.keys().any(is_wanted) { state.tree.walk() } else { Vec::new() };
        let paths: Vec<Vec<u8>> =
            tree.into_iter().filter(|(_, ino)| is_wanted(ino)).map(|(path, _)| path).collect();
        // To open a file of the mount needs this lock.
        drop(state);
        for path in paths {
            // It may be something else by now; a FIFO is not waited for.
            let mut options = OpenOptions::new();
            let options = options.read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW);
            if let Ok(file) = options.open(directory.join(OsStr::from_bytes(&path))) {
                let _ = file.sync_data();
            }
        }
    }
}
