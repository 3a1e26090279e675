//! Runs the engine on one thread, so that an execution is fast and the same each time.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use syncline_device::Spawn;
use syncline_fs::Clock;
use syncline_sim::Simulation;

/// What a run lends to those who take part in it.
#[derive(Clone)]
pub struct World {
    /// Where background tasks run.
    pub spawn: Arc<dyn Spawn>,
    /// Virtual time.
    pub clock: Arc<dyn Clock>,
}

/// Runs `work` to its end. The number of its steps is bounded, and devices in memory answer at once.
///
/// # Panics
/// When the work stalls: somebody waits for what never happens, or tries the same for ever. For an image that is a hang.
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

/// Runs work that starts no tasks and waits for nothing but devices in memory.
///
/// # Panics
/// When it waits for anything else, which nobody would end.
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
