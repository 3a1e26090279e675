//! The daemon's end of `receive` into a mount: a thread receives the stream from the control
//! channel.

use crate::failure::Failure;
use rustix::io::Errno;
use serde_json::{Value, json};
use std::io::{self, Read};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{self, RecvTimeoutError, SyncSender, TrySendError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Duration;
use syncline_device::{BLOCK_BYTES, block_on};
use syncline_fs::Filesystem;
use syncline_fuse::control::{Control, Receiver};
use syncline_stream::{Options, piece_bytes, receive_with};

const EINVAL: i32 = Errno::INVAL.raw_os_error();
const EBUSY: i32 = Errno::BUSY.raw_os_error();
const EAGAIN: i32 = Errno::AGAIN.raw_os_error();
const ESTALE: i32 = Errno::STALE.raw_os_error();
const EPIPE: i32 = Errno::PIPE.raw_os_error();
const ESHUTDOWN: i32 = Errno::SHUTDOWN.raw_os_error();

/// Parts of a stream that may wait: a megabyte.
const PARTS_MAX: usize = 64;
/// A sender that says nothing for so long is gone. It says something every two seconds.
const SILENCE_MAX: Duration = Duration::from_secs(20);

/// The streams that come into a mounted filesystem, one at a time.
pub struct Transfers {
    fs: Weak<Filesystem>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    last: u64,
    current: Option<Transfer>,
    /// The filesystem is being unmounted.
    is_closed: bool,
}

struct Transfer {
    number: u64,
    /// Gone once the stream has ended.
    parts: Option<SyncSender<Vec<u8>>>,
    thread: Option<JoinHandle<()>>,
    /// How it went, in the end.
    outcome: Arc<Mutex<Option<String>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Transfers {
    /// Makes the daemon take streams.
    pub fn register(control: &Control, fs: &Arc<Filesystem>) -> Arc<Self> {
        let transfers = Arc::new(Self { fs: Arc::downgrade(fs), state: Mutex::default() });
        control.register_receiver(transfers.clone());
        transfers
    }

    /// Ends a stream that is under way as if it were cut off, and takes no more.
    pub fn close(&self) {
        let current = {
            let mut state = lock(&self.state);
            state.is_closed = true;
            state.current.take()
        };
        if let Some(Transfer { parts, thread: Some(thread), .. }) = current {
            drop(parts);
            let _ = thread.join();
        }
    }
}

impl Receiver for Transfers {
    fn begin(&self, request: &str) -> Result<u64, i32> {
        let request: Value = serde_json::from_str(request).map_err(|_| EINVAL)?;
        let mut state = lock(&self.state);
        let is_busy = state.current.as_ref().is_some_and(|current| lock(&current.outcome).is_none());
        if is_busy || state.is_closed {
            return Err(EBUSY);
        }
        let (parts, input) = mpsc::sync_channel(PARTS_MAX);
        let outcome = Arc::<Mutex<Option<String>>>::default();
        let (fs, told) = (self.fs.upgrade().ok_or(ESHUTDOWN)?, outcome.clone());
        let run = move || {
            let input = Input { parts: input, part: Vec::new(), at: 0 };
            let text = catch_unwind(AssertUnwindSafe(|| receive(&fs, &request, input)));
            // The filesystem is closed by others once this thread has ended.
            drop(fs);
            *lock(&told) = Some(text.unwrap_or_else(|_| failure(&Failure::new("the receiver panicked"))));
        };
        let thread = std::thread::Builder::new().name("receive".to_owned()).spawn(run);
        let thread = thread.map_err(|error| error.raw_os_error().unwrap_or(EAGAIN))?;
        state.last += 1;
        let number = state.last;
        state.current = Some(Transfer { number, parts: Some(parts), thread: Some(thread), outcome });
        Ok(number)
    }

    fn take(&self, transfer: u64, bytes: &[u8]) -> Result<(), i32> {
        let state = lock(&self.state);
        let current = state.current.as_ref().filter(|current| current.number == transfer);
        let parts = current.ok_or(ESTALE)?.parts.as_ref().ok_or(EPIPE)?;
        parts.try_send(bytes.to_vec()).map_err(|error| match error {
            TrySendError::Full(_) => EAGAIN,
            TrySendError::Disconnected(_) => EPIPE,
        })
    }

    fn end(&self, transfer: u64) -> Result<String, i32> {
        let mut state = lock(&self.state);
        let current = state.current.as_mut().filter(|current| current.number == transfer);
        let current = current.ok_or(ESTALE)?;
        current.parts = None;
        let text = lock(&current.outcome).clone();
        text.ok_or(EAGAIN)
    }
}

/// Receives a stream, and tells how it went, in JSON.
fn receive(fs: &Arc<Filesystem>, request: &Value, input: Input) -> String {
    let image_bytes = fs.store().geometry().total_blocks * BLOCK_BYTES as u64;
    let keeps = request["resume"].as_bool() == Some(true);
    let options = Options {
        name: request["name"].as_str(),
        piece_bytes: keeps.then(|| piece_bytes(image_bytes)),
        is_shared: true,
    };
    match block_on(receive_with(fs, input, options)) {
        Ok(received) => json!({ "snapshot": received.snapshot.name }).to_string(),
        Err(cut) => {
            let why = Failure::from(cut);
            tracing::warn!("a stream was not received: {why}");
            failure(&why)
        }
    }
}

fn failure(failure: &Failure) -> String {
    json!({ "failure": failure.to_string(), "code": failure.code() }).to_string()
}

/// The stream, put together from its parts.
struct Input {
    parts: mpsc::Receiver<Vec<u8>>,
    part: Vec<u8>,
    at: usize,
}

impl Read for Input {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        while self.at == self.part.len() {
            self.part = match self.parts.recv_timeout(SILENCE_MAX) {
                Ok(part) => part,
                Err(RecvTimeoutError::Disconnected | RecvTimeoutError::Timeout) => return Ok(0),
            };
            self.at = 0;
        }
        let mut rest = &self.part[self.at..];
        let read = rest.read(room)?;
        self.at += read;
        Ok(read)
    }
}
