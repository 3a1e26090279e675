//! What opens an image: a secret that its user has, and the master key.

use crate::KeyError;
use crate::locked::Locked;
use rand::RngCore;
use std::fmt;
use std::io::{self, Read};
use zeroize::Zeroizing;

/// The longest passphrase or key file, in bytes.
pub const SECRET_BYTES_MAX: usize = 4000;
/// Bytes of the master key: two keys of AES-256.
pub(crate) const MASTER_BYTES: usize = 64;

/// The longest that is read: a key and a line break.
const READ_BYTES: usize = SECRET_BYTES_MAX + 1;

/// A passphrase, or the contents of a key file. A line break (LF) at the end is no part of it.
pub struct Secret {
    bytes: Locked<Zeroizing<[u8; READ_BYTES]>>,
    len: usize,
}

impl Secret {
    /// A copy of these bytes. The caller wipes its own.
    pub fn new(mut bytes: &[u8]) -> Result<Self, KeyError> {
        Self::read(&mut bytes).ok().flatten().ok_or(KeyError::Length)
    }

    /// Everything that `input` gives; `None` if that is nothing, or too long.
    pub fn read(input: &mut dyn Read) -> io::Result<Option<Self>> {
        let (mut len, mut result) = (0, Ok(0));
        let bytes = Locked::filled(Zeroizing::new([0; READ_BYTES]), |bytes| {
            loop {
                result = input.read(&mut bytes[len..]);
                match &result {
                    Ok(0) => break,
                    Ok(read) => len += read,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(_) => break,
                }
            }
        });
        result?;
        // If the buffer is full, more may follow.
        let read = &bytes[..len];
        let kept = read.strip_suffix(b"\n").unwrap_or(read).len();
        let is_key =
            (1..=SECRET_BYTES_MAX).contains(&kept) && (len < READ_BYTES || input.read(&mut [0])? == 0);
        Ok(is_key.then_some(Self { bytes, len: kept }))
    }

    /// The bytes, for handing them to another process.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl PartialEq for Secret {
    fn eq(&self, other: &Self) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Secret")
    }
}

/// The key that the blocks of an image are encrypted with.
pub struct MasterKey(Locked<Zeroizing<[u8; MASTER_BYTES]>>);

impl MasterKey {
    /// A new key.
    pub fn random() -> Self {
        Self::filled(|key| rand::rng().fill_bytes(key))
    }

    /// A copy of known bytes, which the caller wipes.
    pub fn from_bytes(bytes: &[u8; MASTER_BYTES]) -> Self {
        Self::filled(|key| key.copy_from_slice(bytes))
    }

    fn filled(fill: impl FnOnce(&mut [u8; MASTER_BYTES])) -> Self {
        Self(Locked::filled(Zeroizing::new([0; MASTER_BYTES]), |key| fill(key)))
    }

    pub(crate) fn as_bytes(&self) -> &[u8; MASTER_BYTES] {
        &self.0
    }
}

impl fmt::Debug for MasterKey {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("MasterKey")
    }
}
