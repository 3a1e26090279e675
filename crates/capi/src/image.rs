//! Creating, opening and closing images.

use crate::arguments::{copy_text_out, hand_out, reference, slice, store, string, take_back};
use crate::failure::{Failure, answer, done};
use std::ffi::{c_char, c_int, c_uint, c_void};
use syncline::device::Use;
use syncline::{Filesystem, FormatOptions, ImageOptions};

/// Opens an image without writing to it.
pub const SYNCLINE_READ_ONLY: c_uint = 1;
/// Reads and writes the image without io_uring.
pub const SYNCLINE_NO_IO_URING: c_uint = 2;

/// Encrypts the image that is made, under the key that was added last.
pub const SYNCLINE_ENCRYPTED: c_uint = 4;

/// The options for these flags; refuses flags that the call does not know.
pub(crate) fn options(flags: c_uint, known: c_uint) -> Result<ImageOptions, Failure> {
    if flags & !known != 0 {
        return Err(Failure::Invalid("a flag that this call does not know"));
    }
    let mut options = match flags & SYNCLINE_READ_ONLY {
        0 => ImageOptions::default(),
        _ => ImageOptions::read_only(),
    };
    if flags & SYNCLINE_NO_IO_URING != 0 {
        options = options.io_uring(Use::Never);
    }
    Ok(options)
}

/// An open image.
pub struct syncline_fs {
    pub(crate) filesystem: Filesystem,
}

/// Sizes and counts of an image.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct syncline_space {
    /// Bytes in a block.
    pub block_bytes: u64,
    /// Blocks in all.
    pub blocks: u64,
    /// Blocks free.
    pub free: u64,
    /// Blocks that can be written before the image is full.
    pub available: u64,
    /// Files, directories and so on that exist.
    pub objects: u64,
    /// How many more could be made (an estimate).
    pub objects_free: u64,
}

/// Makes an image file and opens it.
///
/// # Safety
/// `image` is a string; `fs` may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_create(
    image: *const c_char,
    size_bytes: u64,
    flags: c_uint,
    fs: *mut *mut syncline_fs,
) -> c_int {
    // SAFETY: the caller's promise for each pointer.
    done(|| unsafe {
        hand_out(fs, || {
            let options = options(flags, SYNCLINE_NO_IO_URING | SYNCLINE_ENCRYPTED)?;
            let (image, format) = (string(image, "image")?, FormatOptions::default());
            let format = format.encrypted(flags & SYNCLINE_ENCRYPTED != 0);
            let filesystem = Filesystem::create_with(image, size_bytes, &format, options)?;
            Ok(syncline_fs { filesystem })
        })
    })
}

/// Opens an image.
///
/// # Safety
/// `image` is a string; `fs` may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_open(
    image: *const c_char,
    flags: c_uint,
    fs: *mut *mut syncline_fs,
) -> c_int {
    // SAFETY: the caller's promise for each pointer.
    done(|| unsafe {
        hand_out(fs, || {
            let options = options(flags, SYNCLINE_READ_ONLY | SYNCLINE_NO_IO_URING)?;
            Ok(syncline_fs { filesystem: Filesystem::open(string(image, "image")?, options)? })
        })
    })
}

/// Adds a key of encrypted images.
///
/// # Safety
/// `key` is NULL or holds `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_add_key(key: *const c_void, size: usize) -> c_int {
    // SAFETY: the caller's promise.
    done(|| Ok(syncline::add_key(unsafe { slice(key.cast(), size, "key") }?)?))
}

/// Forgets the keys of this process.
#[unsafe(no_mangle)]
pub extern "C" fn syncline_forget_keys() -> c_int {
    done(|| {
        syncline::forget_keys();
        Ok(())
    })
}

/// Closes an image.
///
/// # Safety
/// `fs` is NULL or an open handle, and not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_close(fs: *mut syncline_fs) -> c_int {
    // SAFETY: the caller's promise.
    done(|| Ok(unsafe { take_back(fs) }?.filesystem.close()?))
}

/// Makes everything durable.
///
/// # Safety
/// `fs` is NULL or an open handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_sync(fs: *const syncline_fs) -> c_int {
    // SAFETY: the caller's promise.
    done(|| Ok(unsafe { reference(fs, "fs") }?.filesystem.sync()?))
}

/// Tells sizes and counts.
///
/// # Safety
/// `fs` is NULL or an open handle; `space` is NULL or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_statfs(fs: *const syncline_fs, space: *mut syncline_space) -> c_int {
    // SAFETY: the caller's promise for each pointer.
    done(|| unsafe {
        let has = reference(fs, "fs")?.filesystem.space();
        let told = syncline_space {
            block_bytes: syncline::device::BLOCK_BYTES as u64,
            blocks: has.blocks,
            free: has.free,
            available: has.available,
            objects: has.objects,
            objects_free: has.objects_free,
        };
        store(space, told, "space")
    })
}

/// Tells the counters so far, as JSON.
///
/// # Safety
/// `fs` is NULL or an open handle; `json` has room for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_statistics(fs: *const syncline_fs, json: *mut c_char, size: usize) -> i64 {
    // SAFETY: the caller's promise for each pointer.
    answer(|| unsafe {
        let statistics = reference(fs, "fs")?.filesystem.statistics();
        let text = serde_json::to_string(&statistics).map_err(std::io::Error::from)?;
        copy_text_out(text.as_bytes(), json, size)
    })
}
