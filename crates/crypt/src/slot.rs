//! A slot of the record: the master key, encrypted under one passphrase or key file.

use crate::{KeyError, KeyId, MasterKey, Secret};
use argon2::{Algorithm, Argon2, Params, Version};
use chacha20poly1305::aead::{AeadInOut, KeyInit};
use chacha20poly1305::{ChaCha20Poly1305, Key, Nonce, Tag};
use rand::RngCore;
use zeroize::Zeroizing;

/// The longest name of a key, in bytes.
pub const NAME_BYTES_MAX: usize = 64;
/// Bytes of a slot in the record.
pub(crate) const SLOT_BYTES: usize = 256;

const SALT: usize = 24;
const NAME: usize = 56;
/// The fields before the encrypted master key are authenticated with it.
const SEALED: usize = 120;
const TAG: usize = 184;
const END: usize = 200;

/// Argon2id, and ChaCha20-Poly1305.
const KIND: u32 = 1;

/// The cost of trying a passphrase: the parameters of Argon2id.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cost {
    /// Memory in KiB.
    pub memory_kib: u32,
    /// Passes over the memory.
    pub passes: u32,
    /// Lanes, which could be computed in parallel.
    pub lanes: u32,
}

impl Default for Cost {
    /// The second recommended choice of RFC 9106.
    fn default() -> Self {
        Self { memory_kib: 64 << 10, passes: 3, lanes: 4 }
    }
}

impl Cost {
    /// The least that Argon2 allows, for tests.
    pub const LEAST: Self = Self { memory_kib: 8, passes: 1, lanes: 1 };

    /// The greatest that a slot may ask for: a hostile image must not use up memory and time.
    fn is_allowed(self) -> bool {
        const KIB_MAX: u64 = 256 << 10;
        let Self { memory_kib, passes, lanes } = self;
        (1..=16).contains(&lanes)
            && u64::from(memory_kib) >= 8 * u64::from(lanes)
            && u64::from(memory_kib) <= KIB_MAX
            && passes > 0
            && u64::from(memory_kib) * u64::from(passes) <= 4 * KIB_MAX
    }
}

/// A slot that is in use.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Slot {
    /// The cost of trying a passphrase.
    pub cost: Cost,
    /// When it was added, nanoseconds since 1970.
    pub added_ns: u64,
    /// The user's name for the key.
    pub name: String,
    salt: [u8; 32],
    sealed: [u8; TAG - SEALED],
    tag: [u8; END - TAG],
}

impl Slot {
    /// The master key, encrypted under `secret`.
    pub(crate) fn seal(
        master: &MasterKey,
        secret: &Secret,
        id: KeyId,
        cost: Cost,
        name: &str,
        added_ns: u64,
    ) -> Result<Self, KeyError> {
        if name.len() > NAME_BYTES_MAX || name.chars().any(char::is_control) {
            return Err(KeyError::Name);
        }
        let (mut salt, sealed) = ([0; 32], *master.as_bytes());
        rand::rng().fill_bytes(&mut salt);
        let mut slot = Self { cost, added_ns, name: name.to_owned(), salt, sealed, tag: [0; END - TAG] };
        let bound = slot.bound(id);
        // The key of a slot encrypts nothing else, so the nonce can be constant.
        let encrypted = slot.derive(secret)?.encrypt_inout_detached(
            &Nonce::default(),
            &bound,
            slot.sealed.as_mut_slice().into(),
        );
        slot.tag = encrypted.expect("64 bytes are not too many").into();
        Ok(slot)
    }

    /// The master key, if `secret` opens the slot.
    pub(crate) fn open(&self, secret: &Secret, id: KeyId) -> Result<Option<MasterKey>, KeyError> {
        let mut sealed = Zeroizing::new(self.sealed);
        let cipher = self.derive(secret)?;
        let opened = cipher.decrypt_inout_detached(
            &Nonce::default(),
            &self.bound(id),
            sealed.as_mut_slice().into(),
            &Tag::from(self.tag),
        );
        Ok(opened.is_ok().then(|| MasterKey::from_bytes(&sealed)))
    }

    fn derive(&self, secret: &Secret) -> Result<ChaCha20Poly1305, KeyError> {
        let Cost { memory_kib, passes, lanes } = self.cost;
        let mut key = Zeroizing::new([0; 32]);
        let params = Params::new(memory_kib, passes, lanes, Some(key.len())).expect("the cost is allowed");
        let mut memory = Zeroizing::new(Vec::new());
        memory
            .try_reserve_exact(params.block_count())
            .map_err(|_| KeyError::Memory { memory_mib: memory_kib >> 10 })?;
        memory.resize(params.block_count(), argon2::Block::default());
        Argon2::new(Algorithm::Argon2id, Version::V0x13, params)
            .hash_password_into_with_memory(secret.as_bytes(), &self.salt, &mut *key, &mut *memory)
            .expect("lengths of secret and salt are allowed");
        Ok(ChaCha20Poly1305::new(&Key::from(*key)))
    }

    /// The key id and the fields that the tag authenticates: nobody changes them without the key.
    fn bound(&self, id: KeyId) -> Vec<u8> {
        let mut bound = id.to_vec();
        bound.extend(&self.encode()[..SEALED]);
        bound
    }

    pub(crate) fn encode(&self) -> [u8; SLOT_BYTES] {
        let Cost { memory_kib, passes, lanes } = self.cost;
        let mut bytes = [0; SLOT_BYTES];
        for (at, value) in [KIND, memory_kib, passes, lanes].into_iter().enumerate() {
            bytes[4 * at..][..4].copy_from_slice(&value.to_le_bytes());
        }
        bytes[16..SALT].copy_from_slice(&self.added_ns.to_le_bytes());
        bytes[SALT..NAME].copy_from_slice(&self.salt);
        bytes[NAME..NAME + self.name.len()].copy_from_slice(self.name.as_bytes());
        bytes[SEALED..TAG].copy_from_slice(&self.sealed);
        bytes[TAG..END].copy_from_slice(&self.tag);
        bytes
    }

    /// Reads a slot from untrusted bytes; `Ok(None)` if it is empty, an error if it is of no known kind.
    pub(crate) fn decode(bytes: &[u8; SLOT_BYTES]) -> Result<Option<Self>, &'static str> {
        if bytes.iter().all(|&byte| byte == 0) {
            return Ok(None);
        }
        let number = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        if number(0) != KIND {
            return Err("kind of a slot");
        }
        let cost = Cost { memory_kib: number(4), passes: number(8), lanes: number(12) };
        if !cost.is_allowed() {
            return Err("cost of a slot");
        }
        let name = &bytes[NAME..SEALED];
        let len = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
        let (name, padding) = name.split_at(len);
        let name = std::str::from_utf8(name).map_err(|_| "name of a slot")?;
        if name.chars().any(char::is_control) || padding.iter().chain(&bytes[END..]).any(|&byte| byte != 0) {
            return Err("name of a slot");
        }
        Ok(Some(Self {
            cost,
            added_ns: u64::from_le_bytes(bytes[16..SALT].try_into().expect("eight bytes")),
            name: name.to_owned(),
            salt: bytes[SALT..NAME].try_into().expect("32 bytes"),
            sealed: bytes[SEALED..TAG].try_into().expect("64 bytes"),
            tag: bytes[TAG..END].try_into().expect("16 bytes"),
        }))
    }
}
