//! The end of all threads of a mount when one of them cannot go on: with one queue unserved, whoever runs on its CPU
//! would wait for ever, while the end of the connection gives everybody an error.

use event_listener::Event;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A word to all threads.
#[derive(Clone, Default)]
pub struct Halt(Arc<Inner>);

#[derive(Default)]
struct Inner {
    raised: AtomicBool,
    event: Event,
}

impl Halt {
    /// Ends when it was raised.
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

    /// Raises it unless the thread comes to a good end: also when it panics.
    pub fn on_failure(&self) -> OnFailure {
        OnFailure { halt: self.clone(), failed: true }
    }
}

/// Raises a [`Halt`] when dropped, unless told otherwise.
pub struct OnFailure {
    halt: Halt,
    failed: bool,
}

impl OnFailure {
    /// All is well.
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
