//! The durability class of a file or directory: an ioctl on it.

use super::client::{ControlError, failed};
use super::wire::IOCTL_TYPE;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use syncline_fs::Durability;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Asks for a class or sets one; the answer has both classes.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct DurabilityMessage {
    /// 0: tell. 1: set `own`.
    pub(crate) action: u32,
    /// The inode's own class.
    pub(crate) own: Wire,
    /// The class that holds; in the question it means nothing.
    pub(crate) holds: Wire,
    pub(crate) padding: u32,
}

/// A class in a message: 0 for none, 1 fsync, 2 ordered, 3 strict; and the seconds of `ordered`.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Wire {
    class: u32,
    seconds: u32,
}

pub(crate) const TELL: u32 = 0;
pub(crate) const SET: u32 = 1;

/// `_IOWR(IOCTL_TYPE, 0x61, struct)`.
pub(crate) const DURABILITY: u32 =
    (3 << 30) | ((size_of::<DurabilityMessage>() as u32) << 16) | (IOCTL_TYPE << 8) | 0x61;

impl From<Option<Durability>> for Wire {
    fn from(class: Option<Durability>) -> Self {
        let (class, seconds) = match class {
            None => (0, 0),
            Some(Durability::Fsync) => (1, 0),
            Some(Durability::Ordered(seconds)) => (2, seconds.into()),
            Some(Durability::Strict) => (3, 0),
        };
        Self { class, seconds }
    }
}

impl Wire {
    /// The class; an error for a number that stands for none.
    pub(crate) fn class(self) -> Result<Option<Durability>, ()> {
        let seconds = u8::try_from(self.seconds).map_err(drop)?;
        match (self.class, seconds) {
            (0, 0) => Ok(None),
            (1, 0) => Ok(Some(Durability::Fsync)),
            (2, 1..) => Ok(Some(Durability::Ordered(seconds))),
            (3, 0) => Ok(Some(Durability::Strict)),
            _ => Err(()),
        }
    }
}

/// The class of an open file or directory: its own, if it has one, and the one that holds. `path`
/// is for messages.
pub fn durability(file: &File, path: &Path) -> Result<(Option<Durability>, Durability), ControlError> {
    let answer = ask(file, path, DurabilityMessage { action: TELL, ..Default::default() })?;
    match (answer.own.class(), answer.holds.class()) {
        (Ok(own), Ok(Some(holds))) => Ok((own, holds)),
        _ => Err(failed(path, "durability", io::Error::other("an answer of a later version"))),
    }
}

/// Sets the class of a file, or of a directory and what is made in it from now on; `None` for that
/// of the mount. For the owner and root.
pub fn set_durability(file: &File, path: &Path, class: Option<Durability>) -> Result<(), ControlError> {
    ask(file, path, DurabilityMessage { action: SET, own: class.into(), ..Default::default() }).map(drop)
}

fn ask(file: &File, path: &Path, mut message: DurabilityMessage) -> Result<DurabilityMessage, ControlError> {
    // SAFETY: the command's number tells the kernel to read and write exactly the size of `message`
    // at the pointer, and any bytes are a valid one.
    match unsafe { libc::ioctl(file.as_raw_fd(), DURABILITY as _, std::ptr::from_mut(&mut message)) } {
        0.. => Ok(message),
        _ => Err(failed(path, "durability", io::Error::last_os_error())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_lead_back() {
        let some = [Durability::Fsync, Durability::Ordered(1), Durability::Ordered(255), Durability::Strict];
        for class in some.map(Some).into_iter().chain([None]) {
            assert_eq!(Wire::from(class).class(), Ok(class));
        }
        for (class, seconds) in [(4, 0), (2, 0), (2, 256), (1, 5)] {
            assert_eq!(Wire { class, seconds }.class(), Err(()));
        }
    }
}
