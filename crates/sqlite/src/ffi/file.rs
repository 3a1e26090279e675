//! The methods of an open file.

use super::abi::{File, Methods, buffer, control, promise, shm};
use super::fork;
use super::sqlite::{Sqlite, guarded, string, text};
use crate::connection::Connection;
use crate::failure::{Failure, code};
use crate::locks::Level;
use std::ffi::{c_char, c_int, c_void};
use std::ptr::NonNull;
use std::sync::atomic::{Ordering, fence};

/// Our `sqlite3_file`, in the memory that SQLite provides for it.
#[repr(C)]
pub(super) struct Handle {
    file: File,
    connection: NonNull<Connection>,
    persist_log: bool,
}

static METHODS: Methods = Methods {
    version: 2,
    close,
    read,
    write,
    truncate,
    sync,
    file_size,
    lock,
    unlock,
    check_reserved_lock,
    file_control,
    sector_size,
    device_characteristics,
    shm_map,
    shm_lock,
    shm_barrier,
    shm_unmap,
};

/// Makes a file in its place.
///
/// # Safety
///
/// The place has room for a `Handle`.
pub(super) unsafe fn put(place: *mut File, connection: Connection) {
    let connection = NonNull::from(Box::leak(Box::new(connection)));
    let handle = Handle { file: File { methods: &raw const METHODS }, connection, persist_log: false };
    // SAFETY: the caller's promise.
    unsafe { place.cast::<Handle>().write(handle) };
}

/// The connection of a file of this VFS; None for other files.
///
/// # Safety
///
/// The file is open, and nobody else uses it meanwhile.
pub(super) unsafe fn connection<'a>(file: *mut File) -> Option<&'a mut Connection> {
    // SAFETY: the caller's promise; only files that `put` has made have these methods.
    unsafe {
        let ours = !file.is_null() && std::ptr::eq((*file).methods, &raw const METHODS);
        ours.then(|| (*file.cast::<Handle>()).connection.as_mut())
    }
}

/// Makes a call for a file of this VFS.
///
/// # Safety
///
/// SQLite has passed the file to one of the methods.
unsafe fn answer(file: *mut File, call: impl FnOnce(&mut Connection) -> Result<c_int, Failure>) -> c_int {
    // SAFETY: `put` has made the file, and one thread at a time uses it.
    unsafe {
        let connection = (*file.cast::<Handle>()).connection.as_mut();
        Sqlite::this().answer(|| fork::require_parent().and_then(|()| call(connection)))
    }
}

unsafe extern "C" fn close(file: *mut File) -> c_int {
    // SAFETY: `put` has made the file; SQLite does not use it any more.
    let connection = unsafe { Box::from_raw((*file.cast::<Handle>()).connection.as_ptr()) };
    if fork::is_child() {
        // It is the parent's.
        std::mem::forget(connection);
        return code::OK;
    }
    Sqlite::this().answer(|| connection.close().map(|()| code::OK))
}

unsafe extern "C" fn read(file: *mut File, bytes: *mut c_void, len: c_int, offset: i64) -> c_int {
    // SAFETY: SQLite passes a buffer of this length.
    unsafe {
        answer(file, |connection| {
            let buffer = buffer(bytes, len);
            let read = connection.read(buffer, offset as u64)?;
            buffer[read..].fill(0);
            Ok(if read == buffer.len() { code::OK } else { code::IOERR_SHORT_READ })
        })
    }
}

unsafe extern "C" fn write(file: *mut File, bytes: *const c_void, len: c_int, offset: i64) -> c_int {
    // SAFETY: SQLite passes a buffer of this length, which is only read.
    unsafe {
        answer(file, |connection| {
            let data = buffer(bytes.cast_mut(), len);
            connection.write(data, offset as u64).map(|()| code::OK)
        })
    }
}

unsafe extern "C" fn truncate(file: *mut File, size: i64) -> c_int {
    // SAFETY: passed on.
    unsafe { answer(file, |connection| connection.set_size(size as u64).map(|()| code::OK)) }
}

unsafe extern "C" fn sync(file: *mut File, _: c_int) -> c_int {
    // SAFETY: passed on.
    unsafe { answer(file, |connection| connection.sync().map(|()| code::OK)) }
}

unsafe extern "C" fn file_size(file: *mut File, out: *mut i64) -> c_int {
    // SAFETY: SQLite passes a place for the size.
    unsafe {
        answer(file, |connection| {
            *out = connection.size()? as i64;
            Ok(code::OK)
        })
    }
}

/// A lock that another connection has is an everyday answer, and not logged.
fn locked(outcome: Result<bool, Failure>) -> c_int {
    match outcome {
        Ok(true) => code::OK,
        Ok(false) => code::BUSY,
        Err(failure) => failure.code,
    }
}

unsafe extern "C" fn lock(file: *mut File, level: c_int) -> c_int {
    // SAFETY: SQLite passes an open file.
    let connection = unsafe { connection(file) };
    locked(fork::require_parent().and_then(|()| {
        guarded(|| match (connection, Level::from_number(level)) {
            (Some(connection), Some(level)) => Ok(connection.lock(level)),
            _ => Err(Failure::new(code::ERROR, "no such lock")),
        })
    }))
}

unsafe extern "C" fn unlock(file: *mut File, level: c_int) -> c_int {
    // SAFETY: passed on.
    unsafe {
        answer(file, |connection| {
            connection.unlock(Level::from_number(level).unwrap_or_default());
            Ok(code::OK)
        })
    }
}

unsafe extern "C" fn check_reserved_lock(file: *mut File, out: *mut c_int) -> c_int {
    // SAFETY: SQLite passes a place for the answer.
    unsafe {
        answer(file, |connection| {
            *out = c_int::from(connection.is_reserved());
            Ok(code::OK)
        })
    }
}

unsafe extern "C" fn file_control(file: *mut File, operation: c_int, argument: *mut c_void) -> c_int {
    let handle = file.cast::<Handle>();
    // SAFETY: SQLite passes with each operation the argument that sqlite3.h says.
    unsafe {
        answer(file, |connection| {
            let number = argument.cast::<c_int>();
            match operation {
                control::LOCKSTATE => *number = connection.level() as c_int,
                control::SIZE_HINT | control::CHUNK_SIZE => {}
                control::HAS_MOVED => *number = 0,
                control::PERSIST_WAL => {
                    if *number >= 0 {
                        (*handle).persist_log = *number > 0;
                    }
                    *number = c_int::from((*handle).persist_log);
                }
                control::POWERSAFE_OVERWRITE => *number = 1,
                control::VFSNAME => *argument.cast::<*mut c_char>() = string(Sqlite::this().api, "syncline"),
                control::SYNC => {
                    let super_journal = argument.cast::<c_char>();
                    let super_journal =
                        if super_journal.is_null() { None } else { Some(text(super_journal)?) };
                    connection.complete(super_journal)?;
                }
                control::PRAGMA => return pragma(connection, argument.cast()),
                _ => return Ok(code::NOTFOUND),
            }
            Ok(code::OK)
        })
    }
}

/// Answers a pragma: `arguments` are a place for the answer, the name, and the value or null.
///
/// # Safety
///
/// SQLite has passed the arguments.
unsafe fn pragma(connection: &Connection, arguments: *mut *mut c_char) -> Result<c_int, Failure> {
    // SAFETY: the caller's promise.
    let (name, value) = unsafe {
        let value = *arguments.add(2);
        (text(*arguments.add(1))?, if value.is_null() { None } else { Some(text(value)?) })
    };
    let Some(answer) = connection.pragma(name, value) else { return Ok(code::NOTFOUND) };
    let (text, code) = match answer {
        Ok(text) => (text, code::OK),
        Err(failure) => (failure.text, code::ERROR),
    };
    // SAFETY: SQLite frees the text.
    unsafe { *arguments = string(Sqlite::this().api, &text) };
    Ok(code)
}

unsafe extern "C" fn sector_size(_: *mut File) -> c_int {
    4096
}

unsafe extern "C" fn device_characteristics(_: *mut File) -> c_int {
    promise::SAFE_APPEND | promise::POWERSAFE_OVERWRITE
}

unsafe extern "C" fn shm_map(
    file: *mut File,
    index: c_int,
    bytes: c_int,
    make: c_int,
    out: *mut *mut c_void,
) -> c_int {
    // SAFETY: SQLite passes a place for the pointer. The region stays until the last connection leaves.
    unsafe {
        answer(file, |connection| {
            let region = connection.region(index as usize, bytes as usize, make != 0);
            *out = region.map_or(std::ptr::null_mut(), |region| region.as_ptr().cast_mut().cast());
            Ok(code::OK)
        })
    }
}

unsafe extern "C" fn shm_lock(file: *mut File, first: c_int, count: c_int, flags: c_int) -> c_int {
    // SAFETY: SQLite passes an open file.
    let connection = unsafe { connection(file) };
    let (lock, exclusive) = (flags & shm::LOCK != 0, flags & shm::EXCLUSIVE != 0);
    locked(fork::require_parent().and_then(|()| {
        guarded(|| {
            Ok(connection.is_some_and(|held| held.lock_log(first as usize, count as usize, lock, exclusive)))
        })
    }))
}

unsafe extern "C" fn shm_barrier(_: *mut File) {
    fence(Ordering::SeqCst);
}

unsafe extern "C" fn shm_unmap(file: *mut File, _: c_int) -> c_int {
    // SAFETY: passed on.
    unsafe {
        answer(file, |connection| {
            connection.leave_log();
            Ok(code::OK)
        })
    }
}
