//! A task that waits for a lock sleeps until the lock is released, whatever other tasks wait.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use syncline_sync::asynchronous::RwLock;

/// A task that runs only after it was woken.
#[derive(Default)]
struct Task {
    woken: AtomicBool,
    runs: AtomicU32,
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        self.woken.store(true, Ordering::SeqCst);
    }
}

impl Task {
    fn poll<T>(self: &Arc<Self>, future: Pin<&mut impl Future<Output = T>>) -> Option<T> {
        self.woken.store(false, Ordering::SeqCst);
        self.runs.fetch_add(1, Ordering::SeqCst);
        match future.poll(&mut Context::from_waker(&Waker::from(self.clone()))) {
            Poll::Ready(value) => Some(value),
            Poll::Pending => None,
        }
    }

    fn poll_if_woken<T>(self: &Arc<Self>, future: Pin<&mut impl Future<Output = T>>) -> Option<T> {
        self.woken.load(Ordering::SeqCst).then(|| self.poll(future)).flatten()
    }

    fn runs(&self) -> u32 {
        self.runs.load(Ordering::SeqCst)
    }
}

/// Two readers wait for a writer. When it unlocks, another writer is faster than both.
#[test]
fn readers_do_not_wake_each_other_while_somebody_writes() {
    let lock = RwLock::new(());
    let [first, second, writer] = [(); 3].map(|()| Arc::<Task>::default());
    let (mut reading, mut reading_too) = (pin!(lock.read()), pin!(lock.read()));
    let written = writer.poll(pin!(lock.write())).expect("nobody has it");
    assert!(first.poll(reading.as_mut()).is_none() && second.poll(reading_too.as_mut()).is_none());
    drop(written);
    let written = writer.poll(pin!(lock.write())).expect("nobody has it yet");
    for _ in 0..1000 {
        assert!(first.poll_if_woken(reading.as_mut()).is_none());
        assert!(second.poll_if_woken(reading_too.as_mut()).is_none());
    }
    assert!(
        first.runs() <= 3 && second.runs() <= 3,
        "{} and {} runs for nothing",
        first.runs(),
        second.runs()
    );
    drop(written);
    // They may come in any order, and one lets the other in.
    let (mut read, mut read_too) = (None, None);
    for _ in 0..2 {
        read = read.or_else(|| first.poll_if_woken(reading.as_mut()));
        read_too = read_too.or_else(|| second.poll_if_woken(reading_too.as_mut()));
    }
    assert!(read.is_some() && read_too.is_some(), "woken, and nobody writes");
    drop((read, read_too));
    assert!(lock.try_write().is_some());
}

/// A writer that waits for readers keeps new readers out. When it gives up, they proceed.
#[test]
fn readers_go_on_when_a_waiting_writer_gives_up() {
    let lock = RwLock::new(());
    let [reader, writer] = [(); 2].map(|()| Arc::<Task>::default());
    let read = reader.poll(pin!(lock.read())).expect("nobody has it");
    let mut reading = pin!(lock.read());
    {
        let mut writing = Box::pin(lock.write());
        assert!(writer.poll(writing.as_mut()).is_none());
        assert!(reader.poll(reading.as_mut()).is_none(), "a writer is before it");
    }
    assert!(reader.poll_if_woken(reading.as_mut()).is_some());
    drop(read);
}

#[test]
fn a_writer_is_alone() {
    let lock = RwLock::new(1);
    let task = Arc::<Task>::default();
    let read = task.poll(pin!(lock.read())).expect("nobody has it");
    assert!(lock.try_write().is_none());
    let mut writing = pin!(lock.write());
    assert!(task.poll(writing.as_mut()).is_none());
    drop(read);
    let mut written = task.poll_if_woken(writing.as_mut()).expect("woken, and nobody reads");
    *written += 1;
    assert!(lock.try_write().is_none());
    drop(written);
    assert_eq!(*task.poll(pin!(lock.read())).expect("nobody writes"), 2);
}
