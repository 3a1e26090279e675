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

    /// A future that ends after `duration`.
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>>;
}

/// Runs `work` as a background task and waits for its result: for work that would keep the calling
/// thread from other tasks for milliseconds. `None` if the background has ended.
pub fn in_background<T: Send + 'static>(
    spawn: &dyn Spawn,
    work: impl Future<Output = T> + Send + 'static,
) -> impl Future<Output = Option<T>> + Send {
    let (sender, receiver) = oneshot::channel();
    spawn.spawn(Box::pin(async move { sender.send(work.await) }));
    receiver
}

impl Spawn for WorkerHandle {
    fn spawn(&self, task: Pin<Box<dyn Future<Output = ()> + Send>>) {
        self.spawn_boxed(task);
    }

    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(self.sleep_for(duration))
    }
}

/// One thread for background tasks. Dropping it ends the tasks where they wait, lets the I/O that
/// they started finish, and joins the thread.
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
        // If one of its own tasks held the last reference, the thread ends by itself.
        if thread.thread().id() != std::thread::current().id() && thread.join().is_err() {
            tracing::error!("the background thread panicked");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DeviceExt, FileDevice, OpenOptions, Use, block_on};
    use bytes::Bytes;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn tasks_and_sleeps_run_in_the_background() {
        for io_uring in [Use::Auto, Use::Never] {
            let background = Background::start(WorkerOptions { io_uring }).unwrap();
            let (sender, receiver) = oneshot::channel();
            let sleep = background.sleep(Duration::from_millis(5));
            background.spawn(Box::pin(async move {
                sleep.await;
                sender.send(std::thread::current().name().map(str::to_owned));
            }));
            assert_eq!(block_on(receiver), Some(Some("syncline-background".to_owned())));
            // A sleep that is awaited on another thread.
            block_on(background.sleep(Duration::from_millis(5)));
        }
    }

    #[test]
    fn a_drop_waits_for_the_io_of_its_tasks() {
        for io_uring in [Use::Auto, Use::Never] {
            let place = tempfile::tempdir().unwrap();
            let path = place.path().join("image");
            let options = OpenOptions { io_uring, ..Default::default() };
            let device = FileDevice::create(path, Some(1 << 20), false, options, &mut |_| {}).unwrap();
            let background = Background::start(WorkerOptions { io_uring }).unwrap();
            let ended = Arc::new(AtomicUsize::new(0));
            let (sender, receiver) = oneshot::channel();
            let (writing, counting) = (device.clone(), ended.clone());
            background.spawn(Box::pin(async move {
                for at in 0..64 {
                    let counting = counting.clone();
                    let done = move |_| {
                        counting.fetch_add(1, Ordering::SeqCst);
                    };
                    crate::Device::write(
                        &*writing,
                        at * 4096,
                        vec![Bytes::from(vec![9; 4096])],
                        Box::new(done),
                    );
                }
                sender.send(());
                std::future::pending::<()>().await;
            }));
            block_on(receiver).unwrap();
            drop(background);
            assert_eq!(ended.load(Ordering::SeqCst), 64);
            assert!(block_on(device.read_at(0, 64 * 4096)).unwrap().iter().all(|&byte| byte == 9));
        }
    }

    #[test]
    fn the_last_reference_may_go_in_one_of_its_own_tasks() {
        let background = Arc::new(Background::start(WorkerOptions::default()).unwrap());
        let (sender, receiver) = oneshot::channel();
        let own = background.clone();
        let (go, gone) = oneshot::channel::<()>();
        background.spawn(Box::pin(async move {
            gone.await;
            drop(own);
            sender.send(());
        }));
        drop(background);
        go.send(());
        assert_eq!(block_on(receiver), Some(()));
    }
}
