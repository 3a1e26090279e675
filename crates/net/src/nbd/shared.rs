//! State that the device, its receivers and its manager share, and the way from the state to the
//! outside.

use super::NbdOptions;
use super::fence::Guard;
use super::link::Link;
use super::outgoing::Unsent;
use super::state::{Outbox, State};
use super::wires::Span;
use crate::counters::Counters;
use crate::location::NbdLocation;
use parking_lot::{Condvar, Mutex};
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU64};
use std::time::Duration;
use syncline_device::AlignedBuf;

pub(super) struct Shared {
    pub(super) location: NbdLocation,
    /// The location as it is shown.
    pub(super) name: String,
    pub(super) options: NbdOptions,
    /// How long the server may be away.
    pub(super) wait: Option<Duration>,
    pub(super) state: Mutex<State>,
    /// The manager waits here.
    pub(super) wake: Condvar,
    pub(super) counters: Arc<Counters>,
    /// The fence, for those who send.
    pub(super) guard: Arc<Guard>,
    pub(super) size_bytes: AtomicU64,
    /// The export's flags.
    pub(super) flags: AtomicU16,
}

impl Shared {
    /// Changes the state, and then sends the messages and gives the answers that result.
    pub(super) fn with<R>(&self, change: impl FnOnce(&mut State, &mut Outbox) -> R) -> R {
        let mut outbox = Outbox::default();
        let result = change(&mut self.state.lock(), &mut outbox);
        self.deliver(outbox);
        result
    }

    fn deliver(&self, outbox: Outbox) {
        let Outbox { link, mut messages, listeners, answers, wake_manager, ended, ended_early } = outbox;
        if let Some(ended) = ended {
            ended.abort();
        }
        if let Some(ended) = ended_early {
            ended.abort();
        }
        if wake_manager {
            self.wake.notify_one();
        }
        for (listener, error) in listeners {
            listener(&error);
        }
        if let Some(link) = link {
            while let Some(&(index, _)) = messages.first() {
                let (own, others) = messages.into_iter().partition(|(other, _)| *other == index);
                messages = others;
                let own: smallvec::SmallVec<[_; 2]> = own;
                let connection = &link.connections[index];
                let posted = own.into_iter().map(|(_, message)| message);
                if let Err(why) = connection.outgoing.post(&connection.channel, &self.guard, posted) {
                    self.not_sent(&link, why);
                }
            }
        }
        for answer in answers {
            answer.deliver();
        }
    }

    /// Messages were not sent.
    pub(super) fn not_sent(&self, link: &Link, why: Unsent) {
        match why {
            Unsent::Broke(why) => self.link_broke(link, why),
            Unsent::Fenced(error) => {
                let error = io::Error::new(io::ErrorKind::PermissionDenied, error);
                self.with(|state, outbox| state.end(error, outbox));
            }
        }
    }

    /// A thread of a link, or who sends on it, saw it end.
    pub(super) fn link_broke(&self, link: &Link, why: io::Error) {
        // First here, for `State::link_stands`.
        let told = io::Error::new(why.kind(), why.to_string());
        link.broke.lock().get_or_insert(told);
        self.with(|state, outbox| state.link_broke(link, why, outbox));
    }

    /// A simple reply without an error. True if the data of a read follows.
    pub(super) fn succeeded(&self, link: &Link, index: usize, cookie: u64) -> io::Result<bool> {
        self.with(|state, outbox| state.succeeded(link, index, cookie, outbox))
    }

    /// A reply without data, or a part of one.
    pub(super) fn replied(
        &self,
        link: &Link,
        index: usize,
        cookie: u64,
        error: Option<u32>,
        last: bool,
    ) -> io::Result<()> {
        self.with(|state, outbox| state.replied((link, index, cookie), error, last, outbox))
    }

    /// The buffer of a read, and the range of it that is going to arrive.
    pub(super) fn lend(
        &self,
        link: &Link,
        index: usize,
        cookie: u64,
        span: Span,
    ) -> io::Result<(AlignedBuf, Range<usize>)> {
        self.state.lock().lend((link, index, cookie), span)
    }

    /// Takes the buffer of a read back.
    pub(super) fn give_back(&self, link: &Link, cookie: u64, buf: AlignedBuf, last: bool) -> io::Result<()> {
        self.with(|state, outbox| state.give_back((link, cookie), buf, last, outbox))
    }
}
