//! Looks at a file between two steps of an operation on it, as other threads may.

use super::*;
use crate::Clock;
use crate::data::flush::{background, throttle};
use crate::data::memory::BLOCK;
use parking_lot::Mutex;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Wake};
use std::time::{Duration, Instant};

/// A waker that notes that it was called.
#[derive(Default)]
struct Call(AtomicBool);

impl Wake for Call {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

type Hook = Box<dyn FnOnce() + Send>;

/// A clock that runs a hook once, when it is read: at the last step before a write.
#[derive(Default)]
struct Interrupting {
    hook: Mutex<Option<Hook>>,
}

impl Clock for Interrupting {
    fn now(&self) -> Timestamp {
        let hook = self.hook.lock().take();
        if let Some(hook) = hook {
            hook();
        }
        Timestamp { seconds: 10, nanoseconds: 0 }
    }

    fn uptime(&self) -> Duration {
        Duration::ZERO
    }
}

#[test]
fn what_others_append_takes_nothing_from_an_append_under_way() {
    const OTHERS: u64 = 200;
    let clock = Arc::new(Interrupting::default());
    let options = Options { clock: clock.clone(), kept_bytes_max: 100 * BLOCK, ..Options::default() };
    let mount = Arc::new(Mount::sized(256 << 20, options));
    let ino = mount.create("log");
    mount.write(ino, 0, &pattern(1, 5000));
    mount.fsync_placed(ino);
    let others = mount.clone();
    *clock.hook.lock() = Some(Box::new(move || {
        for index in 0..OTHERS {
            let other = others.create(&format!("other{index}"));
            others.write(other, 0, &pattern(2, 5000));
            others.fsync_placed(other);
        }
    }));
    mount.write(ino, 5000, &pattern(3, 100));
    assert!(clock.hook.lock().is_none(), "nobody looked at the clock");
    assert!(mount.read(ino, 0, 5000) == pattern(1, 5000), "the append has taken what was before it");
    assert!(mount.read(ino, 5000, 100) == pattern(3, 100));
}

#[test]
fn two_files_that_are_appended_to_by_turns_are_not_read_for_it() {
    let mount = Mount::sized(256 << 20, options());
    let inos = [mount.create("one"), mount.create("other")];
    for round in 0..3000 {
        let ino = inos[round / 3 % 2];
        let size = mount.size(ino);
        mount.write(ino, size.max(5000), b"a line\n");
        mount.fsync(ino);
    }
    assert_eq!(mount.fs.counters.blocks_read_for_write.get(), 0);
}

#[test]
fn a_sync_of_everything_finds_what_another_sync_has_begun_with() {
    let mount = Mount::new();
    let ino = mount.create("file");
    mount.write(ino, 0, &pattern(1, 10_000));
    let fs = &mount.fs;
    let inode = fs.data.queue.take_oldest().expect("it is dirty");
    // Between its first look at the file and its transaction, an fsync has taken the dirty blocks
    // out of the map.
    let writeback = inode.state.lock().data.writeback();
    let begun = block_on(writeback.lock());
    let taken = inode.state.lock().data.blocks.take(0, u64::MAX, u64::MAX);
    // An earlier write-back of the file ends.
    fs.data.queue.finish(fs, &inode);
    assert!(
        fs.data.queue.all_dirty().iter().any(|dirty| dirty.ino == ino),
        "nobody would wait for the fsync"
    );
    inode.state.lock().data.blocks.restore(taken);
    drop(begun);
    block_on(fs.syncfs()).unwrap();
    let mount = mount.crash();
    assert_eq!(mount.read(mount.find("file"), 0, 10_000), pattern(1, 10_000));
}

#[test]
fn two_threads_that_append_and_sync_lose_nothing() {
    let mount = Mount::sized(256 << 20, options());
    std::thread::scope(|scope| {
        for thread in 0..2u64 {
            let mount = &mount;
            scope.spawn(move || {
                let ino = mount.create(&format!("log{thread}"));
                let lines = pattern(thread, 400_000);
                for line in lines.chunks(100) {
                    block_on(mount.fs.append(ino, Bytes::copy_from_slice(line), false)).unwrap();
                    mount.fsync(ino);
                }
                let found = mount.read(ino, 0, lines.len());
                let wrong = found.iter().zip(&lines).position(|(found, line)| found != line);
                assert_eq!((found.len(), wrong), (lines.len(), None), "the first wrong byte");
            });
        }
    });
}

#[test]
fn who_waits_for_room_is_called_when_there_is_something_to_write_back() {
    const LIMIT: u64 = 1 << 20;
    let limits = Options { dirty_bytes_max: LIMIT, writeback_start_bytes: LIMIT, ..options() };
    let mount = Mount::sized(64 << 20, limits);
    let data = &mount.fs.data.queue;
    let (one, other) = (mount.create("one"), mount.create("other"));
    mount.write(one, 0, &pattern(1, 8192));
    // The file is taken for write-back, so that a writer can only wait.
    let taken = data.take_oldest().unwrap();
    let called = Arc::new(Call::default());
    let waker = called.clone().into();
    let mut waiting = pin!(throttle::wait_for_room(&mount.fs, LIMIT));
    assert!(waiting.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    mount.write(other, 0, &pattern(2, 8192));
    assert!(called.0.load(Ordering::Relaxed), "nobody writes the other file back");
    block_on(background::write_back_taken(&mount.fs, &taken)).unwrap();
    block_on(waiting).unwrap();
    assert_eq!(data.dirty_bytes(), 0);
}

#[test]
fn what_became_dirty_again_is_written_back_when_it_is_old_enough() {
    let soon = Options { writeback_age: Duration::from_millis(500), ..Options::default() };
    let mount = Mount::sized(64 << 20, soon);
    let data = &mount.fs.data.queue;
    mount.write(mount.create("file"), 0, &pattern(1, 8192));
    let taken = data.take_oldest().expect("it is not old enough for the background task");
    // The list is empty now, and the background task finds that out.
    std::thread::sleep(Duration::from_millis(1200));
    // The file was written to while it was written back.
    data.finish(&mount.fs, &taken);
    let begun = Instant::now();
    while data.dirty_bytes() > 0 {
        assert!(begun.elapsed() < Duration::from_secs(120), "nobody writes it back");
        std::thread::sleep(Duration::from_millis(10));
    }
}
