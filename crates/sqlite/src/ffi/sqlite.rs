//! The SQLite that has loaded the extension.

use super::abi::{Api, Vfs};
use crate::failure::{self, Failure, code};
use std::any::Any;
use std::ffi::{CStr, CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;

/// The functions of a SQLite, and the VFS for files that are in no image. It lives as long as the process.
pub(super) struct Sqlite {
    pub(super) api: &'static Api,
    pub(super) host: *mut Vfs,
}

// SAFETY: the functions may be called by any thread, and the VFS is SQLite's, which does its own locking.
unsafe impl Send for Sqlite {}
// SAFETY: as above.
unsafe impl Sync for Sqlite {}

static THIS: OnceLock<Sqlite> = OnceLock::new();

impl Sqlite {
    /// Keeps the SQLite that loads the extension; None if another one in the process has loaded it before, whose
    /// files and connections could not be told apart from those of this one.
    pub(super) fn keep(api: &'static Api, host: *mut Vfs) -> Option<&'static Self> {
        let kept = THIS.get_or_init(|| Self { api, host });
        std::ptr::eq(kept.api, api).then_some(kept)
    }

    /// The SQLite that has loaded the extension.
    ///
    /// # Panics
    ///
    /// If none has; but then nothing calls.
    pub(super) fn this() -> &'static Self {
        THIS.get().expect("only SQLite calls this")
    }

    /// Makes a call that SQLite waits for, and returns the result code. The text of a failure goes to SQLite's
    /// log. A lock that is taken is no failure.
    pub(super) fn answer(&self, call: impl FnOnce() -> Result<c_int, Failure>) -> c_int {
        match guarded(call) {
            Ok(code) => code,
            Err(failure) => {
                self.report(&failure);
                failure.code
            }
        }
    }

    pub(super) fn report(&self, failure: &Failure) {
        failure::keep(failure);
        let text = CString::new(format!("syncline: {failure}").replace('\0', " ")).unwrap_or_default();
        // SAFETY: a format with one string, and a string.
        unsafe { (self.api.log)(failure.code, c"%s".as_ptr(), text.as_ptr()) };
    }
}

/// A string that SQLite frees; null if there is no memory.
pub(super) fn string(api: &Api, text: &str) -> *mut c_char {
    let Ok(len) = c_int::try_from(text.len() + 1) else { return std::ptr::null_mut() };
    // SAFETY: SQLite's allocator gives so many bytes, or null.
    let place: *mut u8 = unsafe { (api.malloc)(len) }.cast();
    if !place.is_null() {
        // SAFETY: the text and its NUL fit, and a new allocation overlaps nothing.
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr(), place, text.len());
            place.add(text.len()).write(0);
        }
    }
    place.cast()
}

/// Makes a call; a panic is a failure of it.
pub(super) fn guarded<T>(call: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    // Shared state is behind locks that a panic leaves usable, and each change of it is made at once.
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|panic| {
        let text = format!("the extension panicked (a bug: please report it): {}", message(&*panic));
        Err(Failure::new(code::IOERR, text))
    })
}

fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

/// A string of SQLite's; a failure if it is no UTF-8.
///
/// # Safety
///
/// The pointer leads to a string that ends with a NUL and stays as it is meanwhile.
pub(super) unsafe fn text<'a>(string: *const c_char) -> Result<&'a str, Failure> {
    // SAFETY: the caller's promise.
    let string = unsafe { CStr::from_ptr(string) };
    string.to_str().map_err(|_| Failure::cannot_open("a name that is not UTF-8"))
}
