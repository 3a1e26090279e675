//! The device lease: one block that says which host may write to an image on a shared device, and
//! for how long at a time.
//!
//! The crate `syncline-lease` takes and renews it, and its PROOF.md proves what follows.

use crate::{BLOCK_BYTES, BlockAddr, FormatError, crc};

/// The block of the lease. Nothing else was ever written there but the zeros of mkfs.
pub const LEASE_BLOCK: BlockAddr = 48;
/// Magic number at the start of the block.
pub const LEASE_MAGIC: [u8; 8] = *b"SYNLEASE";
/// Length of the field of the host's name, which is the longest that Linux allows.
pub const HOST_BYTES: usize = 64;
/// The shortest and the longest duration of a lease, in milliseconds.
pub const DURATION_MS: (u32, u32) = (4_000, 120_000);
/// The longest guard time, in milliseconds.
pub const GUARD_MS_MAX: u32 = 60_000;
/// A claim counts only if it was written and flushed within this time, in milliseconds, since the
/// read that allowed it. All hosts must agree on it, since it decides how long a contender waits
/// before it reads back.
pub const CLAIM_MS_MAX: u32 = 1_000;

/// The state of the lease, set by its holder.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LeaseState {
    /// It may write, until the lease expires.
    Held,
    /// It is taking over and waits until the one before it has expired.
    Claimed,
    /// It has closed the image; nothing of it is under way.
    Released,
}

/// The holder of the lease: for messages, and to tell hosts apart. Nothing is decided by it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LeaseHolder {
    /// Host name, UTF-8, zero-padded.
    pub host: [u8; HOST_BYTES],
    /// `/etc/machine-id`; zero if unknown.
    pub machine_id: [u8; 16],
    /// The kernel's random name of this run of the host; zero if unknown.
    pub boot_id: [u8; 16],
    /// Process number, in the holder's own namespace of processes.
    pub pid: u32,
    /// When the process began, in clock ticks since the host was started, as in `/proc/PID/stat`.
    pub process_start_ticks: u64,
}

/// A decoded lease block.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Lease {
    /// The state of the lease.
    pub state: LeaseState,
    /// Counts the holders, from 1.
    pub term: u64,
    /// Counts the writes of the block within a term. A host that sees it change knows that the holder
    /// lives.
    pub sequence: u64,
    /// Random, drawn again for each term: the block is somebody else's exactly if this differs.
    pub nonce: [u8; 16],
    /// How long the lease is valid, counted from before a renewal is sent.
    pub duration_ms: u32,
    /// The longest time that anything the holder sent may be under way.
    pub guard_ms: u32,
    /// How often it is renewed.
    pub interval_ms: u32,
    /// For how long this holder has had the lease, by its own clock.
    pub held_ms: u64,
    /// When this term began, nanoseconds since 1970 by the holder's clock: for people, and never
    /// compared.
    pub began_ns: u64,
    /// The holder.
    pub holder: LeaseHolder,
}

const STRUCTURE: &str = "device lease";
const CHECKSUM: usize = 8;
const STATE: usize = 12;
const FIXED_END: usize = 184;
const _: () = assert!(
    FIXED_END <= 512,
    "the meaning of a lease lies within one 512-byte sector, so a power cut never tears it"
);

impl Lease {
    /// The bytes of the lease's block.
    pub fn encode(&self) -> [u8; BLOCK_BYTES] {
        let mut block = [0; BLOCK_BYTES];
        block[..CHECKSUM].copy_from_slice(&LEASE_MAGIC);
        let mut at = STATE;
        let mut put = |bytes: &[u8]| {
            block[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        };
        let state: u32 = match self.state {
            LeaseState::Held => 1,
            LeaseState::Claimed => 2,
            LeaseState::Released => 3,
        };
        put(&state.to_le_bytes());
        put(&self.term.to_le_bytes());
        put(&self.sequence.to_le_bytes());
        put(&self.nonce);
        put(&self.duration_ms.to_le_bytes());
        put(&self.guard_ms.to_le_bytes());
        put(&self.interval_ms.to_le_bytes());
        put(&self.holder.pid.to_le_bytes());
        put(&self.held_ms.to_le_bytes());
        put(&self.began_ns.to_le_bytes());
        put(&self.holder.process_start_ticks.to_le_bytes());
        put(&self.holder.boot_id);
        put(&self.holder.machine_id);
        put(&self.holder.host);
        debug_assert_eq!(at, FIXED_END);
        let checksum = crc(&block[STATE..]);
        block[CHECKSUM..STATE].copy_from_slice(&checksum.to_le_bytes());
        block
    }

    /// Reads a lease from untrusted bytes; `None` if the block is zeros, so nobody has ever had a
    /// lease.
    pub fn decode(block: &[u8]) -> Result<Option<Self>, FormatError> {
        let structure = STRUCTURE;
        let block: &[u8; BLOCK_BYTES] = block.try_into().map_err(|_| FormatError::Truncated { structure })?;
        if block.iter().all(|&byte| byte == 0) {
            return Ok(None);
        }
        if block[..CHECKSUM] != LEASE_MAGIC {
            return Err(FormatError::Magic { structure });
        }
        let mut input = Reader { block, at: CHECKSUM };
        if input.u32() != crc(&block[STATE..]) {
            return Err(FormatError::Checksum { structure });
        }
        let state = match input.u32() {
            1 => LeaseState::Held,
            2 => LeaseState::Claimed,
            3 => LeaseState::Released,
            _ => return Err(field("state")),
        };
        let (term, sequence, nonce) = (input.u64(), input.u64(), input.bytes());
        let (duration_ms, guard_ms, interval_ms) = (input.u32(), input.u32(), input.u32());
        let (pid, held_ms, began_ns) = (input.u32(), input.u64(), input.u64());
        let process_start_ticks = input.u64();
        let (boot_id, machine_id, host) = (input.bytes(), input.bytes(), input.bytes());
        debug_assert_eq!(input.at, FIXED_END);
        if block[FIXED_END..].iter().any(|&byte| byte != 0) {
            return Err(field("contents behind the fields"));
        }
        let holder = LeaseHolder { host, machine_id, boot_id, pid, process_start_ticks };
        let lease = Self {
            state,
            term,
            sequence,
            nonce,
            duration_ms,
            guard_ms,
            interval_ms,
            held_ms,
            began_ns,
            holder,
        };
        lease.check().map(Some)
    }

    /// Refuses values that a lease can't have even if its checksum is right. Others wait as long as
    /// it says, and count on from its numbers.
    fn check(self) -> Result<Self, FormatError> {
        if self.term == 0 || self.term.max(self.sequence) > u64::MAX / 2 {
            return Err(field("term or sequence"));
        }
        if !(DURATION_MS.0..=DURATION_MS.1).contains(&self.duration_ms) || self.guard_ms > GUARD_MS_MAX {
            return Err(field("duration or guard time"));
        }
        if self.interval_ms == 0 || self.interval_ms > self.duration_ms / 2 {
            return Err(field("interval"));
        }
        Ok(self)
    }
}

impl LeaseHolder {
    /// The field for a host's name, cut where it is too long, between two characters.
    pub fn encode_host(name: &str) -> [u8; HOST_BYTES] {
        let mut host = [0; HOST_BYTES];
        let end = (0..=name.len().min(HOST_BYTES)).rev().find(|&end| name.is_char_boundary(end)).unwrap_or(0);
        host[..end].copy_from_slice(&name.as_bytes()[..end]);
        host
    }

    /// The host's name for a message. It comes from the image: unprintable characters are replaced.
    pub fn host_text(&self) -> String {
        let end = self.host.iter().position(|&byte| byte == 0).unwrap_or(HOST_BYTES);
        let text = String::from_utf8_lossy(&self.host[..end]);
        let plain = text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c });
        if end == 0 { "an unnamed host".into() } else { plain.collect() }
    }
}

fn field(field: &'static str) -> FormatError {
    FormatError::Field { structure: STRUCTURE, field }
}

struct Reader<'a> {
    block: &'a [u8; BLOCK_BYTES],
    at: usize,
}

impl Reader<'_> {
    /// The next `N` bytes; every call's position is a constant below the block size.
    fn bytes<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        bytes.copy_from_slice(&self.block[self.at..self.at + N]);
        self.at += N;
        bytes
    }
    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.bytes())
    }
    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.bytes())
    }
}

#[cfg(test)]
mod tests;
