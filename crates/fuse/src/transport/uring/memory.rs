//! Memory that the kernel copies payloads into and answers out of.

use std::io;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use syncline_device::{BLOCK_BYTES, Room};

/// The size of a huge page.
const CHUNK_BYTES: usize = 2 << 20;
/// From this length on, direct I/O gains more from a huge page than the page costs.
const HUGE_BYTES_MIN: usize = 512 << 10;

/// Zeroed pages that take memory only once used: most entries never see a long payload.
pub struct Area {
    start: NonNull<u8>,
    len_bytes: usize,
}

// SAFETY: an area owns its mapping; the payloads decide who may use which part of it when.
unsafe impl Send for Area {}
// SAFETY: as above.
unsafe impl Sync for Area {}

impl Area {
    /// Allocates at least this many bytes.
    pub fn new(len_bytes: usize) -> io::Result<Arc<Self>> {
        let len_bytes = len_bytes.next_multiple_of(CHUNK_BYTES) + CHUNK_BYTES;
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping, wherever there is room for it.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len_bytes, protection, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the mapping was just created. (A kernel without huge pages fails the call, which
        // is fine.)
        unsafe { libc::madvise(start, len_bytes, libc::MADV_NOHUGEPAGE) };
        let start = NonNull::new(start.cast()).expect("the kernel maps nothing at zero unasked");
        Ok(Arc::new(Self { start, len_bytes }))
    }

    /// Part number `index` of the area, divided into parts of `len_bytes`. Each part may be handed
    /// out only once.
    pub fn payload(self: &Arc<Self>, index: usize, len_bytes: usize) -> Payload {
        let before = self.start.as_ptr().align_offset(CHUNK_BYTES);
        let range = index * len_bytes..(index + 1) * len_bytes;
        assert!(before + range.end <= self.len_bytes && len_bytes.is_multiple_of(BLOCK_BYTES));
        // SAFETY: within the mapping, as just checked.
        let start = unsafe { self.start.add(before + range.start) };
        Payload { start, len_bytes, lender: Arc::new(Lender(self.clone())), is_huge: false }
    }

    /// Puts the chunks that contain these addresses on huge pages, if the kernel has some.
    fn make_huge(&self, addresses: Range<usize>) {
        let from = addresses.start & !(CHUNK_BYTES - 1);
        let len_bytes = addresses.end.next_multiple_of(CHUNK_BYTES) - from;
        let start = self.start.as_ptr().with_addr(from).cast();
        // The crate libc has it for glibc alone.
        const MADV_COLLAPSE: libc::c_int = 25;
        // SAFETY: chunks of this mapping, whose contents stay.
        unsafe {
            libc::madvise(start, len_bytes, libc::MADV_HUGEPAGE);
            libc::madvise(start, len_bytes, MADV_COLLAPSE);
        }
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with this length, and no payload of it is left.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len_bytes) };
    }
}

/// Held while a payload's memory is used for a device read.
struct Lender(Arc<Area>);

/// The memory of one entry's payload. The holder of the entry owns the memory, unless it is lent.
pub struct Payload {
    start: NonNull<u8>,
    len_bytes: usize,
    lender: Arc<Lender>,
    is_huge: bool,
}

impl Payload {
    /// Where it begins.
    pub fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Its length in bytes.
    pub fn len(&self) -> usize {
        self.len_bytes
    }

    /// The memory, unless it is lent.
    pub fn bytes(&mut self) -> Option<&mut [u8]> {
        Arc::get_mut(&mut self.lender)?;
        // SAFETY: mapped, initialised, this payload's own, and not lent.
        Some(unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len_bytes) })
    }

    /// Lends its first `len_bytes` bytes, a multiple of 4096. `None` if it is shorter, or lent
    /// already.
    pub fn lend(&mut self, len_bytes: usize) -> Option<Room> {
        if len_bytes > self.len_bytes || Arc::get_mut(&mut self.lender).is_none() {
            return None;
        }
        if len_bytes >= HUGE_BYTES_MIN && !self.is_huge {
            self.is_huge = true;
            let addr = self.start.addr().get();
            self.lender.0.make_huge(addr..addr + self.len_bytes);
        }
        // SAFETY: the lender keeps the mapping, and `bytes` does not return the memory while it is
        // held.
        Some(unsafe { Room::new(self.start, len_bytes, self.lender.clone()) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lent_is_nobody_elses_until_it_comes_back() {
        let area = Area::new(3 << 20).unwrap();
        let mut payloads: Vec<Payload> = (0..3).map(|index| area.payload(index, 1 << 20)).collect();
        drop(area);
        payloads[0].bytes().unwrap().fill(1);
        payloads[2].bytes().unwrap().fill(3);
        let room = payloads[1].lend(1 << 20).unwrap();
        assert!(payloads[1].bytes().is_none() && payloads[1].lend(4096).is_none());
        assert!(payloads[0].lend((1 << 20) + 4096).is_none());
        let mut buf = room.into_buf();
        buf.fill(2);
        let read = buf.into_bytes();
        assert_eq!(read.as_ptr(), payloads[1].as_ptr().cast_const());
        drop(read);
        for (payload, fill) in payloads.iter_mut().zip(1..) {
            assert!(payload.bytes().unwrap().iter().all(|&byte| byte == fill));
        }
        // Lent memory outlives the entry.
        let mut buf = payloads[1].lend(8192).unwrap().into_buf();
        drop(payloads);
        buf.fill(4);
    }
}
