//! Calls that may not come back: librbd's own wait for the cluster as long as it takes.

use super::error::RbdError;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread;
use std::time::Duration;

/// Runs `work` on a thread of its own, and waits for it this long. A later result is dropped on that
/// thread, so that a lock which was taken too late is released again.
pub(super) fn bounded<T: Send + 'static>(
    limit: Duration,
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, RbdError> {
    // Without room in the channel, a result that is not waited for stays with its sender.
    let (sender, receiver) = sync_channel(0);
    let spawned = thread::Builder::new().name(name.to_owned()).spawn(move || {
        if let Err(unwanted) = sender.send(work()) {
            drop(unwanted);
        }
    });
    spawned.map_err(|source| RbdError::refused("start a thread", source))?;
    receiver.recv_timeout(limit).map_err(|error| match error {
        RecvTimeoutError::Timeout => RbdError::NoAnswer { seconds: limit.as_secs_f32() },
        RecvTimeoutError::Disconnected => {
            RbdError::refused("run a thread", std::io::Error::other("it ended without an answer"))
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::time::Instant;

    #[test]
    fn an_answer_in_time_arrives() {
        assert_eq!(bounded(Duration::from_secs(60), "test", || 7).unwrap(), 7);
    }

    #[test]
    fn an_answer_that_is_late_is_dropped_where_it_was_made() {
        let value = Arc::new(());
        let (go, wait) = sync_channel::<()>(0);
        let late = value.clone();
        let started = Instant::now();
        let answer = bounded(Duration::from_millis(20), "test", move || {
            wait.recv().unwrap();
            late
        });
        assert!(matches!(answer, Err(RbdError::NoAnswer { .. })));
        assert_eq!(Arc::strong_count(&value), 2);
        go.send(()).unwrap();
        while Arc::strong_count(&value) > 1 {
            assert!(started.elapsed() < Duration::from_secs(60), "never dropped");
            thread::yield_now();
        }
    }

    #[test]
    fn a_panic_is_an_error() {
        assert!(bounded(Duration::from_secs(60), "test", || -> u32 { panic!("on purpose") }).is_err());
    }
}
