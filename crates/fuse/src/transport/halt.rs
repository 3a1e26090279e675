//! Ends all threads of a mount when one of them cannot continue. With one queue unserved, callers
//! on its CPU would wait for ever, whereas the end of the connection gives everybody an error.

use event_listener::Event;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A signal to all threads.
#[derive(Clone, Default)]
pub struct Halt(Arc<Inner>);

#[derive(Default)]
struct Inner {
    raised: AtomicBool,
    event: Event,
}

impl Halt {
    /// Waits until the signal is raised.
    pub async fn raised(&self) {
        loop {
            let listener = self.0.event.listen();
            if self.0.raised.load(Ordering::SeqCst) {
                return;
            }
            listener.await;
        }
    }

    fn raise(&self) {
        self.0.raised.store(true, Ordering::SeqCst);
        self.0.event.notify(usize::MAX);
    }

    /// Raises the signal unless the thread ends well: also when it panics.
    pub fn on_failure(&self) -> OnFailure {
        OnFailure { halt: self.clone(), failed: true }
    }
}

/// Raises a [`Halt`] when dropped, unless disarmed.
pub struct OnFailure {
    halt: Halt,
    failed: bool,
}

impl OnFailure {
    /// The thread has ended well: dropping this raises nothing.
    pub fn disarm(mut self) {
        self.failed = false;
    }
}

impl Drop for OnFailure {
    fn drop(&mut self) {
        if self.failed {
            self.halt.raise();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;
    use syncline_device::block_on;

    #[test]
    fn a_panic_reaches_everybody() {
        let halt = Halt::default();
        let waiting: Vec<_> =
            (0..3).map(|_| halt.clone()).map(|halt| thread::spawn(move || block_on(halt.raised()))).collect();
        let own = halt.clone();
        let failing = thread::spawn(move || {
            let _guard = own.on_failure();
            panic!("on purpose");
        });
        assert!(failing.join().is_err());
        waiting.into_iter().for_each(|thread| thread.join().unwrap());
        block_on(halt.raised());
    }

    #[test]
    fn a_good_end_reaches_nobody() {
        let halt = Halt::default();
        halt.on_failure().disarm();
        assert!(block_on(futures_lite::future::poll_once(halt.raised())).is_none());
    }
}
