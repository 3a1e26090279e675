//! The received part of a stream: a snapshot that nobody sees, with the receiver's state in it.
//!
//! The state is a file in the staging directory, so it comes with the contents in one step. Its inode
//! has the greatest number of all: that is how it is found.

use crate::fields::{Fields, put_name};
use crate::send::numbers_end;
use crate::{Header, Position, Restored, StreamError, Token};
use std::collections::BTreeMap;
use std::sync::Arc;
use syncline_fs::Filesystem;
use syncline_fs::types::Ino;
use syncline_store::Snapshot;

/// The first bytes of the state.
const MAGIC: [u8; 8] = *b"SYNCKEPT";
/// The version that this program writes and reads.
const VERSION: u32 = 1;
/// The most bytes that are read: a directory with a limit takes 72.
const STATE_BYTES_MAX: u64 = 64 << 20;

/// Everything that a receiver needs to continue, except the contents.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct State {
    /// The header of the whole stream.
    pub(super) header: Header,
    pub(super) position: Position,
    /// The name of the staging directory in the root directory.
    pub(super) staging_name: Vec<u8>,
    /// The root directory's attributes in the end.
    pub(super) root: Restored,
    /// Attributes of directories that had limits.
    pub(super) limited: BTreeMap<Ino, Restored>,
}

/// The received part of a stream that was cut off.
#[derive(Clone, Debug)]
pub struct Kept {
    pub(super) snapshot: Snapshot,
    pub(super) state: State,
}

impl Kept {
    /// The received part in an image that is open for writing.
    pub async fn find(target: &Filesystem) -> Result<Option<Self>, StreamError> {
        let snapshots = target.store().snapshots().await;
        let Some(snapshot) = snapshots.into_iter().find(Snapshot::is_receiving) else { return Ok(None) };
        let id = snapshot.id;
        match Self::look(target, snapshot).await {
            Ok(kept) => Ok(Some(kept)),
            // Given up meanwhile, and overwritten.
            Err(_) if !target.store().snapshots().await.iter().any(|there| there.id == id) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The received part in this snapshot. Others may give it up meanwhile.
    async fn look(target: &Filesystem, snapshot: Snapshot) -> Result<Self, StreamError> {
        let now = target.store();
        let store = now.look_at_snapshot(&snapshot, &now.pages()).await?;
        let fs = target.open_branch(store).await?;
        let read = Self::read(&fs, snapshot).await;
        // Nothing was changed, so nothing can be lost.
        let _ = fs.close().await;
        read
    }

    /// The received part in this snapshot, which is open.
    pub async fn read(fs: &Arc<Filesystem>, snapshot: Snapshot) -> Result<Self, StreamError> {
        let damaged = |what: &str| StreamError::KeptDamaged(what.to_owned());
        let ino = numbers_end(fs).await? - 1;
        let size = fs.getattr(ino).await?.size;
        if size > STATE_BYTES_MAX {
            return Err(damaged("its state is too large"));
        }
        let bytes = fs.read(ino, 0, size as usize).await?.concat();
        let state = State::decode(&bytes)?;
        if state.header.next_object.checked_add(1) != Some(ino) {
            return Err(damaged("its state is not where it should be"));
        }
        Ok(Self { snapshot, state })
    }

    /// The token by which the sender goes on.
    pub fn token(&self) -> Token {
        Token::new(&self.state.header, self.state.position)
    }

    /// The header of the stream.
    pub fn header(&self) -> &Header {
        &self.state.header
    }
}

impl State {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        let header = self.header.encode();
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&(header.len() as u32).to_le_bytes());
        out.extend_from_slice(&header);
        out.extend_from_slice(&self.position.records.to_le_bytes());
        out.extend_from_slice(&self.position.checksum.to_le_bytes());
        put_name(&mut out, &self.staging_name);
        self.root.encode(&mut out);
        for (ino, restored) in &self.limited {
            out.extend_from_slice(&ino.to_le_bytes());
            restored.encode(&mut out);
        }
        out
    }

    /// Reads a state, from untrusted bytes.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, StreamError> {
        Self::try_decode(bytes).map_err(|error| match error {
            error @ StreamError::KeptDamaged(_) => error,
            error => StreamError::KeptDamaged(error.to_string()),
        })
    }

    fn try_decode(bytes: &[u8]) -> Result<Self, StreamError> {
        let damaged = |what: &str| StreamError::KeptDamaged(what.to_owned());
        let mut fields = Fields::new(bytes, 0);
        if fields.array::<8>()? != MAGIC {
            return Err(damaged("it has no state"));
        }
        let version = fields.u32()?;
        if version != VERSION {
            return Err(damaged(&format!(
                "its state is of version {version}, which this program does not know"
            )));
        }
        let length = fields.u32()? as usize;
        let mut header_bytes = fields.take(length)?;
        let (header, _) = Header::read(&mut header_bytes)?;
        if !header_bytes.is_empty() || header.resumed.is_some() {
            return Err(damaged("its header is not that of a whole stream"));
        }
        let position = Position { records: fields.u64()?, checksum: fields.u32()? };
        let staging_name = fields.name()?;
        let root = Restored::decode(&mut fields, 0)?;
        let mut limited = BTreeMap::new();
        while !fields.is_empty() {
            let ino = fields.u64()?;
            if limited.last_key_value().is_some_and(|(last, _)| *last >= ino) {
                return Err(damaged("directories out of order"));
            }
            limited.insert(ino, Restored::decode(&mut fields, 0)?);
        }
        match position.records {
            0 => Err(damaged("nothing has come")),
            _ => Ok(Self { header, position, staging_name, root, limited }),
        }
    }
}

/// Reads a state from untrusted bytes, and returns its own bytes: for the fuzzer.
pub fn decode_kept(bytes: &[u8]) -> Option<Vec<u8>> {
    State::decode(bytes).ok().map(|state| state.encode())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Origin;
    use syncline_fs::types::Timestamp;

    fn restored(uid: u32) -> Restored {
        let times = [Timestamp { seconds: -5, nanoseconds: 7 }; 4];
        Restored { permissions: 0o755, flags: 3, uid, gid: 9, times }
    }

    fn state() -> State {
        let origin = |name: &str| Origin { created_ns: 6, id: 1, name: name.to_owned() };
        State {
            header: Header {
                uuid: [7; 16],
                filesystem_features: 1,
                next_object: 40,
                objects: 3,
                used_bytes: 5,
                snapshot: origin("new"),
                parent: Some(origin("old")),
                resumed: None,
            },
            position: Position { records: 12, checksum: 99 },
            staging_name: b".name".to_vec(),
            root: restored(1),
            limited: [(5, restored(2)), (8, restored(3))].into(),
        }
    }

    #[test]
    fn a_state_is_read_as_it_was_written() {
        assert_eq!(State::decode(&state().encode()).unwrap(), state());
    }

    #[test]
    fn a_damaged_state_is_refused() {
        let bytes = state().encode();
        let whole_entries = [bytes.len() - 144, bytes.len() - 72];
        for cut in (0..bytes.len()).filter(|cut| !whole_entries.contains(cut)) {
            let error = State::decode(&bytes[..cut]).unwrap_err();
            assert!(matches!(error, StreamError::KeptDamaged(_)), "{cut}: {error}");
        }
        let refused = |change: &dyn Fn(&mut State)| {
            let mut changed = state();
            change(&mut changed);
            assert!(matches!(State::decode(&changed.encode()), Err(StreamError::KeptDamaged(_))));
        };
        refused(&|state| state.position.records = 0);
        refused(&|state| state.header.resumed = Some(Position { records: 3, checksum: 1 }));
        refused(&|state| state.root.permissions = 0o10000);
        let mut twice = bytes.clone();
        twice.extend_from_slice(&bytes[bytes.len() - 72..]);
        assert!(State::decode(&twice).is_err(), "an inode has one entry");
    }
}
