//! Which tickets are durable, which are lost, and which are still open. Plain state, no locks, no
//! I/O.

use super::Ticket;
use std::io;
use std::sync::Arc;

/// The fate of a ticket, as far as it is known.
#[derive(Clone, Debug)]
pub(super) enum Fate {
    /// A successful flush, submitted after the write completed, covers it.
    Durable,
    /// A flush failed before any covered it (rule R6).
    Poisoned(Arc<io::Error>),
    /// No flush that covers it has ended.
    Open,
}

/// Tickets `after < ticket <= through` were lost to one failed flush.
struct Poison {
    after: u64,
    through: u64,
    source: Arc<io::Error>,
}

/// The tickets of one device.
///
/// Invariant: the fate of every ticket up to `settled` is final: poisoned if a range in `poisoned`
/// holds it, durable otherwise. Every later one, up to `newest`, is open.
#[derive(Default)]
pub(super) struct Ledger {
    newest: u64,
    settled: u64,
    /// In ascending order, disjoint.
    poisoned: Vec<Poison>,
}

impl Ledger {
    /// Takes the next ticket for a write that has just completed.
    pub(super) fn take_ticket(&mut self) -> Ticket {
        self.newest += 1;
        Ticket(self.newest)
    }

    /// The newest ticket taken. A flush submitted now covers everything up to here and nothing
    /// after (rule R4).
    pub(super) fn newest(&self) -> Ticket {
        Ticket(self.newest)
    }

    /// The fate of `ticket`, as far as it is known.
    pub(super) fn fate(&self, ticket: Ticket) -> Fate {
        if ticket.0 > self.settled {
            return Fate::Open;
        }
        let next = self.poisoned.partition_point(|poison| poison.through < ticket.0);
        match self.poisoned.get(next) {
            Some(poison) if poison.after < ticket.0 => Fate::Poisoned(poison.source.clone()),
            _ => Fate::Durable,
        }
    }

    /// A flush submitted when the newest ticket was `cover` succeeded. Tickets poisoned before stay
    /// poisoned: their range is already below `settled`.
    pub(super) fn flush_succeeded(&mut self, cover: Ticket) {
        self.settled = self.settled.max(cover.0);
    }

    /// A flush failed: every open ticket is lost, including those of writes that completed while it
    /// was in flight.
    pub(super) fn flush_failed(&mut self, source: Arc<io::Error>) {
        if self.newest > self.settled {
            self.poisoned.push(Poison { after: self.settled, through: self.newest, source });
            self.settled = self.newest;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_poisoned(ledger: &Ledger, ticket: u64) -> bool {
        matches!(ledger.fate(Ticket(ticket)), Fate::Poisoned(_))
    }

    #[test]
    fn poisoned_ranges_stay_poisoned_among_durable_ones() {
        let mut ledger = Ledger::default();
        let failure = || Arc::new(io::Error::other("flush"));
        assert!(matches!(ledger.fate(Ticket(0)), Fate::Durable));
        let first = ledger.take_ticket();
        ledger.flush_succeeded(first);
        ledger.take_ticket();
        ledger.take_ticket();
        ledger.flush_failed(failure());
        let fourth = ledger.take_ticket();
        assert!(matches!(ledger.fate(fourth), Fate::Open));
        ledger.flush_succeeded(fourth);
        ledger.take_ticket();
        ledger.flush_failed(failure());
        ledger.flush_failed(failure());
        let fates: Vec<bool> = (1..=5).map(|ticket| is_poisoned(&ledger, ticket)).collect();
        assert_eq!(fates, [false, true, true, false, true]);
    }
}
