//! Memory that a device can read into and write from directly.

mod kept;
mod room;

use crate::BLOCK_BYTES;
use bytes::Bytes;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

pub use room::Room;

/// Memory at an address that is a multiple of 4096, with a length that is a multiple of 4096, as
/// direct I/O requires.
///
/// Dropping a buffer keeps its memory for the next one of the same size, if the size is a common
/// one.
pub struct AlignedBuf {
    start: NonNull<u8>,
    len_bytes: usize,
    /// The lender of the memory, if the buffer does not own it. (Boxed, since few buffers have
    /// one.)
    lender: Option<Box<room::Lender>>,
}

// SAFETY: an AlignedBuf owns its memory alone, exactly as a Vec<u8> does.
unsafe impl Send for AlignedBuf {}
// SAFETY: shared references only read the memory.
unsafe impl Sync for AlignedBuf {}

impl AlignedBuf {
    /// A zeroed buffer of `len_bytes`, rounded up to a multiple of 4096.
    pub fn zeroed(len_bytes: usize) -> Self {
        let mut buf = Self::recycled(len_bytes);
        if buf.1 {
            buf.0.fill(0);
        }
        buf.0
    }

    /// A buffer of `len_bytes`, rounded up to a multiple of 4096, with whatever bytes an earlier
    /// buffer of this process held. For reads, which either fill it completely or fail.
    pub fn for_read(len_bytes: usize) -> Self {
        Self::recycled(len_bytes).0
    }

    /// A copy of `bytes`, padded with zeros to a multiple of 4096.
    pub fn copy_from(bytes: &[u8]) -> Self {
        let mut buf = Self::for_read(bytes.len());
        let (head, padding) = buf.split_at_mut(bytes.len());
        head.copy_from_slice(bytes);
        padding.fill(0);
        buf
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len_bytes
    }

    /// True if it holds no bytes.
    pub fn is_empty(&self) -> bool {
        self.len_bytes == 0
    }

    /// The same memory as shared bytes, without a copy.
    pub fn into_bytes(self) -> Bytes {
        Bytes::from_owner(self)
    }

    /// A buffer, and whether it was used before (and so needs clearing).
    fn recycled(len_bytes: usize) -> (Self, bool) {
        let len_bytes =
            len_bytes.checked_next_multiple_of(BLOCK_BYTES).expect("a buffer length fits in memory");
        if len_bytes == 0 {
            return (Self::own(dangling(), len_bytes), false);
        }
        if let Some(start) = kept::take(len_bytes) {
            return (Self::own(start, len_bytes), true);
        }
        (Self::own(kept::allocate(len_bytes), len_bytes), false)
    }

    fn own(start: NonNull<u8>, len_bytes: usize) -> Self {
        Self { start, len_bytes, lender: None }
    }
}

impl Drop for AlignedBuf {
    fn drop(&mut self) {
        if self.len_bytes == 0 || self.lender.is_some() {
            return;
        }
        // SAFETY: the memory came from `kept` with this very length, and nobody else owns it.
        unsafe { kept::give_back(self.start, self.len_bytes) }
    }
}

impl Deref for AlignedBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: `start` points to `len_bytes` bytes that were initialised when they were
        // allocated.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len_bytes) }
    }
}

impl DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` makes it the only reference.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len_bytes) }
    }
}

impl AsRef<[u8]> for AlignedBuf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl AsMut<[u8]> for AlignedBuf {
    fn as_mut(&mut self) -> &mut [u8] {
        self
    }
}

impl From<AlignedBuf> for Bytes {
    fn from(buf: AlignedBuf) -> Bytes {
        buf.into_bytes()
    }
}

impl fmt::Debug for AlignedBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AlignedBuf({} bytes)", self.len_bytes)
    }
}

/// An aligned address that is never read.
fn dangling() -> NonNull<u8> {
    #[repr(align(4096))]
    struct Block;
    const { assert!(align_of::<Block>() == BLOCK_BYTES) };
    NonNull::<Block>::dangling().cast()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_rounded_up_and_zeroed_even_when_reused() {
        for len in [0, 1, 4096, 4097, 16 << 10, 64 << 10, 1 << 20] {
            for _ in 0..3 {
                let mut buf = AlignedBuf::zeroed(len);
                assert_eq!(buf.len(), len.next_multiple_of(4096));
                assert_eq!(buf.as_ptr() as usize % 4096, 0);
                assert!(buf.iter().all(|&byte| byte == 0), "a reused buffer of {len} bytes was not cleared");
                buf.fill(0xa5);
            }
        }
    }

    #[test]
    fn copies_are_padded_with_zeros() {
        drop({
            let mut dirty = AlignedBuf::zeroed(4096);
            dirty.fill(0xff);
            dirty
        });
        let copy = AlignedBuf::copy_from(b"hello");
        assert_eq!(&copy[..5], b"hello");
        assert!(copy[5..].iter().all(|&byte| byte == 0));
    }

    #[test]
    fn bytes_share_the_memory() {
        let buf = AlignedBuf::copy_from(b"shared");
        let address = buf.as_ptr();
        let bytes = buf.into_bytes();
        assert_eq!(bytes.as_ptr(), address);
        assert_eq!(bytes.len(), 4096);
    }

    #[test]
    fn buffers_may_be_dropped_on_another_thread() {
        let buf = AlignedBuf::copy_from(b"elsewhere");
        std::thread::spawn(move || assert_eq!(&buf[..9], b"elsewhere")).join().unwrap();
    }
}
