//! How requests come and answers go. This module has what all transports share: the handshake, the
//! threads, and how a request is carried out. [`classic`] goes over /dev/fuse, [`uring`] over the
//! workers' own rings.

mod carry;
mod classic;
mod connection;
mod halt;
mod receive;
mod uring;
mod watch;

use crate::abi::flags::init;
use crate::error::MountError;
use crate::options::MountOptions;
use crate::serve::Serve;
use crate::session::Session;
use connection::Connection;
use halt::Halt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use syncline_device::{Worker, WorkerOptions, allowed_cpus, pin_to_cpu};
use uring::{Queues, Share};
use watch::Watch;

pub use connection::{another_end, handshake};
pub use uring::fewest_entries;

/// The threads that serve a mount.
pub struct Workers(Vec<JoinHandle<Result<(), MountError>>>);

/// Threads that are ready to serve and wait for `go`. If dropped, they end when the connection
/// does.
pub struct ReadyWorkers(Vec<Starting>);

impl ReadyWorkers {
    /// Starts the threads, with everything they need to serve `session` until its connection ends.
    /// After an error, those already started end when the connection does.
    pub fn prepare<F: Serve>(
        descriptor: OwnedFd,
        session: &Arc<Session<F>>,
        options: &MountOptions,
    ) -> Result<Self, MountError> {
        let allowed = allowed_cpus().map_err(MountError::workers)?;
        let count = if options.workers == 0 { allowed.len() } else { options.workers };
        let cpus: Vec<usize> = allowed.into_iter().cycle().take(count).collect();
        let over_io_uring = session.negotiated().has(init::OVER_IO_URING);
        let mut shares = match over_io_uring {
            true => uring::of_this_machine(&cpus, session.negotiated().transfer_bytes_max)
                .map_err(MountError::rings)?,
            false => vec![Vec::new(); count],
        };
        let first = Connection::new(descriptor).map_err(MountError::workers)?;
        let clones = (1..count).map(|_| first.another());
        let connections = clones.collect::<io::Result<Vec<_>>>().map_err(MountError::workers)?;
        let halt = Halt::default();
        let mut threads = Vec::with_capacity(count);
        let ends = std::iter::once(first).chain(connections).zip(Watch::of_workers());
        for (index, (connection, watch)) in ends.enumerate() {
            let way = match over_io_uring {
                true => Way::Uring { shares: std::mem::take(&mut shares[index]), reads_device: index == 0 },
                false => Way::Classic { watch },
            };
            let cpu = options.pin_workers.then_some(cpus[index]);
            let seat = Seat { connection, session: session.clone(), cpu, way, halt: halt.clone() };
            threads.push(Starting::new(index, seat)?);
        }
        Ok(Self(threads))
    }

    /// Makes them start serving.
    pub fn go(self) -> Workers {
        Workers(self.0.into_iter().map(Starting::go).collect())
    }
}

impl Workers {
    /// Waits for the end of the connection; returns the first failure.
    pub fn join(self) -> Result<(), MountError> {
        let mut outcome = Ok(());
        for thread in self.0 {
            let ended = thread.join().unwrap_or_else(|_| {
                Err(MountError::Connection {
                    source: Arc::new(io::Error::other("a thread that serves requests panicked")),
                })
            });
            outcome = outcome.and(ended);
        }
        outcome
    }
}

/// Where a thread gets its requests.
enum Way {
    /// From /dev/fuse.
    Classic { watch: Watch },
    /// From its queues; one thread reads /dev/fuse as well.
    Uring { shares: Vec<Share>, reads_device: bool },
}

/// Everything that one thread is given.
struct Seat<F> {
    connection: Connection,
    session: Arc<Session<F>>,
    cpu: Option<usize>,
    way: Way,
    halt: Halt,
}

/// A thread that is ready and waits until all are.
struct Starting {
    thread: JoinHandle<Result<(), MountError>>,
    go: mpsc::Sender<()>,
}

impl Starting {
    /// Starts one thread, and waits until it is ready to serve.
    fn new(index: usize, seat: Seat<impl Serve>) -> Result<Self, MountError> {
        let (ready, started) = mpsc::channel();
        let (go, gone) = mpsc::channel();
        let name = format!("syncline-fuse-{index}");
        let thread = thread::Builder::new().name(name).spawn(move || seat.serve(&ready, &gone));
        let thread = thread.map_err(MountError::workers)?;
        let silent = || Err(MountError::workers(io::Error::other("the thread ended before it began")));
        started.recv().unwrap_or_else(|_| silent())?;
        Ok(Self { thread, go })
    }

    fn go(self) -> JoinHandle<Result<(), MountError>> {
        // If the thread has died meanwhile, the join reports it.
        let _ = self.go.send(());
        self.thread
    }
}

impl<F: Serve> Seat<F> {
    /// The thread's whole life: it reports whether it is `ready`, waits for `go`, and serves.
    fn serve(
        self,
        ready: &mpsc::Sender<Result<(), MountError>>,
        go: &mpsc::Receiver<()>,
    ) -> Result<(), MountError> {
        let Self { connection, session, cpu, way, halt } = self;
        let failed = |error: MountError| {
            // The starting thread waits for this message, so sending can't fail.
            let _ = ready.send(Err(error.clone()));
            Err(error)
        };
        let (worker, cpu) = match prepare(cpu) {
            Ok(prepared) => prepared,
            Err(error) => return failed(MountError::workers(error)),
        };
        let (shares, reads_device) = match way {
            Way::Uring { shares, reads_device } => (shares, reads_device),
            Way::Classic { watch } => {
                let _ = ready.send(Ok(()));
                return go.recv().map_or(Ok(()), |()| worker.run(classic::serve(connection, session, watch)));
            }
        };
        let queues = match worker.run(Queues::register(connection, session, &shares, cpu)) {
            Ok(queues) => queues,
            Err(error) => return failed(MountError::rings(error)),
        };
        let _ = ready.send(Ok(()));
        if go.recv().is_err() {
            // Another thread failed: the mount is being removed, and the entries that the kernel
            // holds end with it.
            return worker.run(queues.end_unserved());
        }
        let guard = halt.on_failure();
        let served = worker.run(queues.serve(reads_device, &halt));
        match &served {
            Ok(()) => guard.disarm(),
            Err(error) => tracing::error!(%error, "the mount ends"),
        }
        served
    }
}

/// A worker on this thread, and the CPU that the thread is bound to.
fn prepare(cpu: Option<usize>) -> io::Result<(Worker, Option<usize>)> {
    let bound = cpu.filter(|&cpu| match pin_to_cpu(cpu) {
        Ok(()) => true,
        Err(error) => {
            // If this CPU was taken from us since we asked, that costs only speed.
            tracing::warn!(cpu, %error, "a thread could not be bound to its CPU");
            false
        }
    });
    Ok((Worker::new(WorkerOptions::default())?, bound))
}
