//! What /proc tells of the processes that send requests.
//!
//! A thread that reads there holds the memory of the process, or one of its files, for a moment. If the
//! process ends just then, the reading thread writes back the mappings or releases the file. And /proc
//! shows an epoll(7) descriptor only while it is not locked; its program may hold the lock while it waits
//! for a READ. Both can be requests to this daemon. So a thread that serves no requests reads /proc, and a
//! request waits for it for a moment only.

use crate::done::{Done, over};
use crate::own_table::keep_only;
use futures_lite::future::or;
use parking_lot::Mutex;
use std::sync::{Arc, OnceLock, mpsc};
use std::time::{Duration, Instant};
use std::{io, thread};

/// How long a request waits for a look: many times as long as one takes.
const PATIENCE: Duration = Duration::from_millis(100);

/// Something to do for a request that waits.
type Look = (Box<dyn FnOnce() + Send>, Arc<Done>);

/// The thread that looks, once started.
#[derive(Default)]
pub struct Processes {
    looks: OnceLock<mpsc::Sender<Look>>,
    /// When the thread began the look that it has not ended.
    begun: Arc<Mutex<Option<Instant>>>,
}

impl Processes {
    /// Starts the thread.
    pub fn start(&self) -> io::Result<()> {
        let (looks, asked) = mpsc::channel::<Look>();
        let (finished, done) = mpsc::channel::<Arc<Done>>();
        let begun = self.begun.clone();
        thread::Builder::new().name("syncline-looks".into()).spawn(move || {
            // If that can't be done, a kill of the daemon may leave a mount that must be aborted by hand.
            keep_only(None);
            for (look, done) in asked {
                *begun.lock() = Some(Instant::now());
                look();
                *begun.lock() = None;
                // The receiver ends only after this thread.
                let _ = finished.send(done);
            }
        })?;
        // Waking those who wait takes a descriptor that the other thread does not have.
        let tell = move || done.into_iter().for_each(|done: Arc<Done>| done.tell());
        thread::Builder::new().name("syncline-looked".into()).spawn(tell)?;
        // A session is started once.
        let _ = self.looks.set(looks);
        Ok(())
    }

    /// Looks; `None` if that takes too long, or another look does. A session that is mounted nowhere has
    /// no requests that a look could wait for.
    pub async fn look<T: Send + 'static>(&self, look: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        let Some(looks) = self.looks.get() else { return Some(look()) };
        if self.begun.lock().is_some_and(|begun| begun.elapsed() > PATIENCE) {
            return None;
        }
        let (found, done) = (Arc::new(Mutex::new(None)), Arc::<Done>::default());
        let finds = found.clone();
        let look = move || {
            let seen = look();
            *finds.lock() = Some(seen);
        };
        looks.send((Box::new(look), done.clone())).ok()?;
        or(done.wait(), over(PATIENCE)).await;
        found.lock().take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use syncline_device::{Worker, WorkerOptions};

    #[test]
    fn nobody_waits_for_a_look_that_does_not_end() {
        let worker = Worker::new(WorkerOptions::default()).unwrap();
        let processes = Processes::default();
        assert_eq!(worker.run(processes.look(|| 7)), Some(7), "it is not started");
        processes.start().unwrap();
        assert_eq!(worker.run(processes.look(|| 8)), Some(8));
        let (end, ended) = mpsc::channel::<()>();
        assert_eq!(worker.run(processes.look(move || ended.recv().is_err())), None);
        assert_eq!(worker.run(processes.look(|| 9)), None, "the thread still looks");
        drop(end);
        while processes.begun.lock().is_some() {
            thread::yield_now();
        }
        assert_eq!(worker.run(processes.look(|| 10)), Some(10));
    }
}
