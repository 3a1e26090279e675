//! The blocks of the device that a file has, and gets.
//!
//! `lookup` finds a file's extents, and `shares` the reference counts of their blocks. `room` and
//! `quota` reserve what new blocks need. `place` allocates them and starts their writes, of units
//! that `pack` may have compressed and `units` decodes. `plan` works out what becomes of the extent
//! items.

pub(in crate::data) mod lookup;
pub(in crate::data) mod pack;
pub(in crate::data) mod place;
pub(in crate::data) mod plan;
pub(in crate::data) mod quota;
pub(in crate::data) mod room;
pub(in crate::data) mod shares;
pub(in crate::data) mod units;
