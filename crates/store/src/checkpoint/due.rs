//! The background task that takes checkpoints when they are due.

use crate::Store;
use futures_lite::future::or;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;
use syncline_device::Spawn;

/// Takes checkpoints until the store closes or is dropped.
pub(crate) async fn tend_checkpoints(store: Weak<Store>, spawn: Arc<dyn Spawn>) {
    let mut due = None;
    let mut is_due = false;
    loop {
        let Some(strong) = store.upgrade() else { return };
        if strong.health.is_over() {
            return;
        }
        let listener = strong.wake.listen();
        if is_due || strong.checkpoint.due.load(Ordering::Acquire) {
            // Clear the request before the checkpoint begins. A request made while it runs is
            // cleared when it ends; a later request waits for another checkpoint.
            strong.checkpoint.due.store(false, Ordering::Release);
            if is_due {
                strong.mend_nodes().await;
            }
            let done = if is_due { strong.checkpoint_at_rest().await } else { strong.checkpoint().await };
            let failed = done.is_err();
            (due, is_due) = (None, false);
            if failed {
                drop(strong);
                spawn.sleep(Duration::from_secs(1)).await;
                continue;
            }
        }
        // One sleep for the whole interval, however often others wake this task: the interval
        // follows the clock of `spawn`.
        let interval = strong.options.checkpoint_interval;
        let sleep = due.get_or_insert_with(|| spawn.sleep(interval));
        drop(strong);
        is_due = or(
            async {
                listener.await;
                false
            },
            async {
                sleep.await;
                true
            },
        )
        .await;
    }
}
