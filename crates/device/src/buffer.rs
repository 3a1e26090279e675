//! Memory that a device can read into and write from directly.

/// Zeroed bytes, aligned to 4096, a multiple of 4096 long.
pub struct AlignedBuf(());
