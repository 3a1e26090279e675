//! The named blocks as they were when a checkpoint began, with that checkpoint's own changes.

use crate::bits::blocks_of;
use crate::named::{Change, SharedPage, change_page, names_any, pages_of};
use crate::space::{Space, State};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use syncline_format::space::{Entry, PageId};
use syncline_format::{BlockAddr, BlockRun};

/// The changes by a checkpoint in flight, to be completed or undone.
pub(crate) struct InFlight {
    pub(crate) generation: u64,
    /// Blocks it named and blocks it freed, in order.
    changes: Vec<(Change, BlockRun)>,
    freed_blocks: u64,
    /// Pointers it changed, with their previous values.
    pub(crate) replaced: Vec<(PageId, Entry)>,
}

impl InFlight {
    pub(crate) fn new(generation: u64) -> Self {
        Self { generation, changes: Vec::new(), freed_blocks: 0, replaced: Vec::new() }
    }

    /// Number of blocks it freed.
    pub(crate) fn freed_blocks(&self) -> u64 {
        self.freed_blocks
    }

    /// The runs it named.
    pub(crate) fn named(&self) -> impl Iterator<Item = BlockRun> + '_ {
        self.changes.iter().filter(|(change, _)| *change == Change::Name).map(|(_, run)| *run)
    }

    /// The runs it freed.
    pub(crate) fn freed(&self) -> impl Iterator<Item = BlockRun> + '_ {
        self.changes.iter().filter(|(change, _)| *change == Change::Unname).map(|(_, run)| *run)
    }

    /// Its changes, newest first, for an undo.
    pub(crate) fn take_changes(&mut self) -> impl Iterator<Item = (Change, BlockRun)> + use<> {
        std::mem::take(&mut self.changes).into_iter().rev()
    }
}

/// The space map that one checkpoint writes. End it with `Space::superblock_durable` or
/// `Space::checkpoint_failed`.
#[must_use = "a frozen map must be persisted or given to checkpoint_failed"]
pub struct FrozenMap {
    space: Arc<Space>,
    generation: u64,
    /// Pages that differ from the device, by index.
    pages: BTreeMap<u64, SharedPage>,
    used: u64,
    /// Blocks assigned so far to the first copies of pages, and to the second. Kept if there are too few,
    /// so that another attempt continues from there.
    pub(crate) assigned: [BTreeMap<PageId, BlockAddr>; 2],
    /// Pages whose old block has been freed.
    pub(crate) retired: BTreeSet<PageId>,
    pub(crate) persisted: bool,
}

impl FrozenMap {
    pub(crate) fn new(
        space: Arc<Space>,
        generation: u64,
        pages: BTreeMap<u64, SharedPage>,
        used: u64,
    ) -> Self {
        let (assigned, retired) = (Default::default(), BTreeSet::new());
        Self { space, generation, pages, used, assigned, retired, persisted: false }
    }

    /// The checkpoint's generation.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Number of named blocks, including those that the checkpoint itself has named so far.
    pub fn used_blocks(&self) -> u64 {
        self.used
    }

    /// True when some block of `run` is named.
    pub fn names_any(&self, run: BlockRun) -> bool {
        let Some(run) = self.space.clip(run) else { return false };
        let state = self.space.lock();
        pages_of(run).any(|index| {
            let now = || state.named.at_freeze(index);
            let page = self.pages.get(&index).cloned().unwrap_or_else(now);
            names_any(&page, index, run)
        })
    }

    /// Names a run of nodes that this checkpoint wrote.
    ///
    /// # Panics
    /// When the map was persisted already, so that the run would be missing from it.
    pub fn name(&mut self, run: BlockRun) {
        self.change_unless_persisted(run, Change::Name);
    }

    /// Frees a run of nodes that this checkpoint replaced: reusable when its superblock is durable.
    ///
    /// # Panics
    /// When the map was persisted already, so that the run would still be in it.
    pub fn unname(&mut self, run: BlockRun) {
        self.change_unless_persisted(run, Change::Unname);
    }

    fn change_unless_persisted(&mut self, run: BlockRun, change: Change) {
        assert!(!self.persisted, "node runs are applied before the map is persisted");
        let space = Arc::clone(&self.space);
        if let Some(run) = space.clip(run) {
            self.change(&mut space.lock(), run, change);
        }
    }

    /// Changes both the frozen and the current bits, and remembers how to undo that.
    pub(crate) fn change(&mut self, state: &mut State, run: BlockRun, change: Change) {
        let mut changed = Vec::new();
        for index in pages_of(run) {
            let page = self.pages.entry(index).or_insert_with(|| state.named.at_freeze(index));
            change_page(page, index, run, change, &mut changed);
        }
        let blocks = blocks_of(&changed);
        for part in &changed {
            state.named.change_quietly(*part, change);
        }
        let in_flight = state.in_flight.as_mut().expect("a frozen map belongs to the checkpoint in flight");
        match change {
            Change::Name => {
                self.used += blocks;
                changed.iter().for_each(|part| state.live.set(*part));
            }
            Change::Unname => {
                self.used -= blocks;
                in_flight.freed_blocks += blocks;
            }
        }
        in_flight.changes.extend(changed.into_iter().map(|part| (change, part)));
    }

    /// The pages that differ from the device.
    pub(crate) fn pages(&self) -> &BTreeMap<u64, SharedPage> {
        &self.pages
    }

    pub(crate) fn into_pages(self) -> impl Iterator<Item = u64> {
        self.pages.into_keys()
    }
}
