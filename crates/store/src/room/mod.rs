//! Room: which blocks are free, and how many of them are promised to changes and to data.

mod admit;
mod count;
mod reserve;
mod trim;
mod unnamed;

pub use admit::{Admission, Admitted, Backlog, ChangeSize};
pub use reserve::Reservation;

pub(crate) use admit::UnderWay;
pub(crate) use count::{LEAST_SEGMENT_BLOCKS, first_segment_blocks, segment_blocks};
pub(crate) use trim::{Discarding, tend_discards};
