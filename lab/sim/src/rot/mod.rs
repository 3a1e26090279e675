//! Rot: blocks that no longer hold what was written, without a power cut or an error to blame.
//!
//! Afterwards everything acknowledged must be there, or the loss must be reported; there must be no
//! silent loss and no wrong bytes.

mod log;
mod versions;

pub use log::{LogLife, LogSearch};
pub use versions::Versions;

use std::fmt;
use syncline_device::{AlignedBuf, BLOCK_BYTES, Device, MemoryDevice};
use syncline_format::BlockAddr;

/// The damage to a block.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Rot {
    /// It reads as zeros.
    Zeroed,
    /// One of its bits, counted from the start, is flipped.
    Flipped(usize),
    /// It has its contents from before the last write: that write was lost.
    Older,
    /// It has the contents of the next block: a write or a read was misdirected.
    Neighbour,
}

impl fmt::Display for Rot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Zeroed => write!(f, "zeroed"),
            Self::Flipped(bit) => write!(f, "bit {bit} flipped"),
            Self::Older => write!(f, "as before its last write"),
            Self::Neighbour => write!(f, "as its neighbour"),
        }
    }
}

impl Rot {
    /// Damages a block of `device`; `versions` has the earlier contents. Returns false if that
    /// changes nothing.
    pub fn befall(self, device: &MemoryDevice, versions: &Versions, addr: BlockAddr) -> bool {
        let before = block_of(device, addr);
        let mut after = before.clone();
        match self {
            Self::Zeroed => after.fill(0),
            Self::Flipped(bit) => after[bit / 8 % BLOCK_BYTES] ^= 1 << (bit % 8),
            Self::Older => match versions.before_last_write(addr) {
                Some(older) => after.copy_from_slice(&older),
                None => return false,
            },
            Self::Neighbour if (addr + 2) * BLOCK_BYTES as u64 > device.size_bytes() => return false,
            Self::Neighbour => after = block_of(device, addr + 1),
        }
        if after == before {
            return false;
        }
        put_block(device, addr, &after);
        true
    }
}

/// The contents of a block. A memory device completes at once.
pub fn block_of(device: &MemoryDevice, addr: BlockAddr) -> Vec<u8> {
    let (sent, answer) = std::sync::mpsc::channel();
    let done = Box::new(move |read| sent.send(read).expect("somebody waits"));
    device.read(addr * BLOCK_BYTES as u64, AlignedBuf::zeroed(BLOCK_BYTES), done);
    let read: Result<AlignedBuf, _> = answer.recv().expect("it answers at once");
    read.expect("the block lies on the device").to_vec()
}

/// Replaces the contents of a block.
pub fn put_block(device: &MemoryDevice, addr: BlockAddr, bytes: &[u8]) {
    let (sent, answer) = std::sync::mpsc::channel();
    let done = Box::new(move |wrote| sent.send(wrote).expect("somebody waits"));
    device.write(addr * BLOCK_BYTES as u64, vec![AlignedBuf::copy_from(bytes).into_bytes()], done);
    let wrote: Result<(), _> = answer.recv().expect("it answers at once");
    wrote.expect("the block lies on the device");
}
