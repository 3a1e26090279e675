//! The VFS: names and files. What is in no image goes to the VFS that was the default.

use super::abi::{File, Vfs, open};
use super::file::{self, Handle};
use super::sqlite::{Sqlite, text};
use crate::connection::{self, Connection, How, Role};
use crate::failure::{self, Failure, code};
use crate::options::Options;
use std::ffi::{CStr, CString, c_char, c_int, c_void};

pub(super) const NAME: &CStr = c"syncline";
/// Longest full name, with its NUL: the path of an image and one in it.
const PATH_BYTES_MAX: c_int = 4096;

/// Registers the VFS, not as the default; returns SQLite's code.
pub(super) fn register(sqlite: &Sqlite) -> c_int {
    // SAFETY: the default VFS, which stays.
    let host = unsafe { &*sqlite.host };
    let vfs = Vfs {
        version: 2,
        // The default's files are made in the same place.
        file_bytes: (size_of::<Handle>() as c_int).max(host.file_bytes),
        path_bytes_max: PATH_BYTES_MAX.max(host.path_bytes_max),
        next: std::ptr::null_mut(),
        name: NAME.as_ptr(),
        data: std::ptr::null_mut(),
        open: open_file,
        delete,
        access,
        full_pathname,
        dl_open,
        dl_error,
        dl_sym,
        dl_close,
        randomness,
        sleep,
        current_time,
        last_error,
        current_time_int64,
    };
    // SAFETY: the structure stays, and SQLite may change its link.
    unsafe { (sqlite.api.vfs_register)(Box::leak(Box::new(vfs)), 0) }
}

/// The value of a parameter of the URI that a name came in. One that is no UTF-8 is a failure of
/// [`require_text`] before.
///
/// # Safety
///
/// SQLite has passed the name as that of a database.
unsafe fn parameter(sqlite: &Sqlite, name: *const c_char, key: &str) -> Option<String> {
    // SAFETY: passed on.
    unsafe { value(sqlite, name, key) }?.ok().map(str::to_owned)
}

/// Refuses a URI of which a parameter is no text, which would otherwise count as absent.
///
/// # Safety
///
/// SQLite has passed the name as that of a database.
unsafe fn require_text(sqlite: &Sqlite, name: *const c_char) -> Result<(), Failure> {
    for key in Options::PARAMETERS {
        // SAFETY: passed on.
        if let Some(Err(_)) = unsafe { value(sqlite, name, key) } {
            return Err(Failure::cannot_open(format!("the value of '{key}' is not UTF-8")));
        }
    }
    Ok(())
}

/// # Safety
///
/// SQLite has passed the name as that of a database.
unsafe fn value<'a>(sqlite: &Sqlite, name: *const c_char, key: &str) -> Option<Result<&'a str, Failure>> {
    let key = CString::new(key).ok()?;
    // SAFETY: the caller's promise, and a key that ends with a NUL.
    let value = unsafe { (sqlite.api.uri_parameter)(name, key.as_ptr()) };
    // SAFETY: a string that lives as long as the name.
    (!value.is_null()).then(|| unsafe { text(value) })
}

unsafe extern "C" fn open_file(
    _: *mut Vfs,
    name: *const c_char,
    place: *mut File,
    flags: c_int,
    out_flags: *mut c_int,
) -> c_int {
    let sqlite = Sqlite::this();
    // SAFETY: SQLite passes a place for a file, which it does not close if the methods are null.
    unsafe { (*place).methods = std::ptr::null() };
    let role = match flags {
        _ if flags & open::MAIN_DB != 0 => Role::Database,
        _ if flags & open::WAL != 0 => Role::Log,
        _ if flags & open::MAIN_JOURNAL != 0 => Role::Journal,
        _ if flags & open::SUPER_JOURNAL != 0 => Role::SuperJournal,
        // Temporary files belong to the host.
        // SAFETY: passed on.
        _ => return unsafe { ((*sqlite.host).open)(sqlite.host, name, place, flags, out_flags) },
    };
    let how = How {
        role,
        write: flags & open::READWRITE != 0,
        create: flags & open::CREATE != 0,
        new: flags & open::EXCLUSIVE != 0 && flags & open::CREATE != 0 && role != Role::SuperJournal,
        delete_on_close: flags & open::DELETEONCLOSE != 0,
    };
    let mut host = name.is_null();
    let opened = sqlite.answer(|| {
        if host {
            return Ok(code::OK);
        }
        // SAFETY: SQLite passes a name, which is of a database where parameters are asked for.
        let (full, parameters) = unsafe { (text(name)?, |key: &str| parameter(sqlite, name, key)) };
        if role == Role::Database {
            // SAFETY: as above.
            unsafe { require_text(sqlite, name)? };
        }
        let options = match role {
            // Where the mode makes no database, it makes no image either.
            Role::Database if !how.create => Options { create: None, ..Options::of(parameters)? },
            Role::Database => Options::of(parameters)?,
            _ => Options::default(),
        };
        let found = match role {
            Role::Database => connection::place(full, &options, parameters)?,
            _ => connection::place_of(full)?,
        };
        let Some((image, path)) = found else {
            host = true;
            return Ok(code::OK);
        };
        let connection = Connection::open(image, &path, how, &options)?;
        let read_only = connection.read_only;
        // SAFETY: the place is as large as `register` has asked for.
        unsafe { file::put(place, connection) };
        // SAFETY: SQLite passes a place for the flags, or null.
        if let Some(out_flags) = unsafe { out_flags.as_mut() } {
            *out_flags = match read_only {
                true => flags & !(open::READWRITE | open::CREATE) | open::READONLY,
                false => flags,
            };
        }
        Ok(code::OK)
    });
    match host {
        // SAFETY: passed on.
        true => unsafe { ((*sqlite.host).open)(sqlite.host, name, place, flags, out_flags) },
        false => opened,
    }
}

/// Calls `inside` for a file of an image, or the default VFS.
///
/// # Safety
///
/// SQLite has passed the name.
unsafe fn inside_or(
    name: *const c_char,
    inside: impl FnOnce(&crate::image::Image, &str) -> Result<(), Failure>,
    host: impl FnOnce(*mut Vfs) -> c_int,
) -> c_int {
    let sqlite = Sqlite::this();
    let mut is_inside = true;
    let answer = sqlite.answer(|| {
        // SAFETY: the caller's promise.
        match connection::place_of(unsafe { text(name)? })? {
            Some((image, path)) => inside(&image, &path).map(|()| code::OK),
            None => {
                is_inside = false;
                Ok(code::OK)
            }
        }
    });
    if is_inside { answer } else { host(sqlite.host) }
}

unsafe extern "C" fn delete(_: *mut Vfs, name: *const c_char, sync: c_int) -> c_int {
    // SAFETY: passed on.
    unsafe {
        inside_or(
            name,
            |image, path| image.remove(path, sync != 0),
            |host| ((*host).delete)(host, name, sync),
        )
    }
}

unsafe extern "C" fn access(_: *mut Vfs, name: *const c_char, flags: c_int, out: *mut c_int) -> c_int {
    const READWRITE: c_int = 1;
    // SAFETY: SQLite passes a place for the answer.
    unsafe {
        inside_or(
            name,
            |image, path| {
                let exists = image.exists(path)?;
                *out = c_int::from(exists && !(flags == READWRITE && image.is_read_only()));
                Ok(())
            },
            |host| ((*host).access)(host, name, flags, out),
        )
    }
}

unsafe extern "C" fn full_pathname(
    _: *mut Vfs,
    name: *const c_char,
    bytes: c_int,
    out: *mut c_char,
) -> c_int {
    let sqlite = Sqlite::this();
    let mut host = false;
    // The text of an earlier failure would not explain that of this database.
    failure::forget();
    let answer = sqlite.answer(|| {
        // SAFETY: SQLite passes the name of a database.
        let (name, parameters) = unsafe {
            require_text(sqlite, name)?;
            (text(name)?, |key: &str| parameter(sqlite, name, key))
        };
        let Some(full) = connection::full_name(name, parameters) else {
            host = true;
            return Ok(code::OK);
        };
        if full.len() >= bytes as usize {
            return Err(Failure::cannot_open(format!("{full} is too long")));
        }
        // SAFETY: `out` has so many bytes, and the name and its NUL fit.
        unsafe {
            std::ptr::copy_nonoverlapping(full.as_ptr(), out.cast(), full.len());
            out.add(full.len()).write(0);
        }
        Ok(code::OK)
    });
    match host {
        // SAFETY: passed on.
        true => unsafe { ((*sqlite.host).full_pathname)(sqlite.host, name, bytes, out) },
        false => answer,
    }
}

unsafe extern "C" fn last_error(_: *mut Vfs, bytes: c_int, out: *mut c_char) -> c_int {
    let text = failure::newest();
    if let Some(room) = usize::try_from(bytes).ok().and_then(|bytes| bytes.checked_sub(1)) {
        let len = text.len().min(room);
        // SAFETY: `out` has so many bytes.
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr(), out.cast(), len);
            out.add(len).write(0);
        }
    }
    0
}

/// The default VFS.
fn host() -> *mut Vfs {
    Sqlite::this().host
}

unsafe extern "C" fn dl_open(_: *mut Vfs, name: *const c_char) -> *mut c_void {
    // SAFETY: passed on.
    unsafe { ((*host()).dl_open)(host(), name) }
}

unsafe extern "C" fn dl_error(_: *mut Vfs, bytes: c_int, out: *mut c_char) {
    // SAFETY: passed on.
    unsafe { ((*host()).dl_error)(host(), bytes, out) }
}

unsafe extern "C" fn dl_sym(_: *mut Vfs, library: *mut c_void, name: *const c_char) -> *mut c_void {
    // SAFETY: passed on.
    unsafe { ((*host()).dl_sym)(host(), library, name) }
}

unsafe extern "C" fn dl_close(_: *mut Vfs, library: *mut c_void) {
    // SAFETY: passed on.
    unsafe { ((*host()).dl_close)(host(), library) }
}

unsafe extern "C" fn randomness(_: *mut Vfs, bytes: c_int, out: *mut c_char) -> c_int {
    // SAFETY: passed on.
    unsafe { ((*host()).randomness)(host(), bytes, out) }
}

unsafe extern "C" fn sleep(_: *mut Vfs, microseconds: c_int) -> c_int {
    // SAFETY: passed on.
    unsafe { ((*host()).sleep)(host(), microseconds) }
}

unsafe extern "C" fn current_time(_: *mut Vfs, out: *mut f64) -> c_int {
    // SAFETY: passed on.
    unsafe { ((*host()).current_time)(host(), out) }
}

unsafe extern "C" fn current_time_int64(_: *mut Vfs, out: *mut i64) -> c_int {
    // SAFETY: passed on, if the default has the function.
    unsafe {
        let host = host();
        if (*host).version >= 2 {
            return ((*host).current_time_int64)(host, out);
        }
        let mut days = 0.0;
        let answer = ((*host).current_time)(host, &raw mut days);
        *out = (days * 86_400_000.0) as i64;
        answer
    }
}
