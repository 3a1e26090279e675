//! Workers with a ring and without: tasks, timers, descriptors, wake-ups and I/O in flight.

use super::*;
use crate::{Device, DeviceExt, FileDevice, FlushTracker, OpenOptions, block_on};
use bytes::Bytes;
use futures_lite::future::yield_now;
use io_uring::{opcode, types};
use std::cell::Cell;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;
use tempfile::TempDir;

fn workers() -> Vec<Worker> {
    [Use::Auto, Use::Never].map(|io_uring| Worker::new(WorkerOptions { io_uring }).unwrap()).into()
}

fn image(io_uring: Use) -> (TempDir, Arc<FileDevice>) {
    let place = tempfile::tempdir().unwrap();
    let options = OpenOptions { io_uring, ..Default::default() };
    let path = place.path().join("image");
    let device = FileDevice::create(path, Some(8 << 20), false, options, &mut |_| {}).unwrap();
    (place, device)
}

fn block(fill: u8) -> Vec<Bytes> {
    vec![Bytes::from(vec![fill; 4096])]
}

#[test]
fn tasks_run_on_the_worker_and_their_io_completes_there() {
    for worker in workers() {
        for io_uring in [Use::Auto, Use::Never] {
            let (_place, device) = image(io_uring);
            let here = std::thread::current().id();
            let read = worker.run(async {
                let writing = device.clone();
                let task = Worker::current().spawn_local(async move {
                    writing.write_at(4096, block(7)).await.unwrap();
                    writing.flush_all().await.unwrap();
                });
                task.await;
                let (sender, receiver) = oneshot::channel();
                let done = move |result| sender.send((std::thread::current().id(), result));
                device.read(4096, crate::AlignedBuf::for_read(4096), Box::new(done));
                let (there, read) = receiver.await.unwrap();
                assert_eq!(there, here);
                read.unwrap()
            });
            assert!(read.iter().all(|&byte| byte == 7));
        }
    }
}

#[test]
fn what_is_submitted_goes_out_before_the_turn_ends() {
    for worker in workers() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("image");
        // Through the page cache, so that another descriptor sees the data.
        let options = OpenOptions { direct: Use::Never, ..Default::default() };
        let device = FileDevice::create(&path, Some(1 << 20), false, options, &mut |_| {}).unwrap();
        worker.run(async {
            let writing = device.write_at(4096, block(9));
            device.submit();
            // Nothing is awaited here, so the worker has no turn.
            let arrived = (0..5000).any(|_| {
                std::thread::sleep(Duration::from_millis(1));
                std::fs::read(&path).unwrap()[4096] == 9
            });
            assert!(arrived);
            writing.await.unwrap();
        });
    }
}

#[test]
fn more_operations_than_the_ring_has_entries() {
    for worker in workers() {
        let (_place, device) = image(Use::Auto);
        worker.run(async {
            let writes: Vec<_> = (0..2000).map(|at| device.write_at(at * 4096, block(at as u8))).collect();
            for write in writes {
                write.await.unwrap();
            }
            for at in (0..2000).step_by(97) {
                assert_eq!(device.read_at(at * 4096, 4096).await.unwrap()[0], at as u8);
            }
        });
    }
}

#[test]
fn queued_io_goes_out_while_tasks_keep_the_thread_busy() {
    for worker in workers() {
        let (_place, device) = image(Use::Auto);
        worker.run(async {
            let ended = std::rc::Rc::new(Cell::new(false));
            let busy = ended.clone();
            let task = Worker::current().spawn_local(async move {
                let start = Instant::now();
                while !busy.get() {
                    assert!(start.elapsed() < Duration::from_secs(120), "the write never went out");
                    yield_now().await;
                }
            });
            device.write_at(0, block(1)).await.unwrap();
            ended.set(true);
            task.await;
        });
    }
}

#[test]
fn sleepers_wake_in_order_and_not_early() {
    for worker in workers() {
        let order = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
        worker.run(async {
            let start = Instant::now();
            let tasks: Vec<_> = [30u64, 10, 20]
                .into_iter()
                .map(|milliseconds| {
                    let order = order.clone();
                    Worker::current().spawn_local(async move {
                        Worker::current().sleep(Duration::from_millis(milliseconds)).await;
                        assert!(start.elapsed() >= Duration::from_millis(milliseconds));
                        order.borrow_mut().push(milliseconds);
                    })
                })
                .collect();
            // Dropped sleeps wake nobody.
            drop(Worker::current().sleep(Duration::from_millis(1)));
            for task in tasks {
                task.await;
            }
        });
        assert_eq!(*order.borrow(), [10, 20, 30]);
        assert!(worker.mailbox().fire_timers().is_none(), "no timer is left");
    }
}

#[test]
fn a_descriptor_that_becomes_readable_is_noticed() {
    for worker in workers() {
        let (mut near, mut far) = UnixStream::pair().unwrap();
        worker.run(async {
            let fd = near.as_raw_fd();
            let mut early = Worker::current().readable(fd);
            assert!(futures_lite::future::poll_once(&mut early).await.is_none());
            drop(early);
            let handle = Worker::current().handle();
            let telling = std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(20));
                far.write_all(b"!").unwrap();
                (far, handle)
            });
            assert!(Worker::current().readable(fd).await.unwrap() & libc::POLLIN as u32 != 0);
            let mut byte = [0];
            near.read_exact(&mut byte).unwrap();
            // Cancelled waits do not consume later events.
            for _ in 0..100 {
                drop(Worker::current().readable(fd));
                yield_now().await;
            }
            let (mut far, _handle) = telling.join().unwrap();
            let waiting = Worker::current().readable(fd);
            far.write_all(b"?").unwrap();
            waiting.await.unwrap();
            drop(far);
        });
    }
}

/// Each arrival wakes one of those that wait in turn; it must be one that still waits.
#[test]
fn a_wait_that_was_given_up_takes_no_wake_up() {
    for worker in workers() {
        let (reader, mut writer) = std::io::pipe().unwrap();
        worker.run(async {
            let fd = reader.as_raw_fd();
            let first = Worker::current().readable_in_turn(fd);
            let second = Worker::current().readable_in_turn(fd);
            // Both have been submitted.
            Worker::current().sleep(Duration::from_millis(1)).await;
            first.give_up().await;
            writer.write_all(b"x").unwrap();
            assert!(second.await.unwrap() & libc::POLLIN as u32 != 0);
        });
    }
}

#[test]
fn other_threads_wake_it_and_hand_it_tasks() {
    for worker in workers() {
        let handle = worker.handle();
        let count = Arc::new(AtomicUsize::new(0));
        let (all_done, done) = oneshot::channel();
        let counting = count.clone();
        let giving = std::thread::spawn(move || {
            let all_done = Arc::new(parking_lot::Mutex::new(Some(all_done)));
            for number in 0..1000 {
                let (count, all_done) = (counting.clone(), all_done.clone());
                handle.spawn_task(async move {
                    Worker::current().sleep(Duration::from_micros(number % 7)).await;
                    if count.fetch_add(1, Ordering::SeqCst) + 1 == 1000 {
                        all_done.lock().take().unwrap().send(());
                    }
                });
                if number % 100 == 0 {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        });
        assert_eq!(worker.run(done), Some(()));
        giving.join().unwrap();
        assert_eq!(count.load(Ordering::SeqCst), 1000);
    }
}

#[test]
fn a_task_that_panics_does_not_end_the_worker() {
    for worker in workers() {
        worker.handle().spawn_task(async { panic!("on purpose") });
        let (sender, receiver) = oneshot::channel();
        worker.handle().spawn_task(async { sender.send(5) });
        assert_eq!(worker.run(receiver), Some(5));
    }
}

#[test]
fn a_completion_that_panics_takes_no_other_with_it() {
    for worker in workers() {
        let (_place, device) = image(Use::Auto);
        let ended = Arc::new(AtomicUsize::new(0));
        worker.run(async {
            for at in 0..50 {
                let ended = ended.clone();
                let done = move |_| {
                    ended.fetch_add(1, Ordering::SeqCst);
                    assert!(at % 10 != 0, "on purpose");
                };
                device.write(at * 4096, block(1), Box::new(done));
            }
        });
        assert_eq!(ended.load(Ordering::SeqCst), 50);
        worker.run(async { device.flush_all().await.unwrap() });
    }
}

#[test]
fn neither_the_end_of_a_run_nor_a_drop_loses_a_completion() {
    for worker in workers() {
        let (_place, device) = image(Use::Auto);
        let ended = Arc::new(AtomicUsize::new(0));
        let start = |count: u64| {
            for at in 0..count {
                let ended = ended.clone();
                let done = move |result: Result<(), crate::DeviceError>| {
                    result.unwrap();
                    ended.fetch_add(1, Ordering::SeqCst);
                };
                device.write(at * 4096, block(1), Box::new(done));
            }
        };
        worker.run(async { start(100) });
        assert_eq!(ended.load(Ordering::SeqCst), 100);
        // I/O started by the destructor of a task that the worker's drop ends.
        struct AtEnd<F: Fn()>(F);
        impl<F: Fn()> Drop for AtEnd<F> {
            fn drop(&mut self) {
                (self.0)();
            }
        }
        let (device, counted) = (device.clone(), ended.clone());
        worker.run(async {
            let at_end = AtEnd(move || {
                let counted = counted.clone();
                let done = move |_| {
                    counted.fetch_add(1, Ordering::SeqCst);
                };
                device.flush(Box::new(done));
            });
            let task = Worker::current().spawn_local(async move {
                let _at_end = at_end;
                std::future::pending::<()>().await;
            });
            task.detach();
            yield_now().await;
        });
        drop(worker);
        assert_eq!(ended.load(Ordering::SeqCst), 101);
    }
}

#[test]
fn foreign_entries_travel_in_the_ring_and_end_with_the_worker() {
    for worker in workers() {
        let has_ring = worker.has_ring();
        let result = worker.run(async {
            let (sender, receiver) = oneshot::channel();
            // SAFETY: the entry names no memory.
            let submitted = unsafe {
                Worker::current()
                    .submit_entry(opcode::Nop::new().build().into(), Box::new(|result| sender.send(result)))
            };
            assert_eq!(submitted.is_ok(), has_ring);
            drop(submitted);
            receiver.await
        });
        assert_eq!(result, has_ring.then_some(0));
        let (near, _far) = UnixStream::pair().unwrap();
        let cancelled = std::rc::Rc::new(Cell::new(0));
        let outcome = cancelled.clone();
        worker.run(async move {
            let mut buf = Box::new([0u8; 16]);
            let entry = opcode::Read::new(types::Fd(near.as_raw_fd()), buf.as_mut_ptr(), 16).build();
            let done = move |result| {
                outcome.set(result);
                drop((buf, near));
            };
            // SAFETY: the completion owns the memory and the descriptor.
            let _ = unsafe { Worker::current().submit_entry(entry.into(), Box::new(done)) };
        });
        drop(worker);
        assert_eq!(cancelled.get(), if has_ring { -libc::ECANCELED } else { 0 });
    }
}

#[test]
fn workers_share_a_device_and_its_tracker() {
    for io_uring in [Use::Auto, Use::Never] {
        let (_place, device) = image(io_uring);
        let tracker = FlushTracker::new(device.clone());
        std::thread::scope(|scope| {
            for thread in 0..3u64 {
                let tracker = tracker.clone();
                scope.spawn(move || {
                    let worker = Worker::new(WorkerOptions { io_uring }).unwrap();
                    worker.run(async {
                        let tasks: Vec<_> = (0..8u64)
                            .map(|task| {
                                let tracker = tracker.clone();
                                Worker::current().spawn_local(async move {
                                    for turn in 0..10 {
                                        let offset = ((thread * 8 + task) * 10 + turn) * 4096;
                                        let ticket =
                                            tracker.write(offset, block(turn as u8)).wait().await.unwrap();
                                        tracker.make_durable(ticket).await.unwrap();
                                        assert!(tracker.is_durable(ticket));
                                    }
                                })
                            })
                            .collect();
                        for task in tasks {
                            task.await;
                        }
                    });
                });
            }
        });
        let counters = tracker.counters();
        assert_eq!(counters.writes, 240);
        assert_eq!(counters.flushes_issued + counters.flushes_joined + counters.flushes_elided, 240);
        assert!(counters.flushes_issued < 240, "some of 24 tasks side by side share flushes");
        for at in 0..240u64 {
            assert_eq!(block_on(device.read_at(at * 4096, 4096)).unwrap()[0], (at % 10) as u8);
        }
    }
}

#[test]
fn blocking_inside_a_worker_is_refused() {
    let worker = Worker::new(WorkerOptions::default()).unwrap();
    let caught = std::panic::catch_unwind(AssertUnwindSafe(|| worker.run(async { block_on(async {}) })));
    assert!(caught.is_err());
    // The thread is no longer a worker.
    block_on(async {});
}

#[test]
fn completions_of_an_idle_worker_need_no_other_event() {
    for worker in workers() {
        let (_place, device) = image(Use::Auto);
        let seen = Arc::new(AtomicBool::new(false));
        let seeing = seen.clone();
        worker.run(async {
            // Nothing but the completion itself wakes the task.
            device.write_at(0, block(3)).await.unwrap();
            seeing.store(true, Ordering::SeqCst);
        });
        assert!(seen.load(Ordering::SeqCst));
    }
}
