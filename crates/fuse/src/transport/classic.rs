//! The way over /dev/fuse: read a request, write its answer.

use super::carry::{Load, carry_out};
use super::connection::Connection;
use super::receive::{Received, Receiver};
use crate::error::MountError;
use crate::serve::Serve;
use crate::session::Session;
use std::rc::Rc;
use std::sync::Arc;
use syncline_device::Worker;

/// Requests received after one wait. More would keep tasks that could answer waiting.
const REQUESTS_PER_WAIT: usize = 8;

/// Workers that every request wakes. That is what makes two CPUs fast: the worker of the CPU on which the caller has just gone to sleep
/// runs first, and a worker whose CPU is busy with something else is in nobody's way. Of many it would be a crowd that finds nothing.
const ALWAYS_WOKEN: usize = 2;

/// Which requests wake a worker that waits for one.
#[derive(Clone, Copy)]
pub enum Watch {
    /// All of them.
    Always,
    /// Each wakes one of these.
    InTurn,
}

impl Watch {
    /// What is right for the worker of this number.
    pub fn of_worker(index: usize) -> Self {
        if index < ALWAYS_WOKEN { Self::Always } else { Self::InTurn }
    }
}

/// Serves one end of the connection on the current worker until the connection ends and every request was answered.
pub async fn serve<F: Serve>(
    connection: Connection,
    session: Arc<Session<F>>,
    watch: Watch,
) -> Result<(), MountError> {
    let connection = Rc::new(connection);
    let load = Rc::<Load>::default();
    let outcome = receive_all(&connection, &session, &load, watch).await;
    // What was begun is brought to its end, also when nobody waits for the answer any more.
    load.idle().await;
    outcome
}

/// Receives requests and carries them out until the connection ends.
pub async fn receive_all<F: Serve>(
    connection: &Rc<Connection>,
    session: &Arc<Session<F>>,
    load: &Rc<Load>,
    watch: Watch,
) -> Result<(), MountError> {
    let mut receiver = Receiver::new(session.negotiated().transfer_bytes_max);
    loop {
        load.room().await;
        let readable = match watch {
            Watch::Always => Worker::current().readable(connection.descriptor()),
            Watch::InTurn => Worker::current().readable_in_turn(connection.descriptor()),
        };
        readable.await.map_err(MountError::connection)?;
        for _ in 0..REQUESTS_PER_WAIT {
            match receiver.receive(connection).map_err(MountError::connection)? {
                Received::Request(request) => {
                    let connection = connection.clone();
                    carry_out(session, load, request, move |unique, reply| connection.answer(unique, &reply));
                }
                Received::Nothing => break,
                Received::Garbage => tracing::error!("the kernel sent something that is no request"),
                Received::Ended => {
                    session.end();
                    return Ok(());
                }
            }
        }
    }
}
