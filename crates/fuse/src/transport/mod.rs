//! How requests come and answers go. What is common to every way: the handshake, the threads, and how a request is
//! carried out; [`classic`] is the way over /dev/fuse.

mod carry;
mod classic;
mod connection;
mod receive;

use crate::error::MountError;
use crate::options::MountOptions;
use crate::session::Session;
use connection::Connection;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use syncline_device::{Worker, WorkerOptions, allowed_cpus, pin_to_cpu};

pub use connection::handshake;

/// The threads that serve a mount.
pub struct Workers(Vec<JoinHandle<Result<(), MountError>>>);

impl Workers {
    /// Starts the threads; they serve `session` until its connection ends.
    pub fn start(
        descriptor: OwnedFd,
        session: &Arc<Session>,
        options: &MountOptions,
    ) -> Result<Self, MountError> {
        let cpus = allowed_cpus().map_err(MountError::workers)?;
        let count = if options.workers == 0 { cpus.len() } else { options.workers };
        let first = Connection::new(descriptor).map_err(MountError::workers)?;
        let clones = (1..count).map(|_| first.another());
        let connections = clones.collect::<io::Result<Vec<_>>>().map_err(MountError::workers)?;
        let mut threads = Vec::with_capacity(count);
        for (index, connection) in std::iter::once(first).chain(connections).enumerate() {
            let cpu = options.pin_workers.then(|| cpus[index % cpus.len()]);
            threads.push(start_one(index, connection, session.clone(), cpu)?);
        }
        Ok(Self(threads))
    }

    /// Waits for the end of the connection; the first failure counts.
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

/// Starts one thread, and waits until it is ready to serve.
fn start_one(
    index: usize,
    connection: Connection,
    session: Arc<Session>,
    cpu: Option<usize>,
) -> Result<JoinHandle<Result<(), MountError>>, MountError> {
    let (ready, started) = mpsc::channel();
    let serve = move || {
        let worker = match prepare(cpu) {
            Ok(worker) => worker,
            Err(error) => {
                let error = MountError::workers(error);
                // The starting thread waits for this very message.
                let _ = ready.send(Err(error.clone()));
                return Err(error);
            }
        };
        let _ = ready.send(Ok(()));
        worker.run(classic::serve(connection, session))
    };
    let name = format!("syncline-fuse-{index}");
    let thread = thread::Builder::new().name(name).spawn(serve).map_err(MountError::workers)?;
    let silent = || Err(MountError::workers(io::Error::other("the thread ended before it began")));
    started.recv().unwrap_or_else(|_| silent())?;
    Ok(thread)
}

fn prepare(cpu: Option<usize>) -> io::Result<Worker> {
    if let Some(cpu) = cpu {
        // A CPU that was taken from us since we asked costs speed, nothing else.
        if let Err(error) = pin_to_cpu(cpu) {
            tracing::warn!(cpu, %error, "a thread could not be bound to its CPU");
        }
    }
    Worker::new(WorkerOptions::default())
}
