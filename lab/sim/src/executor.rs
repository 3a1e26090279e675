//! A deterministic executor: one thread, virtual time, and a seed that decides which task runs
//! next.
//!
//! Ready tasks and due device operations are picked at random, one at a time. Every pick advances
//! the clock a little; when no task can run, the clock jumps to the next timer or operation. So a
//! seed determines the run, and different seeds give different interleavings.
//!
//! While every task waits, somebody may set the time of day, by seconds or years, forward or back.

use parking_lot::Mutex;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;
use syncline_device::Spawn;
use syncline_fs::Clock;
use syncline_fs::types::Timestamp;

/// Most virtual time that one pick takes, in nanoseconds.
const STEP_NS_MAX: u64 = 4_000;

/// Steps after which a run counts as stalled; an ordinary run takes some ten thousand.
const STEPS_MAX: u64 = 5_000_000;

type TaskFuture = Pin<Box<dyn Future<Output = ()> + Send>>;
type Job = Box<dyn FnOnce() + Send>;
/// The time at which something is due, and a number that orders entries due at the same time.
type Due = (u64, u64);

/// By how much somebody sets the time of day, in nanoseconds: a second to ten years.
const SET_BY_NS: (u64, u64) = (1_000_000_000, 315_360_000_000_000_000);
/// The shortest wait of all tasks in which somebody sets the time of day, every second time. No call
/// of a run on an ordinary device waits so long: each sees one clock from its begin to its end.
const SET_WITHIN_NS: u64 = 100_000_000;

/// One simulated run. Dropping it drops its tasks and its device operations in whatever state they
/// are, as if the process were killed.
pub struct Simulation {
    shared: Arc<Shared>,
}

/// The part of a simulation that tasks, wakers and devices share.
pub(crate) struct Shared {
    state: Mutex<State>,
}

struct State {
    rng: ChaCha8Rng,
    now_ns: u64,
    time_of_day: TimeOfDay,
    next_id: u64,
    tasks: BTreeMap<u64, Task>,
    ready: Vec<u64>,
    timers: BTreeMap<Due, Waker>,
    jobs: BTreeMap<Due, Job>,
    /// The task that currently runs late, and until when; `None`: no task ever does.
    late: Option<(u64, u64)>,
    /// Tasks started since the last `take_wakes`.
    started: u64,
    closed: bool,
}

/// The time of day, which somebody sets now and then.
struct TimeOfDay {
    /// How far it is ahead of the run's own time; negative if it is behind.
    ahead_ns: i64,
    /// Setting it takes no numbers from the run: a seed is the same run whether or not somebody does.
    rng: ChaCha8Rng,
    /// It is set within waits of this length, each so many times.
    within_ns: u64,
    one_in: u32,
}

impl TimeOfDay {
    fn new(seed: u64) -> Self {
        let rng = ChaCha8Rng::seed_from_u64(seed ^ 0x000c_10c4);
        Self { ahead_ns: 0, rng, within_ns: SET_WITHIN_NS, one_in: 2 }
    }

    /// All tasks wait for so long.
    fn pass(&mut self, wait_ns: u64) {
        if wait_ns < self.within_ns || !self.rng.random_ratio(1, self.one_in) {
            return;
        }
        let by = spread(&mut self.rng, SET_BY_NS.0, SET_BY_NS.1) as i64;
        self.ahead_ns = if self.rng.random() { by } else { -by };
    }
}

struct Task {
    /// `None` while the task is being polled.
    future: Option<TaskFuture>,
    waker: Arc<TaskWaker>,
    queued: bool,
    /// Polls since the last `take_wakes`.
    polls: u64,
}

/// How long a thread that gets no CPU time keeps its task waiting.
const LATE_NS: (u64, u64) = (1_000_000, 10_000_000_000);
/// How long the same task stays the late one.
const LATE_FOR_NS: (u64, u64) = (10_000_000, 60_000_000_000);

/// Counts of polls and new tasks over some time.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Wakes {
    /// Polls of the task that was polled most.
    pub most: u64,
    /// Polls of all tasks.
    pub total: u64,
    /// Tasks that were started.
    pub started: u64,
}

/// The run does not end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stalled {
    /// No task can ever run again: a lost wake-up or a cycle of waits.
    Stuck,
    /// A task retries forever.
    Busy,
}

/// Why a watched run ended early.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Interrupted {
    /// It stalled.
    Stalled(Stalled),
    /// The watcher found a violation.
    Wrong(String),
}

impl Simulation {
    /// A run determined by `seed`.
    pub fn new(seed: u64) -> Self {
        let state = State {
            rng: ChaCha8Rng::seed_from_u64(seed),
            now_ns: 0,
            time_of_day: TimeOfDay::new(seed),
            next_id: 0,
            tasks: BTreeMap::new(),
            ready: Vec::new(),
            timers: BTreeMap::new(),
            jobs: BTreeMap::new(),
            late: None,
            started: 0,
            closed: false,
        };
        Self { shared: Arc::new(Shared { state: Mutex::new(state) }) }
    }

    /// The spawner on which the engine starts its background tasks.
    pub fn spawner(&self) -> Arc<dyn Spawn> {
        Arc::new(Spawner(self.shared.clone()))
    }

    /// A clock for the filesystem that shows virtual time. Its time of day is some years after 1970.
    pub fn clock(&self) -> Arc<dyn Clock> {
        Arc::new(VirtualClock(self.shared.clone()))
    }

    /// The shared state with which devices schedule their operations.
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Virtual nanoseconds since the start.
    pub fn now_ns(&self) -> u64 {
        self.shared.state.lock().now_ns
    }

    /// From now on somebody sets the time of day within any wait, also in the middle of a call.
    pub(crate) fn set_clock_often(&self) {
        let time_of_day = &mut self.shared.state.lock().time_of_day;
        (time_of_day.within_ns, time_of_day.one_in) = (1, 32);
    }

    /// From now on one task at a time, a different one from time to time, may run up to ten seconds
    /// after it was woken, like a thread that gets no CPU time or writes to a slow log file.
    pub fn let_tasks_run_late(&self, late: bool) {
        self.shared.state.lock().late = late.then_some((0, 0));
    }

    /// True if no task can run before a timer ends: all tasks sleep, and no device operation is in
    /// flight.
    pub fn is_at_rest(&self) -> bool {
        let state = self.shared.state.lock();
        state.ready.is_empty() && state.jobs.is_empty()
    }

    /// Polls and new tasks since the last call. A task that has ended meanwhile counts only as
    /// started.
    pub fn take_wakes(&self) -> Wakes {
        let mut state = self.shared.state.lock();
        let mut wakes = Wakes { started: std::mem::take(&mut state.started), ..Wakes::default() };
        for task in state.tasks.values_mut() {
            let polls = std::mem::take(&mut task.polls);
            wakes.most = wakes.most.max(polls);
            wakes.total += polls;
        }
        wakes
    }

    /// Runs all tasks until `future` ends.
    pub fn run<T: Send + 'static>(
        &self,
        future: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, Stalled> {
        self.run_watched(future, &mut |_| Ok(())).map_err(|interrupted| match interrupted {
            Interrupted::Stalled(stalled) => stalled,
            Interrupted::Wrong(what) => unreachable!("nobody watches: {what}"),
        })
    }

    /// Like `run`, but calls `watch` before each step; an error from it ends the run.
    pub fn run_watched<T: Send + 'static>(
        &self,
        future: impl Future<Output = T> + Send + 'static,
        watch: &mut dyn FnMut(&Self) -> Result<(), String>,
    ) -> Result<T, Interrupted> {
        let slot = Arc::new(Mutex::new(None));
        let answer = slot.clone();
        self.shared.add_task(Box::pin(async move {
            let value = future.await;
            *answer.lock() = Some(value);
        }));
        for _ in 0..STEPS_MAX {
            if let Some(value) = slot.lock().take() {
                return Ok(value);
            }
            watch(self).map_err(Interrupted::Wrong)?;
            if !self.shared.step() {
                return Err(Interrupted::Stalled(Stalled::Stuck));
            }
        }
        Err(Interrupted::Stalled(Stalled::Busy))
    }

    /// Kills the process: its tasks end where they are. The seed decides which device operations in
    /// flight still take place; nothing learns of their outcome.
    pub fn kill(self) {
        let (tasks, jobs) = {
            let mut state = self.shared.state.lock();
            state.closed = true;
            (std::mem::take(&mut state.tasks), std::mem::take(&mut state.jobs))
        };
        drop(tasks);
        for job in jobs.into_values() {
            if self.shared.random_below(2) == 0 {
                job();
            }
        }
    }

    /// Runs at most `steps` picks; returns false if nothing is left to do.
    pub fn run_steps(&self, steps: u64) -> bool {
        (0..steps).all(|_| self.shared.step())
    }
}

impl Drop for Simulation {
    fn drop(&mut self) {
        // Dropping a completion may wake tasks and start operations. `closed` refuses both, and
        // what is left is dropped outside the lock.
        let mut state = self.shared.state.lock();
        state.closed = true;
        let tasks = std::mem::take(&mut state.tasks);
        let jobs = std::mem::take(&mut state.jobs);
        let timers = std::mem::take(&mut state.timers);
        drop(state);
        drop((tasks, jobs, timers));
    }
}

impl Shared {
    /// Starts `job` after between `least_ns` and `most_ns` nanoseconds. If the run is over, the job
    /// is dropped.
    pub(crate) fn schedule(&self, least_ns: u64, most_ns: u64, job: Job) {
        let mut state = self.state.lock();
        if state.closed {
            drop(state);
            drop(job);
            return;
        }
        let delay = state.rng.random_range(least_ns..=most_ns.max(least_ns));
        let due = state.due_in(delay);
        state.jobs.insert(due, job);
    }

    /// A number below `end` from the run's seed.
    pub(crate) fn random_below(&self, end: u64) -> u64 {
        self.state.lock().rng.random_range(0..end)
    }

    /// A duration from the run's seed; see [`spread`].
    pub(crate) fn random_spread(&self, least_ns: u64, most_ns: u64) -> u64 {
        spread(&mut self.state.lock().rng, least_ns, most_ns)
    }

    fn add_task(self: &Arc<Self>, future: TaskFuture) {
        let mut state = self.state.lock();
        if state.closed {
            drop(state);
            drop(future);
            return;
        }
        let id = state.next_id();
        let waker = Arc::new(TaskWaker { id, shared: Arc::downgrade(self) });
        state.tasks.insert(id, Task { future: Some(future), waker, queued: true, polls: 0 });
        state.started += 1;
        state.ready.push(id);
    }

    /// Picks one thing to do and does it; returns false if there is nothing.
    fn step(&self) -> bool {
        let mut state = self.state.lock();
        let Some(pick) = state.pick() else { return false };
        match pick {
            Pick::Job(job) => {
                drop(state);
                job();
            }
            Pick::Timers(wakers) => {
                drop(state);
                wakers.into_iter().for_each(Waker::wake);
            }
            Pick::Task(id) => {
                let task = state.tasks.get_mut(&id).expect("a ready task exists");
                task.queued = false;
                task.polls += 1;
                let mut future = task.future.take().expect("a task is polled by one step at a time");
                let waker = Waker::from(task.waker.clone());
                drop(state);
                let poll = future.as_mut().poll(&mut Context::from_waker(&waker));
                let mut state = self.state.lock();
                if poll.is_ready() {
                    let task = state.tasks.remove(&id);
                    // The task may have woken itself before it ended.
                    state.ready.retain(|ready| *ready != id);
                    drop(state);
                    drop((task, future));
                } else if let Some(task) = state.tasks.get_mut(&id) {
                    task.future = Some(future);
                }
            }
        }
        true
    }
}

enum Pick {
    Task(u64),
    Job(Job),
    Timers(Vec<Waker>),
}

impl State {
    fn next_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    /// True if a task that was just woken must run late.
    fn runs_late(&mut self, id: u64) -> bool {
        let Some((_, until_ns)) = self.late else { return false };
        if self.now_ns >= until_ns {
            let chosen = self.rng.random_range(0..self.tasks.len());
            let task = self.tasks.keys().nth(chosen).copied().unwrap_or(0);
            self.late = Some((task, self.now_ns + spread(&mut self.rng, LATE_FOR_NS.0, LATE_FOR_NS.1)));
        }
        self.late.is_some_and(|(task, _)| task == id) && self.rng.random()
    }

    fn due_in(&mut self, delay_ns: u64) -> Due {
        (self.now_ns.saturating_add(delay_ns), self.next_id())
    }

    fn pick(&mut self) -> Option<Pick> {
        self.now_ns += self.rng.random_range(0..STEP_NS_MAX);
        let next_due =
            [self.timers.keys().next(), self.jobs.keys().next()].into_iter().flatten().min().copied();
        if self.ready.is_empty() {
            // Nothing can run before then.
            let wait_ns = next_due?.0.saturating_sub(self.now_ns);
            self.now_ns += wait_ns;
            self.time_of_day.pass(wait_ns);
        }
        let later = self.timers.split_off(&(self.now_ns + 1, 0));
        let due_timers = std::mem::replace(&mut self.timers, later);
        if !due_timers.is_empty() {
            return Some(Pick::Timers(due_timers.into_values().collect()));
        }
        let due_jobs = self.jobs.range(..(self.now_ns + 1, 0)).count();
        let choice = self.rng.random_range(0..self.ready.len() + due_jobs);
        if choice < self.ready.len() {
            return Some(Pick::Task(self.ready.swap_remove(choice)));
        }
        let due = *self.jobs.keys().nth(choice - self.ready.len()).expect("counted above");
        self.jobs.remove(&due).map(Pick::Job)
    }
}

struct TaskWaker {
    id: u64,
    shared: Weak<Shared>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        let Some(shared) = self.shared.upgrade() else { return };
        let mut state = shared.state.lock();
        let state = &mut *state;
        let Some(task) = state.tasks.get_mut(&self.id).filter(|task| !task.queued) else { return };
        task.queued = true;
        if !state.runs_late(self.id) {
            state.ready.push(self.id);
            return;
        }
        let delay = spread(&mut state.rng, LATE_NS.0, LATE_NS.1);
        let (due, id, shared) = (state.due_in(delay), self.id, self.shared.clone());
        let job = move || {
            let Some(shared) = shared.upgrade() else { return };
            let mut state = shared.state.lock();
            // The task may have woken itself and ended.
            if state.tasks.contains_key(&id) {
                state.ready.push(id);
            }
        };
        state.jobs.insert(due, Box::new(job));
    }
}

/// A random duration between two bounds. Each order of magnitude is equally likely.
pub(crate) fn spread(rng: &mut ChaCha8Rng, least_ns: u64, most_ns: u64) -> u64 {
    let (least, most) = ((least_ns as f64).ln(), (most_ns as f64).ln());
    rng.random_range(least..most).exp() as u64
}

struct VirtualClock(Arc<Shared>);

impl Clock for VirtualClock {
    fn now(&self) -> Timestamp {
        let state = self.0.state.lock();
        let now_ns = 1_700_000_000_000_000_000 + state.now_ns as i64 + state.time_of_day.ahead_ns;
        Timestamp {
            seconds: now_ns.div_euclid(1_000_000_000),
            nanoseconds: now_ns.rem_euclid(1_000_000_000) as u32,
        }
    }

    fn uptime(&self) -> Duration {
        Duration::from_nanos(self.0.state.lock().now_ns)
    }
}

struct Spawner(Arc<Shared>);

impl Spawn for Spawner {
    fn spawn(&self, task: TaskFuture) {
        self.0.add_task(task);
    }

    fn sleep(&self, duration: Duration) -> TaskFuture {
        let delay_ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        let due_ns = self.0.state.lock().now_ns.saturating_add(delay_ns);
        Box::pin(Sleep { shared: self.0.clone(), due_ns, timer: None })
    }
}

struct Sleep {
    shared: Arc<Shared>,
    due_ns: u64,
    timer: Option<Due>,
}

impl Sleep {
    fn cancel(&mut self, state: &mut State) -> Option<Waker> {
        self.timer.take().and_then(|timer| state.timers.remove(&timer))
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let shared = self.shared.clone();
        let mut state = shared.state.lock();
        let before = self.cancel(&mut state);
        let ended = state.now_ns >= self.due_ns;
        if !ended && !state.closed {
            let timer = (self.due_ns, state.next_id());
            state.timers.insert(timer, context.waker().clone());
            self.timer = Some(timer);
        }
        drop(state);
        drop(before);
        if ended { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        let shared = self.shared.clone();
        let waker = self.cancel(&mut shared.state.lock());
        drop(waker);
    }
}

#[cfg(test)]
mod tests;
