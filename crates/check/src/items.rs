//! Reads all items in order and passes each to the check of its object.

use crate::blocks::BlockSet;
use crate::checker::{Progress, Stage, Teller};
use crate::compared::Compared;
use crate::data::DataReader;
use crate::finding::{FindingKind, Report};
use crate::names::Facts;
use crate::object::Object;
use crate::preallocation::{Sums, excess};
use crate::quotas::Quotas;
use crate::references::References;
use bytes::Bytes;
use siphasher::sip::SipHasher24;
use std::sync::Arc;
use syncline_format::items::HASH_MAX;
use syncline_format::superblock::FEATURE_COUNTED_XATTRS;
use syncline_format::{Geometry, Key, Kind};
use syncline_store::Store;

/// Items read at a time.
const ITEMS_EACH: usize = 512;

/// State shared by the checks of all items.
pub(crate) struct Shared<'a> {
    pub(crate) geometry: Geometry,
    pub(crate) hasher: SipHasher24,
    pub(crate) reachable: &'a mut BlockSet,
    pub(crate) report: &'a mut Report,
    pub(crate) data: DataReader<'a>,
    pub(crate) facts: Facts,
    pub(crate) references: References,
    pub(crate) sums: Sums,
    /// Preallocated blocks of all files.
    pub(crate) preallocated: u64,
    pub(crate) quotas: Quotas,
    /// Xattrs with items of their own count towards their inode's blocks.
    pub(crate) counts_xattrs: bool,
}

impl Shared<'_> {
    /// The hash of a name, as docs/FORMAT.md defines it.
    pub(crate) fn hash(&self, name: &[u8]) -> u64 {
        self.name_hash(name) % (HASH_MAX + 1)
    }

    /// All 64 bits of the hash, to tell names apart.
    pub(crate) fn name_hash(&self, name: &[u8]) -> u64 {
        self.hasher.hash(name)
    }
}

/// The pass over all items.
pub(crate) struct ItemCheck<'a> {
    store: &'a Arc<Store>,
    shared: Shared<'a>,
    tell: Teller<'a>,
    object: Option<Object>,
    /// Lowest object number never handed out.
    next_object: u64,
}

impl<'a> ItemCheck<'a> {
    pub(crate) fn new(
        store: &'a Arc<Store>,
        (reachable, compared): (&'a mut BlockSet, &'a mut Compared),
        report: &'a mut Report,
        tell: Teller<'a>,
    ) -> Self {
        let shared = Shared {
            geometry: store.geometry(),
            hasher: SipHasher24::new_with_key(&store.hash_seed()),
            reachable,
            report,
            data: DataReader::new(store.clone(), compared),
            facts: Facts::default(),
            references: References::default(),
            sums: Sums::default(),
            preallocated: 0,
            quotas: Quotas::default(),
            counts_xattrs: store.has_features(FEATURE_COUNTED_XATTRS),
        };
        Self { store, shared, tell, object: None, next_object: store.next_object() }
    }

    /// Reads all items.
    pub(crate) async fn run(mut self) -> Facts {
        let mut from = Key::MIN;
        let mut step = ITEMS_EACH;
        loop {
            match self.store.scan(from, Key::MAX, step).await {
                Ok(chunk) => {
                    for (key, value) in &chunk.items {
                        self.item(*key, value).await;
                    }
                    self.progress();
                    match chunk.items.last().and_then(|(key, _)| key.next()) {
                        Some(next) if !chunk.complete => from = next,
                        _ => break,
                    }
                }
                // Items before the bad node are read one at a time.
                Err(_) if step > 1 => step = 1,
                Err(_) => {
                    self.shared.report.incomplete = true;
                    // An object that was read only in part can't be judged.
                    self.object = None;
                    let Some(next) = self.next_readable(from).await else { break };
                    (from, step) = (next, ITEMS_EACH);
                }
            }
        }
        self.end_object();
        self.shared.data.finish(self.shared.report).await;
        self.references();
        if !self.shared.report.incomplete {
            for (inode, blocks) in self.shared.sums.rest() {
                let text = format!("{blocks} preallocated blocks of a missing inode");
                self.shared.report.object(FindingKind::PreallocationSum, inode, text);
            }
            self.room();
            self.shared.quotas.compare(self.shared.report);
        }
        self.shared.facts
    }

    /// Checks that there is room for the preallocated blocks.
    fn room(&mut self) {
        let Shared { geometry, reachable, report, preallocated, .. } = &mut self.shared;
        let data = reachable.len().saturating_sub(report.nodes * geometry.node_blocks());
        if excess(*geometry, data, *preallocated) > 0 {
            let text = format!("{preallocated} blocks are preallocated, and there can't be room for them");
            report.add(FindingKind::PreallocationSum, None, None, text);
        }
    }

    /// Adds blocks that several extents share to the reachable ones, each once, and compares their
    /// reference counts.
    fn references(&mut self) {
        let Shared { references, reachable, report, .. } = &mut self.shared;
        let found = references.found();
        for shared in &found {
            if !reachable.add(shared.run) {
                let text = format!(
                    "{} blocks of an extent that shares lie where something else does",
                    shared.run.blocks
                );
                report.block(FindingKind::BlockUsedTwice, shared.run.start, text);
            }
        }
        if report.incomplete {
            // Items that could not be read may refer to these blocks.
            return;
        }
        for wrong in references.wrong(&found) {
            let text = format!(
                "{} blocks have {} references, there are {}",
                wrong.run.blocks,
                wrong.told.max(1),
                wrong.found
            );
            report.block(FindingKind::ReferenceCount, wrong.run.start, text);
        }
    }

    fn progress(&mut self) {
        let total = self.store.superblock().used_blocks;
        let done =
            self.shared.report.data_blocks + self.shared.report.nodes * self.shared.geometry.node_blocks();
        (self.tell)(Progress { stage: Stage::Contents, done: done.min(total), total });
    }

    /// Finds the start of the first object after `from` whose items can be read, by doubling and
    /// then halving the distance.
    async fn next_readable(&self, from: Key) -> Option<Key> {
        let first = |object| Key { object, kind: 0, offset: 0 };
        let (mut low, mut distance) = (from.object, 1u64);
        let mut high = loop {
            let probe = from.object.checked_add(distance)?;
            if self.store.scan(first(probe), Key::MAX, 1).await.is_ok() {
                break probe;
            }
            low = probe;
            distance = distance.checked_mul(2)?;
        };
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            match self.store.scan(first(middle), Key::MAX, 1).await {
                Ok(_) => high = middle,
                Err(_) => low = middle,
            }
        }
        Some(first(high))
    }

    async fn item(&mut self, key: Key, value: &Bytes) {
        self.shared.report.items += 1;
        if key.object == 0 {
            self.mark(key, value);
            return;
        }
        if self.object.as_ref().is_none_or(|object| object.number() != key.object) {
            self.end_object();
            if key.object >= self.next_object {
                let text = format!("numbers from {} on have not been handed out", self.next_object);
                self.shared.report.object(FindingKind::ObjectNumber, key.object, text);
            }
        }
        let object = self.object.get_or_insert_with(|| Object::new(key.object));
        match Kind::from_u8(key.kind) {
            Some(Kind::Inode) => object.inode(key, value, &mut self.shared),
            Some(Kind::Dirent) => object.entry(key, value, &mut self.shared),
            Some(Kind::Extent) => object.extent(key, value, &mut self.shared).await,
            Some(Kind::Xattr) => object.xattr(key, value, &mut self.shared),
            Some(Kind::Chunk) => object.chunk(key, value, &mut self.shared),
            Some(Kind::Parent) => object.parent(key, value, &mut self.shared),
            Some(Kind::Preallocation) => object.preallocation(key, value, &mut self.shared),
            Some(Kind::Unplaced) => object.unplaced(key, value, &mut self.shared),
            Some(Kind::Orphan | Kind::Shared | Kind::Quota) | None => {
                let text = format!("an item of kind {} at offset {}", key.kind, key.offset);
                self.shared.report.object(FindingKind::ItemMalformed, key.object, text);
            }
        }
    }

    /// Items of object 0: marks of inodes to be removed, reference counts, sums of preallocated
    /// blocks, and quotas.
    fn mark(&mut self, key: Key, value: &Bytes) {
        if key.kind == Kind::Orphan as u8 && value.is_empty() {
            self.shared.facts.mark_orphan(key.offset);
            return;
        }
        let shared = &mut self.shared;
        let fits = match Kind::from_u8(key.kind) {
            Some(Kind::Shared) => shared.references.item(shared.geometry, key, value),
            Some(Kind::Preallocation) => shared.sums.item(key, value),
            Some(Kind::Quota) => shared.quotas.item(key, value),
            _ => false,
        };
        if !fits {
            let text =
                format!("an item of kind {} at offset {} that belongs to nothing", key.kind, key.offset);
            self.shared.report.object(FindingKind::ItemMalformed, 0, text);
        }
    }

    fn end_object(&mut self) {
        if let Some(object) = self.object.take() {
            object.end(&mut self.shared);
        }
    }
}
