//! Mounts that are asked concurrently: one whose daemon is stopped, or hangs, does not keep the
//! others from being reported.

use super::Mounted;
use crate::failure::Failure;
use crate::live::Sample;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// How long a daemon may take before its mount is reported to be down. It answers from memory,
/// without its device.
const PATIENCE: Duration = Duration::from_secs(4);

/// A mount and its pending answer.
pub struct Asked {
    directory: PathBuf,
    /// A thread that waits in the kernel for a daemon can't be cancelled: its answer is awaited,
    /// and no second thread is started.
    answer: Mutex<Option<Receiver<Result<Sample, Failure>>>>,
}

impl Asked {
    /// A mount that was not asked yet.
    pub fn new(directory: PathBuf) -> Self {
        Self { directory, answer: Mutex::default() }
    }

    fn answer(&self) -> MutexGuard<'_, Option<Receiver<Result<Sample, Failure>>>> {
        self.answer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks the daemon. False if it still owes the answer to an earlier question: nobody waits for a
    /// daemon that hangs more than once.
    fn ask(&self) -> bool {
        let mut answer = self.answer();
        if let Some(late) = answer.as_ref() {
            // The answer to an earlier question describes an earlier moment.
            match late.try_recv() {
                Err(TryRecvError::Empty) => return false,
                _ => *answer = None,
            }
        }
        let (sender, receiver) = channel();
        let directory = self.directory.clone();
        let asking = thread::Builder::new().name("ask".to_owned());
        // Without a thread there is no answer.
        if asking.spawn(move || drop(sender.send(Sample::take(&directory)))).is_ok() {
            *answer = Some(receiver);
        }
        true
    }

    /// The daemon's answer, if it comes in time.
    fn sample(&self, until: Instant) -> Option<Sample> {
        let mut answer = self.answer();
        let sample = answer.as_ref()?.recv_timeout(until.saturating_duration_since(Instant::now())).ok();
        match sample {
            Some(_) => *answer = None,
            None => tracing::warn!(directory = %self.directory.display(), "the daemon does not answer"),
        }
        sample?.inspect_err(|failure| tracing::warn!("{failure}")).ok()
    }
}

/// Samples of all mounts at this moment.
pub fn ask(mounts: &[Asked]) -> Vec<Mounted> {
    let asked: Vec<bool> = mounts.iter().map(Asked::ask).collect();
    let until = Instant::now() + PATIENCE;
    let sample = |(mount, asked): (&Asked, bool)| {
        Mounted::new(&mount.directory, asked.then(|| mount.sample(until)).flatten())
    };
    mounts.iter().zip(asked).map(sample).collect()
}
