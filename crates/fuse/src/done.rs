//! Something that tasks wait for, and a thread does.

use event_listener::Event;
use std::future::pending;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use syncline_device::Worker;

/// Whether it is done.
#[derive(Default)]
pub(crate) struct Done {
    is_over: AtomicBool,
    told: Event,
}

impl Done {
    /// Wakes all who wait.
    pub(crate) fn tell(&self) {
        self.is_over.store(true, Ordering::Release);
        self.told.notify(usize::MAX);
    }

    /// Waits until it is done.
    pub(crate) async fn wait(&self) {
        while !self.is_over.load(Ordering::Acquire) {
            let told = self.told.listen();
            if !self.is_over.load(Ordering::Acquire) {
                told.await;
            }
        }
    }
}

/// Ends after a time; never on a thread that is no worker, such as one of a test.
pub(crate) async fn over(time: Duration) {
    match Worker::try_current() {
        Some(worker) => worker.sleep(time).await,
        None => pending().await,
    }
}
