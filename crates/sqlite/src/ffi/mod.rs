//! The border to SQLite, and all `unsafe` of the crate.
//!
//! What holds for every call from SQLite: pointers are valid for the call; a file is used by one
//! thread at a time, and not after `xClose`; names end with a NUL. No panic crosses the border.
#![allow(unsafe_code)]

mod abi;
mod entry;
mod file;
pub(crate) mod fork;
mod functions;
mod sqlite;
mod vfs;

pub use entry::{
    sqlite3_extension_init, sqlite3_synclinedefault_init, sqlite3_synclinesqlite_init, syncline_sqlite_init,
};
