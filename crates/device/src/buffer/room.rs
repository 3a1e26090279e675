//! Memory lent for one read: the device puts the data directly where it is needed.

use crate::{AlignedBuf, BLOCK_BYTES};
use std::any::Any;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

/// The owner of lent memory: the memory lives as long as this is held, and only the holder uses it
/// meanwhile.
pub(super) type Lender = Arc<dyn Any + Send + Sync>;

/// Lent memory at an address that is a multiple of 4096. It may be long enough for several reads.
pub struct Room {
    start: NonNull<u8>,
    len_bytes: usize,
    lender: Lender,
}

// SAFETY: a room is the only access to its memory, as an AlignedBuf is.
unsafe impl Send for Room {}
// SAFETY: shared references give access to nothing but the length.
unsafe impl Sync for Room {}

impl Room {
    /// The memory from `start` on. Both numbers are multiples of 4096.
    ///
    /// # Safety
    ///
    /// The memory is initialised, lives as long as `lender` or a clone of it, and is used by nobody
    /// else while this room, or anything made from it, holds a clone.
    pub unsafe fn new(start: NonNull<u8>, len_bytes: usize, lender: Arc<dyn Any + Send + Sync>) -> Self {
        assert!(start.as_ptr().addr().is_multiple_of(BLOCK_BYTES) && len_bytes.is_multiple_of(BLOCK_BYTES));
        Self { start, len_bytes, lender }
    }

    /// Its length in bytes.
    pub fn len(&self) -> usize {
        self.len_bytes
    }

    /// True if nothing is left of it.
    pub fn is_empty(&self) -> bool {
        self.len_bytes == 0
    }

    /// Cuts off the first `len_bytes`, a multiple of 4096; `None` if it is shorter.
    pub fn take(&mut self, len_bytes: usize) -> Option<Room> {
        assert!(len_bytes.is_multiple_of(BLOCK_BYTES), "rooms are whole blocks");
        let left = self.len_bytes.checked_sub(len_bytes)?;
        let first = Room { start: self.start, len_bytes, lender: self.lender.clone() };
        // SAFETY: the end of the first part is within the room, or right behind it.
        self.start = unsafe { self.start.add(len_bytes) };
        self.len_bytes = left;
        Some(first)
    }

    /// A buffer on this memory.
    pub fn into_buf(self) -> AlignedBuf {
        AlignedBuf { start: self.start, len_bytes: self.len_bytes, lender: Some(Box::new(self.lender)) }
    }
}

impl fmt::Debug for Room {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Room({} bytes)", self.len_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lent_comes_back_when_all_buffers_are_gone() {
        let memory = AlignedBuf::zeroed(3 * BLOCK_BYTES);
        let start = NonNull::from(&memory[..]).cast::<u8>();
        let lender: Lender = Arc::new(memory);
        // SAFETY: the lender owns the memory, and this test does not touch it.
        let mut room = unsafe { Room::new(start, 3 * BLOCK_BYTES, lender.clone()) };
        let mut first = room.take(BLOCK_BYTES).unwrap().into_buf();
        let mut second = room.take(2 * BLOCK_BYTES).unwrap().into_buf();
        assert!(room.is_empty() && room.take(BLOCK_BYTES).is_none());
        first.fill(1);
        second.fill(2);
        assert_eq!(first.as_ptr().addr() + BLOCK_BYTES, second.as_ptr().addr());
        let (first, second) = (first.into_bytes(), second.into_bytes());
        assert!(first.iter().all(|&byte| byte == 1) && second.iter().all(|&byte| byte == 2));
        let part = second.slice(4096..);
        drop((first, second, room));
        assert_eq!(Arc::strong_count(&lender), 2);
        drop(part);
        assert_eq!(Arc::strong_count(&lender), 1);
    }
}
