//! An idle store takes no blocks, wherever its log ends.

use crate::troubles::support::{background, image, open, put, quiet};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use syncline_device::{Spawn, block_on};
use syncline_store::{Canary, Lab, StoreOptions};

/// Ends short sleeps at once, so that a few milliseconds have the ticks of a long idle time.
struct Hasty(Arc<dyn Spawn>);

impl Spawn for Hasty {
    fn spawn(&self, task: Pin<Box<dyn Future<Output = ()> + Send>>) {
        self.0.spawn(task);
    }
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let short = duration < Duration::from_secs(1);
        self.0.sleep(if short { Duration::from_millis(1) } else { duration })
    }
}

/// Counts free blocks lost while idle, with the log ending at every position in a segment.
fn lost_while_idle(canary: Option<Canary>) -> u64 {
    let spawn: Arc<dyn Spawn> = Arc::new(Hasty(background()));
    // Segments have 128 blocks, so this reaches the end of several, but no checkpoint.
    let device = image(32, &spawn);
    let store = open(device, StoreOptions { lab: Lab::breaking(canary), ..quiet() }, &spawn);
    let mut lost = 0;
    for n in 0..400 {
        block_on(store.sync(put(&store, 100 + n, "value"))).unwrap();
        let before = store.space().free;
        // Sometimes without a marker behind it, so that the log ends at even and at odd positions.
        if n % 7 > 0 {
            std::thread::sleep(Duration::from_millis(8));
        }
        lost += before - store.space().free;
    }
    assert!(store.counters().markers > 0, "there were idle ticks");
    lost
}

#[test]
fn an_idle_store_takes_no_room() {
    assert_eq!(lost_while_idle(None), 0);
    // On a busy machine there may be no tick while the log ends at the end of a segment.
    let seen = (0..5).any(|_| lost_while_idle(Some(Canary::IdleSegment)) > 0);
    assert!(seen, "the test sees it when it does");
}
