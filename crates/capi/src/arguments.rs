//! Converts C's pointers to the types that the library takes, and back.

use crate::failure::Failure;
use std::ffi::{CStr, OsStr, c_char, c_void};
use std::os::unix::ffi::OsStrExt;

/// A handle or structure passed by C.
///
/// # Safety `pointer` is NULL or points to a `T` that lives, and is not changed, for as long as the
/// result is used.
pub(crate) unsafe fn reference<'a, T>(pointer: *const T, name: &'static str) -> Result<&'a T, Failure> {
    // SAFETY: the caller's promise.
    unsafe { pointer.as_ref() }.ok_or(Failure::Null(name))
}

/// A zero-terminated string.
///
/// # Safety `pointer` is NULL or points to such a string, which lives and stays unchanged for as
/// long as the result is used.
pub(crate) unsafe fn string<'a>(pointer: *const c_char, name: &'static str) -> Result<&'a OsStr, Failure> {
    if pointer.is_null() {
        return Err(Failure::Null(name));
    }
    // SAFETY: the caller's promise.
    Ok(OsStr::from_bytes(unsafe { CStr::from_ptr(pointer) }.to_bytes()))
}

/// `count` values passed by C; NULL is allowed if there are none.
///
/// # Safety `pointer` points to that many, which live and stay unchanged for as long as the result
/// is used.
pub(crate) unsafe fn slice<'a, T>(
    pointer: *const T,
    count: usize,
    name: &'static str,
) -> Result<&'a [T], Failure> {
    check_extent::<T>(pointer.is_null(), count, name)?;
    // SAFETY: the caller's promise, and neither NULL nor too long.
    Ok(if count == 0 { &[] } else { unsafe { std::slice::from_raw_parts(pointer, count) } })
}

/// A buffer of `count` bytes.
///
/// # Safety `pointer` points to that many, which only the result may access for as long as it is
/// used.
pub(crate) unsafe fn room<'a>(
    pointer: *mut c_void,
    count: usize,
    name: &'static str,
) -> Result<&'a mut [u8], Failure> {
    check_extent::<u8>(pointer.is_null(), count, name)?;
    // SAFETY: the caller's promise, and neither NULL nor too long. The previous contents are never
    // read.
    Ok(if count == 0 { &mut [] } else { unsafe { std::slice::from_raw_parts_mut(pointer.cast(), count) } })
}

fn check_extent<T>(null: bool, count: usize, name: &'static str) -> Result<(), Failure> {
    if null && count > 0 {
        return Err(Failure::Null(name));
    }
    match count.checked_mul(size_of::<T>()) {
        Some(bytes) if isize::try_from(bytes).is_ok() => Ok(()),
        _ => Err(Failure::Invalid("a size beyond all memory")),
    }
}

/// Stores a result where C wants it.
///
/// # Safety `place` is NULL or may be written to.
pub(crate) unsafe fn store<T>(place: *mut T, value: T, name: &'static str) -> Result<(), Failure> {
    if place.is_null() {
        return Err(Failure::Null(name));
    }
    // SAFETY: the caller's promise. The old value belongs to C and must not be dropped.
    unsafe { place.write(value) };
    Ok(())
}

/// Makes a handle and stores it; makes nothing if there is no place for it.
///
/// # Safety `place` is NULL or may be written to.
pub(crate) unsafe fn hand_out<T>(
    place: *mut *mut T,
    make: impl FnOnce() -> Result<T, Failure>,
) -> Result<(), Failure> {
    if place.is_null() {
        return Err(Failure::Null("the place for the handle"));
    }
    // SAFETY: the caller's promise. After a failure it holds NULL, which every call refuses.
    unsafe { place.write(std::ptr::null_mut()) };
    let handle = Box::new(make()?);
    // SAFETY: as before.
    unsafe { place.write(Box::into_raw(handle)) };
    Ok(())
}

/// Takes a handle back.
///
/// # Safety `handle` is NULL or was handed out by this crate, and is not used again.
pub(crate) unsafe fn take_back<T>(handle: *mut T) -> Result<Box<T>, Failure> {
    if handle.is_null() {
        return Err(Failure::Null("the handle"));
    }
    // SAFETY: the caller's promise: it came from Box::into_raw and comes back once.
    Ok(unsafe { Box::from_raw(handle) })
}

/// Copies a result of any length into C's buffer and returns the length; with a size of 0, only
/// returns it.
///
/// # Safety As for [`room`].
pub(crate) unsafe fn copy_out(result: &[u8], to: *mut c_void, size: usize) -> Result<i64, Failure> {
    if size > 0 {
        // SAFETY: the caller's promise.
        let room = unsafe { room(to, size, "the place for the result") }?;
        room.get_mut(..result.len()).ok_or(Failure::Range(result.len()))?.copy_from_slice(result);
    }
    Ok(result.len() as i64)
}

/// Copies a text like `copy_out`, with a zero byte at its end that the length does not include.
///
/// # Safety As for [`room`].
pub(crate) unsafe fn copy_text_out(text: &[u8], to: *mut c_char, size: usize) -> Result<i64, Failure> {
    let mut whole = text.to_vec();
    whole.push(0);
    // SAFETY: the caller's promise.
    Ok(unsafe { copy_out(&whole, to.cast(), size) }? - 1)
}
