//! The log: changes that are committed and not yet sealed, batches on their way to the device, the
//! group of callers that waits for each batch, and how far the history is durable.

mod background;
mod bracket;
mod commit;
mod group;
mod inflight;
mod seal;
mod shown;
mod tickets;

pub use bracket::{Bracket, Quiet};
pub use inflight::DataWrite;

pub(crate) use bracket::Brackets;
pub(crate) use commit::CommitState;
pub(crate) use group::{GroupCommit, failed_for_good};
pub(crate) use inflight::{Inflight, Write};
pub(crate) use seal::{Cut, LogState, NewSegment, Sealed, Then};
pub(crate) use shown::Shown;
pub(crate) use tickets::Tickets;
