//! Everything that a read-only mount shows of an image.

use crate::bases::{open, store_options};
use crate::run::{World, run};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use syncline_check::FindingKind;
use syncline_device::MemoryDevice;
use syncline_format::items::extent::Extent;
use syncline_format::items::unplaced::PIECES;
use syncline_format::{BLOCK_BYTES, Crc, Key, Kind, crc};
use syncline_fs::types::{Attributes, FileFlags, FileType, Ino, ROOT};
use syncline_fs::{Filesystem, Options};
use syncline_store::{Canary, Lab, Store, StoreOptions};

const BLOCK: u64 = BLOCK_BYTES as u64;
/// Entries of a directory read at a time.
const ENTRIES: usize = 100;

/// An object, as far as it is readable.
#[derive(Clone, Debug)]
struct Object {
    attributes: Attributes,
    flags: Option<FileFlags>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    target: Option<Vec<u8>>,
    /// Blocks with known contents: a checksum of the bytes read, or `None` if they are unreadable.
    blocks: BTreeMap<u64, Option<Crc>>,
}

/// Everything reachable from a root.
#[derive(Clone, Debug, Default)]
struct Tree {
    objects: BTreeMap<Ino, Object>,
    names: BTreeMap<(Ino, Vec<u8>), Ino>,
}

/// Everything that an image shows, snapshots included.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// By name of the snapshot; `None` for the image itself.
    trees: BTreeMap<Option<String>, Tree>,
}

impl View {
    /// The view of a read-only mount; `None` if it can't be mounted.
    pub fn of(device: Arc<MemoryDevice>) -> Option<Self> {
        Self::of_breaking(device, None)
    }

    /// Like `of`, with a store that breaks a rule.
    pub fn of_breaking(device: Arc<MemoryDevice>, canary: Option<Canary>) -> Option<Self> {
        run(|world| async move {
            let options = StoreOptions { lab: Lab::breaking(canary), ..store_options(8, true) };
            let fs = open(device.clone(), &world, options).await.ok()?;
            let mut view = Self::default();
            view.trees.insert(None, Tree::of(&fs).await);
            for snapshot in fs.store().snapshots().await {
                if let Some(fs) = open_snapshot(&device, &world, &snapshot.name).await {
                    view.trees.insert(Some(snapshot.name), Tree::of(&fs).await);
                }
            }
            Some(view)
        })
    }
}

async fn open_snapshot(device: &Arc<MemoryDevice>, world: &World, name: &str) -> Option<Arc<Filesystem>> {
    let spawn = world.spawn.clone();
    let opened = Store::open_snapshot(device.clone(), store_options(8, true), spawn.clone(), name).await;
    let options = Options { clock: world.clock.clone(), ..Options::default() };
    Filesystem::open(opened.ok()?.0, spawn, options).await.ok()
}

impl Tree {
    async fn of(fs: &Arc<Filesystem>) -> Self {
        let mut tree = Self::default();
        let mut waiting = vec![ROOT];
        let mut seen = BTreeSet::from([ROOT]);
        while let Some(ino) = waiting.pop() {
            let Ok(attributes) = fs.getattr(ino).await else { continue };
            if attributes.file_type == FileType::Directory {
                let names = names(fs, ino).await;
                waiting.extend(names.iter().map(|(_, child)| *child).filter(|child| seen.insert(*child)));
                tree.names.extend(names.into_iter().map(|(name, child)| ((ino, name), child)));
            }
            let object = Object::of(fs, attributes).await;
            tree.objects.insert(ino, object);
        }
        tree
    }
}

/// The names of a directory that can be looked up.
async fn names(fs: &Arc<Filesystem>, directory: Ino) -> Vec<(Vec<u8>, Ino)> {
    let (mut found, mut after) = (Vec::new(), 0);
    while let Ok(entries) = fs.readdir(directory, after, ENTRIES).await {
        let Some(last) = entries.last() else { break };
        after = last.cookie;
        for entry in entries {
            if !matches!(&entry.name[..], b"." | b"..")
                && let Ok(child) = fs.lookup(directory, &entry.name).await
            {
                fs.forget(child.ino, 1);
                found.push((entry.name, child.ino));
            }
        }
    }
    found
}

impl Object {
    async fn of(fs: &Arc<Filesystem>, attributes: Attributes) -> Self {
        let ino = attributes.ino;
        let mut xattrs = BTreeMap::new();
        let listing = fs.listxattr(ino).await.unwrap_or_default();
        for name in listing.split(|&byte| byte == 0).filter(|name| !name.is_empty()) {
            if let Ok(value) = fs.getxattr(ino, name).await {
                xattrs.insert(name.to_vec(), value.to_vec());
            }
        }
        let target = match attributes.file_type {
            FileType::Symlink => fs.readlink(ino).await.ok().map(|target| target.to_vec()),
            _ => None,
        };
        let blocks = match attributes.file_type {
            FileType::Regular => blocks(fs, ino, attributes.size).await,
            _ => BTreeMap::new(),
        };
        Self { attributes, flags: fs.file_flags(ino).await.ok(), xattrs, target, blocks }
    }

    /// The contents of a block. A block that no item mentions reads as zeros.
    fn block(&self, block: u64) -> Option<Crc> {
        match self.blocks.get(&block) {
            Some(known) => *known,
            None => Some(crc(&[0; BLOCK_BYTES])),
        }
    }

    /// The attributes that a repair never changes.
    fn visible(&self) -> Attributes {
        let size = match self.attributes.file_type {
            FileType::Regular => self.attributes.size,
            _ => 0,
        };
        Attributes { nlink: 0, blocks: 0, size, ..self.attributes }
    }
}

/// Reads the blocks that items mention, and the first and the last block.
async fn blocks(fs: &Arc<Filesystem>, ino: Ino, size: u64) -> BTreeMap<u64, Option<Crc>> {
    let end = size.div_ceil(BLOCK);
    let mut numbers = BTreeSet::from([0, end.saturating_sub(1)]);
    for kind in [Kind::Extent, Kind::Unplaced] {
        let (from, to) = (Key::new(ino, kind, 0), Key::new(ino, kind, u64::MAX));
        let items = fs.store().scan_readable(from, to, usize::MAX, &mut |_| {}).await.items;
        for (key, value) in items {
            match kind {
                Kind::Unplaced => drop(numbers.insert(key.offset / PIECES)),
                _ => numbers.extend(
                    Extent::decode(key.offset, &value)
                        .map_or(key.offset..key.offset + 1, |extent| extent.file_block..extent.end()),
                ),
            }
        }
    }
    let mut blocks = BTreeMap::new();
    for number in numbers.into_iter().filter(|number| *number < end) {
        let read = fs.read(ino, number * BLOCK, BLOCK_BYTES).await;
        let sum = read.ok().map(|pieces| {
            let mut bytes = pieces.concat();
            bytes.resize(BLOCK_BYTES, 0);
            crc(&bytes)
        });
        blocks.insert(number, sum);
    }
    blocks
}

/// Changes that may remove a name from its place, or give it to another object.
const MOVES_NAMES: [FindingKind; 5] = [
    FindingKind::DirectoryNames,
    FindingKind::DuplicateName,
    FindingKind::NameHash,
    FindingKind::Unreachable,
    FindingKind::EntryType,
];
/// Changes that may leave a hole, and report it, where there was an error.
const LEAVES_HOLES: [FindingKind; 7] = [
    FindingKind::ItemMalformed,
    FindingKind::ExtentOutside,
    FindingKind::ExtentOverlap,
    FindingKind::InodeContradiction,
    FindingKind::ItemWithoutInode,
    FindingKind::BlockUsedTwice,
    FindingKind::LogDamaged,
];

/// Describes the first thing that was readable before and reads differently after. Without a mount
/// before, nothing was readable.
pub fn difference(before: Option<&View>, after: Option<&View>, told: &[FindingKind]) -> Option<String> {
    let before = before?;
    let Some(after) = after else { return Some("nothing mounts any more".into()) };
    before.trees.iter().find_map(|(name, was)| {
        let Some(is) = after.trees.get(name) else { return Some(format!("snapshot {name:?} is gone")) };
        let lost = of_trees(was, is, told)?;
        Some(name.as_ref().map_or(lost.clone(), |name| format!("in snapshot {name:?} {lost}")))
    })
}

/// Describes the first block that reads as something it never held, in a file that has all its
/// names. `sound` is the image before the rot.
pub fn lie(sound: &View, after: &View) -> Option<String> {
    sound.trees.iter().find_map(|(snapshot, was)| {
        let is = after.trees.get(snapshot)?;
        let moved = |ino: &Ino| {
            was.names.iter().any(|(place, named)| named == ino && is.names.get(place) != Some(ino))
        };
        let both = was.objects.iter().filter_map(|(ino, was)| Some((ino, was, is.objects.get(ino)?)));
        let mut named = both.filter(|(ino, ..)| !moved(ino));
        named.find_map(|(ino, was, is)| {
            let wrong = |block: &&u64| is.block(**block).is_some_and(|sum| was.block(**block) != Some(sum));
            let block = was.blocks.keys().chain(is.blocks.keys()).find(wrong)?;
            Some(format!("block {block} of inode {ino} reads as what it never held"))
        })
    })
}

fn of_trees(was: &Tree, is: &Tree, told: &[FindingKind]) -> Option<String> {
    for (ino, before) in &was.objects {
        if before.attributes.file_type == FileType::Symlink && before.target.is_none() {
            continue;
        }
        let Some(after) = is.objects.get(ino) else {
            return Some(format!("inode {ino} is gone: {before:?}"));
        };
        if let Some(what) = of_objects(before, after, told) {
            return Some(format!("{what} of inode {ino}"));
        }
    }
    let may_move = told.iter().any(|kind| MOVES_NAMES.contains(kind));
    let lost = was.names.iter().filter(|_| !may_move).find(|(place, ino)| {
        let may_go = was
            .objects
            .get(ino)
            .is_none_or(|object| object.attributes.file_type == FileType::Symlink && object.target.is_none());
        !may_go && is.names.get(place) != Some(ino)
    });
    lost.map(|((directory, name), _)| {
        format!("{:?} in directory {directory} leads elsewhere", String::from_utf8_lossy(name))
    })
}

fn of_objects(before: &Object, after: &Object, told: &[FindingKind]) -> Option<String> {
    if before.visible() != after.visible() {
        return Some(format!("the attributes {:?} are {:?}", before.visible(), after.visible()));
    }
    if before.flags.is_some() && before.flags != after.flags {
        return Some("there are other flags".into());
    }
    if let Some((name, _)) = before.xattrs.iter().find(|(name, value)| after.xattrs.get(*name) != Some(value))
    {
        return Some(format!("the extended attribute {:?} is another", String::from_utf8_lossy(name)));
    }
    if before.target.is_some() && before.target != after.target {
        return Some("the target is another".into());
    }
    for block in before.blocks.keys().chain(after.blocks.keys()) {
        match (before.block(*block), after.block(*block)) {
            (Some(was), Some(is)) if was == is => {}
            // If the file has unreadable blocks, a block that no item mentions may have been among
            // the lost ones.
            (Some(_), _)
                if !before.blocks.contains_key(block) && before.blocks.values().any(Option::is_none) => {}
            (Some(_), _) => return Some(format!("block {block} reads otherwise")),
            (None, None) => {}
            (None, Some(_)) if told.iter().any(|kind| LEAVES_HOLES.contains(kind)) => {}
            (None, Some(_)) => return Some(format!("block {block} was an error and reads as something")),
        }
    }
    None
}
