//! Takes over from the kernel what programs have stored into files through mappings: before anything
//! that a late write-back would change or miss.
//!
//! Not for a request during which the kernel may hold a page, or blocks write-back (SETATTR of a size).
//! If too many wait for pages already, the stores come later, as they do for a program that has not asked.

use super::PageCache;
use syncline_fs::Filesystem;
use syncline_fs::types::{FileType, Ino};

impl PageCache {
    /// Has the kernel write back and drop the pages of a file, if something is known to be stored there
    /// (see [`super::stored`]). Costs nothing otherwise.
    pub(super) async fn take_over(&self, fs: &Filesystem, ino: Ino) {
        let Some(record) = self.stored.last(ino) else { return };
        let are_gone = Box::pin(async {
            // As far as there may be pages: a range without an end is many notifications.
            let size = fs.getattr(ino).await.map_or(u64::MAX, |attributes| attributes.size);
            self.letting_go.let_go_of_all(ino, size).await
        });
        if are_gone.await {
            self.stored.left(ino, record);
        }
    }

    /// The same for all files of which something is known.
    pub async fn take_over_known(&self, fs: &Filesystem) {
        for ino in self.stored.all() {
            self.take_over(fs, ino).await;
        }
    }

    /// The same for all files that the kernel knows. Call it on a thread that serves no requests.
    pub async fn take_over_everything(&self, fs: &Filesystem) {
        let mut files = Vec::new();
        for ino in fs.known_to_kernel() {
            match fs.getattr(ino).await {
                Ok(found) if found.file_type != FileType::Regular => {}
                found => files.push((ino, found.map_or(u64::MAX, |found| found.size))),
            }
        }
        self.letting_go.let_go_of_files(&files).await;
    }
}
