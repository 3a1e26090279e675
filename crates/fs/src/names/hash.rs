//! The seeded hash of names: an attacker who chooses names can't make them collide.

use siphasher::sip::SipHasher24;
use syncline_format::items::HASH_MAX;

/// Hashes names of directory entries and extended attributes.
#[derive(Clone)]
pub(crate) struct NameHasher {
    hasher: SipHasher24,
    /// Exclusive upper bound of hashes.
    bound: u64,
}

impl NameHasher {
    /// The hash function of an image, from its seed.
    pub(crate) fn new(seed: &[u8; 16]) -> Self {
        Self { hasher: SipHasher24::new_with_key(seed), bound: HASH_MAX + 1 }
    }

    /// A hash function with only `bound` values, so that tests meet collisions.
    #[cfg(test)]
    pub(crate) fn colliding(seed: &[u8; 16], bound: u64) -> Self {
        Self { bound, ..Self::new(seed) }
    }

    /// A number from 0 to [`HASH_MAX`].
    pub(crate) fn hash(&self, name: &[u8]) -> u64 {
        self.hasher.hash(name) % self.bound
    }
}
