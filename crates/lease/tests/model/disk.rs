//! The device and the way to it: operations are late, fail, are never answered, and are sent again
//! after the server was away.

use crate::model::host::Doing;
use crate::model::plan::{MS, SECOND, Trouble};
use crate::model::world::{Event, Op, Route, Work, World};
use rand::Rng;
use std::io;
use std::time::Duration;
use syncline_device::{DeviceError, Operation};
use syncline_lease::lab::{ClaimEvent, RenewalEvent};
use syncline_lease::{Lease, LeaseState};

impl World {
    pub fn local(&self, host: usize) -> Duration {
        use syncline_lease::Clock;
        self.hosts[host].clock.now()
    }

    /// A delay: short mostly, now and then long, and rarely up to `most_ns`.
    fn delay(&mut self, most_ns: u64) -> u64 {
        if self.plan.quiet {
            return self.rng.random_range(50_000..3 * MS);
        }
        let slow = self.now() < self.slow_until;
        let late_one_in = if slow { 8 } else { self.plan.late_one_in };
        let delay = match self.rng.random_range(0..100) {
            _ if self.rng.random_range(0..late_one_in) == 0 => self.rng.random_range(0..=most_ns),
            0..5 => self.rng.random_range(0..600 * MS),
            _ => self.rng.random_range(50_000..3 * MS),
        };
        delay.min(most_ns)
    }

    /// The longest that a write may be under way, from its sender's look at the lease.
    fn late_max(&self, work: &Work) -> u64 {
        let bounded = self.plan.guard_ms * MS;
        let releases = matches!(work, Work::Lease(lease) if lease.state == LeaseState::Released);
        match work {
            Work::Data | Work::Lease(_) if releases || self.plan.trouble != Trouble::Unbounded => bounded,
            Work::Read | Work::Flush => 10 * SECOND,
            _ => 30 * SECOND,
        }
    }

    pub fn send(&mut self, host: usize, work: Work, route: Route) {
        let number = self.hosts[host].holding().map_or(0, |holding| holding.number);
        let delay = self.late_max(&work);
        let delay = match &work {
            Work::Lease(lease)
                if lease.state == LeaseState::Released && self.plan.trouble == Trouble::LateRelease =>
            {
                self.rng.random_range(0..60 * SECOND)
            }
            Work::Data if self.now() < self.hosts[host].late_until => self.rng.random_range(0..=delay),
            _ => self.delay(delay),
        };
        let fails = self.rng.random_range(0..300) == 0 && !self.plan.quiet;
        let answered = |of: &&(usize, bool)| of.1;
        let covers = match work {
            Work::Flush => self.hosts[host].unflushed.iter().filter(answered).map(|of| of.0).collect(),
            _ => Vec::new(),
        };
        // An operation that can't leave this host is given up, and answered when the network is back.
        let mute = self.hosts[host].mute_until.saturating_sub(self.now());
        let fails = fails || mute > 0;
        let never = mute > 0 || fails && self.rng.random();
        let life = self.hosts[host].life;
        let stranded = !self.hosts[host].connected;
        self.ops.push(Op {
            host,
            life,
            number,
            work,
            route,
            fails,
            never,
            answered: false,
            stranded,
            sent: 0,
            found: None,
            covers,
        });
        if !stranded {
            self.arrives(self.ops.len() - 1, delay + mute);
        }
    }

    /// Lets an operation take effect after this time, and behind the operations that had to be sent
    /// again.
    fn arrives(&mut self, op: usize, delay_ns: u64) {
        let at = (self.now() + delay_ns).max(self.hosts[self.ops[op].host].resent_until);
        self.at(at, Event::Effect(op, self.ops[op].sent));
    }

    pub fn effect(&mut self, op: usize) {
        if self.now() < self.down_until {
            // Of an earlier life of the host: nobody sends it again.
            return;
        }
        let &Op { host, life, number, never, sent, .. } = &self.ops[op];
        if !never {
            match &self.ops[op].work {
                Work::Read => self.ops[op].found = self.block.clone(),
                Work::Flush => self.durable = self.block.clone(),
                Work::Lease(lease) => {
                    let lease = (**lease).clone();
                    self.tell(|| {
                        let (state, term, sequence) = (lease.state, lease.term, lease.sequence);
                        format!("block: {state:?} by host {host}, term {term}, sequence {sequence}")
                    });
                    self.block = Some(lease);
                    self.ambush(host, false);
                    let kept = self.hosts[host].unflushed.iter().any(|of| of.0 == op);
                    if life == self.hosts[host].life && !kept {
                        self.hosts[host].unflushed.push((op, false));
                    }
                }
                // L3.
                Work::Data if number != self.outcome.acquired => {
                    self.outcome.late_writes += 1;
                    if self.plan.trouble != Trouble::Unbounded {
                        self.breaks(format!(
                            "L3: a write of host {host} takes effect though it has a successor"
                        ));
                    }
                }
                Work::Data => {}
            }
        }
        // Now and then an answer is lost.
        if self.rng.random_range(0..1_000) > 0 || self.plan.quiet {
            let delay = self.delay(12 * SECOND);
            self.after(delay, Event::Answer(op, sent));
        }
    }

    pub fn answer(&mut self, op: usize) {
        let Op { host, life, fails, .. } = self.ops[op];
        if life != self.hosts[host].life {
            return;
        }
        self.ops[op].answered = true;
        let operation = match self.ops[op].work {
            Work::Read => Operation::Read,
            Work::Flush => Operation::Flush,
            Work::Lease(_) | Work::Data => Operation::Write,
        };
        let answer = match fails {
            true => Err(DeviceError::io(operation, 0, 0, io::Error::from_raw_os_error(5))),
            false => Ok(()),
        };
        if !fails {
            let covers = std::mem::take(&mut self.ops[op].covers);
            self.hosts[host].unflushed.retain(|of| !covers.contains(&of.0));
            if let Some(of) = self.hosts[host].unflushed.iter_mut().find(|of| of.0 == op) {
                of.1 = true;
            }
        }
        let (found, reads) = (self.ops[op].found.clone(), operation == Operation::Read);
        match std::mem::replace(&mut self.ops[op].route, Route::Nobody) {
            Route::Claim if fails => {
                self.tell(|| format!("host {host}: {operation:?} fails"));
                self.ends_and_comes_back(host);
            }
            Route::Claim if reads => self.claim(host, ClaimEvent::Read(Ok(found))),
            Route::Claim => self.claim(host, ClaimEvent::Done),
            Route::Renewal if reads => self.renew(host, RenewalEvent::Read(answer.map(|()| Ok(found)))),
            Route::Renewal => self.renew(host, RenewalEvent::Done(answer)),
            Route::Holder(done) => {
                done.into_iter().for_each(|done| done(answer.clone()));
                self.take_begun(host);
            }
            Route::Nobody => {}
        }
    }

    /// The server crashes and is back after a while; the clients connect again.
    pub fn server_crash(&mut self) {
        let away = if self.rng.random() { 500 * MS } else { 12 * SECOND };
        let away = self.rng.random_range(MS..away);
        self.down_until = self.now() + away;
        if self.rng.random() {
            self.block = self.durable.clone();
            self.forgot_all |= self.block.is_none();
        }
        self.tell(|| format!("the server is away for {} ms", away / MS));
        for op in &mut self.ops {
            // Nothing of the old connections arrives any more.
            let lives = op.life == self.hosts[op.host].life;
            op.stranded |= lives && !op.answered;
            op.sent += u32::from(lives);
        }
        for host in 0..self.hosts.len() {
            self.hosts[host].connected = false;
            let later = self.rng.random_range(0..SECOND);
            self.at(self.down_until + later, Event::Reconnect(host));
        }
    }

    /// The client asks whether it may write. If so, it sends everything again that no flush covers, in
    /// order, and when that has arrived the operations that were in flight (D1).
    pub fn reconnect(&mut self, host: usize) {
        let away = self.down_until.max(self.hosts[host].deaf_until).max(self.hosts[host].mute_until);
        if self.hosts[host].connected || self.now() < away {
            if !self.hosts[host].connected {
                self.at(away, Event::Reconnect(host));
            }
            return;
        }
        self.hosts[host].connected = true;
        let block = self.block.as_ref().map_or_else(|| [0; 4096], Lease::encode);
        let may = match &self.hosts[host].doing {
            Doing::Holding(holding) => holding.permit.check_block(&block).is_ok(),
            _ => true,
        };
        self.tell(|| format!("host {host} connects again; it may write: {may}"));
        if may {
            self.send_again(host);
        }
        let life = self.hosts[host].life;
        for op in 0..self.ops.len() {
            let Op { host: of, life: lived, stranded, .. } = self.ops[op];
            if !stranded || of != host || lived != life {
                continue;
            }
            self.ops[op].stranded = false;
            if may {
                let most = self.late_max(&self.ops[op].work);
                let delay = self.delay(most);
                self.arrives(op, delay);
            } else {
                (self.ops[op].never, self.ops[op].fails) = (true, true);
                self.after(0, Event::Answer(op, self.ops[op].sent));
            }
        }
    }

    /// Sends the lease writes again that were answered and that no flush covers.
    fn send_again(&mut self, host: usize) {
        let unflushed = self.hosts[host].unflushed.clone();
        let mut at = self.now();
        for (op, answered) in unflushed {
            let Work::Lease(lease) = &self.ops[op].work else { continue };
            if !answered {
                // It is among those that were in flight.
                continue;
            }
            let lease = lease.clone();
            let most = if self.plan.trouble == Trouble::Unbounded { 10 * SECOND } else { MS };
            at += self.delay(most);
            let life = self.hosts[host].life;
            self.ops.push(Op {
                host,
                life,
                number: 0,
                work: Work::Lease(lease),
                route: Route::Nobody,
                fails: false,
                never: false,
                answered: true,
                stranded: false,
                sent: 0,
                found: None,
                covers: Vec::new(),
            });
            self.at(at, Event::Effect(self.ops.len() - 1, 0));
        }
        self.hosts[host].resent_until = at;
    }
}
