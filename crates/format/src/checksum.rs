//! The one checksum family: CRC32C (Castagnoli), which x86-64 and AArch64 compute in hardware.

use crate::BLOCK_BYTES;

/// A CRC32C value.
pub type Crc = u32;

/// CRC32C of `bytes`.
pub fn crc(bytes: &[u8]) -> Crc {
    crc32c::crc32c(bytes)
}

/// CRC32C of each whole block of `bytes`.
pub fn block_checksums(bytes: &[u8]) -> impl Iterator<Item = Crc> + '_ {
    bytes.chunks_exact(BLOCK_BYTES).map(crc)
}
