//! An operation under way in librbd: its memory, and the call that librbd answers with.

use super::error::Errno;
use super::flights::{Failure, Flights};
use super::image::Image;
use super::library::{CompletionHandle, Libraries};
use bytes::Bytes;
use libc::{c_char, c_int, c_void, iovec};
use std::cell::Cell;
use std::panic::AssertUnwindSafe;
use std::ptr;
use std::sync::Arc;
use syncline_device::AlignedBuf;

thread_local! {
    /// Set while this thread answers an operation: then it is one of librbd's.
    static ANSWERING: Cell<bool> = const { Cell::new(false) };
}

/// True on a thread of librbd's, which must not wait for librbd.
pub(super) fn is_librbds_thread() -> bool {
    ANSWERING.get()
}

/// An operation under way. It owns its memory until librbd has called back, also if the operation
/// was answered before.
pub(super) struct Flight {
    flights: Arc<Flights>,
    libraries: &'static Libraries,
    number: u64,
    request: Request,
}

/// A request to librbd.
pub(super) enum Request {
    Read(AlignedBuf),
    Write(Vec<Bytes>),
    Discard(u64),
    Flush,
}

/// The arguments of a call: pointers into the memory of a flight, or none.
enum Call {
    Read(*mut c_char, usize),
    Write(*const c_char, usize),
    /// librbd reads the list during the call.
    WritePieces(Vec<iovec>),
    Discard(u64),
    Flush,
}

impl Flight {
    /// Hands an operation to librbd. Its answer goes to `flights`, under this number.
    pub(super) fn send(image: &Image, flights: &Arc<Flights>, number: u64, offset: u64, request: Request) {
        let libraries = image.pool.cluster.libraries;
        let mut flight = Box::new(Self { flights: flights.clone(), libraries, number, request });
        let call = flight.request.call();
        let mut completion = ptr::null_mut();
        let flight = Box::into_raw(flight);
        // SAFETY: librbd calls `answered` once with this pointer, if the operation is started
        // below.
        let created = unsafe {
            (libraries.rbd.rbd_aio_create_completion)(flight.cast::<c_void>(), answered, &raw mut completion)
        };
        let started = Errno::check(created.into()).and_then(|_| {
            // SAFETY: the flight lives until librbd has answered, and with it the memory that the
            // call points to.
            let returned = unsafe { start(image, offset, &call, completion) };
            Errno::check(returned.into()).inspect_err(|_| {
                // SAFETY: an operation that was not started is not answered, so its completion is
                // still ours.
                unsafe { (libraries.rbd.rbd_aio_release)(completion) }
            })
        });
        if let Err(errno) = started {
            // SAFETY: librbd does not know of the flight, or never will.
            let flight = unsafe { Box::from_raw(flight) };
            flight.flights.end(number, Err(Failure::Errno(errno)));
        }
    }

    fn finish(self, returned: i64) {
        let result = match (self.request, Errno::check(returned)) {
            (_, Err(errno)) => Err(Failure::Errno(errno)),
            // Bytes that were not read are never handed out.
            (Request::Read(buf), Ok(read)) if read != buf.len() as u64 => Err(Failure::Short),
            (Request::Read(buf), Ok(_)) => Ok(Some(buf)),
            (_, Ok(_)) => Ok(None),
        };
        self.flights.end(self.number, result);
    }
}

impl Request {
    /// The pointers stay right when the request moves: they lead to memory of its buffers.
    fn call(&mut self) -> Call {
        match self {
            Self::Read(buf) => Call::Read(buf.as_mut_ptr().cast(), buf.len()),
            Self::Write(bufs) => match &bufs[..] {
                [buf] => Call::Write(buf.as_ptr().cast(), buf.len()),
                bufs => {
                    let piece =
                        |buf: &Bytes| iovec { iov_base: buf.as_ptr().cast_mut().cast(), iov_len: buf.len() };
                    Call::WritePieces(bufs.iter().filter(|buf| !buf.is_empty()).map(piece).collect())
                }
            },
            Self::Discard(len_bytes) => Call::Discard(*len_bytes),
            Self::Flush => Call::Flush,
        }
    }
}

/// Calls librbd, which may answer before this returns.
///
/// # Safety
///
/// The memory of the call is valid until librbd has answered. Nobody else uses that of a read, and
/// nobody changes that of a write (rule R7).
unsafe fn start(image: &Image, offset: u64, call: &Call, completion: CompletionHandle) -> c_int {
    let (rbd, handle) = (&image.pool.cluster.libraries.rbd, image.handle);
    match call {
        // SAFETY: the image is open; the memory is as the caller promises.
        Call::Read(start, len) => unsafe { (rbd.rbd_aio_read)(handle, offset, *len, *start, completion) },
        // SAFETY: as above.
        Call::Write(start, len) => unsafe { (rbd.rbd_aio_write)(handle, offset, *len, *start, completion) },
        Call::WritePieces(pieces) => {
            let Ok(count) = c_int::try_from(pieces.len()) else { return -libc::EINVAL };
            // SAFETY: as above.
            unsafe { (rbd.rbd_aio_writev)(handle, pieces.as_ptr(), count, offset, completion) }
        }
        // SAFETY: the image is open; no memory is passed.
        Call::Discard(len_bytes) => unsafe { (rbd.rbd_aio_discard)(handle, offset, *len_bytes, completion) },
        // SAFETY: as above.
        Call::Flush => unsafe { (rbd.rbd_aio_flush)(handle, completion) },
    }
}

/// Called by librbd when an operation has ended, on one of its threads. A panic must not leave it.
unsafe extern "C" fn answered(completion: CompletionHandle, flight: *mut c_void) {
    // SAFETY: this is the pointer that `send` gave away, and librbd calls once.
    let flight = unsafe { Box::from_raw(flight.cast::<Flight>()) };
    let rbd = &flight.libraries.rbd;
    // SAFETY: the completion is valid until it is released, which happens here and once.
    let returned = unsafe { (rbd.rbd_aio_get_return_value)(completion) };
    // SAFETY: as above.
    unsafe { (rbd.rbd_aio_release)(completion) };
    ANSWERING.set(true);
    let finished = std::panic::catch_unwind(AssertUnwindSafe(|| flight.finish(returned as i64)));
    ANSWERING.set(false);
    if finished.is_err() {
        tracing::error!("the answer to an operation of librbd's panicked");
    }
}
