//! Memory that the kernel copies requests into and answers out of.

use std::io;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// Zeroed pages that take memory only once they are used: most entries never see a long payload.
pub struct Memory {
    start: NonNull<u8>,
    len: usize,
}

impl Memory {
    /// `len` bytes, a multiple of the page size.
    pub fn new(len: usize) -> io::Result<Self> {
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping, wherever there is room for it.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the mapping was just made. (A kernel without huge pages refuses, and that is what we want.)
        unsafe { libc::madvise(start, len, libc::MADV_NOHUGEPAGE) };
        let start = NonNull::new(start.cast()).expect("the kernel maps nothing at zero unasked");
        Ok(Self { start, len })
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with this length, and nobody else owns it.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

impl Deref for Memory {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: `start` points to `len` mapped, initialised bytes.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for Memory {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` makes it the only reference.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}
