//! The records that the writers of a mount asked for, and when each was acknowledged. All times are
//! of one monotonic clock.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Instant;

/// Where a record goes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Place {
    /// Behind the records before, in the mount's own file.
    Log,
    /// A file of its own, in the mount's own directory.
    Files,
    /// Over the record before, in a file that all mounts share.
    Cell,
}

impl Place {
    pub const ALL: [Self; 3] = [Self::Log, Self::Files, Self::Cell];
}

/// A record, by its place and its number there, from 0.
pub type Id = (Place, u64);

#[derive(Clone, Copy, Debug)]
pub struct Asked {
    pub at: Instant,
    pub acknowledged: Option<Instant>,
    pub offset: u64,
    pub len: usize,
}

/// The journal of one mount.
#[derive(Default)]
pub struct Journal(Mutex<BTreeMap<Id, Asked>>);

impl Journal {
    /// Notes a record before anything of it is written.
    pub fn ask(&self, id: Id, offset: u64, len: usize) {
        let asked = Asked { at: Instant::now(), acknowledged: None, offset, len };
        self.0.lock().unwrap().insert(id, asked);
    }

    /// Notes that its sync has succeeded.
    pub fn acknowledge(&self, id: Id) {
        let now = Instant::now();
        self.0.lock().unwrap().get_mut(&id).expect("asked for").acknowledged = Some(now);
    }

    pub fn now(&self) -> BTreeMap<Id, Asked> {
        self.0.lock().unwrap().clone()
    }
}

/// The bytes of a record: nobody else's, and different in each block.
pub fn contents(mount: u64, (place, number): Id, len: usize) -> Vec<u8> {
    let place = Place::ALL.iter().position(|of| *of == place).unwrap() as u64;
    let mut state = (mount << 40 | number << 8 | place << 4 | 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut bytes = Vec::with_capacity(len + 8);
    bytes.extend(mount.to_le_bytes());
    bytes.extend(number.to_le_bytes());
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend(state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}
