//! The actions of hosts: they claim, renew, write and flush, release and crash.

use crate::model::device::{Begun, HostDevice};
use crate::model::host::{Doing, Holding, Told};
use crate::model::plan::{MS, SECOND};
use crate::model::world::{Event, Route, Work, World};
use bytes::Bytes;
use rand::Rng;
use std::sync::Arc;
use std::time::Duration;
use syncline_device::{Completion, Device, DeviceError};
use syncline_lease::lab::{Claim, ClaimEvent, ClaimStep, How, Renewal, RenewalEvent, RenewalStep};
use syncline_lease::{LeaseError, Leased};

impl World {
    pub fn start(&mut self, host: usize, how: Option<How>) {
        if !matches!(self.hosts[host].doing, Doing::Nothing) {
            return;
        }
        let how = how.unwrap_or(if self.rng.random_range(0..5) < 3 { How::Wait } else { How::TakeOver });
        self.tell(|| format!("host {host} begins: {how:?}"));
        let claim = Box::new(Claim::new(&self.hosts[host].options, how, self.rng.random(), 0));
        self.hosts[host].doing = Doing::Claiming { claim, how };
        self.claim(host, ClaimEvent::Begin);
    }

    pub fn claim(&mut self, host: usize, event: ClaimEvent) {
        let now = self.local(host);
        let Doing::Claiming { claim, how } = &mut self.hosts[host].doing else { return };
        let how = *how;
        match claim.step(now, event) {
            ClaimStep::Read => self.send(host, Work::Read, Route::Claim),
            ClaimStep::Write(lease) => self.send(host, Work::Lease(lease), Route::Claim),
            ClaimStep::Flush => self.send(host, Work::Flush, Route::Claim),
            ClaimStep::Pause(time) => self.pause(host, now + time),
            ClaimStep::Done(claimed) => {
                self.outcome.acquired += 1;
                self.outcome.taken_over += u64::from(how == How::TakeOver);
                self.tell(|| format!("host {host} has the lease, term {}", claimed.lease.term));
                let gate = Claim::gate(&self.hosts[host].options, &claimed);
                let (traffic, device) = (Arc::default(), HostDevice::new());
                let leased = Leased::without_thread(device.clone(), gate.clone(), Arc::clone(&traffic));
                let holding = Holding {
                    renewal: Renewal::new(gate.clone(), claimed.lease),
                    idle: true,
                    permit: leased.permit(),
                    gate,
                    traffic,
                    device,
                    leased,
                    number: self.outcome.acquired,
                    told: Arc::default(),
                };
                self.hosts[host].doing = Doing::Holding(Box::new(holding));
                self.renew(host, RenewalEvent::Woke);
                self.work(host);
            }
            ClaimStep::Refused(error) => self.refused(host, &error),
        }
    }

    fn refused(&mut self, host: usize, error: &LeaseError) {
        self.tell(|| format!("host {host} is refused: {error}"));
        match error {
            LeaseError::TakenMeanwhile(_) | LeaseError::TooSlow(_) => self.outcome.overtaken += 1,
            // A holder that looks before it writes can't do that.
            LeaseError::Resists(_) => self.breaks(format!("L4: host {host} can't take over: {error}")),
            LeaseError::InUse(_) => {}
            // The very first claim was forgotten by the server before it was flushed.
            LeaseError::Damaged(_) if self.forgot_all => self.outcome.overtaken += 1,
            other => self.breaks(format!("host {host} is refused: {other}")),
        }
        self.ends_and_comes_back(host);
    }

    pub fn ends_and_comes_back(&mut self, host: usize) {
        self.hosts[host].ends();
        if !self.plan.quiet {
            let later = self.rng.random_range(100 * MS..8 * SECOND);
            self.after(later, Event::Start(host));
        }
    }

    pub fn renew(&mut self, host: usize, event: RenewalEvent) {
        let Some(holding) = self.hosts[host].holding() else { return };
        let step = holding.renewal.step(event);
        holding.idle = matches!(step, RenewalStep::Pause(_));
        let renewed = holding.renewal.renewed().is_some();
        match step {
            RenewalStep::Read => self.send(host, Work::Read, Route::Renewal),
            RenewalStep::Write(lease) => self.send(host, Work::Lease(lease), Route::Renewal),
            RenewalStep::Flush => self.send(host, Work::Flush, Route::Renewal),
            RenewalStep::Pause(until) => {
                self.pause(host, until);
                if renewed {
                    self.ambush(host, true);
                }
            }
            // Its program goes on until `work` finds out.
            RenewalStep::Lost(why) => self.tell(|| format!("host {host}: {why}")),
            RenewalStep::Released => {
                self.outcome.released += 1;
                self.tell(|| format!("host {host} has released"));
                self.ends_and_comes_back(host);
            }
        }
    }

    fn pause(&mut self, host: usize, until: Duration) {
        let late = if self.rng.random_range(0..20) == 0 && !self.plan.quiet { 200 * MS } else { MS };
        let at = self.hosts[host].clock.true_time(until) + self.rng.random_range(0..late);
        let life = self.hosts[host].life;
        self.at(at, Event::Woke(host, life));
    }

    pub fn woke(&mut self, host: usize) {
        match &self.hosts[host].doing {
            Doing::Claiming { .. } => self.claim(host, ClaimEvent::Done),
            Doing::Holding(holding) if holding.idle => self.renew(host, RenewalEvent::Woke),
            _ => {}
        }
    }

    /// A holder's program writes and flushes, whether or not the lease is valid.
    pub fn work(&mut self, host: usize) {
        let Some(holding) = self.hosts[host].holding() else { return };
        let told = |of: Told| -> Completion<()> {
            let told = holding.told.clone();
            Box::new(move |answer: Result<(), DeviceError>| {
                told.lock().unwrap().push(if answer.is_ok() { of } else { Told::Failed });
            })
        };
        holding.leased.write(1 << 20, vec![Bytes::from_static(&[7; 4096])], told(Told::Written));
        holding.leased.flush(told(Told::Durable));
        let lost = holding.leased.check().is_err();
        self.take_begun(host);
        let life = self.hosts[host].life;
        if lost && self.rng.random_range(0..4) == 0 {
            self.outcome.lost += 1;
            self.tell(|| format!("host {host} ends"));
            return self.ends_and_comes_back(host);
        }
        let next = self.rng.random_range(self.plan.work_ns / 2..=self.plan.work_ns * 2);
        self.after(next, Event::Work(host, life));
    }

    /// Sends the operations that the holder's device was given, and looks at the answers that its
    /// program got.
    pub fn take_begun(&mut self, host: usize) {
        let Some(holding) = self.hosts[host].holding() else { return };
        let begun: Vec<Begun> = holding.device.begun.lock().unwrap().drain(..).collect();
        let told: Vec<Told> = holding.told.lock().unwrap().drain(..).collect();
        let number = holding.number;
        for operation in begun {
            match operation {
                Begun::Write(done) => self.send(host, Work::Data, Route::Holder(Some(done))),
                Begun::Flush(done) => self.send(host, Work::Flush, Route::Holder(Some(done))),
            }
        }
        for told in told {
            match told {
                Told::Written => {}
                Told::Failed => self.outcome.refused_late += 1,
                // L2.
                Told::Durable if number != self.outcome.acquired => {
                    self.breaks(format!("L2: host {host} acknowledges a flush though it has a successor"));
                }
                Told::Durable => self.outcome.acknowledged += 1,
            }
        }
    }

    /// The holder gives the lease back, if nothing of it is under way.
    pub fn release(&mut self, host: usize) {
        let Some(holding) = self.hosts[host].holding() else { return };
        if holding.idle && holding.traffic.is_over() && holding.gate.check().is_ok() {
            self.tell(|| format!("host {host} releases"));
            self.renew(host, RenewalEvent::Release);
        }
    }

    pub fn crash(&mut self, host: usize) {
        self.tell(|| format!("host {host} crashes"));
        let life = self.hosts[host].life;
        for op in 0..self.ops.len() {
            if self.ops[op].host == host && self.ops[op].life == life && self.rng.random() {
                self.ops[op].never = true;
            }
        }
        let now = self.now();
        self.hosts[host].reboots(now);
        self.ends_and_comes_back(host);
    }
}
