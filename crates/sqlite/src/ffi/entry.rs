//! The entry points: SQLite calls one of them when it loads the extension.

use super::abi::{Api, Db, VERSION_MIN};
use super::sqlite::{self, Sqlite};
use super::{functions, vfs};
use crate::failure::code;
use parking_lot::Mutex;
use std::ffi::{c_char, c_int};

/// One registration at a time.
static REGISTERING: Mutex<()> = Mutex::new(());

/// Registers the VFS for the process, and the functions for this connection and for all later ones. For
/// programs that link the crate: the argument of `sqlite3_auto_extension`.
///
/// # Safety
///
/// SQLite calls it, as an extension.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_sqlite_init(
    db: *mut Db,
    error: *mut *mut c_char,
    api: *const Api,
) -> c_int {
    // SAFETY: SQLite passes its interface, or null if it was built without extensions.
    let Some(api) = (unsafe { api.as_ref::<'static>() }) else { return code::ERROR };
    match register(api) {
        // SAFETY: `db` is the connection that loads the extension.
        Ok(sqlite) => unsafe { functions::register(sqlite, db) },
        Err(text) => {
            // SAFETY: a place for a message, which SQLite frees.
            if let Some(error) = unsafe { error.as_mut() } {
                *error = sqlite::string(api, text);
            }
            code::ERROR
        }
    }
}

/// Registers the VFS, once.
fn register(api: &'static Api) -> Result<&'static Sqlite, &'static str> {
    let _one = REGISTERING.lock();
    // SAFETY: a function without arguments, which all versions have.
    if unsafe { (api.libversion_number)() } < VERSION_MIN {
        return Err("libsyncline_sqlite.so needs SQLite 3.31 or newer");
    }
    // SAFETY: null asks for the default VFS; it is one that stays.
    let host = unsafe { (api.vfs_find)(std::ptr::null()) };
    if host.is_null() {
        return Err("this SQLite has no VFS for files");
    }
    let sqlite = Sqlite::keep(api, host);
    let sqlite =
        sqlite.ok_or("another SQLite in this process has loaded libsyncline_sqlite.so, which serves one")?;
    // SAFETY: names end with a NUL.
    if unsafe { (api.vfs_find)(vfs::NAME.as_ptr()) }.is_null() && vfs::register(sqlite) != code::OK {
        return Err("the VFS 'syncline' can't be registered");
    }
    Ok(sqlite)
}

/// The entry point that SQLite looks for first.
///
/// # Safety
///
/// SQLite calls it, as an extension.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sqlite3_extension_init(
    db: *mut Db,
    error: *mut *mut c_char,
    api: *const Api,
) -> c_int {
    // SAFETY: passed on.
    let registered = unsafe { syncline_sqlite_init(db, error, api) };
    if registered != code::OK {
        return registered;
    }
    // Later connections get the functions.
    // SAFETY: the interface was found good; the function stays, as the extension is never unloaded.
    let automatic = unsafe { ((*api).auto_extension)(Some(syncline_sqlite_init)) };
    if automatic == code::OK { code::OK_LOAD_PERMANENTLY } else { automatic }
}

/// The entry point that SQLite derives from the file's name.
///
/// # Safety
///
/// SQLite calls it, as an extension.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sqlite3_synclinesqlite_init(
    db: *mut Db,
    error: *mut *mut c_char,
    api: *const Api,
) -> c_int {
    // SAFETY: passed on.
    unsafe { sqlite3_extension_init(db, error, api) }
}

/// Another entry point, for programs that can't say `vfs=syncline` when they open a database: it makes the VFS
/// the default of the process. Names such as `/var/lib/app.img/app.db` are then files in images; all others are
/// files of the host, as before.
///
/// # Safety
///
/// SQLite calls it, as an extension.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sqlite3_synclinedefault_init(
    db: *mut Db,
    error: *mut *mut c_char,
    api: *const Api,
) -> c_int {
    // SAFETY: passed on.
    let registered = unsafe { sqlite3_extension_init(db, error, api) };
    if registered != code::OK_LOAD_PERMANENTLY {
        return registered;
    }
    // SAFETY: the VFS is registered, which SQLite allows again.
    match unsafe { ((*api).vfs_register)(((*api).vfs_find)(vfs::NAME.as_ptr()), 1) } {
        code::OK => registered,
        code => code,
    }
}
