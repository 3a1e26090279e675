//! Actions that share blocks: copies between files and within one.

use super::actions::Claim;
use super::tracked::{Did, tracked, tracked_each};
use super::workload::{Done, Failure, Task};
use crate::model::{Change, Node};
use bytes::Bytes;
use rand::Rng;
use syncline_device::BLOCK_BYTES;
use syncline_fs::Durability;
use syncline_fs::types::Ino;

const BLOCK: u64 = BLOCK_BYTES as u64;
/// Highest offset that a copy goes to.
const OFFSET_MAX: u64 = 600_000;

impl Task {
    /// Claims both files, in the order of their numbers.
    async fn claim_both(&self, one: Ino, other: Ino) -> Result<Vec<Claim>, Failure> {
        let mut inos = vec![one, other];
        inos.sort_unstable();
        inos.dedup();
        let mut claims = Vec::with_capacity(inos.len());
        for ino in inos {
            claims.push(self.claim(ino).await?);
        }
        Ok(claims)
    }

    /// The current contents of a range, up to the end of the file.
    fn contents(&self, ino: Ino, offset: u64, len: u64) -> Vec<u8> {
        self.history.with_file(ino, |file| file.read(offset, len as usize))
    }

    /// Copies a file, or a part of it, over a part of another file or of the same one.
    pub(super) async fn copy_range(&mut self) -> Done {
        let (from, to) = (self.random_file()?, self.random_file()?);
        let _claims = self.claim_both(from, to).await?;
        let (from_size, to_size) = (
            self.history.with_file(from, |file| file.size()),
            self.history.with_file(to, |file| file.size()),
        );
        let (from_at, to_at, len) = self.random_copy(from_size, to_size);
        self.copy_claimed((from, from_at), (to, to_at), len).await
    }

    /// Gives a copy of a whole file a name.
    pub(super) async fn clone_file(&mut self) -> Done {
        let (from, at) = (self.random_file()?, self.random_place()?);
        let _claim = self.claim(from).await?;
        let size = self.history.with_file(from, |file| file.size());
        let contents = self.contents(from, 0, size);
        let started = self.history.now();
        let (fs, place) = (self.fs.clone(), at.clone());
        let cloning = async move { fs.clone_file(from, (place.parent, &place.name)).await };
        let (answer, did) = tracked(&self.fs, cloning).await;
        // No other task has run since the commit.
        let Some(copy) = answer? else { return Ok(()) };
        let Some(op) = did.committed.last().copied() else {
            return Err(Failure::Wrong("a copy of a file committed nothing".into()));
        };
        self.history.begun(op, started);
        let tree = self.tree()?;
        let original = tree.nodes.get(&from).ok_or(Failure::Expected)?;
        let (ino, mut node) = (copy.ino, Node { nlink: 1, ..(**original).clone() });
        // Without flags of its own it has what the directory passes on.
        let is_strict = original.class == Some(Durability::Strict);
        if original.compression.is_none() && !is_strict {
            tree.inherit(at.parent, &mut node);
        } else if !is_strict {
            node.class = tree.nodes.get(&at.parent).and_then(|parent| parent.class);
        }
        self.history.changed(op, Change::Publish { at, ino, node, started });
        let time = self.history.tick();
        self.history.with_file(from, |file| file.carried_by(op, started));
        self.history.with_file(ino, |file| file.taken_over(time, op, 0, &contents));
        Ok(())
    }

    /// Picks source offset, target offset and length: the whole file, whole blocks, the same offset
    /// within a block, or any offset.
    fn random_copy(&mut self, from_size: u64, to_size: u64) -> (u64, u64, u64) {
        let (from_at, some) = self.random_range_of(from_size);
        let (to_at, _) = self.random_range_of(to_size);
        let rng = &mut self.rng;
        let len = if rng.random() { from_size } else { some as u64 };
        let (from_at, to_at) = match rng.random_range(0..6) {
            0 | 1 => (0, 0),
            2 | 3 => (from_at / BLOCK * BLOCK, to_at / BLOCK * BLOCK),
            4 => (from_at, to_at / BLOCK * BLOCK + from_at % BLOCK),
            _ => (from_at, to_at),
        };
        (from_at, to_at.min(OFFSET_MAX), len)
    }

    async fn copy_claimed(&mut self, from: (Ino, u64), to: (Ino, u64), len: u64) -> Done {
        let source = self.contents(from.0, from.1, len);
        let readable = source.len() as u64;
        let (fs, history, started) = (self.fs.clone(), self.history.clone(), self.history.now());
        let copying = async move { fs.copy_range(from, to, len, false).await };
        // Noted piece by piece: otherwise a snapshot made between two pieces would show data that
        // the history learns of only later.
        let mut rest = Bytes::from(source);
        let mut at = to.1;
        let each = move |did: &Did| {
            let piece = rest.split_to(rest.len().min((did.copied + did.reflinked) as usize));
            if piece.is_empty() {
                return;
            }
            let time = history.tick();
            match did.committed.last() {
                // Shared in one transaction, before which the source's dirty data was submitted.
                Some(op) if did.copied == 0 => {
                    history.with_file(from.0, |file| file.carried_by(*op, started));
                    history.with_file(to.0, |file| file.taken_over(time, *op, at, &piece));
                }
                // Copied through memory: dirty data like any other.
                _ => history.with_file(to.0, |file| file.copied(time, at, &piece)),
            }
            at += piece.len() as u64;
        };
        let (answer, did) = tracked_each(&self.fs, copying, each).await;
        tracing::trace!(?from, ?to, len, ?answer, reflinked = did.reflinked, "copy");
        let copied = answer?;
        if copied > readable || copied != did.copied + did.reflinked {
            return Err(Failure::Wrong(format!(
                "{copied} bytes were copied, of {readable}: {} and {}",
                did.copied, did.reflinked
            )));
        }
        Ok(())
    }
}
