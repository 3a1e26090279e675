//! An NBD server for the laboratory: it keeps apart what no flush covered, and does everything
//! that a server may do to a client, and some of what it may not.

mod connection;
mod store;

pub use store::{BLOCK, Store};

use rand::SeedableRng;
use rand::rngs::StdRng;
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use syncline_net::{NbdAddress, NbdLocation, Wait};

pub const FLUSH: u16 = 1 << 2;
pub const FUA: u16 = 1 << 3;
pub const TRIM: u16 = 1 << 5;
pub const WRITE_ZEROES: u16 = 1 << 6;
pub const MULTI_CONN: u16 = 1 << 8;
pub const READ_ONLY: u16 = 1 << 1;
pub const FAST_ZERO: u16 = 1 << 11;

/// The numbers of the requests.
pub mod command {
    pub const READ: u16 = 0;
    pub const WRITE: u16 = 1;
    pub const DISC: u16 = 2;
    pub const FLUSH: u16 = 3;
    pub const TRIM: u16 = 4;
    pub const WRITE_ZEROES: u16 = 6;
}

/// What the server says of its export.
#[derive(Clone, Copy, Debug)]
pub struct Spec {
    pub size: u64,
    pub flags: u16,
    /// Smallest, preferred and largest.
    pub blocks: Option<(u32, u32, u32)>,
    pub structured: bool,
}

impl Default for Spec {
    fn default() -> Self {
        let flags = FLUSH | FUA | TRIM | WRITE_ZEROES | MULTI_CONN;
        Self { size: 1 << 20, flags, blocks: Some((512, 4096, 16 << 10)), structured: true }
    }
}

/// How the server breaks the protocol.
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
}

/// What the server does next.
#[derive(Default)]
pub struct Faults {
    /// Connections are closed at once.
    pub away: bool,
    /// Requests are taken and not answered.
    pub stalled: bool,
    /// The same for this kind only.
    pub stalled_command: Option<u16>,
    /// Requests of this kind are carried out, and answered when this is taken back.
    pub held_answer: Option<u16>,
    /// Time between carrying out a flush and answering it.
    pub flush_delay: Duration,
    /// Bytes until the connection that is used is cut, as the server sends or receives.
    pub cut_sending: Option<usize>,
    pub cut_receiving: Option<usize>,
    /// The next request of this kind gets this error.
    pub errors: Vec<(u16, u32)>,
    /// The next request of this kind, or each one, is answered like this.
    pub hostile: Option<(u16, Hostile)>,
    pub hostile_for_ever: bool,
    pub delay: Duration,
    /// Requests are carried out and answered out of order.
    pub reorder: bool,
    /// The handshake goes wrong in this way.
    pub handshake: Option<Handshake>,
}

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
}

pub struct Inner {
    pub store: Mutex<Store>,
    pub faults: Mutex<Faults>,
    pub spec: Mutex<Spec>,
    /// Kinds and flags of all requests.
    pub log: Mutex<Vec<(u16, u16)>>,
    connections: Mutex<Vec<UnixStream>>,
    stop: AtomicBool,
}

/// A server on a socket of its own. Dropping it ends it.
pub struct Lab {
    pub inner: Arc<Inner>,
    dir: tempfile::TempDir,
}

impl Lab {
    pub fn new(seed: u64, spec: Spec) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(dir.path().join("socket")).unwrap();
        let inner = Arc::new(Inner {
            store: Mutex::new(Store::new(StdRng::seed_from_u64(seed))),
            faults: Mutex::default(),
            spec: Mutex::new(spec),
            log: Mutex::default(),
            connections: Mutex::default(),
            stop: AtomicBool::new(false),
        });
        let serving = inner.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(stream) = stream else { break };
                if serving.stop.load(Ordering::SeqCst) {
                    break;
                }
                serving.accept(stream);
            }
        });
        Self { inner, dir }
    }

    pub fn location(&self, wait: Wait) -> NbdLocation {
        let address = NbdAddress::Unix(self.dir.path().join("socket"));
        NbdLocation { address, export: "disk".into(), tls: None, wait: Some(wait) }
    }

    pub fn faults<R>(&self, change: impl FnOnce(&mut Faults) -> R) -> R {
        change(&mut self.inner.faults.lock().unwrap())
    }

    pub fn store<R>(&self, look: impl FnOnce(&mut Store) -> R) -> R {
        look(&mut self.inner.store.lock().unwrap())
    }

    pub fn spec(&self, change: impl FnOnce(&mut Spec)) {
        change(&mut self.inner.spec.lock().unwrap());
    }

    /// The server ends, forgets what it may, and is started anew at once (unless it is away).
    pub fn crash(&self) {
        self.store(Store::crash);
        self.cut();
    }

    /// All connections break; the server goes on.
    pub fn cut(&self) {
        for stream in self.inner.connections.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// How many requests of a kind have come.
    pub fn count(&self, command: u16) -> usize {
        self.inner.log.lock().unwrap().iter().filter(|(kind, _)| *kind == command).count()
    }
}

impl Inner {
    fn accept(self: &Arc<Self>, stream: UnixStream) {
        if self.faults.lock().unwrap().away {
            return;
        }
        let incarnation = self.store.lock().unwrap().incarnation;
        self.connections.lock().unwrap().push(stream.try_clone().unwrap());
        let inner = self.clone();
        std::thread::spawn(move || {
            // An error is the end of the connection, as the client sees it too.
            let _ = connection::serve(&inner, &stream, incarnation);
            let _ = stream.shutdown(Shutdown::Both);
        });
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        self.inner.stop.store(true, Ordering::SeqCst);
        self.cut();
        // Wakes the thread that accepts.
        let _ = UnixStream::connect(self.dir.path().join("socket"));
    }
}
