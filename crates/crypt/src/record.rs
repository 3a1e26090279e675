//! The record of the keys of an image.

use crate::slot::{SLOT_BYTES, Slot};
use crate::{Cost, KeyError, MasterKey, Secret};
use syncline_format::superblock::COUNTER_MAX;
use syncline_format::{BLOCK_BYTES, FormatError, crc};

/// Number of slots.
pub const SLOTS: usize = 8;
/// The random name of a master key.
pub type KeyId = [u8; 16];

/// Magic number at the start of a record.
const MAGIC: [u8; 8] = *b"SYNCKEYS";
const VERSION: u32 = 1;
/// AES-256-XTS with data units of 4,096 bytes.
const CIPHER: u32 = 1;

const CHECKSUM: usize = 8;
const CHECKED: usize = 12;
const SEQUENCE: usize = 16;
const CIPHER_AT: usize = 24;
const KEY_ID: usize = 32;
const FIXED_END: usize = 48;
const FIRST_SLOT: usize = 64;
const END: usize = FIRST_SLOT + SLOTS * SLOT_BYTES;

const STRUCTURE: &str = "key record";

/// The keys of an image. None of its contents is secret; each slot has the master key, encrypted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeyRecord {
    /// Counts the changes: of several copies the one with the greatest number counts.
    pub sequence: u64,
    /// The name of the master key. A fork has that of its base.
    pub key_id: KeyId,
    /// The slots.
    pub slots: [Option<Slot>; SLOTS],
}

impl KeyRecord {
    /// A record without keys.
    pub fn new() -> Self {
        Self { sequence: 0, key_id: rand::random(), slots: Default::default() }
    }

    /// A record with these keys that takes the place of this one.
    pub fn following(&self) -> Result<Self, KeyError> {
        let sequence = self.sequence + 1;
        let damaged = FormatError::Field { structure: STRUCTURE, field: "sequence number" };
        (sequence <= COUNTER_MAX).then(|| Self { sequence, ..self.clone() }).ok_or(KeyError::Damaged(damaged))
    }

    /// Tries the slots one after the other; returns the master key, and the number of the slot, from 1.
    pub fn open(&self, secret: &Secret) -> Result<(MasterKey, usize), KeyError> {
        // The others may need less memory.
        let mut failed = KeyError::Wrong;
        for (index, slot) in self.slots.iter().enumerate() {
            match slot.as_ref().map(|slot| slot.open(secret, self.key_id)) {
                Some(Ok(Some(master))) => return Ok((master, index + 1)),
                Some(Err(error)) => failed = error,
                Some(Ok(None)) | None => {}
            }
        }
        Err(failed)
    }

    /// Puts another key into a free slot, and returns its number.
    pub fn add(&mut self, key: NewKey<'_>) -> Result<usize, KeyError> {
        let free = self.slots.iter().position(Option::is_none).ok_or(KeyError::Full)?;
        self.slots[free] = Some(key.seal(self.key_id)?);
        Ok(free + 1)
    }

    /// Puts another key in the place of key `number`.
    pub fn replace(&mut self, number: usize, key: NewKey<'_>) -> Result<(), KeyError> {
        self.require(number)?;
        self.slots[number - 1] = Some(key.seal(self.key_id)?);
        Ok(())
    }

    /// Empties slot `number`. The last key stays.
    pub fn remove(&mut self, number: usize) -> Result<(), KeyError> {
        self.require(number)?;
        if self.slots.iter().flatten().count() == 1 {
            return Err(KeyError::Last);
        }
        self.slots[number - 1] = None;
        Ok(())
    }

    fn require(&self, number: usize) -> Result<(), KeyError> {
        let slot = number.checked_sub(1).and_then(|index| self.slots.get(index)?.as_ref());
        slot.map(|_| ()).ok_or(KeyError::NoSlot { number })
    }

    /// The bytes of the record's block.
    pub fn encode(&self) -> [u8; BLOCK_BYTES] {
        let mut block = [0; BLOCK_BYTES];
        block[..CHECKSUM].copy_from_slice(&MAGIC);
        block[CHECKED..SEQUENCE].copy_from_slice(&VERSION.to_le_bytes());
        block[SEQUENCE..CIPHER_AT].copy_from_slice(&self.sequence.to_le_bytes());
        block[CIPHER_AT..CIPHER_AT + 4].copy_from_slice(&CIPHER.to_le_bytes());
        block[KEY_ID..FIXED_END].copy_from_slice(&self.key_id);
        for (index, slot) in self.slots.iter().enumerate() {
            if let Some(slot) = slot {
                block[FIRST_SLOT + index * SLOT_BYTES..][..SLOT_BYTES].copy_from_slice(&slot.encode());
            }
        }
        let checksum = crc(&block[CHECKED..]);
        block[CHECKSUM..CHECKED].copy_from_slice(&checksum.to_le_bytes());
        block
    }

    /// Reads a record from untrusted bytes.
    pub fn decode(block: &[u8]) -> Result<Self, FormatError> {
        let field = |field| FormatError::Field { structure: STRUCTURE, field };
        let block: &[u8; BLOCK_BYTES] =
            block.try_into().map_err(|_| FormatError::Truncated { structure: STRUCTURE })?;
        let number = |at: usize| u32::from_le_bytes(block[at..at + 4].try_into().expect("four bytes"));
        if block[..CHECKSUM] != MAGIC {
            return Err(FormatError::Magic { structure: STRUCTURE });
        }
        if crc(&block[CHECKED..]) != number(CHECKSUM) {
            return Err(FormatError::Checksum { structure: STRUCTURE });
        }
        if number(CHECKED) != VERSION {
            return Err(FormatError::Version { found: number(CHECKED), supported: VERSION });
        }
        if number(CIPHER_AT) != CIPHER {
            return Err(field("cipher"));
        }
        let zeros = [&block[CIPHER_AT + 4..KEY_ID], &block[FIXED_END..FIRST_SLOT], &block[END..]];
        if zeros.concat().iter().any(|&byte| byte != 0) {
            return Err(field("bytes that must be zero"));
        }
        let (slots, _) = block[FIRST_SLOT..END].as_chunks::<SLOT_BYTES>();
        let mut record = Self {
            sequence: u64::from_le_bytes(block[SEQUENCE..CIPHER_AT].try_into().expect("eight bytes")),
            key_id: block[KEY_ID..FIXED_END].try_into().expect("16 bytes"),
            slots: Default::default(),
        };
        if record.sequence > COUNTER_MAX {
            return Err(field("sequence number"));
        }
        for (slot, bytes) in record.slots.iter_mut().zip(slots) {
            *slot = Slot::decode(bytes).map_err(field)?;
        }
        Ok(record)
    }
}

impl Default for KeyRecord {
    fn default() -> Self {
        Self::new()
    }
}

/// A key to be put into a slot.
#[derive(Clone, Copy, Debug)]
pub struct NewKey<'a> {
    /// The master key, which another key has opened.
    pub master: &'a MasterKey,
    /// The passphrase, or the contents of the key file.
    pub secret: &'a Secret,
    /// The user's name for it; may be empty.
    pub name: &'a str,
    /// The cost of trying a passphrase.
    pub cost: Cost,
    /// The time, nanoseconds since 1970.
    pub now_ns: u64,
}

impl NewKey<'_> {
    fn seal(&self, id: KeyId) -> Result<Slot, KeyError> {
        Slot::seal(self.master, self.secret, id, self.cost, self.name, self.now_ns)
    }
}

#[cfg(test)]
mod tests;
