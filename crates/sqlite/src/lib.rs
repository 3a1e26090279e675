//! A loadable extension for SQLite: databases in an image, without a mount, one flush a commit.
//!
//! It registers a VFS named `syncline`, and some functions. A name such as
//! `file:app.db?vfs=syncline&image=/var/lib/app.img` is the file `/app.db` of that image.
//!
//! **A commit.** What SQLite writes to a database stays in memory ([`file`]) until SQLite syncs it.
//! Then all of it is committed as one transaction of the library: with one flush, all or nothing.
//! So no crash leaves half a commit, and no journal needs to survive one: SQLite's rollback journal
//! lies in memory ([`volatile`]), whichever mode SQLite believes it to have. A rollback reads it
//! there. The option `journal=file` puts it into the image instead, as on any filesystem.
//!
//! **Several databases.** SQLite marks a transaction of several attached databases by a
//! super-journal, whose removal is the commit. Until then their syncs only hold their changes; the
//! removal commits them all as one transaction ([`image`]).
//!
//! **Connections.** Those of one process share an open image, one object for each file, its locks
//! ([`locks`]) and the memory of a write-ahead log ([`shared_memory`]). Other processes are refused.
//!
//! The modules know nothing of C; [`ffi`] has all that does, and all `unsafe`.
#![deny(unsafe_code)]

mod cache;
mod changes;
mod connection;
mod failure;
mod ffi;
mod file;
mod image;
mod locks;
mod names;
mod options;
mod registry;
mod shared_memory;
mod volatile;

pub use ffi::{
    sqlite3_extension_init, sqlite3_synclinedefault_init, sqlite3_synclinesqlite_init, syncline_sqlite_init,
};
pub use registry::{Served, serve};
