//! The life of a block: its states, and what leads from one to the next.

/// The state of a block whose newest contents are in memory. The table is in the documentation of
/// `blocks`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum BlockState {
    /// Written by a program, and nowhere but in memory.
    Dirty,
    /// In the log, with these contents, and without a place.
    Logged,
    /// Write-back is writing it to a place that no transaction names yet.
    InFlight,
    /// Written by a program while its older contents were in flight, which still are.
    Rewritten,
    /// Its extent has these contents. Memory has them too, because the block was written in parts.
    Placed,
}

/// Something that happens to a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Event {
    /// A program wrote to it.
    Written,
    /// A transaction with its contents is being committed.
    Logged,
    /// Write-back took it and has started to write it.
    TakenOff,
    /// The transaction that names it is committed.
    Named,
    /// Its write, or the transaction, has failed.
    Failed,
}

impl BlockState {
    /// The state after an event, or `None` if that can't happen to a block in this state.
    pub(super) const fn after(self, event: Event) -> Option<Self> {
        use BlockState::{Dirty, InFlight, Logged, Placed, Rewritten};
        match (self, event) {
            (Dirty | Logged | Placed, Event::Written) => Some(Dirty),
            (Dirty, Event::Logged) => Some(Logged),
            (Dirty | Logged, Event::TakenOff) => Some(InFlight),
            // A sync names what it writes beside the batch at once.
            (Dirty | Logged, Event::Named) => Some(Placed),
            (Dirty | Logged, Event::Failed) => Some(Dirty),
            (InFlight, Event::Written) => Some(Rewritten),
            (InFlight, Event::Named) => Some(Placed),
            (InFlight, Event::Failed) => Some(Dirty),
            (Rewritten, Event::Written) => Some(Rewritten),
            // The older contents are named, or will never be: the newer ones wait for their turn.
            (Rewritten, Event::Named | Event::Failed) => Some(Dirty),
            _ => None,
        }
    }

    /// True for contents that no submission has taken.
    pub(in crate::data) const fn is_dirty(self) -> bool {
        matches!(self, Self::Dirty | Self::Logged | Self::Rewritten)
    }

    /// True while write-back is writing the block, perhaps with older contents.
    pub(in crate::data) const fn is_flying(self) -> bool {
        matches!(self, Self::InFlight | Self::Rewritten)
    }
}
