//! An ordered, transactional, crash-safe map from keys to values, with checksummed data blocks beside it.
#![forbid(unsafe_code)]

mod error;
mod store;
mod transaction;

pub use error::StoreError;
pub use store::{Admission, Chunk, DataWrite, Pin, Reservation, Store};
pub use transaction::{OpSeq, Transaction};
