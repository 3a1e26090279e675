//! Standing aside: a worker that serves one caller after another gives up its CPU to the caller it
//! answers.
//!
//! The scheduler puts a woken thread on an idle CPU if its own is busy, and its own is busy with
//! the worker that wakes it. So each answer would move the caller to another CPU, which first has
//! to leave idle, and its next request to another worker: 10 to 60 µs a request on a virtual
//! machine. But a CPU counts as idle while only threads of policy SCHED_IDLE want it. A worker of
//! that policy wakes its callers on its own CPU, and runs while they wait.
//!
//! Such a thread waits for every other thread, even for a program of nice value 19. So a worker
//! takes the policy only while one caller asks it again and again, and checks how long it has to
//! wait for its CPU. If that is longer than a caller takes to fall asleep, it returns to its post,
//! that is, to the ordinary policy, and stays there for a while, longer each time. It also returns
//! before it starts a device operation. A guard returns workers that can't return by themselves:
//! one that was not seen for two or three milliseconds, and all of them while all workers are busy,
//! when callers do not move to other CPUs and background work would come first. The guard sleeps
//! while no worker stands aside.

use crate::threads::{allow_cpus, allowed_cpus_of};
use parking_lot::Mutex;
use std::cell::Cell;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// How often the guard looks while a worker stands aside.
const TICK: Duration = Duration::from_millis(1);
/// The guard sleeps after this many ticks without a worker aside.
const TICKS_QUIET: u32 = 16;
/// The longest time between two answers to a caller that still counts as asking again at once.
const PAUSE_MAX: Duration = Duration::from_millis(1);
/// Requests of one caller, one after another and without the device, before the worker stands
/// aside.
const REQUESTS_MIN: u32 = 16;
/// After this many requests, a worker that stands aside checks how long it had to wait.
const REQUESTS_JUDGED: u32 = 32;
/// The longest acceptable wait for the CPU per request. After its request, a caller takes about 5
/// µs to fall asleep.
const WAIT_MAX: Duration = Duration::from_micros(10);
/// How long a worker that should not have stood aside stays at its post, the first time. The time
/// doubles each further time.
const REST_MIN: Duration = Duration::from_millis(100);
/// The longest time that it stays at its post.
const REST_MAX: Duration = Duration::from_secs(10);

/// The worker has the ordinary policy.
const AT_POST: u8 = 0;
/// The worker is taking the policy SCHED_IDLE.
const GOING: u8 = 1;
/// The worker has the policy SCHED_IDLE, unless the guard has just returned it.
const ASIDE: u8 = 2;

/// A worker that can stand aside. It stays on the worker's thread.
pub(crate) struct Aside {
    seat: Arc<Seat>,
    guard: &'static Guard,
    /// The kernel's figures of how long this thread ran and waited, in nanoseconds.
    figures: File,
    last_answer: Cell<Instant>,
    /// Consecutive requests of one caller so far.
    requests: Cell<u32>,
    /// The present stay, or one that the guard has ended and that has not been judged yet.
    stay: Cell<Option<Stay>>,
    /// The worker stays at its post until then.
    rests_until: Cell<Instant>,
    rest: Cell<Duration>,
}

/// A period of standing aside, since it began or was last judged.
#[derive(Clone, Copy)]
struct Stay {
    requests: u32,
    waited_before: Duration,
}

/// The guard's knowledge of a worker.
struct Seat {
    thread: libc::pid_t,
    /// The CPU that the worker is bound to.
    cpu: usize,
    state: AtomicU8,
    /// The guard's time when the worker last answered.
    seen: AtomicU64,
    /// The worker is serving a caller.
    busy: AtomicBool,
    /// The guard wants the worker to stay at its post for a while.
    rests: AtomicBool,
}

/// The guard of this process.
struct Guard {
    watch: Arc<Watch>,
    thread: Thread,
}

/// The state that the guard watches.
#[derive(Default)]
struct Watch {
    seats: Mutex<Vec<Weak<Seat>>>,
    /// The guard's time, in ticks.
    now: AtomicU64,
    asleep: AtomicBool,
}

impl Aside {
    /// For the calling thread, which is bound to `cpu`. `None` if its policy could not be restored,
    /// or if the kernel does not report how long it waits.
    pub(crate) fn new(cpu: usize) -> Option<Self> {
        static GUARD: OnceLock<Option<Guard>> = OnceLock::new();
        let refused = |error: &io::Error| tracing::debug!(%error, "workers don't stand aside");
        let guard = GUARD.get_or_init(|| Guard::start().inspect_err(refused).ok()).as_ref()?;
        Self::guarded_by(guard, cpu).inspect_err(refused).ok()
    }

    fn guarded_by(guard: &'static Guard, cpu: usize) -> io::Result<Self> {
        let figures = File::open("/proc/thread-self/schedstat")?;
        waited(&figures)?;
        let now = Instant::now();
        Ok(Self {
            seat: guard.watch.seat(cpu),
            guard,
            figures,
            last_answer: Cell::new(now),
            requests: Cell::new(0),
            stay: Cell::new(None),
            rests_until: Cell::new(now),
            rest: Cell::new(REST_MIN),
        })
    }

    /// Called when a request has reached the worker.
    pub(crate) fn asked(&self) {
        self.seat.busy.store(true, Ordering::Relaxed);
    }

    /// Called when the worker is about to answer: `one` caller, its only one, or several.
    pub(crate) fn answering(&self, one: bool) {
        let now = Instant::now();
        let soon = now - self.last_answer.replace(now) < PAUSE_MAX;
        self.seat.busy.store(!one, Ordering::Relaxed);
        self.requests.set(if one && soon { self.requests.get().saturating_add(1) } else { 0 });
        let stands_aside = self.seat.state.load(Ordering::SeqCst) == ASIDE;
        if let Some(stay) = self.stay.get() {
            let stay = Stay { requests: stay.requests + 1, ..stay };
            self.stay.set(stands_aside.then_some(stay));
            if !stands_aside || !soon || stay.requests >= REQUESTS_JUDGED {
                self.judge(stay, now);
            }
        }
        if !one {
            self.return_to_post();
        } else if self.seat.state.load(Ordering::SeqCst) == ASIDE {
            self.seat.seen.store(self.guard.watch.now.load(Ordering::SeqCst), Ordering::SeqCst);
        } else if self.requests.get() >= REQUESTS_MIN && now >= self.rests_until.get() {
            self.stand_aside();
        }
    }

    /// Called when the worker is about to start a device operation. The kernel may create a thread
    /// for it, which would have the worker's policy for good, and which nothing guards.
    pub(crate) fn return_to_post(&self) {
        self.requests.set(0);
        if self.seat.state.load(Ordering::SeqCst) == ASIDE {
            self.stay.set(None);
            self.come_back();
        }
    }

    /// Checks whether the worker had to wait for its CPU; if so, it comes back and rests.
    fn judge(&self, stay: Stay, now: Instant) {
        let waited = waited(&self.figures).unwrap_or(Duration::MAX);
        let crowded = self.seat.rests.swap(false, Ordering::Relaxed);
        if !crowded
            && waited.saturating_sub(stay.waited_before) <= WAIT_MAX * stay.requests.max(REQUESTS_JUDGED)
        {
            self.rest.set(REST_MIN);
            let next = Stay { requests: 0, waited_before: waited };
            self.stay.set(self.stay.get().map(|_| next));
            return;
        }
        self.return_to_post();
        self.rests_until.set(now + self.rest.get());
        self.rest.set((2 * self.rest.get()).min(REST_MAX));
    }

    fn stand_aside(&self) {
        // This thread may have been given a policy by someone else.
        let has_ours = is_ordinary(0);
        let Some(waited_before) = waited(&self.figures).ok().filter(|_| has_ours) else {
            self.rests_until.set(self.last_answer.get() + REST_MAX);
            return;
        };
        self.stay.set(Some(Stay { requests: 0, waited_before }));
        self.seat.seen.store(self.guard.watch.now.load(Ordering::SeqCst), Ordering::SeqCst);
        // From here on the guard watches: once this thread has the policy, it may not run again for
        // long.
        self.seat.state.store(GOING, Ordering::SeqCst);
        self.guard.wake();
        let state = if set_policy(0, libc::SCHED_IDLE).is_ok() { ASIDE } else { AT_POST };
        self.seat.state.store(state, Ordering::SeqCst);
    }

    fn come_back(&self) {
        // In this order, so that the guard watches until the policy is restored.
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
        // Try on a separate thread: one that can't restore its policy must not be a worker.
        thread().spawn(try_policies)?.join().map_err(|_| io::Error::other("a panic"))??;
        let watch = Arc::<Watch>::default();
        let watching = watch.clone();
        let guarding = move || {
            // The guard was started by a worker, which is bound to a CPU; the process's first
            // thread is not.
            let first = std::process::id() as libc::pid_t;
            if let Err(error) = allowed_cpus_of(first).and_then(|cpus| allow_cpus(&cpus)) {
                tracing::debug!(%error, "the guard of the workers stays on one CPU");
            }
            watching.run();
        };
        Ok(Self { watch, thread: thread().spawn(guarding)?.thread().clone() })
    }

    /// Makes the guard watch from now on. A worker that stands aside says so before this checks
    /// whether the guard sleeps, and the guard says that it sleeps before it looks a last time: one
    /// of the two sees the other.
    fn wake(&self) {
        if self.watch.asleep.swap(false, Ordering::SeqCst) {
            self.thread.unpark();
        }
    }
}

impl Watch {
    /// A seat for the calling thread.
    fn seat(&self, cpu: usize) -> Arc<Seat> {
        // Not libc's function: in a static program with musl it may be missing, and null.
        // SAFETY: takes and returns no memory.
        let thread = unsafe { libc::syscall(libc::SYS_gettid) } as libc::pid_t;
        let (state, seen) = (AtomicU8::new(AT_POST), AtomicU64::new(0));
        let (busy, rests) = (AtomicBool::new(false), AtomicBool::new(false));
        let seat = Arc::new(Seat { thread, cpu, state, seen, busy, rests });
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

    /// One tick. Restores the policy of workers that must not stand aside any more; true if any
    /// worker stands aside.
    fn look(&self) -> bool {
        let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
        let seats: Vec<_> = self.seats.lock().iter().filter_map(Weak::upgrade).collect();
        // A CPU may have workers of several mounts.
        let is_busy = |cpu| seats.iter().any(|seat| seat.cpu == cpu && seat.busy.load(Ordering::Relaxed));
        let cpus_differ = seats.windows(2).any(|two| two[0].cpu != two[1].cpu);
        let crowded = cpus_differ && seats.iter().all(|seat| is_busy(seat.cpu));
        let aside = seats.iter().filter(|seat| seat.state.load(Ordering::SeqCst) != AT_POST);
        aside.fold(false, |_, seat| {
            if crowded || seat.seen.load(Ordering::SeqCst) + 1 < now {
                seat.rests.fetch_or(crowded, Ordering::Relaxed);
                seat.bring_back();
            }
            true
        })
    }
}

impl Seat {
    /// A worker that is still going may take the other policy after this; then the next look brings
    /// it back. One that stands aside has it already; if it comes back by itself meanwhile, this
    /// changes nothing.
    fn bring_back(&self) {
        let _ = self.state.compare_exchange(ASIDE, AT_POST, Ordering::SeqCst, Ordering::SeqCst);
        let _ = set_policy(self.thread, libc::SCHED_OTHER);
    }
}

/// How long a thread has waited for a CPU so far: the second of its figures.
fn waited(figures: &File) -> io::Result<Duration> {
    let mut text = [0; 96];
    let len = figures.read_at(&mut text, 0)?;
    let text = std::str::from_utf8(&text[..len]).map_err(io::Error::other)?;
    let waited = text.split_whitespace().nth(1).and_then(|word| word.parse().ok());
    waited.map(Duration::from_nanos).ok_or_else(|| io::Error::other("schedstat says something else"))
}

/// Takes the policy of a worker that stands aside, then the ordinary one again.
fn try_policies() -> io::Result<()> {
    if !is_ordinary(0) {
        return Err(io::Error::new(io::ErrorKind::Unsupported, "this process has a policy of its own"));
    }
    set_policy(0, libc::SCHED_IDLE)?;
    set_policy(0, libc::SCHED_OTHER)
}

/// True if a thread (0: this one) has the default policy.
fn is_ordinary(thread: libc::pid_t) -> bool {
    // SAFETY: takes no memory.
    unsafe { libc::syscall(libc::SYS_sched_getscheduler, thread) == libc::c_long::from(libc::SCHED_OTHER) }
}

/// Gives a thread (0: this one) another policy; its nice value stays. (musl lacks the C library's
/// call.)
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

    /// A guard for one test's workers only. `None` if standing aside is not possible here.
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
        // On a busy machine the worker may have had to wait, and so be resting.
        let begun = Instant::now();
        while !stands_aside(aside) {
            assert!(begun.elapsed() < Duration::from_secs(20), "it does not stand aside");
            aside.asked();
            aside.answering(true);
        }
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
        let aside = Aside::guarded_by(guard, 0).unwrap();
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
        let aside = Aside::guarded_by(guard, 0).unwrap();
        for _ in 0..3 {
            answer_one(&aside);
            thread::sleep(Duration::from_millis(50));
            eventually("it returns", || !stands_aside(&aside));
        }
        eventually("the guard sleeps", || guard.watch.asleep.load(Ordering::SeqCst));
    }

    #[test]
    fn the_guard_is_bound_to_no_cpu() {
        let cpus = allowed_cpus().unwrap();
        thread::spawn(move || {
            pin_to_cpu(cpus[0]).unwrap();
            let Some(guard) = guard() else { return };
            let names = |stat: String| stat.contains("(syncline-guard)");
            let tasks = std::fs::read_dir("/proc/self/task").unwrap().filter_map(Result::ok);
            let guards: Vec<libc::pid_t> = tasks
                .filter(|task| std::fs::read_to_string(task.path().join("stat")).is_ok_and(names))
                .filter_map(|task| task.file_name().to_str()?.parse().ok())
                .collect();
            eventually("all guards may run on every CPU", || {
                guards.iter().all(|&guard| allowed_cpus_of(guard).map_or(true, |allowed| allowed == cpus))
            });
            drop(Aside::guarded_by(guard, 0));
        })
        .join()
        .unwrap();
    }

    /// While another thread computes on its CPU, even a nice one, the worker soon stops standing
    /// aside, for longer each time.
    #[test]
    fn who_has_to_wait_returns_and_rests() {
        let Some(guard) = guard() else { return };
        let cpu = *allowed_cpus().unwrap().last().unwrap();
        for nice in [0, 19] {
            let over = Arc::new(AtomicBool::new(false));
            let at_end = over.clone();
            let computing = thread::spawn(move || {
                pin_to_cpu(cpu).unwrap();
                // SAFETY: takes no memory; zero stands for this thread.
                unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, nice) };
                while !over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
            let worker = thread::spawn(move || {
                pin_to_cpu(cpu).unwrap();
                let aside = Aside::guarded_by(guard, cpu).unwrap();
                let begun = Instant::now();
                while aside.rest.get() < 4 * REST_MIN && begun.elapsed() < Duration::from_secs(20) {
                    // The caller asks again at once, and the worker waits for its CPU.
                    aside.asked();
                    aside.answering(true);
                    thread::sleep(Duration::from_micros(50));
                }
                at_end.store(true, Ordering::Relaxed);
                aside.rest.get()
            });
            let rest = worker.join().unwrap();
            computing.join().unwrap();
            assert!(rest >= 4 * REST_MIN, "nice {nice}: {rest:?}");
        }
    }

    #[test]
    fn a_policy_that_somebody_gave_it_stays() {
        let Some(guard) = guard() else { return };
        let aside = Aside::guarded_by(guard, 0).unwrap();
        set_policy(0, libc::SCHED_BATCH).unwrap();
        for _ in 0..3 * REQUESTS_MIN {
            aside.answering(true);
        }
        drop(aside);
        assert_eq!(policy(0), libc::SCHED_BATCH.into());
        set_policy(0, libc::SCHED_OTHER).unwrap();
    }

    #[test]
    fn where_all_are_busy_nobody_stands_aside() {
        let Some(guard) = guard() else { return };
        let (aside, other) = (Aside::guarded_by(guard, 0).unwrap(), guard.watch.seat(1));
        answer_one(&aside);
        other.busy.store(true, Ordering::Relaxed);
        eventually("it returns and rests", || {
            aside.asked();
            !stands_aside(&aside) && aside.seat.rests.load(Ordering::Relaxed)
        });
    }
}
