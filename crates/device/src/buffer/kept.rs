//! Memory of dropped buffers, kept for the next buffer of the same size.
//!
//! A megabyte that comes fresh from the kernel costs 256 page faults, and as many pages to clear: more than copying the
//! data into it. So what a stream of writes or reads lets go of is kept. Buffers are often dropped on another thread than
//! they were made on (the one that saw their flush end), hence a stock for all threads beside each thread's own.

use crate::BLOCK_BYTES;
use parking_lot::Mutex;
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::cell::RefCell;
use std::ptr::NonNull;

/// Sizes that are kept: a block and its doubles up to the largest request.
const SIZES: usize = 9;
/// Sizes of which each thread keeps some for itself: up to 64 KiB, as synced writes have.
const OWN_SIZES: usize = 5;
/// How many of each a thread keeps.
const OWN_EACH: usize = 16;
/// What all threads keep in common at most: as much as one flush lets go of (`StoreOptions::unflushed_bytes`).
const COMMON_BYTES_MAX: usize = 64 << 20;
/// From this length on memory comes from the kernel directly.
const MAPPED_BYTES_MIN: usize = 128 << 10;

/// The place of a length among the sizes that are kept.
fn class_of(len_bytes: usize) -> Option<usize> {
    let class = (len_bytes / BLOCK_BYTES).checked_ilog2()? as usize;
    (BLOCK_BYTES << class == len_bytes && class < SIZES).then_some(class)
}

/// Memory by size.
struct Stock<const CLASSES: usize>([Vec<NonNull<u8>>; CLASSES]);

// SAFETY: a stock owns its memory alone.
unsafe impl<const CLASSES: usize> Send for Stock<CLASSES> {}

impl<const CLASSES: usize> Stock<CLASSES> {
    const EMPTY: Self = Self([const { Vec::new() }; CLASSES]);
}

impl<const CLASSES: usize> Drop for Stock<CLASSES> {
    fn drop(&mut self) {
        for (class, kept) in self.0.iter_mut().enumerate() {
            for start in kept.drain(..) {
                // SAFETY: `give_back` took over memory of this class's length.
                unsafe { free(start, BLOCK_BYTES << class) }
            }
        }
    }
}

/// What all threads keep in common.
struct Common {
    stock: Stock<SIZES>,
    bytes: usize,
}

static COMMON: Mutex<Common> = Mutex::new(Common { stock: Stock::EMPTY, bytes: 0 });

thread_local! {
    static OWN: RefCell<Stock<OWN_SIZES>> = const { RefCell::new(Stock::EMPTY) };
}

/// Memory of this length that an earlier buffer had.
pub(super) fn take(len_bytes: usize) -> Option<NonNull<u8>> {
    let class = class_of(len_bytes)?;
    let own = OWN.try_with(|own| own.borrow_mut().0.get_mut(class).and_then(Vec::pop)).ok().flatten();
    own.or_else(|| {
        let mut common = COMMON.lock();
        let start = common.stock.0[class].pop()?;
        common.bytes -= len_bytes;
        Some(start)
    })
}

/// Keeps memory, or frees it if enough is kept.
///
/// # Safety
///
/// It came from [`take`] or [`allocate`] with this very length, and nobody uses it any more.
pub(super) unsafe fn give_back(start: NonNull<u8>, len_bytes: usize) {
    if class_of(len_bytes).is_some_and(|class| keep_own(class, start) || keep_common(class, start)) {
        return;
    }
    // SAFETY: as the caller promises, and nobody has kept it.
    unsafe { free(start, len_bytes) }
}

/// True when this thread's stock took the memory over.
fn keep_own(class: usize, start: NonNull<u8>) -> bool {
    let kept = OWN.try_with(|own| {
        own.borrow_mut().0.get_mut(class).filter(|list| list.len() < OWN_EACH).map(|list| list.push(start))
    });
    // An error means that the thread is ending and its stock is gone.
    kept.ok().flatten().is_some()
}

/// True when the common stock took the memory over.
fn keep_common(class: usize, start: NonNull<u8>) -> bool {
    let mut common = COMMON.lock();
    let room = common.bytes + (BLOCK_BYTES << class) <= COMMON_BYTES_MAX;
    if room {
        common.bytes += BLOCK_BYTES << class;
        common.stock.0[class].push(start);
    }
    room
}

/// Fresh memory, zeroed. The length is not zero.
pub(super) fn allocate(len_bytes: usize) -> NonNull<u8> {
    let layout = layout(len_bytes);
    if len_bytes < MAPPED_BYTES_MIN {
        // SAFETY: the layout's size is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        return NonNull::new(start).unwrap_or_else(|| handle_alloc_error(layout));
    }
    // All pages at once rather than one fault for each, and cleared once rather than by the allocator again.
    let (protection, flags) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE);
    // SAFETY: a new mapping at an address of the kernel's choice touches no memory of ours.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), len_bytes, protection, flags, -1, 0) };
    if start == libc::MAP_FAILED {
        handle_alloc_error(layout);
    }
    NonNull::new(start.cast()).expect("the kernel maps nothing at address zero unless asked to")
}

/// # Safety
///
/// As for [`give_back`].
unsafe fn free(start: NonNull<u8>, len_bytes: usize) {
    if len_bytes < MAPPED_BYTES_MIN {
        // SAFETY: allocated in `allocate` with this very layout.
        unsafe { dealloc(start.as_ptr(), layout(len_bytes)) }
    } else {
        // SAFETY: a whole mapping of `allocate`, to which nothing refers any more.
        let unmapped = unsafe { libc::munmap(start.as_ptr().cast(), len_bytes) };
        debug_assert_eq!(unmapped, 0, "a mapping of ours can be taken away");
    }
}

fn layout(len_bytes: usize) -> Layout {
    Layout::from_size_align(len_bytes, BLOCK_BYTES)
        .expect("4096 is a power of two and the length fits in memory")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Held by each test that looks at the common stock: one of them fills it.
    static STOCK_IS_MINE: Mutex<()> = Mutex::new(());

    #[test]
    fn doubles_of_a_block_are_kept_up_to_a_megabyte() {
        let classes = [4 << 10, 8 << 10, 64 << 10, 1 << 20].map(class_of);
        assert_eq!(classes, [Some(0), Some(1), Some(4), Some(8)]);
        assert_eq!([0, 12 << 10, 68 << 10, 2 << 20].map(class_of), [None; 4]);
    }

    #[test]
    fn what_one_thread_drops_another_uses_again() {
        let _alone = STOCK_IS_MINE.lock();
        // A size that no other test of this crate uses.
        const LEN: usize = 512 << 10;
        let start = allocate(LEN);
        let address = start.as_ptr() as usize;
        // SAFETY: nobody else has it.
        unsafe { give_back(start, LEN) };
        let again = std::thread::spawn(|| take(LEN).map(|start| start.as_ptr() as usize)).join().unwrap();
        assert_eq!(again, Some(address));
        // SAFETY: `take` gave it to nobody else.
        unsafe { free(NonNull::new(address as *mut u8).unwrap(), LEN) };
    }

    #[test]
    fn the_common_stock_is_bounded() {
        let _alone = STOCK_IS_MINE.lock();
        const LEN: usize = 256 << 10;
        let many: Vec<_> = (0..COMMON_BYTES_MAX / LEN + 8).map(|_| allocate(LEN)).collect();
        // SAFETY: allocated just now, and given back once each.
        many.into_iter().for_each(|start| unsafe { give_back(start, LEN) });
        assert!(COMMON.lock().bytes <= COMMON_BYTES_MAX);
        while let Some(start) = take(LEN) {
            // SAFETY: nobody else has it.
            unsafe { free(start, LEN) };
        }
    }
}
