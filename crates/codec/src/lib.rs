//! Compressing and decompressing units of file data.
//!
//! Compressed data is untrusted. Decoding returns a result of exactly the promised length or an
//! error, and takes no more memory than that and the decoder's own.

#![forbid(unsafe_code)]

use std::cell::RefCell;
use syncline_format::BLOCK_BYTES;
use syncline_format::items::extent::{Algorithm, EXTENT_BLOCKS_MAX, Packed};
use zstd::bulk::{Compressor, Decompressor};

/// Level of Zstandard: its default. Higher levels cost several times as much for a few percent.
const ZSTD_LEVEL: i32 = 3;
/// Length of the longest unit.
const UNIT_BYTES_MAX: usize = EXTENT_BLOCKS_MAX as usize * BLOCK_BYTES;

thread_local! {
    /// A compressor's tables take a megabyte, so each thread has one, made when it first
    /// compresses.
    static COMPRESSOR: RefCell<Option<Compressor<'static>>> = const { RefCell::new(None) };
    static DECOMPRESSOR: RefCell<Option<Decompressor<'static>>> = const { RefCell::new(None) };
}

/// Why a unit can't be decoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CodecError {
    /// The data is not valid for the algorithm, or decodes to another length.
    #[error("the compressed data does not decode to {0} bytes")]
    Undecodable(usize),
    /// No unit can have this length.
    #[error("a unit of {0} bytes")]
    Length(usize),
    /// The library failed to initialize.
    #[error("no decoder: out of memory")]
    Memory,
}

/// The most blocks that a unit of `blocks` may take on the device: compression has to save one
/// block in eight, and at least one.
pub fn stored_blocks_max(blocks: u64) -> u64 {
    (blocks * 7 / 8).min(blocks.saturating_sub(1))
}

/// Compresses whole blocks, at most [`EXTENT_BLOCKS_MAX`] of them. `None` if that would save too
/// little.
pub fn pack(algorithm: Algorithm, blocks: &[u8]) -> Option<Vec<u8>> {
    debug_assert!(blocks.len().is_multiple_of(BLOCK_BYTES) && blocks.len() <= UNIT_BYTES_MAX);
    let most = stored_blocks_max((blocks.len() / BLOCK_BYTES) as u64) as usize * BLOCK_BYTES;
    if most == 0 {
        return None;
    }
    // If the result does not fit in here, it saves too little.
    let mut packed = vec![0; most];
    let bytes = match algorithm {
        Algorithm::Lz4 => {
            // The encoder needs room for the worst case.
            packed.resize(lz4_flex::block::get_maximum_output_size(blocks.len()), 0);
            lz4_flex::block::compress_into(blocks, &mut packed).ok().filter(|&bytes| bytes <= most)?
        }
        Algorithm::Zstd => zstd_into(blocks, &mut packed)?,
    };
    packed.truncate(bytes);
    Some(packed)
}

/// Decodes a unit from its blocks on the device, the last of which is padded with zeros.
pub fn unpack(packed: &Packed, stored: &[u8]) -> Result<Vec<u8>, CodecError> {
    let length = packed.unit_blocks as usize * BLOCK_BYTES;
    if length > UNIT_BYTES_MAX {
        return Err(CodecError::Length(length));
    }
    let payload = stored.get(..packed.bytes as usize).ok_or(CodecError::Length(stored.len()))?;
    let mut unit = vec![0; length];
    let bytes = match packed.algorithm {
        Algorithm::Lz4 => lz4_flex::block::decompress_into(payload, &mut unit).ok(),
        Algorithm::Zstd => unzstd_into(payload, &mut unit)?,
    };
    if bytes == Some(length) { Ok(unit) } else { Err(CodecError::Undecodable(length)) }
}

fn zstd_into(from: &[u8], to: &mut [u8]) -> Option<usize> {
    COMPRESSOR.with_borrow_mut(|kept| {
        if kept.is_none() {
            *kept = Compressor::new(ZSTD_LEVEL).ok();
        }
        kept.as_mut()?.compress_to_buffer(from, to).ok()
    })
}

fn unzstd_into(from: &[u8], to: &mut [u8]) -> Result<Option<usize>, CodecError> {
    DECOMPRESSOR.with_borrow_mut(|kept| {
        if kept.is_none() {
            *kept = Decompressor::new().ok();
        }
        let decompressor = kept.as_mut().ok_or(CodecError::Memory)?;
        Ok(decompressor.decompress_to_buffer(from, to).ok())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BOTH: [Algorithm; 2] = [Algorithm::Lz4, Algorithm::Zstd];

    fn described(algorithm: Algorithm, payload: &[u8], unit_blocks: u64) -> Packed {
        let bytes = u32::try_from(payload.len()).unwrap();
        Packed { algorithm, bytes, unit_blocks, skip: 0, blocks: unit_blocks }
    }

    fn noise(len: usize) -> Vec<u8> {
        let mut state = 0x9e37_79b9_u32;
        let mut step = || {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            state as u8
        };
        (0..len).map(|_| step()).collect()
    }

    #[test]
    fn a_unit_must_save_a_block_in_eight() {
        let most: Vec<u64> = [1, 2, 7, 8, 9, 16, 32].into_iter().map(stored_blocks_max).collect();
        assert_eq!(most, [0, 1, 6, 7, 7, 14, 28]);
        for algorithm in BOTH {
            assert_eq!(pack(algorithm, &noise(UNIT_BYTES_MAX)), None);
            assert_eq!(pack(algorithm, &[7; BLOCK_BYTES]), None, "there is no block to save");
            // Five of 32 blocks are zeros, which is just enough; three are not.
            let mut data = noise(27 * BLOCK_BYTES);
            data.resize(UNIT_BYTES_MAX, 0);
            assert!(pack(algorithm, &data).is_some_and(|packed| packed.len() <= 28 * BLOCK_BYTES));
            let mut data = noise(29 * BLOCK_BYTES);
            data.resize(UNIT_BYTES_MAX, 0);
            assert_eq!(pack(algorithm, &data), None);
        }
    }

    #[test]
    fn another_length_than_promised_is_refused() {
        let text: Vec<u8> =
            b"what is promised is what must come. ".iter().copied().cycle().take(8192).collect();
        for algorithm in BOTH {
            let payload = pack(algorithm, &text).unwrap();
            let mut stored = payload.clone();
            stored.resize(BLOCK_BYTES, 0);
            assert_eq!(unpack(&described(algorithm, &payload, 2), &stored).as_deref(), Ok(&text[..]));
            for blocks in [1, 3, 32] {
                let error = unpack(&described(algorithm, &payload, blocks), &stored).unwrap_err();
                assert_eq!(error, CodecError::Undecodable(blocks as usize * BLOCK_BYTES));
            }
            let cut = Packed { bytes: payload.len() as u32 - 1, ..described(algorithm, &payload, 2) };
            assert!(unpack(&cut, &stored).is_err());
            assert_eq!(unpack(&described(algorithm, &payload, 2), &[]), Err(CodecError::Length(0)));
            assert!(unpack(&described(algorithm, &payload, 33), &stored).is_err());
        }
    }

    proptest! {
        #[test]
        fn what_was_packed_comes_back(blocks in 1..=32u64, words in proptest::collection::vec(any::<u8>(), 1..40), zstd: bool) {
            let algorithm = BOTH[usize::from(zstd)];
            let data: Vec<u8> = words.iter().copied().cycle().take(blocks as usize * BLOCK_BYTES).collect();
            if let Some(payload) = pack(algorithm, &data) {
                prop_assert!((payload.len() as u64).div_ceil(BLOCK_BYTES as u64) <= stored_blocks_max(blocks));
                prop_assert_eq!(unpack(&described(algorithm, &payload, blocks), &payload), Ok(data));
            } else {
                prop_assert_eq!(blocks, 1, "a repetition shrinks");
            }
        }

        /// Any bytes from the device: decoding does not panic, and returns nothing but the promised
        /// length.
        #[test]
        fn decoding_garbage_never_panics(payload in proptest::collection::vec(any::<u8>(), 1..9000), blocks in 1..=32u64, zstd: bool) {
            let packed = described(BOTH[usize::from(zstd)], &payload, blocks);
            if let Ok(unit) = unpack(&packed, &payload) {
                prop_assert_eq!(unit.len() as u64, blocks * BLOCK_BYTES as u64);
            }
        }

        /// A valid unit with some bytes changed.
        #[test]
        fn decoding_damage_never_panics(at in proptest::collection::vec((any::<usize>(), any::<u8>()), 1..5), zstd: bool) {
            let algorithm = BOTH[usize::from(zstd)];
            let mut data = noise(20_000);
            data.resize(UNIT_BYTES_MAX, 1);
            let mut payload = pack(algorithm, &data).unwrap();
            for (at, byte) in at {
                let at = at % payload.len();
                payload[at] = byte;
            }
            if let Ok(unit) = unpack(&described(algorithm, &payload, 32), &payload) {
                prop_assert_eq!(unit.len(), UNIT_BYTES_MAX);
            }
        }
    }
}
