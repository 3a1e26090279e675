//! The connections that are in use together. When one of them breaks, all end: the server may have
//! been restarted, and then it has forgotten the others too.

use super::channel::{Channel, Incoming};
use super::handshake::Export;
use super::outgoing::Outgoing;
use super::shared::Shared;
use super::{own_thread, receiver};
use parking_lot::Mutex;
use std::io::{self, BufReader};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

/// Bytes read ahead of the next reply: enough for a few replies, but little of a read's data, which is
/// to go straight to its buffer.
pub(super) const AHEAD_BYTES: usize = 512;

/// A connection that is ready for requests, and that nobody uses yet.
pub(super) struct Fresh {
    pub(super) channel: Arc<Channel>,
    pub(super) input: BufReader<Incoming>,
}

impl Fresh {
    pub(super) fn new(channel: Channel) -> Self {
        let channel = Arc::new(channel);
        Self { input: BufReader::with_capacity(AHEAD_BYTES, Incoming(channel.clone())), channel }
    }
}

/// The connections of one time.
pub(super) struct Link {
    pub(super) epoch: u64,
    pub(super) export: Export,
    pub(super) connections: Vec<Connection>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    began: Instant,
    /// When something was received last, in nanoseconds after `began`.
    heard: AtomicU64,
    /// The reason of the break; set before the device hears of it.
    pub(super) broke: Mutex<Option<io::Error>>,
}

pub(super) struct Connection {
    pub(super) channel: Arc<Channel>,
    pub(super) outgoing: Outgoing,
}

impl Link {
    pub(super) fn start(
        epoch: u64,
        export: Export,
        fresh: Vec<Fresh>,
        shared: &Arc<Shared>,
    ) -> io::Result<Arc<Self>> {
        let (connections, inputs): (Vec<_>, Vec<_>) = fresh
            .into_iter()
            .map(|Fresh { channel, input }| {
                channel.set_deadline(None);
                (Connection { channel, outgoing: Outgoing::default() }, input)
            })
            .unzip();
        let link = Arc::new(Self {
            epoch,
            export,
            connections,
            threads: Mutex::default(),
            began: Instant::now(),
            heard: AtomicU64::new(0),
            broke: Mutex::default(),
        });
        for (index, input) in inputs.into_iter().enumerate() {
            if let Err(error) = link.start_threads(index, input, shared) {
                link.end();
                return Err(error);
            }
        }
        Ok(link)
    }

    fn start_threads(
        self: &Arc<Self>,
        index: usize,
        input: BufReader<Incoming>,
        shared: &Arc<Shared>,
    ) -> io::Result<()> {
        let (link, to) = (self.clone(), shared.clone());
        let receive = move || {
            own_thread::enter();
            let why = receiver::serve(&to, &link, index, input);
            to.link_broke(&link, why);
        };
        self.threads.lock().push(Builder::new().name("syncline-nbd-in".into()).spawn(receive)?);
        let (link, to) = (self.clone(), shared.clone());
        let send = move || {
            own_thread::enter();
            let connection = &link.connections[index];
            if let Err(why) = connection.outgoing.serve(&connection.channel, &to.guard) {
                to.not_sent(&link, why);
            }
        };
        self.threads.lock().push(Builder::new().name("syncline-nbd-out".into()).spawn(send)?);
        Ok(())
    }

    /// Notes that the server has given an answer that makes sense.
    pub(super) fn hear(&self) {
        self.heard.store(self.began.elapsed().as_nanos() as u64, Ordering::Relaxed);
    }

    /// True if it has answered anything.
    pub(super) fn was_heard(&self) -> bool {
        self.heard.load(Ordering::Relaxed) > 0
    }

    /// When something was received last.
    pub(super) fn heard(&self) -> Instant {
        self.began + Duration::from_nanos(self.heard.load(Ordering::Relaxed))
    }

    /// Ends all connections, with everything that this host has not sent yet. Does not wait.
    pub(super) fn abort(&self) {
        for connection in &self.connections {
            connection.outgoing.close();
            connection.channel.abort();
        }
    }

    /// Ends all connections and waits for their threads: from here on nothing of it is sent or
    /// received any more. Not for its own threads.
    pub(super) fn end(&self) {
        for connection in &self.connections {
            connection.channel.shut_down();
            connection.outgoing.close();
        }
        let threads = std::mem::take(&mut *self.threads.lock());
        for thread in threads {
            if thread.join().is_err() {
                tracing::error!("a thread of an NBD connection panicked");
            }
        }
    }
}
