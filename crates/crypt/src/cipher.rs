//! AES-256-XTS (IEEE 1619) with a data unit of 4,096 bytes, whose number is that of the block.
//!
//! The crate `aes` computes AES on many 16-byte blocks at a time with the instructions that the CPU has. The crates that
//! offer XTS on top give it one 16-byte block at a time, which is forty times slower; hence the mode is here.

use crate::MasterKey;
use crate::locked::Locked;
use aes::Aes256;
use aes::cipher::array::Array;
use aes::cipher::consts::U16;
use aes::cipher::{BlockCipherDecrypt, BlockCipherEncrypt, KeyInit};
use std::fmt;
use syncline_device::BLOCK_BYTES;

/// Bytes of a block of AES.
const AES_BYTES: usize = 16;
/// Blocks of AES in a block of the device.
const PARTS: usize = BLOCK_BYTES / AES_BYTES;

/// Encrypts and decrypts blocks of a device.
pub struct Cipher {
    // They wipe themselves.
    data: Locked<Aes256>,
    tweak: Locked<Aes256>,
}

impl Cipher {
    /// The cipher of this key.
    pub fn new(key: &MasterKey) -> Self {
        let [data, tweak] = [0, 1].map(|half| {
            let key = &key.as_bytes().as_chunks::<32>().0[half];
            Locked::filled(Aes256::new(&Array([0; 32])), |aes| *aes = Aes256::new(key.into()))
        });
        Self { data, tweak }
    }

    /// Encrypts consecutive blocks, of which the first has this number.
    pub fn encrypt(&self, first: u64, blocks: &mut [u8]) {
        self.each(first, blocks, |parts| self.data.encrypt_blocks(parts));
    }

    /// Decrypts consecutive blocks, of which the first has this number.
    pub fn decrypt(&self, first: u64, blocks: &mut [u8]) {
        self.each(first, blocks, |parts| self.data.decrypt_blocks(parts));
    }

    fn each(&self, first: u64, blocks: &mut [u8], aes: impl Fn(&mut [Array<u8, U16>])) {
        debug_assert!(blocks.len().is_multiple_of(BLOCK_BYTES));
        for (number, block) in (first..).zip(blocks.chunks_exact_mut(BLOCK_BYTES)) {
            let masks = self.masks(number);
            mask(block, &masks);
            aes(Array::slice_as_chunks_mut(block).0);
            mask(block, &masks);
        }
    }

    /// The tweaks of the parts of block `number`: each is the one before, times x in GF(2^128).
    fn masks(&self, number: u64) -> [u128; PARTS] {
        let mut first = Array::from(u128::from(number).to_le_bytes());
        self.tweak.encrypt_block(&mut first);
        let mut next = u128::from_le_bytes(first.into());
        std::array::from_fn(|_| {
            let mask = next;
            next = (mask << 1) ^ ((mask >> 127) * 0x87);
            mask
        })
    }
}

fn mask(block: &mut [u8], masks: &[u128; PARTS]) {
    for (part, mask) in block.chunks_exact_mut(AES_BYTES).zip(masks) {
        let masked = u128::from_le_bytes((&*part).try_into().expect("16 bytes")) ^ mask;
        part.copy_from_slice(&masked.to_le_bytes());
    }
}

impl fmt::Debug for Cipher {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Cipher")
    }
}

#[cfg(test)]
mod tests;
