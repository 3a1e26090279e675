//! For tests: the state machines by themselves, and rules that a test breaks on purpose.

pub use crate::claim::{Claim, Claimed, Event as ClaimEvent, How, Step as ClaimStep};
pub use crate::gate::Gate;
pub use crate::renewal::{Event as RenewalEvent, Renewal, Step as RenewalStep};
pub use crate::traffic::Traffic;

syncline_rules::rules! {
    /// A deliberately broken rule. The model in `tests/model` must find each.
    pub enum Canary {
        /// Answer flushes without looking whether the lease is still valid.
        AnswerUnchecked,
        /// Begin writes without looking whether the lease is still valid.
        WriteUnchecked,
        /// Look at the lease neither before writes nor before answers.
        Unchecked,
        /// Count the validity of a renewal from its answer.
        CountFromEnd,
        /// Let a renewal that is answered late revive an expired lease.
        Revive,
        /// Renew without reading the block first.
        NoCompare,
        /// Hold the lease without reading the claim back.
        NoReadBack,
        /// Let a claim count however long it took.
        NoLimit,
        /// Let a claim count without a flush.
        NoFlush,
        /// Make no allowance for clocks that differ.
        NoDrift,
        /// Take a lease over as soon as the former holder has expired, with no time for operations under
        /// way.
        NoGuard,
    }
}
