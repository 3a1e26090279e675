//! Standing aside: a worker that serves one caller after another leaves its CPU to whom it answers.
//!
//! The scheduler puts a thread that is woken on an idle CPU if its own is busy, and its own is busy with the worker that
//! wakes it. So each answer sends the caller to another CPU, which has to come out of idle first, and its next request
//! to another worker: 10 to 60 µs a request on a virtual machine. But a CPU counts as idle while only threads of policy
//! SCHED_IDLE want it. A worker of that policy wakes its callers where it is, and runs when they wait.
//!
//! Such a thread waits for everybody else. If a program computes on its CPU, those who wait for the worker would wait
//! long; and where all CPUs have callers of their own, no caller goes elsewhere, and what works in the background would
//! come first. So a worker takes the policy only while one caller asks it again and again, and a guard gives it back its
//! own when all workers are busy, or when it has not been seen for two or three milliseconds. If all were busy, or it
//! wanted to run by then, it stays at its post for a while. It returns by itself before it starts a device operation.
//! The guard sleeps while nobody stands aside.

use parking_lot::Mutex;
use std::cell::Cell;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// How often the guard looks while somebody stands aside.
const TICK: Duration = Duration::from_millis(1);
/// Ticks with nobody aside after which the guard sleeps.
const TICKS_QUIET: u32 = 16;
/// A caller who takes longer to come back is not waited for.
const PAUSE_MAX: Duration = Duration::from_millis(1);
/// Requests of one caller, one after another and without the device, before the worker stands aside.
const REQUESTS_MIN: u32 = 16;
/// How long a worker that should not have stood aside stays at its post. What that costs is a thirtieth at most.
const REST: Duration = Duration::from_millis(100);

/// The worker has its own policy.
const AT_POST: u8 = 0;
/// It is taking the other one.
const GOING: u8 = 1;
/// It has the other one, unless the guard has just given it back its own.
const ASIDE: u8 = 2;

/// A worker that can stand aside. It stays on the worker's thread.
pub(crate) struct Aside {
    seat: Arc<Seat>,
    guard: &'static Guard,
    last_answer: Cell<Instant>,
    /// Requests of one caller so far, one after another.
    requests: Cell<u32>,
    /// It stays at its post until then.
    rests_until: Cell<Instant>,
}

/// What the guard knows of a worker.
struct Seat {
    thread: libc::pid_t,
    state: AtomicU8,
    /// The guard's time when the worker last answered.
    seen: AtomicU64,
    /// It wanted to run when the guard last looked, and had not been seen for long. (It may have run at that moment.)
    suspect: AtomicBool,
    /// It serves a caller.
    busy: AtomicBool,
    /// It stays at its post for a while, says the guard.
    rests: AtomicBool,
}

/// The guard of this process.
struct Guard {
    watch: Arc<Watch>,
    thread: Thread,
}

/// What the guard looks at.
#[derive(Default)]
struct Watch {
    seats: Mutex<Vec<Weak<Seat>>>,
    /// In ticks.
    now: AtomicU64,
    asleep: AtomicBool,
}

impl Aside {
    /// For the thread that calls. `None` where its policy is not the ordinary one, or could not be taken back.
    pub(crate) fn new() -> Option<Self> {
        static GUARD: OnceLock<Option<Guard>> = OnceLock::new();
        let start = || {
            let started = Guard::start();
            started.inspect_err(|error| tracing::debug!(%error, "workers don't stand aside")).ok()
        };
        Some(Self::guarded_by(GUARD.get_or_init(start).as_ref()?))
    }

    fn guarded_by(guard: &'static Guard) -> Self {
        let now = Instant::now();
        let (last_answer, requests, rests_until) = (Cell::new(now), Cell::new(0), Cell::new(now));
        Self { seat: guard.watch.seat(), guard, last_answer, requests, rests_until }
    }

    /// Somebody has asked the worker for something.
    pub(crate) fn asked(&self) {
        self.seat.busy.store(true, Ordering::Relaxed);
    }

    /// The worker is about to answer: `one` caller, the only one it has, or several.
    pub(crate) fn answering(&self, one: bool) {
        let now = Instant::now();
        let soon = now - self.last_answer.replace(now) < PAUSE_MAX;
        if self.seat.rests.load(Ordering::Relaxed) && self.seat.rests.swap(false, Ordering::Relaxed) {
            self.rests_until.set(now + REST);
        }
        self.seat.busy.store(!one, Ordering::Relaxed);
        self.requests.set(if one && soon { self.requests.get().saturating_add(1) } else { 0 });
        let stands_aside = self.seat.state.load(Ordering::SeqCst) == ASIDE;
        if stands_aside && !one {
            self.come_back();
        } else if stands_aside || (self.requests.get() >= REQUESTS_MIN && now >= self.rests_until.get()) {
            self.seat.seen.store(self.guard.watch.now.load(Ordering::SeqCst), Ordering::SeqCst);
            if !stands_aside {
                self.stand_aside();
            }
        }
    }

    /// The worker is about to start a device operation. The kernel may make a thread for it, which has the worker's
    /// policy for good, and nobody guards that.
    pub(crate) fn return_to_post(&self) {
        self.requests.set(0);
        if self.seat.state.load(Ordering::SeqCst) == ASIDE {
            self.come_back();
        }
    }

    fn stand_aside(&self) {
        // From here on the guard looks: this thread may not run again for long once it has the policy.
        self.seat.state.store(GOING, Ordering::SeqCst);
        self.guard.wake();
        let state = if set_policy(0, libc::SCHED_IDLE).is_ok() { ASIDE } else { AT_POST };
        self.seat.state.store(state, Ordering::SeqCst);
    }

    fn come_back(&self) {
        // In this order: the guard looks until the policy is its own.
        if let Err(error) = set_policy(0, libc::SCHED_OTHER) {
            tracing::warn!(%error, "a worker stays behind everybody else on its CPU");
        }
        self.seat.state.store(AT_POST, Ordering::SeqCst);
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        self.return_to_post();
    }
}

impl Guard {
    fn start() -> io::Result<Self> {
        let thread = || thread::Builder::new().name("syncline-guard".into());
        // A thread of its own tries: one that can't take its policy back is better not a worker.
        thread().spawn(try_policies)?.join().map_err(|_| io::Error::other("a panic"))??;
        let watch = Arc::<Watch>::default();
        let watching = watch.clone();
        Ok(Self { watch, thread: thread().spawn(move || watching.run())?.thread().clone() })
    }

    /// Has it look from now on. Whoever stands aside says so before this looks whether the guard sleeps, and the guard
    /// says that it sleeps before it looks a last time: one of the two sees the other.
    fn wake(&self) {
        if self.watch.asleep.swap(false, Ordering::SeqCst) {
            self.thread.unpark();
        }
    }
}

impl Watch {
    /// A seat for the thread that calls.
    fn seat(&self) -> Arc<Seat> {
        // SAFETY: takes and returns no memory.
        let thread = unsafe { libc::gettid() };
        let seat = Arc::new(Seat {
            thread,
            state: AtomicU8::new(AT_POST),
            seen: AtomicU64::new(0),
            suspect: AtomicBool::new(false),
            busy: AtomicBool::new(false),
            rests: AtomicBool::new(false),
        });
        let mut seats = self.seats.lock();
        seats.retain(|seat| seat.strong_count() > 0);
        seats.push(Arc::downgrade(&seat));
        seat
    }

    /// The guard's whole life.
    fn run(&self) {
        loop {
            self.asleep.store(true, Ordering::SeqCst);
            if !self.look() {
                while self.asleep.load(Ordering::SeqCst) {
                    thread::park();
                }
            }
            self.asleep.store(false, Ordering::SeqCst);
            let mut quiet = 0;
            while quiet < TICKS_QUIET {
                thread::sleep(TICK);
                quiet = if self.look() { 0 } else { quiet + 1 };
            }
        }
    }

    /// A tick passes. Gives those their policy back who are not to stand aside any more; true if anybody stands aside.
    fn look(&self) -> bool {
        let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
        let seats: Vec<_> = self.seats.lock().iter().filter_map(Weak::upgrade).collect();
        let crowded = seats.len() > 1 && seats.iter().all(|seat| seat.busy.load(Ordering::Relaxed));
        let aside = seats.iter().filter(|seat| seat.state.load(Ordering::SeqCst) != AT_POST);
        aside.fold(false, |_, seat| {
            let missed = seat.seen.load(Ordering::SeqCst) + 1 < now;
            let wants_to_run = missed && wants_to_run(seat.thread);
            let starved = wants_to_run && seat.suspect.load(Ordering::Relaxed);
            seat.suspect.store(wants_to_run, Ordering::Relaxed);
            if crowded || starved || (missed && !wants_to_run) {
                seat.rests.store(crowded || starved, Ordering::Relaxed);
                seat.bring_back();
            }
            true
        })
    }
}

impl Seat {
    /// One that is going may take the other policy after this: then it is brought back at the next look. One that stands
    /// aside has it already; if it comes back by itself meanwhile, this changes nothing.
    fn bring_back(&self) {
        let _ = self.state.compare_exchange(ASIDE, AT_POST, Ordering::SeqCst, Ordering::SeqCst);
        let _ = set_policy(self.thread, libc::SCHED_OTHER);
    }
}

/// True if a thread of this process runs, or would if it were let.
fn wants_to_run(thread: libc::pid_t) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat"));
    // The name stands in parentheses, and may contain some.
    stat.is_ok_and(|stat| stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('R')))
}

/// Takes the policy of one who stands aside, and the ordinary one again.
fn try_policies() -> io::Result<()> {
    // SAFETY: takes no memory; zero stands for this thread.
    if unsafe { libc::syscall(libc::SYS_sched_getscheduler, 0) } != libc::c_long::from(libc::SCHED_OTHER) {
        return Err(io::Error::new(io::ErrorKind::Unsupported, "this process has a policy of its own"));
    }
    set_policy(0, libc::SCHED_IDLE)?;
    set_policy(0, libc::SCHED_OTHER)
}

/// Gives a thread (0: this one) another policy; its nice value stays. (The C library's call is not there on musl.)
fn set_policy(thread: libc::pid_t, policy: libc::c_int) -> io::Result<()> {
    // The kernel's `struct sched_param`.
    let priority: libc::c_int = 0;
    // SAFETY: the kernel reads the priority.
    match unsafe { libc::syscall(libc::SYS_sched_setscheduler, thread, policy, &raw const priority) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::threads::{allowed_cpus, pin_to_cpu};
    use std::sync::mpsc;

    /// One that nobody else's workers use. `None` where nobody may stand aside.
    fn guard() -> Option<&'static Guard> {
        match Guard::start() {
            Ok(guard) => Some(Box::leak(Box::new(guard))),
            Err(error) => {
                println!("skipped: nobody may stand aside here: {error}");
                None
            }
        }
    }

    fn policy(thread: libc::pid_t) -> libc::c_long {
        // SAFETY: takes no memory.
        unsafe { libc::syscall(libc::SYS_sched_getscheduler, thread) }
    }

    fn stands_aside(aside: &Aside) -> bool {
        policy(aside.seat.thread) == libc::SCHED_IDLE.into()
    }

    /// Answers one caller again and again, until the worker stands aside.
    fn answer_one(aside: &Aside) {
        for _ in 0..1000 {
            aside.asked();
            aside.answering(true);
            if stands_aside(aside) {
                return;
            }
        }
        panic!("it did not stand aside");
    }

    fn eventually(what: &str, condition: impl Fn() -> bool) {
        let begun = Instant::now();
        while !condition() {
            assert!(begun.elapsed() < Duration::from_secs(20), "not within 20 s: {what}");
            thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_worker_stands_aside_for_one_caller_and_for_no_device() {
        let Some(guard) = guard() else { return };
        let aside = Aside::guarded_by(guard);
        aside.answering(true);
        assert!(!stands_aside(&aside), "once is not again and again");
        answer_one(&aside);
        aside.return_to_post();
        assert!(!stands_aside(&aside));
        aside.answering(true);
        assert!(!stands_aside(&aside), "a caller who needs the device is likely to need it again");
        answer_one(&aside);
        aside.answering(false);
        assert!(!stands_aside(&aside), "there are several callers");
        answer_one(&aside);
        let thread = aside.seat.thread;
        drop(aside);
        assert_eq!(policy(thread), libc::SCHED_OTHER.into());
    }

    #[test]
    fn whose_caller_is_gone_returns_and_may_stand_aside_again() {
        let Some(guard) = guard() else { return };
        let aside = Aside::guarded_by(guard);
        for _ in 0..3 {
            answer_one(&aside);
            // Asleep all the time, and so missed but not kept from running.
            thread::sleep(Duration::from_millis(50));
            eventually("it returns", || !stands_aside(&aside));
            assert!(!aside.seat.rests.load(Ordering::Relaxed));
        }
        eventually("the guard sleeps", || guard.watch.asleep.load(Ordering::SeqCst));
    }

    #[test]
    fn who_is_kept_from_running_returns_and_rests() {
        let Some(guard) = guard() else { return };
        let cpu = allowed_cpus().unwrap()[0];
        let (send, receive) = mpsc::channel();
        let over = Arc::new(AtomicBool::new(false));
        let at_end = over.clone();
        let worker = thread::spawn(move || {
            pin_to_cpu(cpu).unwrap();
            let aside = Aside::guarded_by(guard);
            answer_one(&aside);
            send.send(()).unwrap();
            // It wants to run all the time; what it waits for says that it could not.
            while !aside.seat.rests.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
            at_end.store(true, Ordering::Relaxed);
            for _ in 0..3 * REQUESTS_MIN {
                aside.answering(true);
            }
            assert!(!stands_aside(&aside), "it stays at its post for a while");
        });
        receive.recv().unwrap();
        // Somebody computes on its CPU.
        let computing = thread::spawn(move || {
            pin_to_cpu(cpu).unwrap();
            while !over.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        });
        worker.join().unwrap();
        computing.join().unwrap();
    }

    #[test]
    fn where_all_are_busy_nobody_stands_aside() {
        let Some(guard) = guard() else { return };
        let (aside, other) = (Aside::guarded_by(guard), guard.watch.seat());
        answer_one(&aside);
        other.busy.store(true, Ordering::Relaxed);
        eventually("it returns and rests", || {
            aside.asked();
            !stands_aside(&aside) && aside.seat.rests.load(Ordering::Relaxed)
        });
    }
}
