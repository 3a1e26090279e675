//! A filesystem that was shut down: nothing is changed, and no data is read or written, until it is
//! unmounted. The daemon does that when it has lost its image, and an ioctl does it as a crash
//! would, for tests of crash recovery.

use super::{Answer, Refusal};
use crate::abi::{IoctlIn, IoctlOut, Opcode};
use crate::reply::Reply;
use crate::request::Request;
use crate::session::Session;
use syncline_fs::FsError;

/// `FS_IOC_SHUTDOWN`, as in ext4 and xfs: `_IOR('X', 125, __u32)`.
pub(super) const SHUT_DOWN: u32 = 0x8004_587d;

/// The changes to make durable before shutting down.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum First {
    /// Everything.
    Everything,
    /// Everything committed: names and attributes, and the data that write-back or a sync has
    /// placed.
    Log,
    /// Nothing that is not durable yet.
    Nothing,
}

impl First {
    fn from_number(number: u32) -> Option<Self> {
        match number {
            0 => Some(Self::Everything),
            1 => Some(Self::Log),
            2 => Some(Self::Nothing),
            _ => None,
        }
    }
}

/// True for requests still answered after a shutdown: those that read names, attributes and
/// entries, and those that release something.
pub(super) fn is_answered_after(opcode: Opcode) -> bool {
    use Opcode::*;
    matches!(
        opcode,
        Lookup
            | Forget
            | BatchForget
            | GetAttr
            | StatX
            | StatFs
            | ReadLink
            | ReadDir
            | ReadDirPlus
            | OpenDir
            | ReleaseDir
            | Flush
            | Release
            | Ioctl
            | Destroy
    )
}

pub(super) async fn shut_down(session: &Session, request: &Request, input: &IoctlIn) -> Answer {
    if request.caller().uid != 0 {
        return Err(Refusal::Errno(libc::EPERM));
    }
    let (pid, address) = (request.pid(), input.argument);
    let number = session.processes().look(move || argument(pid, address)).await.flatten();
    let number = number.ok_or(Refusal::Errno(libc::EFAULT))?;
    let first = First::from_number(number).ok_or(Refusal::Errno(libc::EINVAL))?;
    let fs = session.fs();
    match first {
        First::Everything => fs.syncfs().await?,
        First::Log => fs.store().sync(fs.store().last_op()).await.map_err(FsError::from)?,
        First::Nothing => {}
    }
    session.shut_down();
    fs.store().shut_down("it was shut down by an ioctl: unmount it");
    Ok(Reply::fixed(&IoctlOut::default()))
}

/// Reads the caller's argument. The command's number says that the ioctl returns something, so the
/// kernel passes the address for that, and not the contents there. The caller waits; its memory is
/// read the way a debugger does.
fn argument(pid: u32, address: u64) -> Option<u32> {
    let mut number = 0u32;
    let len = size_of::<u32>();
    let ours = libc::iovec { iov_base: (&raw mut number).cast(), iov_len: len };
    let theirs = libc::iovec { iov_base: usize::try_from(address).ok()? as *mut _, iov_len: len };
    // SAFETY: the kernel writes at most the four bytes of `number`, which outlives the call; the
    // other address is resolved in the other process, and an invalid one is refused.
    let read =
        unsafe { libc::process_vm_readv(pid as libc::pid_t, &raw const ours, 1, &raw const theirs, 1, 0) };
    (read == len as isize).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_argument_is_read_where_it_lies() {
        let number = 7u32;
        assert_eq!(argument(std::process::id(), (&raw const number) as u64), Some(7));
        assert_eq!(argument(std::process::id(), 1), None);
        assert_eq!(
            [0, 1, 2, 3].map(First::from_number).map(|first| first.is_some()),
            [true, true, true, false]
        );
    }
}
