//! Runs the engine on one thread, so that an execution is fast and repeatable.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use syncline_device::Spawn;
use syncline_fs::Clock;
use syncline_sim::Simulation;

/// The surroundings that a run provides.
#[derive(Clone)]
pub struct World {
    /// Where background tasks run.
    pub spawn: Arc<dyn Spawn>,
    /// Virtual time.
    pub clock: Arc<dyn Clock>,
}

/// Runs `work` to its end. The number of steps is bounded, and memory devices complete at once.
///
/// # Panics
/// If the work stalls: it waits for something that never happens, or retries forever. For an image
/// that is a hang.
pub fn run<F, T>(work: impl FnOnce(World) -> F) -> T
where
    F: Future<Output = T> + Send + 'static,
    T: Send + 'static,
{
    let simulation = Simulation::new(0);
    let world = World { spawn: simulation.spawner(), clock: simulation.clock() };
    let answer = simulation.run(work(world)).expect("the work ends");
    simulation.kill();
    answer
}

/// Runs work that starts no tasks and waits only for memory devices.
///
/// # Panics
/// If it waits for anything else, which would never end.
pub fn run_here<T>(work: impl Future<Output = T>) -> T {
    const POLLS_MAX: usize = 100;
    let mut work = pin!(work);
    let mut context = Context::from_waker(Waker::noop());
    let answer = (0..POLLS_MAX).find_map(|_| match work.as_mut().poll(&mut context) {
        Poll::Ready(answer) => Some(answer),
        Poll::Pending => None,
    });
    answer.expect("the work ends")
}
