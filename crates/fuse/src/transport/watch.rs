//! Which workers a request over /dev/fuse wakes. Waking all of them, where there are many, would
//! make most find nothing.
//!
//! The first few are woken by every request. That is what makes two CPUs fast: the worker of the
//! CPU on which the caller has just gone to sleep runs first, and one whose CPU is busy does not
//! delay anyone. The others wait in turn, and each request wakes one of them. That one may not have
//! room for all that it finds, so a worker that is full wakes the next.

use event_listener::Event;
use futures_lite::future::or;
use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;
use syncline_device::Worker;

/// Workers that every request wakes.
const ALWAYS_WOKEN: usize = 4;

/// How one worker waits for requests.
pub struct Watch {
    in_turn: bool,
    next: Arc<Event>,
}

impl Watch {
    /// One for each worker of a mount, in the order of their numbers.
    pub fn of_workers() -> impl Iterator<Item = Self> {
        let next = Arc::<Event>::default();
        (0..).map(move |number| Self { in_turn: number >= ALWAYS_WOKEN, next: next.clone() })
    }

    /// The watch of a single worker that reads alone.
    pub fn alone() -> Self {
        Self { in_turn: false, next: Arc::default() }
    }

    /// Waits until there may be a request. The descriptor must stay open until then.
    pub async fn readable(&self, connection: RawFd) -> io::Result<()> {
        let worker = Worker::current();
        if !self.in_turn {
            return worker.readable(connection).await.map(drop);
        }
        let told = self.next.listen();
        let mut readable = worker.readable_in_turn(connection);
        let is_told = async {
            told.await;
            Ok(true)
        };
        if or(async { (&mut readable).await.map(|_| false) }, is_told).await? {
            // If this worker became full before the wait ended, the wait would consume a wake-up
            // meant for another.
            readable.give_up().await;
        }
        Ok(())
    }

    /// Wakes another worker in place of this one, which has no room.
    pub fn pass_on(&self) {
        self.next.notify_additional(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_lite::future::poll_once;
    use std::io::Write;
    use std::os::fd::AsRawFd;
    use std::pin::pin;
    use std::sync::mpsc;
    use std::time::Duration;
    use syncline_device::WorkerOptions;

    /// Waits on a thread of its own; reports when it begins and when it ends.
    fn wait(watch: Watch, fd: RawFd, ended: mpsc::Sender<()>) -> std::thread::JoinHandle<()> {
        let (begins, begun) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let worker = Worker::new(WorkerOptions::default()).unwrap();
            worker.run(async {
                let mut readable = pin!(watch.readable(fd));
                let at_once = poll_once(&mut readable).await;
                begins.send(()).unwrap();
                match at_once {
                    Some(ready) => ready.unwrap(),
                    None => readable.await.unwrap(),
                }
            });
            ended.send(()).unwrap();
        });
        begun.recv().unwrap();
        thread
    }

    #[test]
    fn one_that_is_full_has_the_next_look() {
        let (nothing, _writer) = std::io::pipe().unwrap();
        let mut watches = Watch::of_workers();
        let full = watches.next().unwrap();
        let in_turn: Vec<_> = watches.skip(ALWAYS_WOKEN - 1).take(2).collect();
        let (ended, ends) = mpsc::channel();
        let threads: Vec<_> =
            in_turn.into_iter().map(|watch| wait(watch, nothing.as_raw_fd(), ended.clone())).collect();
        for _ in &threads {
            assert!(ends.recv_timeout(Duration::from_millis(50)).is_err(), "nobody has told it");
            full.pass_on();
            ends.recv_timeout(Duration::from_secs(10)).unwrap();
        }
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }

    #[test]
    fn what_can_be_read_ends_every_wait() {
        let (reader, mut writer) = std::io::pipe().unwrap();
        let (ended, ends) = mpsc::channel();
        let watches = Watch::of_workers().skip(ALWAYS_WOKEN - 1).take(2).chain([Watch::alone()]);
        let threads: Vec<_> = watches.map(|watch| wait(watch, reader.as_raw_fd(), ended.clone())).collect();
        writer.write_all(b"something").unwrap();
        for _ in &threads {
            ends.recv_timeout(Duration::from_secs(10)).unwrap();
        }
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }
}
