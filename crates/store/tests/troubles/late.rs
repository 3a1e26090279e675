//! A late thread: it is held where it warns of a failed write.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};
use std::thread::{JoinHandle, sleep};
use std::time::Duration;
use syncline_device::block_on;
use syncline_store::{OpSeq, Store, StoreError};

static BLOCKED: AtomicBool = AtomicBool::new(false);
static RELEASED: AtomicBool = AtomicBool::new(false);
/// The name of the late thread.
const LATE: &str = "late";

fn wait_for(flag: &AtomicBool) {
    while !flag.load(Ordering::SeqCst) {
        sleep(Duration::from_millis(1));
    }
}

/// A subscriber that holds the late thread at its warning until it is released. Other threads pass.
struct SlowLog;

impl tracing::Subscriber for SlowLog {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::WARN
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, _: &tracing::Event<'_>) {
        if std::thread::current().name() == Some(LATE) && !BLOCKED.swap(true, Ordering::SeqCst) {
            wait_for(&RELEASED);
        }
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

/// Installs the subscriber, of which a program can have one. Tests with a late thread run one at a time.
pub fn alone() -> MutexGuard<'static, ()> {
    static INSTALLED: Once = Once::new();
    static ALONE: Mutex<()> = Mutex::new(());
    INSTALLED.call_once(|| tracing::subscriber::set_global_default(SlowLog).unwrap());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A sync that has met a failed write and has not reacted yet.
pub struct LateSync(JoinHandle<Result<(), StoreError>>);

impl LateSync {
    pub fn begin(store: &Arc<Store>, op: OpSeq) -> Self {
        BLOCKED.store(false, Ordering::SeqCst);
        RELEASED.store(false, Ordering::SeqCst);
        let store = store.clone();
        let sync = move || block_on(store.sync(op));
        let late = Self(std::thread::Builder::new().name(LATE.into()).spawn(sync).unwrap());
        wait_for(&BLOCKED);
        late
    }

    /// Releases the thread; returns the result of the sync.
    pub fn end(self) -> Result<(), StoreError> {
        RELEASED.store(true, Ordering::SeqCst);
        self.0.join().unwrap()
    }
}
