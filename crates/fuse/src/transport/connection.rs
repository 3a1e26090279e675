//! A descriptor of /dev/fuse that belongs to a mount.

use crate::abi::{
    IN_HEADER_BYTES, INIT_IN_SHORT_BYTES, InHeader, InitIn, InitOut, OUT_HEADER_BYTES, Opcode, OutHeader,
};
use crate::error::MountError;
use crate::negotiate::{InitAnswer, Negotiated, Wishes, negotiate};
use crate::reply::Reply;
use std::fs::{File, OpenOptions};
use std::io::{self, IoSliceMut, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use zerocopy::{FromBytes, IntoBytes};

/// `_IOR(229, 0, u32)`: makes a freshly opened /dev/fuse another end of an existing connection.
const CLONE_COMMAND: u32 = 0x8004_e500;
/// The smallest buffer for a request that the kernel accepts.
const READ_BUFFER_BYTES_MIN: usize = 8192;

/// A non-blocking end of the connection.
pub struct Connection(File);

impl Connection {
    /// Takes over a descriptor.
    pub fn new(descriptor: OwnedFd) -> io::Result<Self> {
        let file = File::from(descriptor);
        set_nonblocking(file.as_fd())?;
        Ok(Self(file))
    }

    /// Another end of the same connection: one with its own queues, so that threads don't contend;
    /// or, if /dev/fuse can't be opened (only fusermount3 could), a duplicate of this descriptor.
    pub fn another(&self) -> io::Result<Self> {
        Ok(Self(File::from(another_end(&self.0)?)))
    }

    /// The descriptor to wait on.
    pub fn descriptor(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Receives one request.
    pub fn read(&self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        (&self.0).read_vectored(buffers)
    }

    /// Sends the notification that must reach the kernel before this answer, whichever way the
    /// answer travels.
    pub fn notify(&self, reply: &Reply) {
        if let Some(message) = reply.notification() {
            // An inode that the kernel does not know (ENOENT) has no cached attributes.
            let _ = (&self.0).write(&message);
        }
    }

    /// Sends the answer to request `unique`.
    pub fn answer(&self, unique: u64, reply: &Reply) {
        if reply.is_silent() {
            return;
        }
        self.notify(reply);
        let header = reply.header(unique);
        let Err(error) = (&self.0).write_vectored(&reply.slices(&header)) else { return };
        match error.raw_os_error() {
            // The caller was killed in the meantime, or the mount has gone.
            Some(libc::ENOENT | libc::ENODEV | libc::ECONNABORTED | libc::EPERM) => {
                tracing::debug!(unique, %error, "nobody waits for this answer");
            }
            _ => {
                tracing::error!(unique, %error, "the kernel refused an answer; the caller gets EIO");
                let failure = Reply::error(libc::EIO);
                let _ = (&self.0).write_vectored(&failure.slices(&failure.header(unique)));
            }
        }
    }
}

/// Another end of the connection of a descriptor: one with its own queues, or else a duplicate.
/// The requests that an end has received go back to the kernel when that end is closed, even if others
/// are open.
pub fn another_end(descriptor: &impl AsFd) -> io::Result<OwnedFd> {
    let descriptor = descriptor.as_fd();
    match clone_device(descriptor) {
        Ok(device) => Ok(device.into()),
        Err(error) => {
            tracing::debug!(%error, "threads share one descriptor of /dev/fuse");
            descriptor.try_clone_to_owned()
        }
    }
}

fn clone_device(descriptor: BorrowedFd<'_>) -> io::Result<File> {
    let device =
        OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open("/dev/fuse")?;
    let original = descriptor.as_raw_fd() as u32;
    // SAFETY: the command reads four bytes at the pointer.
    if unsafe { libc::ioctl(device.as_raw_fd(), CLONE_COMMAND as _, &raw const original) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(device)
}

fn set_nonblocking(descriptor: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: takes no memory.
    let flags = unsafe { libc::fcntl(descriptor.as_raw_fd(), libc::F_GETFL) };
    if flags < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: takes no memory.
    match unsafe { libc::fcntl(descriptor.as_raw_fd(), libc::F_SETFL, flags | libc::O_NONBLOCK) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The first exchange on a fresh connection, which is still blocking. If io_uring is wanted and
/// offered, the kernel is told that queues will be registered, and holds back all requests until
/// they are.
pub fn handshake(descriptor: &OwnedFd, wishes: Wishes) -> Result<Negotiated, MountError> {
    let file = File::from(descriptor.try_clone().map_err(MountError::connection)?);
    loop {
        let (header, offer) = receive_init(&file)?;
        match negotiate(&offer, wishes)? {
            InitAnswer::AskAgain(answer) => send_init(&file, &header, &answer)?,
            InitAnswer::Agreed(answer, negotiated) => {
                send_init(&file, &header, &answer)?;
                return Ok(negotiated);
            }
        }
    }
}

fn receive_init(file: &File) -> Result<(InHeader, InitIn), MountError> {
    let mut buffer = [0; READ_BUFFER_BYTES_MIN];
    let len = loop {
        match { file }.read(&mut buffer) {
            Ok(len) => break len,
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINTR | libc::ENOENT)) => {}
            Err(error) => return Err(MountError::connection(error)),
        }
    };
    let unexpected = |detail: String| MountError::Handshake { detail };
    let message = &buffer[..len];
    let (header, rest) =
        InHeader::read_from_prefix(message).map_err(|_| unexpected(format!("a message of {len} bytes")))?;
    if header.opcode != Opcode::Init as u32 {
        return Err(unexpected(format!("request {} came first", header.opcode)));
    }
    if rest.len() < INIT_IN_SHORT_BYTES {
        return Err(unexpected(format!("an offer of {} bytes", rest.len())));
    }
    // Fields that an older kernel does not send are zero.
    let mut offer = InitIn::default();
    let known = rest.len().min(size_of::<InitIn>());
    offer.as_mut_bytes()[..known].copy_from_slice(&rest[..known]);
    debug_assert!(len >= IN_HEADER_BYTES);
    Ok((header, offer))
}

fn send_init(file: &File, request: &InHeader, answer: &InitOut) -> Result<(), MountError> {
    let len = (OUT_HEADER_BYTES + size_of::<InitOut>()) as u32;
    let header = OutHeader { len, error: 0, unique: request.unique };
    let message = [header.as_bytes(), answer.as_bytes()].concat();
    { file }.write_all(&message).map_err(MountError::connection)
}
