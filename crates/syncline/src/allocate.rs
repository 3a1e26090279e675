//! How a file's range is allocated.

use crate::error::Result;
use crate::file::File;
use syncline_device::block_on;
use syncline_fs::Allocation;

impl File {
    /// Changes how `len` bytes from `offset` on are allocated, as fallocate(2) does.
    pub fn allocate(&self, what: Allocation, offset: u64, len: u64) -> Result<()> {
        self.require_write()?;
        let kill_privileges = self.shared().kill_privileges();
        Ok(block_on(self.shared().engine.allocate(self.ino(), what, offset, len, kill_privileges))?)
    }
}
