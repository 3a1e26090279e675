//! Memory of dropped buffers, kept for the next buffer of the same size.
//!
//! A megabyte fresh from the kernel costs 256 page faults, and as many pages to clear: more than
//! copying the data into it. So memory that a stream of writes or reads releases is kept. Buffers
//! are often dropped on another thread than the one that created them (the one that saw their flush
//! end), hence a common stock beside each thread's own.
//!
//! Buffers of 16 KiB to 1 MiB are cut from chunks of one huge page each, where the kernel has huge
//! pages for us: direct I/O then finds their pages in one lookup instead of one by one, and hands
//! the device one piece of memory.

use crate::BLOCK_BYTES;
use parking_lot::Mutex;
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::cell::RefCell;
use std::ptr::NonNull;

/// The sizes that are kept: powers of two from a block up to the largest request.
const SIZES: usize = 9;
/// The sizes of which each thread keeps some for itself: up to 64 KiB, the sizes of synced writes.
const OWN_SIZES: usize = 5;
/// How many of each size a thread keeps.
const OWN_EACH: usize = 16;
/// The most that the common stock keeps: as much as one flush releases
/// (`StoreOptions::unflushed_bytes`).
const COMMON_BYTES_MAX: usize = 64 << 20;
/// From this length on, memory of a length that is not kept comes directly from the kernel.
const MAPPED_BYTES_MIN: usize = 128 << 10;
/// The first size that is cut from chunks.
const CUT_CLASS_MIN: usize = 2;
/// The size of a huge page.
const CHUNK_BYTES: usize = 2 << 20;

/// The index of a length among the sizes that are kept.
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

/// The stock shared by all threads.
struct Common {
    stock: Stock<SIZES>,
    bytes: usize,
    /// Pieces of chunks whose pages were given back to the kernel: address space that gets new
    /// pages when it is used.
    empty: [Vec<NonNull<u8>>; SIZES],
}

// SAFETY: empty pieces belong to nobody else either.
unsafe impl Send for Common {}

static COMMON: Mutex<Common> =
    Mutex::new(Common { stock: Stock::EMPTY, bytes: 0, empty: [const { Vec::new() }; SIZES] });

thread_local! {
    static OWN: RefCell<Stock<OWN_SIZES>> = const { RefCell::new(Stock::EMPTY) };
}

/// Memory of this length from an earlier buffer.
pub(super) fn take(len_bytes: usize) -> Option<NonNull<u8>> {
    let class = class_of(len_bytes)?;
    let own = OWN.try_with(|own| own.borrow_mut().0.get_mut(class).and_then(Vec::pop)).ok().flatten();
    own.or_else(|| {
        let mut common = COMMON.lock();
        if let Some(start) = common.stock.0[class].pop() {
            common.bytes -= len_bytes;
            return Some(start);
        }
        let start = common.empty[class].pop()?;
        drop(common);
        // SAFETY: the memory is nobody else's and has this length. This faults in all pages at
        // once, if the kernel supports it.
        unsafe { libc::madvise(start.as_ptr().cast(), len_bytes, libc::MADV_POPULATE_WRITE) };
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
    // SAFETY: as the caller promises, and it was not kept.
    unsafe { free(start, len_bytes) }
}

/// True if this thread's stock took the memory.
fn keep_own(class: usize, start: NonNull<u8>) -> bool {
    let kept = OWN.try_with(|own| {
        own.borrow_mut().0.get_mut(class).filter(|list| list.len() < OWN_EACH).map(|list| list.push(start))
    });
    // An error means that the thread is ending and its stock is gone.
    kept.ok().flatten().is_some()
}

/// True if the common stock took the memory.
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
    if let Some(class) = cut_class_of(len_bytes) {
        return cut(class);
    }
    if len_bytes >= MAPPED_BYTES_MIN {
        // Faults in all pages at once rather than one by one, and clears them once rather than
        // again in the allocator.
        return map(len_bytes, libc::MAP_POPULATE);
    }
    let layout = layout(len_bytes);
    // SAFETY: the layout's size is not zero.
    let start = unsafe { alloc_zeroed(layout) };
    NonNull::new(start).unwrap_or_else(|| handle_alloc_error(layout))
}

/// The class of a length that is cut from chunks.
fn cut_class_of(len_bytes: usize) -> Option<usize> {
    class_of(len_bytes).filter(|&class| class >= CUT_CLASS_MIN)
}

/// Memory of one of the sizes that are cut from chunks. The rest of a new chunk is kept, even
/// beyond the usual limit.
fn cut(class: usize) -> NonNull<u8> {
    let len_bytes = BLOCK_BYTES << class;
    let chunk = map_chunk();
    let mut common = COMMON.lock();
    common.bytes += CHUNK_BYTES - len_bytes;
    // SAFETY: all of them lie within the chunk.
    common.stock.0[class]
        .extend((1..CHUNK_BYTES / len_bytes).map(|piece| unsafe { chunk.add(piece * len_bytes) }));
    chunk
}

/// Maps a chunk, as one huge page if the kernel has one.
fn map_chunk() -> NonNull<u8> {
    // Map twice as much, since the kernel chooses the alignment.
    let mapped = map(2 * CHUNK_BYTES, 0);
    let before = mapped.as_ptr().align_offset(CHUNK_BYTES);
    // SAFETY: unmaps both ends of the new mapping and keeps the chunk between them.
    unsafe {
        let chunk = mapped.add(before);
        unmap(mapped, before);
        unmap(chunk.add(CHUNK_BYTES), CHUNK_BYTES - before);
        // A kernel that lacks one of these, or has no huge page, gives ordinary pages as they are
        // used.
        libc::madvise(chunk.as_ptr().cast(), CHUNK_BYTES, libc::MADV_HUGEPAGE);
        libc::madvise(chunk.as_ptr().cast(), CHUNK_BYTES, libc::MADV_POPULATE_WRITE);
        chunk
    }
}

/// A new mapping, zeroed.
fn map(len_bytes: usize, flags: libc::c_int) -> NonNull<u8> {
    let (protection, flags) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags);
    // SAFETY: a new mapping at an address of the kernel's choice touches no memory of ours.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), len_bytes, protection, flags, -1, 0) };
    if start == libc::MAP_FAILED {
        handle_alloc_error(layout(len_bytes));
    }
    NonNull::new(start.cast()).expect("the kernel maps nothing at address zero unless asked to")
}

/// # Safety
///
/// It is mapped, and nothing refers to it.
unsafe fn unmap(start: NonNull<u8>, len_bytes: usize) {
    if len_bytes > 0 {
        // SAFETY: as the caller promises.
        let unmapped = unsafe { libc::munmap(start.as_ptr().cast(), len_bytes) };
        debug_assert_eq!(unmapped, 0, "a mapping of ours can be taken away");
    }
}

/// # Safety
///
/// As for [`give_back`].
unsafe fn free(start: NonNull<u8>, len_bytes: usize) {
    if let Some(class) = cut_class_of(len_bytes) {
        let chunk = start.as_ptr().map_addr(|addr| addr & !(CHUNK_BYTES - 1));
        // Only the pages are given back. The address range stays with its chunk: a hole would split the
        // chunk into two mappings, whose number the kernel limits. The chunk is no huge page from now on:
        // otherwise the kernel might make it one again, with the pages that went.
        // SAFETY: nobody uses the piece any more, and the rest of the chunk is not affected.
        unsafe {
            libc::madvise(chunk.cast(), CHUNK_BYTES, libc::MADV_NOHUGEPAGE);
            libc::madvise(start.as_ptr().cast(), len_bytes, libc::MADV_DONTNEED);
        }
        COMMON.lock().empty[class].push(start);
    } else if len_bytes >= MAPPED_BYTES_MIN {
        // SAFETY: a whole mapping of `allocate`, to which nothing refers any more.
        unsafe { unmap(start, len_bytes) }
    } else {
        // SAFETY: allocated in `allocate` with this very layout.
        unsafe { dealloc(start.as_ptr(), layout(len_bytes)) }
    }
}

fn layout(len_bytes: usize) -> Layout {
    Layout::from_size_align(len_bytes, BLOCK_BYTES)
        .expect("4096 is a power of two and the length fits in memory")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Held by each test that examines the common stock, because one of them fills it.
    static STOCK_IS_MINE: Mutex<()> = Mutex::new(());

    /// Memory as a buffer gets it.
    fn any(len_bytes: usize) -> NonNull<u8> {
        take(len_bytes).unwrap_or_else(|| allocate(len_bytes))
    }

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
        let many: Vec<_> = (0..COMMON_BYTES_MAX / LEN + 8).map(|_| any(LEN)).collect();
        // SAFETY: allocated just now, and given back once each.
        many.into_iter().for_each(|start| unsafe { give_back(start, LEN) });
        let kept = std::mem::take(&mut COMMON.lock().stock.0[class_of(LEN).unwrap()]);
        // A chunk that was cut when the stock was full of other sizes comes on top.
        let bytes = COMMON.lock().bytes;
        assert!(bytes <= COMMON_BYTES_MAX + CHUNK_BYTES, "{bytes}");
        COMMON.lock().bytes -= kept.len() * LEN;
        // SAFETY: nobody else has it.
        kept.into_iter().for_each(|start| unsafe { free(start, LEN) });
    }

    #[test]
    fn pieces_of_a_chunk_lie_side_by_side_and_go_back_to_the_kernel() {
        let _alone = STOCK_IS_MINE.lock();
        // A size that no other test of this crate uses.
        const LEN: usize = 128 << 10;
        let pieces: Vec<NonNull<u8>> = (0..CHUNK_BYTES / LEN).map(|_| any(LEN)).collect();
        let mut places: Vec<usize> = pieces.iter().map(|piece| piece.as_ptr().addr()).collect();
        places.sort_unstable();
        assert!(places[0].is_multiple_of(CHUNK_BYTES));
        assert!(places.windows(2).all(|pair| pair[1] - pair[0] == LEN), "{places:x?}");
        for piece in &pieces {
            // SAFETY: each is ours alone, and of this length.
            unsafe { piece.as_ptr().write_bytes(7, LEN) };
        }
        // SAFETY: each came from `allocate` or `take`, and nobody uses it any more.
        pieces.into_iter().for_each(|piece| unsafe { free(piece, LEN) });
        let again = take(LEN).expect("there are empty ones");
        assert!(places.contains(&again.as_ptr().addr()));
        // SAFETY: it is ours alone, and of this length.
        let bytes = unsafe { std::slice::from_raw_parts(again.as_ptr(), LEN) };
        assert!(bytes.iter().all(|&byte| byte == 0), "the pages were not given back");
        // SAFETY: as above.
        unsafe { free(again, LEN) };
    }
}
