//! Allocation of file ranges.

use crate::error::Result;
use crate::file::File;
use syncline_fs::Allocation;

impl File {
    /// Changes the allocation of `len` bytes from `offset` on, as fallocate(2) does, and can also
    /// take ranges out of the file or insert some. Data that moves is not copied. A crash leaves
    /// the file as it was before or as it is after.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// # let directory = tempfile::tempdir()?;
    /// # let image = directory.path().join("image");
    /// use std::io::Write;
    /// use syncline::{Allocation, File, Filesystem, FormatOptions};
    ///
    /// let fs = Filesystem::create(&image, 64 << 20, &FormatOptions::default())?;
    /// let mut log = fs.create_file("log")?;
    /// log.write_all(&[b'a'; 8192])?;
    /// log.write_all(b"newest")?;
    /// // The oldest 8 KiB go from the front.
    /// log.allocate(Allocation::CollapseRange, 0, 8192)?;
    /// assert_eq!(fs.read("log")?, b"newest");
    /// # drop(log);
    /// # fs.close()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn allocate(&self, what: Allocation, offset: u64, len: u64) -> Result<()> {
        self.require_write()?;
        let kill_privileges = self.shared().kill_privileges();
        self.shared().call(async {
            self.shared().engine.allocate(self.ino(), what, offset, len, kill_privileges).await?;
            self.shared().settle(self.ino()).await
        })
    }
}
