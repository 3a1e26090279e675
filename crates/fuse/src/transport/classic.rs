//! The transport over /dev/fuse: read a request, write its answer.

use super::carry::{Load, carry_out};
use super::connection::Connection;
use super::receive::{Received, Receiver};
use super::watch::Watch;
use crate::error::MountError;
use crate::serve::Serve;
use crate::session::Session;
use std::rc::Rc;
use std::sync::Arc;

/// The most requests received after one wait. More would delay tasks that are ready to answer.
const REQUESTS_PER_WAIT: usize = 8;

/// Serves one end of the connection on the current worker until the connection ends and every
/// request has been answered.
pub async fn serve<F: Serve>(
    connection: Connection,
    session: Arc<Session<F>>,
    watch: Watch,
) -> Result<(), MountError> {
    let connection = Rc::new(connection);
    let load = Rc::<Load>::default();
    let outcome = receive_all(&connection, &session, &load, &watch).await;
    // Requests that have begun run to their end, even if nobody waits for the answer any more.
    load.idle().await;
    outcome
}

/// Receives requests and carries them out until the connection ends.
pub async fn receive_all<F: Serve>(
    connection: &Rc<Connection>,
    session: &Arc<Session<F>>,
    load: &Rc<Load>,
    watch: &Watch,
) -> Result<(), MountError> {
    let mut receiver = Receiver::new(session.negotiated().transfer_bytes_max);
    loop {
        if !load.has_room() {
            watch.pass_on();
            load.room().await;
        }
        watch.readable(connection.descriptor()).await.map_err(MountError::connection)?;
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
