//! The tickets of a set of writes that one flush must cover.

use crate::StoreError;
use std::sync::Arc;
use syncline_device::{DeviceError, FlushTracker, Ticket};

/// Oldest and newest of the tickets that no flush has covered yet.
///
/// A failed flush poisons every ticket not durable at that moment, so if any of the set is poisoned the oldest is:
/// looking at both ends is looking at all (rule R6).
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Tickets {
    ends: Option<(Ticket, Ticket)>,
}

impl Tickets {
    /// Adds a completed write.
    pub(crate) fn add(&mut self, ticket: Ticket, tracker: &FlushTracker) {
        if tracker.is_durable(ticket) {
            return;
        }
        let (oldest, newest) = self.ends.unwrap_or((ticket, ticket));
        self.ends = Some((oldest.min(ticket), newest.max(ticket)));
    }

    /// The ticket that a flush must cover; the zero ticket, which is always durable, when there is nothing to cover.
    pub(crate) fn newest(&self) -> Ticket {
        self.ends.map_or(Ticket::default(), |(_, newest)| newest)
    }

    /// After a flush that covered the newest ticket: fails when an earlier flush had lost any of the others.
    pub(crate) fn confirm(&self, tracker: &FlushTracker) -> Result<(), StoreError> {
        match self.ends {
            Some((oldest, _)) if !tracker.is_durable(oldest) => {
                let lost = std::io::Error::other("an earlier flush had failed");
                Err(DeviceError::Poisoned { source: Arc::new(lost) }.into())
            }
            _ => Ok(()),
        }
    }
}
