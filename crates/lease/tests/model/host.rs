//! One host: what it does with the lease, and what it is allowed to do.

use crate::model::clock::SimClock;
use crate::model::device::HostDevice;
use std::sync::{Arc, Mutex};
use syncline_lease::lab::{Canary, Claim, Gate, How, Renewal, Traffic};
use syncline_lease::{LeaseHolder, LeaseOptions, Leased, Permit};

/// An answer to a holder's program.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Told {
    Written,
    Durable,
    Failed,
}

pub enum Doing {
    Nothing,
    Claiming { claim: Box<Claim>, how: How },
    Holding(Box<Holding>),
}

pub struct Holding {
    pub renewal: Renewal,
    /// No step of the renewal is under way.
    pub idle: bool,
    pub gate: Arc<Gate>,
    pub permit: Permit,
    pub traffic: Arc<Traffic>,
    pub device: Arc<HostDevice>,
    pub leased: Leased,
    /// How many holders there had been with this one.
    pub number: u64,
    pub told: Arc<Mutex<Vec<Told>>>,
}

pub struct Host {
    pub clock: Arc<SimClock>,
    pub options: LeaseOptions,
    /// Counts crashes and ends, so that nothing of an earlier life is taken for one of this.
    pub life: u64,
    pub stopped_until: u64,
    /// No answer reaches it until then.
    pub deaf_until: u64,
    /// Nothing that it sends arrives until then.
    pub mute_until: u64,
    /// All its writes arrive late until then.
    pub late_until: u64,
    /// The server has not been away since it last connected.
    pub connected: bool,
    /// Operations that it had to send again after that have arrived by then; nothing else comes before.
    pub resent_until: u64,
    /// Its clock stands still since then.
    pub paused_since: Option<u64>,
    pub doing: Doing,
    /// Lease blocks written that no flush covers: operation, and whether it was answered.
    pub unflushed: Vec<(usize, bool)>,
}

impl Host {
    pub fn new(clock: Arc<SimClock>, number: usize, ms: (u64, u64), canary: Option<Canary>) -> Self {
        let mut holder = syncline_lease::this_process();
        holder.host = LeaseHolder::encode_host(["alpha", "beta", "gamma", "delta"][number]);
        let options = LeaseOptions {
            duration: std::time::Duration::from_millis(ms.0),
            guard: std::time::Duration::from_millis(ms.1),
            clock: clock.clone(),
            holder: Some(holder),
            canary,
            ..LeaseOptions::default()
        };
        options.check().unwrap();
        let (life, stopped_until, paused_since) = (0, 0, None);
        let (doing, unflushed) = (Doing::Nothing, Vec::new());
        let (deaf_until, mute_until, late_until, resent_until, connected) = (0, 0, 0, 0, true);
        Self {
            clock,
            options,
            life,
            stopped_until,
            deaf_until,
            mute_until,
            late_until,
            connected,
            resent_until,
            paused_since,
            doing,
            unflushed,
        }
    }

    /// It stands still until then, and so does its clock if `pauses`.
    pub fn stops(&mut self, now: u64, until: u64, pauses: bool) {
        if pauses && self.paused_since.is_none() {
            self.paused_since = Some(now);
        }
        self.stopped_until = until.max(self.stopped_until);
    }

    /// Something happens on it: it does not stand still any more.
    pub fn goes_on(&mut self) {
        if let Some(since) = self.paused_since.take() {
            self.clock.misses(self.stopped_until - since);
        }
    }

    /// It is restarted, with a clock that runs.
    pub fn reboots(&mut self, now: u64) {
        self.stopped_until = self.stopped_until.min(now);
        self.goes_on();
    }

    /// Ends all its work; answers that are still to come are for nobody.
    pub fn ends(&mut self) {
        self.life += 1;
        self.doing = Doing::Nothing;
        self.unflushed.clear();
    }

    pub fn holding(&mut self) -> Option<&mut Holding> {
        match &mut self.doing {
            Doing::Holding(holding) => Some(holding),
            _ => None,
        }
    }

    pub fn is_valid(&self) -> bool {
        matches!(&self.doing, Doing::Holding(holding) if holding.gate.is_valid())
    }
}
