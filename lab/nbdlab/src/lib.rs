//! An NBD server for tests. It keeps apart the writes that no flush has covered. It does everything that a
//! server may do to a client, and some things that a server may not do.
//!
//! A [`Lab`] serves one export on a Unix socket of its own, or on TCP. [`Lab::crash`] ends the server and
//! starts it again: the server has forgotten any part of the writes that no flush covered, in any order and
//! torn at sectors (docs/DURABILITY.md, "The device"). [`Lab::end_clients`] is the death of the clients'
//! host.
#![forbid(unsafe_code)]

mod connection;
mod forget;
mod pace;
mod socket;
mod store;

pub use pace::Pace;
pub use store::{BLOCK, Store};

use rand::SeedableRng;
use rand::rngs::StdRng;
use socket::{Listener, Socket};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use syncline_net::{NbdLocation, Wait};

/// It has flushes.
pub const FLUSH: u16 = 1 << 2;
/// It can make a single write durable.
pub const FUA: u16 = 1 << 3;
/// It has discards.
pub const TRIM: u16 = 1 << 5;
/// It writes zeros by itself.
pub const WRITE_ZEROES: u16 = 1 << 6;
/// A flush covers the writes of all connections.
pub const MULTI_CONN: u16 = 1 << 8;
/// It refuses changes.
pub const READ_ONLY: u16 = 1 << 1;
/// It refuses zeros that would not be faster than a write.
pub const FAST_ZERO: u16 = 1 << 11;

/// The numbers of the requests.
pub mod command {
    #![allow(missing_docs)]
    pub const READ: u16 = 0;
    pub const WRITE: u16 = 1;
    pub const DISC: u16 = 2;
    pub const FLUSH: u16 = 3;
    pub const TRIM: u16 = 4;
    pub const WRITE_ZEROES: u16 = 6;
}

/// The export, as the server describes it.
#[derive(Clone, Copy, Debug)]
pub struct Spec {
    /// Bytes.
    pub size: u64,
    /// Offered commands: [`FLUSH`] and the others.
    pub flags: u16,
    /// Smallest, preferred and largest.
    pub blocks: Option<(u32, u32, u32)>,
    /// It answers in parts where the client can take that.
    pub structured: bool,
}

impl Default for Spec {
    fn default() -> Self {
        let flags = FLUSH | FUA | TRIM | WRITE_ZEROES | MULTI_CONN;
        Self { size: 1 << 20, flags, blocks: Some((512, 4096, 16 << 10)), structured: true }
    }
}

/// How the server breaks the protocol.
#[allow(missing_docs)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hostile {
    Magic,
    UnknownCookie,
    HugeChunk,
    HugeError,
    Overlap,
    Missing,
    Outside,
    DataForWrite,
    SimpleForStructured,
    Twice,
    OtherConnection,
    UnknownChunk,
    EmptyChunk,
    Crumbs,
}

/// Faults of the server, from now on.
#[derive(Default)]
pub struct Faults {
    /// Connections are closed at once.
    pub away: bool,
    /// Connections are closed at once until this time.
    pub away_until: Option<Instant>,
    /// The server crashes, as by [`Lab::crash`], instead of carrying out a request. This number of requests
    /// is carried out before.
    pub crash_after: Option<u64>,
    /// The server crashes instead of carrying out the next request of this kind that comes while something
    /// is not durable. If the request is a flush, nothing that it was to cover is durable yet.
    pub crash_before: Option<u16>,
    /// How long the server is away after a crash by `crash_after` or `crash_before`.
    pub away_after_crash: Duration,
    /// Requests are taken and not answered.
    pub stalled: bool,
    /// Requests of this kind are taken and not answered.
    pub stalled_command: Option<u16>,
    /// Requests of this kind are carried out, and answered when this is taken back.
    pub held_answer: Option<u16>,
    /// Time between carrying out a flush and answering it.
    pub flush_delay: Duration,
    /// Bytes until the connection that is used is cut, as the server sends or receives.
    pub cut_sending: Option<usize>,
    /// See `cut_sending`.
    pub cut_receiving: Option<usize>,
    /// The next request of this kind gets this error.
    pub errors: Vec<(u16, u32)>,
    /// The next request of this kind, or each one, is answered like this.
    pub hostile: Option<(u16, Hostile)>,
    /// `hostile` holds for each request, rather than for the next one.
    pub hostile_for_ever: bool,
    /// Time between receiving a request and carrying it out.
    pub delay: Duration,
    /// Requests are carried out and answered out of order.
    pub reorder: bool,
    /// The handshake goes wrong in this way.
    pub handshake: Option<Handshake>,
}

/// A fault in the handshake.
#[allow(missing_docs)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Handshake {
    NotNbd,
    OldStyle,
    HugeReply,
    WrongOption,
    NoSize,
    Endless,
    Silent,
    UnknownExport,
    TlsRequired,
    CutShort,
}

/// State that the server's threads share.
pub struct Inner {
    /// The export's contents.
    pub store: Mutex<Store>,
    /// Faults from now on.
    pub faults: Mutex<Faults>,
    /// The export's description.
    pub spec: Mutex<Spec>,
    /// Kinds and flags of all requests.
    pub log: Mutex<Vec<(u16, u16)>>,
    connections: Mutex<Vec<Arc<Socket>>>,
    /// How many hosts of clients have died: it is a part of the export's name, so that a dead one
    /// does not come back.
    deaths: AtomicU64,
    stop: AtomicBool,
}

/// A server on a socket of its own. Dropping it ends it.
pub struct Lab {
    /// For threads that look at it while others work.
    pub inner: Arc<Inner>,
    listener: Arc<Listener>,
}

impl Lab {
    /// Starts a server whose export is all zeros. The seed decides which writes the server forgets, and in
    /// which order it does things.
    pub fn new(seed: u64, spec: Spec) -> Self {
        Self::with(Listener::unix().unwrap(), seed, spec)
    }

    /// The same, for clients that come over TCP.
    pub fn on(address: SocketAddr, seed: u64, spec: Spec) -> Self {
        Self::with(Listener::tcp(address).unwrap(), seed, spec)
    }

    fn with(listener: Listener, seed: u64, spec: Spec) -> Self {
        let inner = Arc::new(Inner {
            store: Mutex::new(Store::new(StdRng::seed_from_u64(seed))),
            faults: Mutex::default(),
            spec: Mutex::new(spec),
            log: Mutex::default(),
            connections: Mutex::default(),
            deaths: AtomicU64::new(0),
            stop: AtomicBool::new(false),
        });
        let listener = Arc::new(listener);
        let (serving, accepting) = (inner.clone(), listener.clone());
        std::thread::spawn(move || {
            while let Ok(socket) = accepting.accept() {
                if serving.stop.load(Ordering::SeqCst) {
                    break;
                }
                serving.accept(socket);
            }
        });
        Self { inner, listener }
    }

    /// The export, for clients that live now.
    pub fn location(&self, wait: Wait) -> NbdLocation {
        let address = self.listener.address();
        NbdLocation { address, export: self.inner.export(), tls: None, wait: Some(wait) }
    }

    /// Looks at the faults from now on, or changes them.
    pub fn faults<R>(&self, change: impl FnOnce(&mut Faults) -> R) -> R {
        change(&mut self.inner.faults.lock().unwrap())
    }

    /// Looks at the contents of the export.
    pub fn store<R>(&self, look: impl FnOnce(&mut Store) -> R) -> R {
        look(&mut self.inner.store.lock().unwrap())
    }

    /// Changes the export for connections to come.
    pub fn spec(&self, change: impl FnOnce(&mut Spec)) {
        change(&mut self.inner.spec.lock().unwrap());
    }

    /// The server ends, forgets the writes that it may forget, and is restarted at once (unless it is
    /// away).
    pub fn crash(&self) {
        self.store(Store::crash);
        self.cut();
    }

    /// All connections break; the server goes on.
    pub fn cut(&self) {
        self.inner.cut();
    }

    /// The host of all present clients dies; the server goes on. It carries out a request that it had
    /// received, or does not, but nothing later than this call. A client that asks for an earlier
    /// [`location`] again finds an export that has shrunk to nothing, and gives up.
    ///
    /// [`location`]: Self::location
    pub fn end_clients(&self) {
        self.store(|store| {
            self.inner.deaths.fetch_add(1, Ordering::SeqCst);
            store.disconnect();
        });
        self.cut();
    }

    /// How many requests of a kind have come.
    pub fn count(&self, command: u16) -> usize {
        self.inner.log.lock().unwrap().iter().filter(|(kind, _)| *kind == command).count()
    }
}

impl Inner {
    fn export(&self) -> String {
        match self.deaths.load(Ordering::SeqCst) {
            0 => "disk".into(),
            deaths => format!("disk-{deaths}"),
        }
    }

    fn cut(&self) {
        self.connections.lock().unwrap().drain(..).for_each(|socket| socket.end());
    }

    /// Counts a request of this kind, and crashes if it is the one to crash at.
    fn crashes_now(&self, command: u16) -> bool {
        // Never the store behind the faults: others lock them the other way round.
        let is_at = || self.faults.lock().unwrap().crash_before == Some(command);
        let forgets = is_at() && self.store.lock().unwrap().dirty_blocks() > 0;
        let mut faults = self.faults.lock().unwrap();
        if forgets && faults.crash_before == Some(command) {
            faults.crash_before = None;
        } else {
            match &mut faults.crash_after {
                None => return false,
                Some(0) => faults.crash_after = None,
                Some(left) => {
                    *left -= 1;
                    return false;
                }
            }
        }
        if !faults.away_after_crash.is_zero() {
            faults.away_until = Some(Instant::now() + faults.away_after_crash);
        }
        drop(faults);
        self.store.lock().unwrap().crash();
        self.cut();
        true
    }

    fn accept(self: &Arc<Self>, socket: Socket) {
        let faults = self.faults.lock().unwrap();
        if faults.away || faults.away_until.is_some_and(|until| Instant::now() < until) {
            return;
        }
        drop(faults);
        let incarnation = self.store.lock().unwrap().incarnation;
        let socket = Arc::new(socket);
        self.connections.lock().unwrap().push(socket.clone());
        let inner = self.clone();
        std::thread::spawn(move || {
            // An error is the end of the connection, as the client sees it too.
            let _ = connection::serve(&inner, &socket, incarnation);
            socket.end();
        });
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        self.inner.stop.store(true, Ordering::SeqCst);
        self.cut();
        // Wakes the thread that accepts.
        socket::wake(&self.listener.address());
    }
}
