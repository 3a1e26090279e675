//! Why a call failed, and the result code that SQLite gets for it.

use std::cell::RefCell;
use std::fmt;

/// SQLite's result codes (sqlite3.h).
pub(crate) mod code {
    pub(crate) const OK: i32 = 0;
    pub(crate) const ERROR: i32 = 1;
    pub(crate) const BUSY: i32 = 5;
    pub(crate) const NOMEM: i32 = 7;
    pub(crate) const IOERR: i32 = 10;
    pub(crate) const NOTFOUND: i32 = 12;
    pub(crate) const FULL: i32 = 13;
    pub(crate) const CANTOPEN: i32 = 14;
    pub(crate) const IOERR_READ: i32 = IOERR | 1 << 8;
    pub(crate) const IOERR_SHORT_READ: i32 = IOERR | 2 << 8;
    pub(crate) const IOERR_WRITE: i32 = IOERR | 3 << 8;
    pub(crate) const IOERR_FSYNC: i32 = IOERR | 4 << 8;
    pub(crate) const IOERR_TRUNCATE: i32 = IOERR | 6 << 8;
    pub(crate) const IOERR_FSTAT: i32 = IOERR | 7 << 8;
    pub(crate) const IOERR_DELETE: i32 = IOERR | 10 << 8;
    pub(crate) const IOERR_ACCESS: i32 = IOERR | 13 << 8;
    pub(crate) const IOERR_DELETE_NOENT: i32 = IOERR | 23 << 8;
    pub(crate) const OK_LOAD_PERMANENTLY: i32 = 1 << 8;
}

/// The Linux errnos.
const EBUSY: i32 = 16;
const ENOMEM: i32 = 12;
const ENOSPC: i32 = 28;
const EDQUOT: i32 = 122;

/// The result code of a call, and the text for people.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) code: i32,
    pub(crate) text: String,
}

pub(crate) type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    pub(crate) fn new(code: i32, text: impl Into<String>) -> Self {
        Self { code, text: text.into() }
    }

    /// A database, or its image, that can't be opened.
    pub(crate) fn cannot_open(text: impl Into<String>) -> Self {
        Self::new(code::CANTOPEN, text)
    }

    /// The same in the midst of a transaction whose changes are forgotten: SQLite goes on after NOMEM as if
    /// they were there.
    pub(crate) fn in_transaction(self) -> Self {
        let code = if self.code == code::NOMEM { code::IOERR_WRITE } else { self.code };
        Self { code, ..self }
    }

    /// The library's error in an operation that fails with `code` for reasons that SQLite does not know.
    pub(crate) fn of(code: i32) -> impl FnOnce(syncline::Error) -> Self {
        move |error| {
            let code = match error.errno() {
                ENOSPC | EDQUOT => code::FULL,
                ENOMEM => code::NOMEM,
                EBUSY if code == code::CANTOPEN => code::BUSY,
                _ => code,
            };
            Self::new(code, error.to_string())
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.text)
    }
}

thread_local! {
    /// The text of this thread's newest failure: SQLite passes only the code on, and the open call that failed
    /// leaves no connection to ask.
    static NEWEST: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Keeps the text for `syncline_last_error()`.
pub(crate) fn keep(failure: &Failure) {
    // At the end of a thread there is nobody left to ask.
    let _ = NEWEST.try_with(|newest| newest.borrow_mut().clone_from(&failure.text));
}

/// Forgets the text.
pub(crate) fn forget() {
    let _ = NEWEST.try_with(|newest| newest.borrow_mut().clear());
}

/// The text of this thread's newest failure; empty if there was none since it opened a database.
pub(crate) fn newest() -> String {
    NEWEST.try_with(|newest| newest.borrow().clone()).unwrap_or_default()
}
