//! Files that share blocks.

use crate::error::{Error, Result};
use crate::file::File;
use syncline_device::drive;
use syncline_fs::Usage;

impl File {
    /// Copies `len` bytes from `offset` on into `to` at `to_offset`, and returns the number of
    /// bytes copied, which is smaller if this file ends first. Whole blocks at offsets that are
    /// multiples of 4096 are shared: that writes no data and takes no space. Both files must be on
    /// the same filesystem; they may be the same file if the ranges do not overlap.
    pub fn copy_range_to(&self, offset: u64, to: &File, to_offset: u64, len: u64) -> Result<u64> {
        if !self.access().read {
            return Err(Error::WrongAccess("reading"));
        }
        to.require_write()?;
        let (from, destination) = (self.ino(), to.inode_in(self.shared())?);
        let kill_privileges = self.shared().kill_privileges();
        let mut copied = 0;
        while copied < len {
            let (from, to) = ((from, offset + copied), (destination, to_offset + copied));
            match self.shared().call(self.shared().engine.copy_range(
                from,
                to,
                len - copied,
                kill_privileges,
            ))? {
                0 => break,
                bytes => copied += bytes,
            }
        }
        drive(to.shared().settle(destination))?;
        Ok(copied)
    }

    /// Space that the file uses on the device, and how much of it is shared with other files. Data
    /// that was not written back yet does not count.
    pub fn usage(&self) -> Result<Usage> {
        Ok(self.shared().call(self.shared().engine.usage(self.ino()))?)
    }
}
