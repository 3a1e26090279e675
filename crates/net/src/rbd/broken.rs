//! How a device ends, and the error for everybody who waits for it.

use super::error::Errno;
use super::holder::LockHolder;
use std::fmt;
use std::io::{self, ErrorKind};

/// Why a device answers nothing any more. The reason is final: no operation is acknowledged after it,
/// and none is tried.
#[derive(Clone, Debug)]
pub(super) enum Broken {
    /// Somebody else has, or had, the lock (errors 30, 108 and 110).
    Fenced { errno: Option<Errno>, holder: Option<LockHolder> },
    /// The cluster was away for too long.
    Away { seconds: f32 },
    /// The image was made smaller.
    Shrunk { before_bytes: u64, now_bytes: u64 },
    /// A reader's image is being written.
    Written { holder: LockHolder },
    /// The claim on a snapshot has run out.
    Unclaimed { number: u64 },
}

impl Broken {
    /// As the source of the error of each operation.
    pub(super) fn error(&self, image: &str) -> io::Error {
        let kind = match self {
            Self::Fenced { .. } | Self::Written { .. } | Self::Unclaimed { .. } => {
                ErrorKind::StaleNetworkFileHandle
            }
            Self::Away { .. } => ErrorKind::TimedOut,
            Self::Shrunk { .. } => ErrorKind::UnexpectedEof,
        };
        io::Error::new(kind, Told { image: image.to_owned(), broken: self.clone() })
    }
}

#[derive(Debug)]
struct Told {
    image: String,
    broken: Broken,
}

impl std::error::Error for Told {}

impl fmt::Display for Told {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let image = &self.image;
        match &self.broken {
            Broken::Fenced { errno, holder } => {
                write!(out, "this host was fenced from {image}")?;
                if let Some(errno) = errno {
                    write!(out, " (error {})", errno.0)?;
                }
                match holder {
                    Some(holder) => write!(out, ": {holder} has its lock now; unmount here, and see there")?,
                    None => out.write_str(
                        ": the holder of its lock is not known; unmount here, and see 'rbd lock ls'",
                    )?,
                }
                Ok(())
            }
            Broken::Away { seconds } => write!(
                out,
                "the cluster of {image} gave no answer for {seconds:.0} s ('wait'): see 'ceph -s', unmount, and mount again when it is back"
            ),
            Broken::Shrunk { before_bytes, now_bytes } => write!(
                out,
                "{image} was made smaller while in use ({before_bytes} bytes, now {now_bytes}): restore its size with 'rbd resize', and mount again"
            ),
            Broken::Written { holder } => {
                write!(out, "{holder} has begun to write {image}: read it again when it is not in use")
            }
            Broken::Unclaimed { number } => {
                write!(out, "the claim on snapshot {number} of {image} has run out: mount it again")
            }
        }
    }
}

/// The holder of an image's lock, if the error with which its device broke names it.
pub fn successor(error: &io::Error) -> Option<LockHolder> {
    match &error.get_ref()?.downcast_ref::<Told>()?.broken {
        Broken::Fenced { holder, .. } => holder.clone(),
        _ => None,
    }
}

/// The source of the error of one operation that failed by itself.
pub(super) fn failure(errno: Errno, pool: &str) -> io::Error {
    let text = match errno.0 {
        libc::EDQUOT => {
            format!("the quota of pool '{pool}' is used up: raise it with 'ceph osd pool set-quota {pool}'")
        }
        libc::ENOSPC => format!("pool '{pool}' is full: add OSDs or delete something ('ceph df')"),
        libc::EPERM | libc::EACCES => {
            format!(
                "the user may not do that in pool '{pool}': give it the capabilities osd 'profile rbd pool={pool}'"
            )
        }
        _ => return errno.io(),
    };
    io::Error::new(errno.io().kind(), text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder() -> LockHolder {
        LockHolder { client: "client.4123".into(), address: "10.0.0.7:0/12".into(), alive: true, about: None }
    }

    #[test]
    fn what_a_broken_device_says_is_one_line() {
        for broken in [
            Broken::Fenced { errno: Some(Errno(108)), holder: Some(holder()) },
            Broken::Fenced { errno: None, holder: None },
            Broken::Away { seconds: 60.0 },
            Broken::Shrunk { before_bytes: 8192, now_bytes: 4096 },
            Broken::Written { holder: holder() },
            Broken::Unclaimed { number: 3 },
        ] {
            let text = broken.error("rbd:p/i").to_string();
            assert!(text.contains("rbd:p/i") && text.lines().count() == 1, "{text}");
        }
    }
}
