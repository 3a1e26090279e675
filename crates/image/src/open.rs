//! Opening an image that is there.

use crate::keys::{peek_keys, refused};
use crate::leased::{self, LeaseFence};
use crate::lost::Watch;
use crate::read_only::ReadOnly;
use crate::{How, Image, Storage, keyring, location};
use std::io;
use std::path::Path;
use std::sync::Arc;
use syncline_crypt::KeyError;
use syncline_device::{Device, DeviceError, FileDevice};
use syncline_lease::{LEASE_OFFSET, Leased};
use syncline_net::rbd::{RbdDevice, RbdOptions, RbdSpec};
use syncline_net::{Location, NbdDevice, NbdLocation, NbdOptions, RbdLocation};

impl Image {
    /// Opens an image. Threads serve it, so open it after any fork.
    pub fn open(name: impl AsRef<Path>, how: &How) -> Result<Self, DeviceError> {
        Self::open_at(name.as_ref(), how, 0)
    }

    /// Opens an image that is the base of so many forks.
    pub(crate) fn open_at(name: &Path, how: &How, depth: usize) -> Result<Self, DeviceError> {
        Self::open_alone(name, how)?.with_any_base(name, how, depth)
    }

    /// Opens an image without the base that it may have.
    pub(crate) fn open_alone(name: &Path, how: &How) -> Result<Self, DeviceError> {
        if how.take_over.is_some() {
            // Without the right key, another host must not lose the image.
            let opened = match peek_keys(name) {
                Some(record) => keyring::unlock(name, &record, how.unattended).map(drop),
                None if keyring::is_needed() => Err(KeyError::NotEncrypted),
                None => Ok(()),
            };
            opened.map_err(|error| refused(name, error))?;
        }
        Self::open_locked(name, how)?.unlocked(name, how)
    }

    /// Opens an image as it lies on its storage, encrypted or not.
    pub(crate) fn open_locked(name: &Path, how: &How) -> Result<Self, DeviceError> {
        match location(name)? {
            Location::Path(path) => Self::of_file(FileDevice::open(&path, how.device)?, name, how),
            Location::Nbd(location) => open_nbd(&location, how, false),
            Location::Rbd(location) => {
                let (spec, options) = rbd(&location, how);
                let taken = how.take_over.map(|_| RbdDevice::take_over(&spec, &options)).transpose()?;
                match taken {
                    Some(device) if !how.reads() => Ok(Self::of_rbd(device)),
                    // A reader has no lock.
                    taken => {
                        drop(taken);
                        RbdDevice::open(&spec, &options).map(Self::of_rbd)
                    }
                }
            }
        }
    }

    /// An image on this host; with the device lease, if its superblocks demand it.
    fn of_file(file: Arc<FileDevice>, name: &Path, how: &How) -> Result<Self, DeviceError> {
        let name = name.display().to_string();
        let device: Arc<dyn Device> = file.clone();
        let storage = Storage::File(file);
        if !how.shared && !leased::is_demanded(&device) {
            return Ok(Self::of_this_host(storage, None, device));
        }
        if !how.reads() {
            let leased = leased::take(device, &name, how, false, false)?;
            return Ok(Self::of_this_host(storage, Some(leased.clone()), leased));
        }
        // A reader at the same time as a writer reads only data that does not change.
        if !how.device.beside_writer {
            leased::require_free(&device, &name, how, false)?;
        }
        Ok(Self::of_this_host(storage, None, device))
    }

    pub(crate) fn of_this_host(
        storage: Storage,
        leased: Option<Arc<Leased>>,
        device: Arc<dyn Device>,
    ) -> Self {
        let watch = leased.as_deref().map(Watch::of_lease).unwrap_or_default();
        Self { storage, leased, watch, device, encrypted: None, behind: None }
    }

    pub(crate) fn of_rbd(device: Arc<RbdDevice>) -> Self {
        let watch = Watch::of_rbd(&device);
        let storage = Storage::Rbd(device.clone());
        Self { storage, leased: None, watch, device, encrypted: None, behind: None }
    }
}

/// Opens an export and takes its lease, for reading too: nothing else keeps a writer on another
/// host away. Only an export that can't be written at all is read without.
pub(crate) fn open_nbd(location: &NbdLocation, how: &How, over_unknown: bool) -> Result<Image, DeviceError> {
    let name = location.to_string();
    let urgent = Some(LEASE_OFFSET);
    let options = NbdOptions { dead_after: how.dead_after(), urgent, ..NbdOptions::default() };
    #[cfg(feature = "canaries")]
    let options = crate::canaries::nbd(options);
    let nbd = match NbdDevice::open(location, options) {
        Err(error) if how.reads() && is_read_only(&error) => {
            let nbd = NbdDevice::open(location, NbdOptions { read_only: true, ..options })?;
            let device: Arc<dyn Device> = nbd.clone();
            leased::require_free(&device, &name, how, true)?;
            let watch = Watch::of_nbd(&nbd, None);
            let storage = Storage::Nbd(nbd);
            return Ok(Image { storage, leased: None, watch, device, encrypted: None, behind: None });
        }
        opened => opened?,
    };
    let leased: Arc<Leased> = leased::take(nbd.clone(), &name, how, over_unknown, true)?;
    nbd.set_fence(Arc::new(LeaseFence(leased.permit())));
    let device: Arc<dyn Device> = match how.reads() {
        true => Arc::new(ReadOnly(leased.clone())),
        false => leased.clone(),
    };
    let watch = Watch::of_nbd(&nbd, Some(&leased));
    let storage = Storage::Nbd(nbd);
    Ok(Image { storage, leased: Some(leased), watch, device, encrypted: None, behind: None })
}

/// Opens an export without its lease, to look at its contents. They may change meanwhile.
pub(crate) fn look_at_nbd(location: &NbdLocation) -> Result<Arc<NbdDevice>, DeviceError> {
    let options = NbdOptions::default();
    match NbdDevice::open(location, options) {
        Err(error) if is_read_only(&error) => {
            NbdDevice::open(location, NbdOptions { read_only: true, ..options })
        }
        opened => opened,
    }
}

fn is_read_only(error: &DeviceError) -> bool {
    error.io_error().is_some_and(|error| error.kind() == io::ErrorKind::ReadOnlyFilesystem)
}

/// The name of an image in RBD, and the options to open it with.
pub(crate) fn rbd(location: &RbdLocation, how: &How) -> (RbdSpec, RbdOptions) {
    let spec = RbdSpec {
        pool: location.pool.clone(),
        namespace: location.namespace.clone(),
        image: location.image.clone(),
        conf: location.conf.clone(),
        id: location.id.clone(),
    };
    let defaults = RbdOptions::default();
    let wait = location.wait.map_or(defaults.wait, |wait| wait.limit());
    let (read_only, beside_writer) = (how.reads(), how.device.beside_writer);
    let options = RbdOptions { read_only, beside_writer, wait, ..defaults };
    #[cfg(feature = "canaries")]
    let options = crate::canaries::rbd(options);
    (spec, options)
}
