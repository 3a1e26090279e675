//! Time passes when no task can run otherwise, and now and then when one could.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use syncline_device::Spawn;
use syncline_fs::Clock;
use syncline_fs::types::Timestamp;

/// A life ends long before this. If only timers run beyond it, a task waits forever.
const LIFE_MAX: Duration = Duration::from_secs(3000);

/// When a timer ends, and a number that orders timers that end at the same time.
type Due = (u64, u64);

/// The clock of a life.
#[derive(Default)]
pub struct Time(Mutex<State>);

#[derive(Default)]
struct State {
    now_ns: u64,
    next_id: u64,
    timers: BTreeMap<Due, Waker>,
    keeper: Option<Waker>,
}

impl Time {
    /// Starts the clock, which must be the first task of a life.
    pub fn start() -> Arc<Self> {
        let time = Arc::new(Self::default());
        let kept = time.clone();
        drop(shuttle::future::spawn(async move {
            loop {
                kept.next().await;
                futures_lite::future::yield_now().await;
            }
        }));
        time
    }

    /// Ends a life once the schedule no longer matters: every task that can run does, until all
    /// wait. Dropping a task in the middle of something would leave locks taken that destructors
    /// need.
    pub async fn settle(self: &Arc<Self>) {
        sleep(self, Duration::from_millis(1)).await;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it is locked.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the next timer.
    fn next(&self) -> impl Future<Output = ()> + '_ {
        std::future::poll_fn(|context| {
            let mut state = self.state();
            let Some(((due_ns, _), waker)) = state.timers.pop_first() else {
                state.keeper = Some(context.waker().clone());
                return Poll::Pending;
            };
            state.now_ns = state.now_ns.max(due_ns);
            assert!(
                state.now_ns < LIFE_MAX.as_nanos() as u64,
                "nothing but timers goes on: somebody waits for ever"
            );
            drop(state);
            waker.wake();
            Poll::Ready(())
        })
    }
}

/// The engine's access to the clock.
pub struct Spawner(pub Arc<Time>);

impl Spawn for Spawner {
    fn spawn(&self, task: Pin<Box<dyn Future<Output = ()> + Send>>) {
        drop(shuttle::future::spawn(task));
    }

    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(sleep(&self.0, duration))
    }
}

impl Clock for Spawner {
    fn now(&self) -> Timestamp {
        let mut state = self.0.state();
        state.now_ns += 1000;
        let now_ns = state.now_ns;
        Timestamp {
            seconds: 1_000 + (now_ns / 1_000_000_000) as i64,
            nanoseconds: (now_ns % 1_000_000_000) as u32,
        }
    }

    fn uptime(&self) -> Duration {
        let mut state = self.0.state();
        state.now_ns += 1000;
        Duration::from_nanos(state.now_ns)
    }
}

/// Ends after this much time.
fn sleep(time: &Arc<Time>, duration: Duration) -> Sleep {
    let due_ns = time.state().now_ns.saturating_add(duration.as_nanos() as u64);
    Sleep { time: time.clone(), due_ns, timer: None }
}

/// A timer.
struct Sleep {
    time: Arc<Time>,
    due_ns: u64,
    timer: Option<Due>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let time = self.time.clone();
        let mut state = time.state();
        if let Some(timer) = self.timer.take() {
            state.timers.remove(&timer);
        }
        if state.now_ns >= self.due_ns {
            return Poll::Ready(());
        }
        state.next_id += 1;
        let timer = (self.due_ns, state.next_id);
        state.timers.insert(timer, context.waker().clone());
        self.timer = Some(timer);
        let keeper = state.keeper.take();
        drop(state);
        keeper.into_iter().for_each(Waker::wake);
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(timer) = self.timer.take() {
            self.time.state().timers.remove(&timer);
        }
    }
}
