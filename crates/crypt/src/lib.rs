//! Encrypted images: AES-256-XTS under the filesystem, and the keys that open it.
//!
//! An encrypted image begins with a header of its own ([`HEADER_BLOCKS`]), and everything behind it is encrypted: the
//! superblocks too. So the filesystem sees an ordinary device ([`Encrypted`]), and nothing in it knows of keys.
//!
//! One random master key encrypts the blocks. The header's record ([`KeyRecord`]) holds it up to eight times, each time
//! encrypted under another passphrase or key file: adding or removing a key changes the record and no other block. The
//! record has three copies: two in the header, and one in the last block of the device.

#![forbid(unsafe_code)]

mod cipher;
mod device;
mod locked;
mod record;
mod secret;
mod slot;
mod storage;

pub use cipher::Cipher;
pub use device::Encrypted;
pub use record::{KeyId, KeyRecord, NewKey, SLOTS};
pub use secret::{MasterKey, SECRET_BYTES_MAX, Secret};
pub use slot::{Cost, NAME_BYTES_MAX, Slot};
pub use storage::{Found, begin, move_last_copy, read_record, record_of, record_places};

use syncline_device::DeviceError;
use syncline_format::FormatError;

/// Blocks in front of the encrypted ones. They hold two copies of the record, and the device lease.
pub const HEADER_BLOCKS: u64 = 64;
/// Blocks of a device that the filesystem on it does not have: the header, and the last block.
pub const OVERHEAD_BLOCKS: u64 = HEADER_BLOCKS + 1;
/// The same in bytes.
pub const OVERHEAD_BYTES: u64 = OVERHEAD_BLOCKS * syncline_device::BLOCK_BYTES as u64;

/// Why an encrypted image could not be opened, or its keys not be changed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum KeyError {
    /// Nobody gave a key.
    #[error("the image is encrypted, and no key was given")]
    Missing,
    /// None of the slots is opened by the key that was given.
    #[error("this key does not open the image")]
    Wrong,
    /// The record has no room for another key.
    #[error("the image has {SLOTS} keys, and that is the most")]
    Full,
    /// The slot is empty.
    #[error("the image has no key {number}")]
    NoSlot {
        /// The number, from 1.
        number: usize,
    },
    /// Without this key nobody could open the image again.
    #[error("it is the only key, and without it nobody could open the image again")]
    Last,
    /// A passphrase or key file has a length that is not allowed.
    #[error("a key has 1 to {SECRET_BYTES_MAX} bytes")]
    Length,
    /// The name of a key is too long, or has a NUL or a line break.
    #[error("the name of a key has at most {NAME_BYTES_MAX} bytes, and no control character")]
    Name,
    /// The derivation takes more memory than there is.
    #[error("this key needs {memory_mib} MiB of memory to be tried, and there is not enough")]
    Memory {
        /// How much it needs.
        memory_mib: u32,
    },
    /// Every copy of the record is damaged.
    #[error("every copy of the key record is damaged ({0})")]
    Damaged(FormatError),
    /// The record is changed, but one of its copies could not be written.
    #[error("the keys are changed, but a copy of the key record can't be written: {0}")]
    Incomplete(DeviceError),
    /// A key was given for an image that has none.
    #[error("the image is not encrypted, and a key was given for it")]
    NotEncrypted,
    /// The device has no room for the header and the smallest filesystem.
    #[error("an encrypted image has at least 16 MiB and 260 KiB")]
    TooSmall,
    /// A program that should give the key failed.
    #[error("{0}")]
    Source(String),
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
}
