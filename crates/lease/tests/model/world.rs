//! The world: its time, its hosts, its device, and what comes next.

use crate::model::clock::{SimClock, Time};
use crate::model::host::{Doing, Host};
use crate::model::plan::{MS, Outcome, Plan, SECOND, Trouble};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::atomic::Ordering;
use syncline_device::Completion;
use syncline_lease::Lease;
use syncline_lease::lab::Canary;

pub enum Work {
    Read,
    Lease(Box<Lease>),
    Data,
    Flush,
}

pub enum Route {
    Claim,
    Renewal,
    Holder(Option<Completion<()>>),
    /// Sent again by the client: nobody waits.
    Nobody,
}

pub struct Op {
    pub host: usize,
    pub life: u64,
    /// The number of the holder that sent it.
    pub number: u64,
    pub work: Work,
    pub route: Route,
    pub fails: bool,
    /// It never takes effect.
    pub never: bool,
    pub answered: bool,
    /// Its connection broke before it was answered: the client sends it again.
    pub stranded: bool,
    /// How often the operation was sent. Effects and answers of an earlier sending are dropped.
    pub sent: u32,
    pub found: Option<Lease>,
    /// The lease writes that a flush covers.
    pub covers: Vec<usize>,
}

pub enum Event {
    Effect(usize, u32),
    Answer(usize, u32),
    /// The pause of a claim or a renewal is over.
    Woke(usize, u64),
    Work(usize, u64),
    Reconnect(usize),
    Start(usize),
    /// It stands still until then.
    Stop(usize, u64, u64),
    Chaos,
}

pub struct World {
    pub plan: Plan,
    pub rng: ChaCha8Rng,
    pub time: Time,
    pub hosts: Vec<Host>,
    pub ops: Vec<Op>,
    pub queue: BinaryHeap<Reverse<(u64, usize)>>,
    pub events: Vec<Option<Event>>,
    /// The block of the lease; `durable` is the block that a power cut leaves.
    pub block: Option<Lease>,
    pub durable: Option<Lease>,
    /// A power cut has left zeros: the first claim had no flush yet.
    pub forgot_all: bool,
    /// The next holder that renews meets trouble right then: when that takes effect, or when it is
    /// answered.
    pub lies_in_wait: Option<bool>,
    pub down_until: u64,
    /// Delays are longer until then.
    pub slow_until: u64,
    pub outcome: Outcome,
}

/// Runs a plan to its end, or until a promise is broken.
pub fn run(plan: &Plan, canary: Option<Canary>) -> Outcome {
    let mut world = World::new(plan.clone(), canary);
    for host in 0..plan.hosts {
        let at = world.rng.random_range(0..10 * SECOND);
        world.at(at, Event::Start(host));
    }
    world.at(SECOND, Event::Chaos);
    while world.outcome.broken.is_empty() && world.turn() < plan.run_ns {}
    world.outcome
}

impl World {
    pub fn new(plan: Plan, canary: Option<Canary>) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(!plan.seed);
        let time = Time::default();
        let hosts = (0..plan.hosts)
            .map(|number| {
                let rate = match plan.trouble {
                    _ if plan.extreme_clocks && number < 2 => [875_000, 1_125_000][number],
                    Trouble::Drifting => rng.random_range(500_000..1_600_000),
                    // Half of the time one of the ends of the allowed range.
                    _ => match rng.random_range(0..4) {
                        0 => 875_000,
                        1 => 1_125_000,
                        _ => rng.random_range(875_000..=1_125_000),
                    },
                };
                let clock = SimClock::new(time.clone(), rate, rng.random_range(0..1_000_000 * SECOND));
                Host::new(clock, number, (plan.duration_ms, plan.guard_ms), canary)
            })
            .collect();
        Self {
            plan,
            rng,
            time,
            hosts,
            ops: Vec::new(),
            queue: BinaryHeap::new(),
            events: Vec::new(),
            block: None,
            durable: None,
            forgot_all: false,
            lies_in_wait: None,
            down_until: 0,
            slow_until: 0,
            outcome: Outcome::default(),
        }
    }

    pub fn now(&self) -> u64 {
        self.time.load(Ordering::Relaxed)
    }

    pub fn at(&mut self, time_ns: u64, event: Event) {
        self.queue.push(Reverse((time_ns, self.events.len())));
        self.events.push(Some(event));
    }

    pub fn after(&mut self, time_ns: u64, event: Event) {
        self.at(self.now() + time_ns, event);
    }

    pub fn tell(&mut self, what: impl FnOnce() -> String) {
        if self.plan.tells {
            let line = format!("{:>10.4} {}", self.now() as f64 / SECOND as f64, what());
            self.outcome.history.push(line);
        }
    }

    /// The next event; returns its time.
    pub fn turn(&mut self) -> u64 {
        let Some(Reverse((time_ns, number))) = self.queue.pop() else { return u64::MAX };
        self.time.store(time_ns, Ordering::Relaxed);
        let event = self.events[number].take().expect("an event comes once");
        // A stopped host learns of nothing.
        let host = match &event {
            Event::Answer(op, _) => Some(self.ops[*op].host),
            Event::Woke(host, _) | Event::Work(host, _) | Event::Reconnect(host) | Event::Start(host) => {
                Some(*host)
            }
            Event::Effect(..) | Event::Stop(..) | Event::Chaos => None,
        };
        let deaf = matches!(event, Event::Answer(..));
        let until = |host: usize| {
            let host = &self.hosts[host];
            if deaf { host.stopped_until.max(host.deaf_until) } else { host.stopped_until }
        };
        if let Some(until) = host.map(until).filter(|&until| until > time_ns) {
            self.at(until, event);
            return time_ns;
        }
        if let Some(host) = host {
            self.hosts[host].goes_on();
        }
        match event {
            Event::Effect(op, sent) if sent == self.ops[op].sent => self.effect(op),
            Event::Answer(op, sent) if sent == self.ops[op].sent => self.answer(op),
            Event::Effect(..) | Event::Answer(..) => {}
            Event::Woke(host, life) if life == self.hosts[host].life => self.woke(host),
            Event::Work(host, life) if life == self.hosts[host].life => self.work(host),
            Event::Reconnect(host) => self.reconnect(host),
            Event::Stop(host, life, until) if life == self.hosts[host].life => {
                let (now, pauses) = (self.now(), self.plan.trouble == Trouble::Paused);
                self.hosts[host].stops(now, until, pauses);
            }
            Event::Woke(..) | Event::Work(..) | Event::Stop(..) => {}
            Event::Start(host) => self.start(host, None),
            Event::Chaos => self.chaos(),
        }
        self.check_holders();
        time_ns
    }

    /// L1.
    fn check_holders(&mut self) {
        let now = self.now();
        // A paused clock can't be read; its value when the host goes on counts.
        let counts =
            |host: &Host| host.is_valid() && (host.paused_since.is_none() || host.stopped_until <= now);
        let valid: Vec<usize> = (0..self.hosts.len()).filter(|&host| counts(&self.hosts[host])).collect();
        if valid.len() > 1 {
            self.breaks(format!("L1: the hosts {valid:?} both count their lease as valid"));
        }
    }

    pub fn breaks(&mut self, what: String) {
        self.tell(|| what.clone());
        self.outcome.broken.push(what);
    }

    fn chaos(&mut self) {
        let next = self.rng.random_range(self.plan.chaos_ns / 4..self.plan.chaos_ns * 2);
        self.after(next, Event::Chaos);
        let host = self.rng.random_range(0..self.hosts.len());
        match self.rng.random_range(0..26) {
            0..3 => self.crash(host),
            3..6 => {
                let most = if self.rng.random() { SECOND } else { 40 * SECOND };
                let time = self.rng.random_range(10 * MS..most);
                self.tell(|| format!("host {host} stands still for {} ms", time / MS));
                let until = self.now() + time;
                let (now, pauses) = (self.now(), self.plan.trouble == Trouble::Paused);
                self.hosts[host].stops(now, until, pauses);
            }
            6..10 => (0..self.hosts.len()).for_each(|host| self.release(host)),
            10..12 => {
                // All at once, so that they meet.
                for host in 0..self.hosts.len() {
                    let soon = self.rng.random_range(0..20 * MS);
                    self.after(soon, Event::Start(host));
                }
            }
            12 => self.server_crash(),
            14..18 => self.cut_off(host),
            18..24 => self.lies_in_wait = Some(self.rng.random()),
            13 => self.slow_until = self.now() + self.rng.random_range(SECOND..20 * SECOND),
            _ => self.start(host, None),
        }
    }
    /// The network to one host fails, in one direction or in both.
    fn cut_off(&mut self, host: usize) {
        let until = self.now() + self.rng.random_range(100 * MS..12 * SECOND);
        let (deaf, mute) = [(true, false), (false, true), (true, true)][self.rng.random_range(0..3)];
        self.tell(|| format!("host {host} is cut off until {} ms: deaf {deaf}, mute {mute}", until / MS));
        let host = &mut self.hosts[host];
        if deaf {
            host.deaf_until = until.max(host.deaf_until);
        }
        if mute {
            host.mute_until = until.max(host.mute_until);
        }
    }
    /// The worst moments for a holder: its renewal has just taken effect and is answered late, or has
    /// just been answered. Then it stands still, or its network fails, for longer than the lease
    /// lasts, and others come at once.
    pub fn ambush(&mut self, host: usize, answered: bool) {
        if self.lies_in_wait != Some(answered) || !matches!(self.hosts[host].doing, Doing::Holding(_)) {
            return;
        }
        self.lies_in_wait = None;
        self.tell(|| format!("host {host} is ambushed"));
        let (now, duration) = (self.now(), self.plan.duration_ms * MS);
        let until = now + (duration + self.plan.guard_ms * MS) * 2;
        let soon = now + self.rng.random_range(duration / 4..duration / 2);
        let pauses = self.plan.trouble == Trouble::Paused;
        let ambushed = &mut self.hosts[host];
        match self.rng.random_range(0..3) {
            _ if !answered => {
                ambushed.deaf_until = soon;
                let life = ambushed.life;
                self.at(soon + 1, Event::Stop(host, life, until));
            }
            0 => ambushed.stops(now, until, pauses),
            1 => (ambushed.deaf_until, ambushed.late_until) = (until, until),
            _ => ambushed.mute_until = until,
        }
        for other in (0..self.hosts.len()).filter(|&other| other != host) {
            self.hosts[other].ends();
            let soon = self.rng.random_range(0..200 * MS);
            self.after(soon, Event::Start(other));
        }
    }
}
