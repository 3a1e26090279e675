//! Background tasks: the trait that the engine spawns through, and the thread that runs them.

use crate::oneshot;
use crate::worker::{Worker, WorkerHandle, WorkerOptions};
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::thread::JoinHandle;
use std::time::Duration;

/// Where the engine's background tasks run. A deterministic simulator implements it too.
pub trait Spawn: Send + Sync {
    /// Starts a task that nobody waits for.
    fn spawn(&self, task: Pin<Box<dyn Future<Output = ()> + Send>>);

    /// Ends after `duration`.
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>>;
}

impl Spawn for WorkerHandle {
    fn spawn(&self, task: Pin<Box<dyn Future<Output = ()> + Send>>) {
        self.spawn_boxed(task);
    }

    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(self.sleep_for(duration))
    }
}

/// One thread for background tasks. Dropping it ends the tasks where they wait, lets the I/O that they started end,
/// and joins the thread.
pub struct Background {
    handle: WorkerHandle,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Background {
    /// Starts the thread.
    pub fn start(options: WorkerOptions) -> io::Result<Self> {
        let (stop, stopped) = oneshot::channel::<()>();
        let (started, starting) = std::sync::mpsc::channel();
        let serve = move || match Worker::new(options) {
            Ok(worker) => {
                let _ = started.send(Ok(worker.handle()));
                worker.run(stopped);
            }
            Err(error) => drop(started.send(Err(error))),
        };
        let thread = std::thread::Builder::new().name("syncline-background".into()).spawn(serve)?;
        let handle =
            starting.recv().map_err(|_| io::Error::other("the background thread did not start"))??;
        Ok(Self { handle, stop: Some(stop), thread: Some(thread) })
    }

    /// A handle to its worker.
    pub fn handle(&self) -> WorkerHandle {
        self.handle.clone()
    }
}

impl Spawn for Background {
    fn spawn(&self, task: Pin<Box<dyn Future<Output = ()> + Send>>) {
        self.handle.spawn_boxed(task);
    }

    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(self.handle.sleep_for(duration))
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        drop(self.stop.take());
        let Some(thread) = self.thread.take() else { return };
        // One of its own tasks may have held the last reference: then it ends by itself.
        if thread.thread().id() != std::thread::current().id() && thread.join().is_err() {
            tracing::error!("the background thread panicked");
        }
    }
}
