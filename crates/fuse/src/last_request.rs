//! The kernel's last request to a mount with a block device, DESTROY, and the action that answers it.
//! umount(2) waits for the answer, so that the image is clean, and free, when it returns.

use crate::done::Done;
use parking_lot::Mutex;
use std::sync::Arc;
use std::thread;

type Action = Box<dyn FnOnce() + Send>;

/// An action that is carried out once, when the kernel ends the mount.
#[derive(Default)]
pub(crate) struct LastRequest {
    action: Mutex<Option<Action>>,
    carried_out: Arc<Done>,
}

impl LastRequest {
    pub(crate) fn set(&self, action: Action) {
        *self.action.lock() = Some(action);
    }

    /// Does it on a thread of its own, and waits for that: this one completes the I/O that it needs.
    pub(crate) async fn carry_out(&self) {
        let Some(action) = self.action.lock().take() else { return };
        let carried_out = self.carried_out.clone();
        let started = thread::Builder::new().name("syncline-end".into()).spawn(move || {
            // Also if it panics.
            let _over = Over(carried_out);
            action();
        });
        if let Err(error) = started {
            tracing::error!(%error, "no thread to write everything back: that is done after the unmount");
            return;
        }
        self.carried_out.wait().await;
    }
}

/// Tells who waits, when it is dropped.
struct Over(Arc<Done>);

impl Drop for Over {
    fn drop(&mut self) {
        self.0.tell();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};
    use syncline_device::block_on;

    #[test]
    fn it_is_waited_for_and_done_once() {
        let (last, done) = (LastRequest::default(), Arc::new(AtomicBool::new(false)));
        let noted = done.clone();
        last.set(Box::new(move || {
            thread::yield_now();
            assert!(!noted.swap(true, Ordering::SeqCst));
        }));
        block_on(last.carry_out());
        assert!(done.load(Ordering::SeqCst));
        block_on(last.carry_out());
    }

    #[test]
    fn a_panic_leaves_nobody_waiting() {
        let last = LastRequest::default();
        last.set(Box::new(|| panic!("on purpose")));
        block_on(last.carry_out());
    }
}
