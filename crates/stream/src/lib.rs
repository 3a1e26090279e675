//! Snapshots as streams, which `syncline send` writes and `syncline receive` reads.
//!
//! A stream is a header and records (`header`, `record`, `frame`). [`send`] makes one of a snapshot, or
//! of the difference to an older one. [`receive`] makes the snapshot in another image, beside that
//! image's contents, and shows it when all of it has come. [`receive_in_pieces`] also keeps the
//! received part of a stream that is cut off. [`resume`] sends the rest, by the [`Token`] that tells
//! how much came.
#![forbid(unsafe_code)]

mod error;
mod fields;
mod frame;
mod header;
mod position;
mod receive;
mod record;
mod send;

pub use error::StreamError;
pub use frame::{Reader, Writer};
pub use header::{Header, Origin};
pub use position::{Position, Token};
pub use receive::{
    Cut, Kept, Options, Received, decode_kept, piece_bytes, receive, receive_in_pieces, receive_with,
};
pub use record::{Record, Restored, Unit};
pub use send::{Source, resume, send};
