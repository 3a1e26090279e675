//! Encrypted images: their keys, and the device behind their header.

use crate::{How, Image, keyring, location};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use syncline_crypt::{
    Cipher, Encrypted, Found, KeyError, KeyRecord, MasterKey, NewKey, begin, read_record, record_of,
};
use syncline_device::{BLOCK_BYTES, Device, DeviceError, block_on};
use syncline_net::Location;
use syncline_store::read_superblocks;

impl Image {
    /// This image, decrypted if it is encrypted. Damaged copies of its key record are written again.
    pub(crate) fn unlocked(self, name: &Path, how: &How) -> Result<Self, DeviceError> {
        let Some(found) = self.find_keys(name)? else {
            return match keyring::is_needed() {
                true => Err(refused(name, KeyError::NotEncrypted)),
                false => Ok(self),
            };
        };
        let unlocked = keyring::unlock(name, &found.record, how.unattended);
        let cipher = unlocked.map_err(|error| refused(name, error))?.cipher;
        let below = self.device.clone();
        let image = self.with_cipher(cipher, found.record.clone());
        // Superblocks that can be read show that it is the right key, and that the storage is not too short.
        if !how.reads()
            && let Ok(slots) = block_on(read_superblocks(&image.device))
            && let Err(error) = block_on(found.settle(&below, slots.superblock.geometry.total_blocks))
        {
            tracing::warn!("a copy of the key record is damaged or old, and can't be written: {error}");
        }
        Ok(image)
    }

    /// The key record of an image that is not decrypted.
    fn find_keys(&self, name: &Path) -> Result<Option<Found>, DeviceError> {
        let found = block_on(read_record(&self.device)).map_err(|error| refused(name, error))?;
        // A file of a plain image may have left such a block there.
        let is_plain =
            |found: &Found| found.only_at_the_end && block_on(read_superblocks(&self.device)).is_ok();
        Ok(found.filter(|found| !is_plain(found)))
    }

    fn with_cipher(self, cipher: Arc<Cipher>, record: KeyRecord) -> Self {
        let encrypted = Encrypted::new(self.device, cipher, record);
        Self { device: encrypted.clone(), encrypted: Some(encrypted), ..self }
    }

    /// Encrypts an image that was just [created](Self::create), and has nothing in it, under the key that this process
    /// [added](crate::add_key) last.
    pub fn encrypt(self, name: &Path) -> Result<Self, DeviceError> {
        let (master, mut record) = (MasterKey::random(), KeyRecord::new());
        let encrypted = keyring::newest().ok_or(KeyError::Missing).and_then(|secret| {
            record.add(new_key(&master, &secret, ""))?;
            block_on(begin(&self.device, &record))
        });
        encrypted.map_err(|error| refused(name, error))?;
        Ok(self.with_cipher(Arc::new(Cipher::new(&master)), record))
    }

    /// True if it is encrypted.
    pub fn is_encrypted(&self) -> bool {
        self.encrypted.is_some()
    }

    /// Bytes of its storage that its filesystem does not have.
    pub fn overhead_bytes(&self) -> u64 {
        self.device.overhead_bytes()
    }

    /// Encrypts empty storage of a fork of this image, with the same key.
    pub(crate) fn encrypt_fork(&self, own: Arc<dyn Device>) -> Result<Arc<dyn Device>, KeyError> {
        let Some(base) = &self.encrypted else { return Ok(own) };
        block_on(begin(&own, base.record()))?;
        Ok(Encrypted::new(own, base.cipher().clone(), base.record().clone()))
    }
}

/// An encrypted image whose keys are looked at or changed.
pub struct Keys {
    image: Image,
    found: Found,
}

impl Keys {
    /// True if a copy of the record is damaged or older.
    pub fn has_stale_copy(&self) -> bool {
        !self.found.stale.is_empty()
    }

    /// Opens an image without a key; `None` if it is not encrypted.
    pub fn open(name: &Path, how: &How) -> Result<Option<Self>, DeviceError> {
        let image = Image::open_locked(name, how)?;
        Ok(image.find_keys(name)?.map(|found| Self { image, found }))
    }

    /// The record of the keys.
    pub fn record(&self) -> &KeyRecord {
        &self.found.record
    }

    /// Changes the record, durably. After a crash the image has the old keys or the new ones.
    pub fn change<T>(
        &mut self,
        change: impl FnOnce(&mut KeyRecord) -> Result<T, KeyError>,
    ) -> Result<T, KeyError> {
        let mut record = self.found.record.following()?;
        let changed = change(&mut record)?;
        block_on(self.found.replace(&self.image.device, record))?;
        Ok(changed)
    }
}

/// The key record of an image, if it has one. Nobody is kept from using the image meanwhile.
pub fn peek_keys(name: &Path) -> Option<KeyRecord> {
    const START_BYTES: usize = 256 << 10;
    let Location::Path(path) = location(name).ok()? else {
        return record_of(&crate::start_of_remote(name, START_BYTES)?, &[]);
    };
    let (mut start, mut last) = (Vec::new(), [0; BLOCK_BYTES]);
    // Opening a FIFO would wait for its other end.
    let mut file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path).ok()?;
    (&file).take(START_BYTES as u64).read_to_end(&mut start).ok()?;
    let end = file.seek(SeekFrom::End(0)).ok()?;
    let last_block = (end / BLOCK_BYTES as u64).checked_sub(1)?;
    file.read_exact_at(&mut last, last_block * BLOCK_BYTES as u64).ok()?;
    record_of(&start, &last)
}

/// True if an image that begins with these bytes is encrypted.
pub fn is_encrypted(start: &[u8]) -> bool {
    record_of(start, &[]).is_some()
}

/// Why the key of an image was refused, or its keys could not be changed.
pub fn key_error(error: &DeviceError) -> Option<&KeyError> {
    error.io_error()?.get_ref()?.downcast_ref()
}

/// A key that was refused, as the error of opening the image.
pub(crate) fn refused(name: &Path, error: KeyError) -> DeviceError {
    let kind = match &error {
        KeyError::Device(error) => return error.clone(),
        KeyError::Missing | KeyError::Wrong | KeyError::NotEncrypted | KeyError::Source(_) => {
            io::ErrorKind::PermissionDenied
        }
        KeyError::Damaged(_) => io::ErrorKind::InvalidData,
        KeyError::Memory { .. } => io::ErrorKind::OutOfMemory,
        _ => io::ErrorKind::InvalidInput,
    };
    DeviceError::Open { path: name.display().to_string(), source: Arc::new(io::Error::new(kind, error)) }
}

/// A new key for the master key of an image, made now.
pub fn new_key<'a>(master: &'a MasterKey, secret: &'a syncline_crypt::Secret, name: &'a str) -> NewKey<'a> {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    NewKey { master, secret, name, cost: Default::default(), now_ns: now.as_nanos() as u64 }
}
