//! Mends damaged copies of metadata from the sound ones, in images that hold their metadata twice.
//!
//! A reader takes the sound copy and goes on; the damaged one is written again later, in place and with the same
//! bytes. That is right only while the node or page is in use, for a block that was freed may hold something else. So
//! nothing is mended while a checkpoint runs, and a copy is mended only if a root still leads to it.

use crate::checkpoint::{CheckpointState, Table};
use crate::{Snapshot, Store, StoreError};
use syncline_format::superblock::TreeRoot;
use syncline_space::{PageReader, RottenPage};
use syncline_tree::{Rotten, TreeError};

/// The most copies of nodes that are mended before a checkpoint may run in between.
const COPIES_PER_LOCK: usize = 64;

/// The result of mending damaged copies.
pub struct Mended<T> {
    /// Number of copies that were mended.
    pub mended: u64,
    /// The copies that stay damaged.
    pub left: Vec<T>,
}

impl<T> Default for Mended<T> {
    fn default() -> Self {
        Self { mended: 0, left: Vec::new() }
    }
}

impl Store {
    /// A reader of pages of the space map and of the table of snapshots.
    pub fn pages(&self) -> PageReader {
        PageReader::new(self.tracker.clone())
    }

    /// Like `pages`, for a reader that wants to know of damage to either copy.
    pub fn pages_of_all_copies(&self) -> PageReader {
        PageReader::of_all_copies(self.tracker.clone())
    }

    /// Mends the damaged copies of tree nodes found so far, of the newest state and of the snapshots.
    pub async fn mend_nodes(&self) -> Mended<Rotten> {
        let (tree, mut mended) = (self.layers.tree(), Mended::default());
        let mut waiting = tree.take_rotten();
        while !waiting.is_empty() {
            let rest = waiting.split_off(waiting.len().min(COPIES_PER_LOCK));
            self.mend_some_nodes(std::mem::replace(&mut waiting, rest), &mut mended).await;
        }
        mended.left.iter().for_each(|rotten| tree.mending_failed(rotten));
        self.counters.copies_mended.add(mended.mended);
        mended
    }

    async fn mend_some_nodes(&self, rotten: Vec<Rotten>, mended: &mut Mended<Rotten>) {
        let tree = self.layers.tree();
        let state = self.checkpoint.lock().await;
        if !self.may_mend(&state) {
            mended.left.extend(rotten);
            return;
        }
        let snapshots = state.table().entries().iter().map(|entry| entry.tree);
        let roots: Vec<_> = std::iter::once(self.layers.root()).chain(snapshots).collect();
        for rotten in rotten {
            let tried = match self.is_in_use(&roots, &rotten).await {
                // It was freed meanwhile.
                Ok(false) => continue,
                Ok(true) => tree.mend(&rotten).await,
                Err(error) => Err(error),
            };
            match tried {
                Ok(()) => {
                    let Rotten { addr, why, .. } = &rotten;
                    tracing::warn!(addr, "a copy of a tree node was damaged ({why}) and is mended");
                    mended.mended += 1;
                }
                Err(error) => {
                    let Rotten { addr, why, .. } = &rotten;
                    tracing::warn!(addr, "a copy of a tree node is damaged ({why}) and stays so: {error}");
                    mended.left.push(rotten);
                }
            }
        }
    }

    /// False before the image was opened for writing, and once another process may write to it.
    fn may_mend(&self, state: &CheckpointState) -> bool {
        self.health.has_begun() && !state.is_closed() && self.health.writable().is_ok()
    }

    /// True if one of the trees has the node. An error means that part of a tree can't be read, and that the
    /// other trees do not have the node.
    async fn is_in_use(&self, roots: &[TreeRoot], rotten: &Rotten) -> Result<bool, TreeError> {
        let mut found = Ok(false);
        for root in roots {
            match self.layers.tree().leads_to(*root, rotten).await {
                Ok(true) => return Ok(true),
                Ok(false) => {}
                Err(error) => found = Err(error),
            }
        }
        found
    }

    /// Forgets which copies could not be mended, so that a scrub reports them again.
    pub fn retry_mending(&self) {
        self.layers.tree().retry_mending();
    }

    /// Remembers damaged copies that were found through another store of the same image.
    pub fn take_rotten_of(&self, view: &Self) {
        self.layers.tree().remember(view.layers.tree().take_rotten());
    }

    /// Mends damaged copies of the newest space map.
    pub async fn mend_space_map(&self, rotten: Vec<RottenPage>) -> Mended<RottenPage> {
        if rotten.is_empty() {
            return Mended::default();
        }
        let state = self.checkpoint.lock().await;
        if !self.may_mend(&state) {
            return Mended { mended: 0, left: rotten };
        }
        let space = self.room.space();
        let in_use = rotten.into_iter().filter(|page| space.has_page(page.pointer)).collect();
        self.mend_pages(in_use).await
    }

    /// Mends damaged copies of a snapshot's space map, unless the snapshot was deleted meanwhile.
    pub async fn mend_map_of(&self, snapshot: &Snapshot, rotten: Vec<RottenPage>) -> Mended<RottenPage> {
        if rotten.is_empty() {
            return Mended::default();
        }
        let state = self.checkpoint.lock().await;
        if !self.may_mend(&state) {
            return Mended { mended: 0, left: rotten };
        }
        match state.table().entries().iter().any(|entry| entry.id == snapshot.id) {
            true => self.mend_pages(rotten).await,
            false => Mended::default(),
        }
    }

    /// Reads all copies of the table of snapshots, and mends damaged ones.
    pub async fn mend_snapshot_table(&self) -> Result<Mended<RottenPage>, StoreError> {
        let state = self.checkpoint.lock().await;
        let pages = self.pages_of_all_copies();
        Table::read(&pages, &self.superblock()).await?;
        let rotten = pages.take_rotten();
        Ok(match self.may_mend(&state) {
            true => self.mend_pages(rotten).await,
            false => Mended { mended: 0, left: rotten },
        })
    }

    /// Mends damaged copies of pages that are in use, and stay so meanwhile.
    pub(crate) async fn mend_pages(&self, rotten: Vec<RottenPage>) -> Mended<RottenPage> {
        let mut mended = Mended::default();
        for page in rotten {
            let RottenPage { addr, why, .. } = &page;
            match page.mend(&self.tracker).await {
                Ok(()) => {
                    tracing::warn!(addr, "a copy of a page of metadata was damaged ({why}) and is mended");
                    mended.mended += 1;
                }
                Err(error) => {
                    tracing::warn!(
                        addr,
                        "a copy of a page of metadata is damaged ({why}) and stays so: {error}"
                    );
                    mended.left.push(page);
                }
            }
        }
        self.counters.copies_mended.add(mended.mended);
        mended
    }
}
