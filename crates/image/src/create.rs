//! Making room for an image, and looking at the device's contents before.

use crate::leased;
use crate::open::{look_at_nbd, open_nbd, rbd};
use crate::{How, Image, Storage, location};
use std::io;
use std::path::Path;
use std::sync::Arc;
use syncline_device::{AlignedBuf, BLOCK_BYTES, Device, DeviceError, DeviceExt, FileDevice, block_on};
use syncline_lease::LEASE_OFFSET;
use syncline_net::Location;
use syncline_net::rbd::RbdDevice;

/// Bytes at the start that are read to see whether something is there.
const START_BYTES: usize = 1 << 20;

impl Image {
    /// Creates the file or device for an image, or takes over an existing one.
    ///
    /// A file gets `size_bytes` and is written with zeros. An RBD image is made with that size if
    /// there is none. Block devices, NBD exports and RBD images that are there keep their size and
    /// contents. Without `force`, a device with anything but zeros in its first MiB is refused.
    /// `shared` takes the device lease of a block device that several hosts reach. `progress` is
    /// told how many bytes have been written.
    pub fn create(
        name: impl AsRef<Path>,
        size_bytes: Option<u64>,
        force: bool,
        shared: bool,
        how: &How,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Self, DeviceError> {
        let name = name.as_ref();
        match location(name)? {
            Location::Path(path) => {
                let file = FileDevice::create(path, size_bytes, force, how.device, progress)?;
                let (device, storage) = (file.clone() as Arc<dyn Device>, Storage::File(file));
                if !shared && !leased::is_demanded(&device) {
                    return Ok(Self::of_this_host(storage, None, device));
                }
                let shown = name.display().to_string();
                let leased = leased::take(device, &shown, how, force, false)?;
                let device: Arc<dyn Device> = leased.clone();
                require_still_empty(&device, &shown, force)?;
                Ok(Self::of_this_host(storage, Some(leased), device))
            }
            Location::Nbd(location) => {
                let shown = location.to_string();
                let looked: Arc<dyn Device> = look_at_nbd(&location)?;
                require_size(&shown, looked.size_bytes(), size_bytes)?;
                require_empty(&looked, &shown, force)?;
                drop(looked);
                let image = open_nbd(&location, how, force)?;
                require_still_empty(&image.device, &shown, force)?;
                Ok(image)
            }
            Location::Rbd(location) => {
                let (spec, options) = rbd(&location, how);
                let opened = match (RbdDevice::open(&spec, &options), size_bytes) {
                    (Err(error), Some(size_bytes)) if is_missing(&error) => {
                        return RbdDevice::create(&spec, size_bytes, &options).map(Self::of_rbd);
                    }
                    (opened, _) => opened?,
                };
                let device: Arc<dyn Device> = opened.clone();
                require_size(&spec.to_string(), device.size_bytes(), size_bytes)?;
                require_empty(&device, &spec.to_string(), force)?;
                Ok(Self::of_rbd(opened))
            }
        }
    }
}

/// The first bytes of an image that is not on this host, even while it is in use; `None` if it can't be
/// read. Fewer if it is smaller.
pub fn start_of_remote(name: &Path, len_bytes: usize) -> Option<Vec<u8>> {
    let device: Arc<dyn Device> = match location(name).ok()? {
        Location::Path(_) => return None,
        Location::Nbd(location) => look_at_nbd(&location).ok()?,
        Location::Rbd(location) => {
            let mut how = How::reading();
            how.device.beside_writer = true;
            let (spec, options) = rbd(&location, &how);
            RbdDevice::open(&spec, &options).ok()?
        }
    };
    let block = syncline_device::BLOCK_BYTES as u64;
    let len = (len_bytes as u64).next_multiple_of(block).min(device.size_bytes());
    let mut start = block_on(device.read_at(0, len as usize)).ok()?.to_vec();
    start.truncate(len_bytes);
    Some(start)
}

fn require_size(name: &str, present: u64, wanted: Option<u64>) -> Result<(), DeviceError> {
    match wanted {
        Some(wanted) if wanted != present => {
            let text = format!("it has {present} bytes, and its storage decides that: leave the size out");
            let source = io::Error::new(io::ErrorKind::InvalidInput, text);
            Err(DeviceError::TakeOver { path: name.to_owned(), source: Arc::new(source) })
        }
        _ => Ok(()),
    }
}

fn require_empty(device: &Arc<dyn Device>, name: &str, force: bool) -> Result<(), DeviceError> {
    if force {
        return Ok(());
    }
    require_zeros(name, &start_of(device)?)
}

/// The same with the device lease, whose block is ours: another host may have made an image between
/// the look and the lease.
fn require_still_empty(device: &Arc<dyn Device>, name: &str, force: bool) -> Result<(), DeviceError> {
    if force {
        return Ok(());
    }
    let start = start_of(device)?;
    let (before, rest) = start.split_at(start.len().min(LEASE_OFFSET as usize));
    require_zeros(name, before)?;
    require_zeros(name, rest.get(BLOCK_BYTES..).unwrap_or_default())
}

fn start_of(device: &Arc<dyn Device>) -> Result<AlignedBuf, DeviceError> {
    let len = (START_BYTES as u64).min(device.size_bytes());
    block_on(device.read_at(0, len as usize))
}

fn require_zeros(name: &str, bytes: &[u8]) -> Result<(), DeviceError> {
    match bytes.iter().all(|byte| *byte == 0) {
        true => Ok(()),
        false => Err(DeviceError::NotEmpty { path: name.to_owned() }),
    }
}

fn is_missing(error: &DeviceError) -> bool {
    error.io_error().is_some_and(|error| error.kind() == io::ErrorKind::NotFound)
}
