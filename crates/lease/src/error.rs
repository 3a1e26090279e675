//! Why a lease was not got, and why one was lost.

use crate::OptionsError;
use std::io;
use std::time::Duration;
use syncline_device::{DeviceError, Operation};
use syncline_format::FormatError;
use syncline_format::lease::{Lease, LeaseState};

/// Why the lease could not be taken. One line each, with the next step.
#[derive(Clone, Debug, thiserror::Error)]
pub enum LeaseError {
    /// Another host holds it, and lives.
    #[error(
        "the image is in use by {}, renewed just now: unmount it there, or take it over: 'syncline mount --takeover'",
        who(.0)
    )]
    InUse(Box<Lease>),
    /// Another host took it at the same time.
    #[error("{} has just taken the image: unmount it there, or take it over: 'syncline mount --takeover'", name(.0))]
    TakenMeanwhile(Box<Lease>),
    /// The block is no lease.
    #[error(
        "the device lease in block 48 is unreadable ({0}), so nobody knows who writes to the image: stop all its hosts, \
         then take it over: 'syncline mount --takeover'"
    )]
    Damaged(FormatError),
    /// The device needs too long for a claim to be safe.
    #[error(
        "the device took {} to read, write and flush the device lease, and may take 1 s: try again when it is less busy",
        seconds(*.0)
    )]
    TooSlow(Duration),
    /// The former holder's device writes its block again and again.
    #[error("{} writes the device lease again and again: stop that process, then take the image over", name(.0))]
    Resists(Box<Lease>),
    /// Reads come from a cache of this host.
    #[error(
        "reads of this device come from this host's cache, which does not see what other hosts write: use a device with \
         direct I/O"
    )]
    Cached,
    /// The device has no block 48.
    #[error("the device is too small for an image")]
    TooSmall,
    /// The duration or the guard time can't be.
    #[error(transparent)]
    Options(#[from] OptionsError),
    /// The device failed.
    #[error("the device lease can't be read or written: {0}")]
    Device(#[from] DeviceError),
    /// The caller gave up.
    #[error("waiting for the device lease was interrupted: run the command again")]
    Interrupted,
    /// No thread could be started.
    #[error("no thread to renew the device lease: {0}")]
    Thread(std::sync::Arc<std::io::Error>),
}

/// Why a lease that was held is so no longer. It never comes back.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LeaseLost {
    /// Another host has taken it.
    #[error(
        "lost the lease to {host} (process {pid}) at term {term}: unmount here; 'syncline mount --takeover' takes the image back"
    )]
    TakenBy {
        /// Name of the other host.
        host: String,
        /// The process there.
        pid: u32,
        /// The term that began with it.
        term: u64,
    },
    /// The device did not answer a renewal in time.
    #[error(
        "could not renew the lease within {} ({trouble}): unmount here, and mount again when the device answers",
        seconds(*.within)
    )]
    Expired {
        /// How long it was valid.
        within: Duration,
        /// Why the last renewal failed.
        trouble: String,
    },
    /// The block holds no lease any more.
    #[error(
        "lost the lease, since block 48 of the device was overwritten ({0}): unmount here, and run 'syncline check'"
    )]
    Overwritten(String),
    /// It was given back.
    #[error("the lease was released: mount the image again")]
    Released,
}

/// The error of a write that was not sent.
impl From<LeaseLost> for DeviceError {
    fn from(why: LeaseLost) -> Self {
        Self::io(Operation::Write, 0, 0, why.into())
    }
}

/// Of the kind that tells the engine not to try again.
impl From<LeaseLost> for io::Error {
    fn from(why: LeaseLost) -> Self {
        Self::new(io::ErrorKind::StaleNetworkFileHandle, why)
    }
}

impl LeaseLost {
    /// The lost lease that a device's error tells of, if it does.
    pub fn of(error: &DeviceError) -> Option<&Self> {
        error.io_error()?.get_ref()?.downcast_ref()
    }

    /// The loss that a block tells its former holder of: `None` if it is still the holder's.
    pub(crate) fn by_block(
        found: &Result<Option<Lease>, FormatError>,
        term: u64,
        nonce: &[u8; 16],
    ) -> Option<Self> {
        match found {
            Ok(Some(lease)) if lease.term == term && lease.nonce == *nonce => None,
            Ok(Some(lease)) => Some(Self::TakenBy {
                host: lease.holder.host_text(),
                pid: lease.holder.pid,
                term: lease.term,
            }),
            Ok(None) => Some(Self::Overwritten("zeros".into())),
            Err(error) => Some(Self::Overwritten(error.to_string())),
        }
    }
}

/// A holder in a message: host, process, age.
fn who(lease: &Lease) -> String {
    let (name, age) = (name(lease), seconds(Duration::from_millis(lease.held_ms)));
    match lease.state {
        LeaseState::Claimed => format!("{name}, which is taking it over"),
        LeaseState::Held | LeaseState::Released => format!("{name} for {age} now"),
    }
}

/// A holder in a message: host and process.
pub(crate) fn name(lease: &Lease) -> String {
    format!("{} (process {})", lease.holder.host_text(), lease.holder.pid)
}

/// A duration as people say it.
pub(crate) fn seconds(time: Duration) -> String {
    let secs = time.as_secs();
    match secs {
        0..10 if !time.subsec_millis().is_multiple_of(1000) => format!("{:.1} s", time.as_secs_f64()),
        0..120 => format!("{secs} s"),
        120..7200 => format!("{} min", secs / 60),
        7200..172_800 => format!("{} h", secs / 3600),
        _ => format!("{} days", secs / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_short() {
        let cases = [
            (0, "0 s"),
            (8_750, "8.8 s"),
            (10_000, "10 s"),
            (119_999, "119 s"),
            (125_000, "2 min"),
            (7_200_000, "2 h"),
            (200_000_000, "2 days"),
        ];
        for (ms, text) in cases {
            assert_eq!(seconds(Duration::from_millis(ms)), text);
        }
    }

    #[test]
    fn a_device_error_carries_the_reason() {
        let lost = LeaseLost::TakenBy { host: "beta".into(), pid: 7, term: 3 };
        let error = DeviceError::io(Operation::Flush, 0, 0, io::Error::other(lost.clone()));
        assert_eq!(LeaseLost::of(&error), Some(&lost));
        assert!(error.to_string().contains("lost the lease to beta (process 7) at term 3"));
        let source = error.io_error().unwrap().clone();
        assert_eq!(LeaseLost::of(&DeviceError::Poisoned { source }), Some(&lost));
        let other = DeviceError::io(Operation::Flush, 0, 0, io::Error::from_raw_os_error(5));
        assert_eq!(LeaseLost::of(&other), None);
    }
}
