//! Errors, and how they are reported to C.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The library's reason.
    #[error(transparent)]
    Library(#[from] syncline::Error),
    /// A read or write that goes through the standard library's traits.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// EFAULT
    #[error("'{0}' is NULL")]
    Null(&'static str),
    /// EINVAL
    #[error("invalid argument: {0}")]
    Invalid(&'static str),
    /// ERANGE
    #[error("the result has {0} bytes and does not fit; size 0 asks for that number")]
    Range(usize),
    /// ENODATA
    #[error("no such attribute")]
    NoAttribute,
    /// EIO: the library failed because of a bug.
    #[error("the library panicked (a bug: please report it): {0}")]
    Panicked(String),
}

impl Failure {
    fn errno(&self) -> i32 {
        match self {
            Self::Library(error) => error.errno(),
            Self::Io(error) => error.raw_os_error().unwrap_or(libc::EIO),
            Self::Null(_) => libc::EFAULT,
            Self::Invalid(_) => libc::EINVAL,
            Self::Range(_) => libc::ERANGE,
            Self::NoAttribute => libc::ENODATA,
            Self::Panicked(_) => libc::EIO,
        }
    }
}

thread_local! {
    /// The text of this thread's last failure.
    static LAST: RefCell<CString> = RefCell::default();
}

/// Runs a call and turns its outcome into the return value for C: a result of 0 or more, or a
/// negative errno.
pub(crate) fn answer(call: impl FnOnce() -> Result<i64, Failure>) -> i64 {
    // Handles are shared references to objects that do their own locking: a panic leaves no
    // half-made change that only this call could see.
    let failure = match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(result)) => return result,
        Ok(Err(failure)) => failure,
        Err(panic) => Failure::Panicked(said(&*panic)),
    };
    let text = failure.to_string().replace('\0', " ");
    // In a thread that is ending, the text may have no place any more.
    let _ = LAST.try_with(|last| *last.borrow_mut() = CString::new(text).unwrap_or_default());
    -i64::from(failure.errno())
}

/// Runs a call without a result.
pub(crate) fn done(call: impl FnOnce() -> Result<(), Failure>) -> c_int {
    // 0 or a negative errno.
    answer(|| call().map(|()| 0)) as c_int
}

fn said(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_owned())
}

/// The text of the last call that failed in this thread; empty if none did. Never NULL; good until
/// the next failure.
#[unsafe(no_mangle)]
pub extern "C" fn syncline_last_error() -> *const c_char {
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CStr;

    fn last() -> String {
        // SAFETY: it points to this thread's text, which nothing changes meanwhile.
        unsafe { CStr::from_ptr(syncline_last_error()) }.to_string_lossy().into_owned()
    }

    #[test]
    fn panics_become_eio_and_text_stays_in_its_thread() {
        assert_eq!(answer(|| panic!("on {}", "purpose")), -i64::from(libc::EIO));
        assert!(last().contains("on purpose"), "{}", last());
        assert_eq!(done(|| Err(Failure::Null("path"))), -libc::EFAULT);
        assert_eq!(last(), "'path' is NULL");
        assert_eq!(std::thread::spawn(last).join().unwrap(), "");
        assert_eq!(answer(|| Ok(7)), 7);
        assert_eq!(last(), "'path' is NULL", "successes leave it alone");
    }
}
