//! The states in which a crash may leave one file's data: each block as it was at some time after
//! the last promise, seen through the truncations that survived, and a size that never runs ahead
//! of the data.

use super::run::Run;
use std::ops::RangeInclusive;
use syncline_device::BLOCK_BYTES;
use syncline_fs::types::Ino;

/// The versions of a file that may show, numbered by the calls made before the file had them.
pub(super) struct Window<'a> {
    run: &'a Run,
    ino: Ino,
    /// Number of calls whose changes of names and attributes survived.
    calls: usize,
    versions: RangeInclusive<usize>,
}

impl<'a> Window<'a> {
    /// The window of a file in a tree that came back with the first `calls` calls. Data up to call
    /// `least` is certain, and none is from after call `most`.
    pub(super) fn new(run: &'a Run, ino: Ino, calls: usize, least: usize, most: usize) -> Self {
        let alive =
            |calls: &usize| run.states[*calls].tree.nodes.get(&ino).is_some_and(|node| node.data().is_some());
        let birth = (0..run.states.len()).find(alive).unwrap_or(0);
        let death = (birth..run.states.len()).find(|calls| !alive(calls)).unwrap_or(run.states.len());
        // If a truncation or a copy did not survive, no later data did: it came after it in the
        // log.
        let missing = (calls..run.ran.len()).find(|call| run.ran[*call].is_ordered_for(ino));
        let missing = missing.unwrap_or(run.ran.len());
        let end = death.saturating_sub(1).min(missing).min(most.max(birth));
        Self { run, ino, calls, versions: least.max(birth)..=end }
    }

    /// True if only one version of the contents may show.
    pub(super) fn is_settled(&self) -> bool {
        let mut calls = self.versions.clone();
        calls.next();
        calls.all(|calls| self.run.ran[calls - 1].written != Some(self.ino))
    }

    /// Number of calls up to the newest change of the data that is certain.
    pub(super) fn newest_write(&self) -> usize {
        let least = *self.versions.start();
        (1..=least).rev().find(|calls| self.run.ran[calls - 1].written == Some(self.ino)).unwrap_or(0)
    }

    /// Compares the contents found with the allowed ones.
    pub(super) fn check(&self, found: &[u8]) -> Result<(), String> {
        let seen: Vec<Vec<u8>> = self.versions.clone().map(|version| self.seen(version)).collect();
        let (Some(least), Some(most)) = (seen.iter().map(Vec::len).min(), seen.iter().map(Vec::len).max())
        else {
            return Err(format!("no version may show (of {:?})", self.versions));
        };
        let size = found.len();
        let exact = seen.iter().any(|seen| seen.len() == size);
        let cut = (least..=most).contains(&size) && size.is_multiple_of(BLOCK_BYTES);
        if !exact && !cut {
            return Err(format!("its size is {size}, which may be {least} to {most}"));
        }
        for (index, block) in found.chunks(BLOCK_BYTES).enumerate() {
            let range = index * BLOCK_BYTES..index * BLOCK_BYTES + block.len();
            if !seen.iter().any(|seen| seen.get(range.clone()) == Some(block)) {
                return Err(format!(
                    "block {index} holds {}; it may hold what it did after {:?} calls",
                    self.describe(range, block),
                    self.versions
                ));
            }
        }
        let calls = self.versions.clone().skip(1);
        calls.into_iter().try_for_each(|call| self.check_page(call, &seen, found))
    }

    /// Promise P9: if the last of the first `call` calls wrote a page, all of its blocks are there, or
    /// none. A block says nothing if it shows a later version, or a version that it also showed before.
    fn check_page(&self, call: usize, seen: &[Vec<u8>], found: &[u8]) -> Result<(), String> {
        let ran = &self.run.ran[call - 1];
        let Some(blocks) = ran.page.clone().filter(|_| ran.written == Some(self.ino)) else { return Ok(()) };
        let (before, since) = seen.split_at(call - self.versions.start());
        let (mut new, mut old) = (None, None);
        for block in blocks.clone() {
            let from = block as usize * BLOCK_BYTES;
            let range = from..found.len().min(from + BLOCK_BYTES);
            if range.is_empty() {
                old = if since.iter().all(|seen| seen.len() > from) { Some(block) } else { old };
                continue;
            }
            let shows = |seen: &Vec<u8>| seen.get(range.clone()) == Some(&found[range.clone()]);
            if !since.iter().any(shows) {
                old = Some(block);
            } else if shows(&since[0]) && !before.iter().any(shows) {
                new = Some(block);
            }
        }
        match (new, old) {
            (Some(new), Some(old)) => {
                let call = call - 1;
                Err(format!(
                    "a page is torn: call {call} wrote {blocks:?}, block {new} is there and {old} is not"
                ))
            }
            _ => Ok(()),
        }
    }

    /// A version as seen through the later truncations that survived. Shrinking cuts off; growing
    /// is ordered metadata and gives the file its size even if data below was lost.
    fn seen(&self, version: usize) -> Vec<u8> {
        let size = |calls: usize| self.contents(calls).len();
        let mut seen = self.contents(version).to_vec();
        for call in version..self.calls {
            self.replace(call, &mut seen);
            if truncates(self.run, call, self.ino) {
                let (before, after) = (size(call), size(call + 1));
                if after < before {
                    seen.truncate(after);
                } else if after > before {
                    seen.resize(after, 0);
                }
            }
        }
        seen
    }

    /// Blocks that call number `call` replaced in its own transaction have their contents from
    /// after the call.
    fn replace(&self, call: usize, seen: &mut [u8]) {
        let ran = &self.run.ran[call];
        let Some(blocks) = ran.replaced.as_ref().filter(|_| ran.written == Some(self.ino)) else { return };
        let after = self.contents(call + 1);
        let end = (blocks.end as usize * BLOCK_BYTES).min(seen.len()).min(after.len());
        let start = (blocks.start as usize * BLOCK_BYTES).min(end);
        seen[start..end].copy_from_slice(&after[start..end]);
    }

    fn contents(&self, calls: usize) -> &[u8] {
        self.run.states[calls].tree.nodes.get(&self.ino).and_then(|node| node.data()).unwrap_or(&[])
    }

    fn describe(&self, range: std::ops::Range<usize>, block: &[u8]) -> String {
        let held = (0..self.run.states.len())
            .find(|calls| self.contents(*calls).get(range.clone()).is_some_and(|held| held == block));
        match held {
            Some(calls) => format!("what it held after {calls} calls"),
            None if block.iter().all(|byte| *byte == 0) => "zeros".to_owned(),
            None => "something that it never held".to_owned(),
        }
    }
}

/// True when call number `call` (from 0) truncated the file.
pub(super) fn truncates(run: &Run, call: usize, ino: Ino) -> bool {
    run.ran[call].truncation && run.ran[call].written == Some(ino)
}
