//! Images, wherever they are: files and block devices of this host, NBD exports, Ceph RBD images.
//!
//! [`Image::open`] and [`Image::create`] take what a user wrote for an image. They see to it that
//! nobody else writes to it (promise P7), by the means that its storage has:
//!
//! | storage | by |
//! |---|---|
//! | a file or a block device | the lock of `syncline_device`; and the device lease, if its superblocks demand it |
//! | an NBD export | the device lease, for readers too |
//! | an RBD image | its exclusive lock |

#![forbid(unsafe_code)]

#[cfg(feature = "canaries")]
mod canaries;
mod create;
mod figures;
mod fork;
mod how;
mod keyring;
mod keys;
mod leased;
mod lost;
mod open;
mod read_only;

pub use create::start_of_remote;
pub use figures::Figures;
pub use fork::{LeftHold, whole, whole_of_new};
pub use how::{How, Waiting};
pub use keyring::{AskKey, Question, add_key, ask_for_keys, forget_keys, need_keys, secret_for};
pub use keys::{Keys, is_encrypted, key_error, new_key, peek_keys};
pub use lost::Lost;
pub use syncline_crypt::{KeyError, KeyRecord, MasterKey, NewKey, OVERHEAD_BYTES, SLOTS, Secret};
pub use syncline_fork::ForkError;
pub use syncline_lease::{LeaseLost, LeaseOptions, LeaseStatus, Progress, TakeOver};
pub use syncline_net::{Location, LocationError, NetCounters, NetGauges, Outage};

use std::path::Path;
use std::sync::Arc;
use syncline_crypt::{Encrypted, move_last_copy};
use syncline_device::{Device, DeviceError, FileDevice, MountDevice, block_on};
use syncline_lease::{LeaseError, Leased};
use syncline_net::NbdDevice;
use syncline_net::rbd::{RbdDevice, RbdError};

/// An open image.
#[derive(Clone)]
pub struct Image {
    storage: Storage,
    /// The lease on it, where it has one.
    leased: Option<Arc<Leased>>,
    /// Whether it was lost.
    watch: Arc<lost::Watch>,
    /// The device that the engine uses.
    device: Arc<dyn Device>,
    /// The device behind the header, of an encrypted image.
    encrypted: Option<Arc<Encrypted>>,
    /// The base, of a fork.
    behind: Option<Arc<fork::Behind>>,
}

/// The storage of an image.
#[derive(Clone)]
enum Storage {
    File(Arc<FileDevice>),
    Nbd(Arc<NbdDevice>),
    Rbd(Arc<RbdDevice>),
}

impl Image {
    /// The device for the engine.
    pub fn device(&self) -> Arc<dyn Device> {
        self.device.clone()
    }

    /// True if its room is always its own: it is no file in another filesystem.
    pub fn is_block_device(&self) -> bool {
        match &self.storage {
            Storage::File(file) => file.is_block_device(),
            Storage::Nbd(_) | Storage::Rbd(_) => true,
        }
    }

    /// Removes the file that [`create`](Self::create) made, if it made one.
    pub fn take_away(&self) {
        if let Storage::File(file) = &self.storage {
            file.take_away();
        }
    }

    /// Lets others on this host read an image file or block device, which they may from now on rely
    /// on not to change. An image on a network keeps its one reader.
    pub fn let_read(&self) -> Result<(), DeviceError> {
        match &self.storage {
            Storage::File(file) => file.let_read(),
            Storage::Nbd(_) | Storage::Rbd(_) => Ok(()),
        }
    }

    /// Shortens an image file durably to this size, if it is longer. Other storage keeps its size.
    pub fn shorten(&self, size_bytes: u64) -> Result<(), DeviceError> {
        let size_bytes = size_bytes + self.overhead_bytes();
        match &self.storage {
            Storage::File(file) => {
                if let Some(encrypted) = self.encrypted.as_ref().filter(|_| !file.is_block_device()) {
                    block_on(move_last_copy(encrypted.below(), encrypted.record(), size_bytes))?;
                }
                file.shorten(size_bytes)
            }
            Storage::Nbd(_) | Storage::Rbd(_) => Ok(()),
        }
    }

    /// True if its storage keeps other hosts from writing to it as long as it is open.
    pub fn is_kept_from_other_hosts(&self) -> bool {
        match &self.storage {
            Storage::File(_) => self.leased.is_some(),
            Storage::Nbd(_) | Storage::Rbd(_) => true,
        }
    }

    /// True if who may write to it is decided by a device lease.
    pub fn has_lease(&self) -> bool {
        self.leased.is_some()
    }

    /// The block device for a mount of this image, which the user calls `name`. Where one is made for
    /// it, its number depends on `wish`.
    pub fn for_mount(&self, name: &Path, wish: u32) -> std::io::Result<MountDevice> {
        match &self.storage {
            Storage::File(file) => file.for_mount(wish),
            Storage::Nbd(_) | Storage::Rbd(_) => MountDevice::called(&name.to_string_lossy(), wish),
        }
    }

    /// Lets others have the image: gives the device lease back, if it has one, so that the next host
    /// need not wait for its end, and the locks of this host. Returns whether that worked. No write
    /// succeeds afterwards, and nothing may be under way. Dropping everything that uses the image does
    /// it too.
    pub fn release(&self) -> bool {
        let released = self.leased.as_ref().is_none_or(|leased| leased.release());
        if !released {
            tracing::info!("the device lease could not be given back, and ends by itself");
        }
        if let Storage::File(file) = &self.storage {
            file.let_go();
        }
        released
    }

    /// Calls `listener` when the image is lost: another host has it, or its storage was away for too
    /// long. No operation succeeds any more. It is called before those who wait are told, or at once
    /// if the image was lost before, and must not wait for the image.
    pub fn on_lost(&self, listener: impl FnOnce(&Lost) + Send + 'static) {
        self.watch.on_lost(Box::new(listener));
    }

    /// How the image was lost, if it was.
    pub fn lost(&self) -> Option<Lost> {
        self.watch.lost()
    }
}

/// The image that a user names: a path, or what [`Location`] understands. A location that can't be
/// understood is an error of opening it.
fn location(name: &Path) -> Result<Location, DeviceError> {
    Location::parse(name.as_os_str()).map_err(|error| {
        let source = std::io::Error::new(std::io::ErrorKind::InvalidInput, error);
        DeviceError::Open { path: name.display().to_string(), source: Arc::new(source) }
    })
}

/// True if the image that a user names is on a network, or looks as if it were and can't be
/// understood: opening it tells what is wrong.
pub fn is_remote(name: &Path) -> bool {
    !matches!(Location::parse(name.as_os_str()), Ok(Location::Path(_)))
}

/// True if nobody answers where an image on a network should be.
pub fn is_unreachable(error: &DeviceError) -> bool {
    use std::io::ErrorKind::{ConnectionRefused, HostUnreachable, NetworkUnreachable, NotFound};
    let (DeviceError::Open { path, source } | DeviceError::TakeOver { path, source }) = error else {
        return false;
    };
    let unanswered =
        matches!(source.kind(), ConnectionRefused | HostUnreachable | NetworkUnreachable | NotFound);
    // Other texts tell more than an error of the system does.
    is_remote(Path::new(path)) && unanswered && source.raw_os_error().is_some()
}

/// Why a fork could not be opened or made, if it is about its base.
pub fn fork_error(error: &DeviceError) -> Option<&ForkError> {
    error.io_error()?.get_ref()?.downcast_ref()
}

/// True if the text of an error names the next step itself, as those of networks and leases do.
pub fn tells_next_step(error: &DeviceError) -> bool {
    let named = match error {
        DeviceError::Open { path, .. }
        | DeviceError::Create { path, .. }
        | DeviceError::TakeOver { path, .. } => is_remote(Path::new(path)),
        _ => false,
    };
    // A device that has ended for good says what to do: the server is away, or another host has it.
    let ended = error.io_error().is_some_and(|error| {
        use std::io::ErrorKind::{StaleNetworkFileHandle, TimedOut};
        error.raw_os_error().is_none() && matches!(error.kind(), StaleNetworkFileHandle | TimedOut)
    });
    let inner = error.io_error().and_then(|error| error.get_ref());
    named
        || ended
        || fork_error(error).is_some()
        || inner.is_some_and(|inner| {
            inner.is::<LeaseError>()
                || inner.is::<LeaseLost>()
                || inner.is::<RbdError>()
                || inner.is::<LocationError>()
        })
}
