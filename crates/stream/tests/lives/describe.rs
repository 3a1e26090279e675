//! Everything that a stream must keep of a filesystem, to compare two.

use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::Arc;
use syncline_device::block_on;
use syncline_format::items::dirent::Dirent;
use syncline_format::items::extent::{Extent, Packed};
use syncline_format::items::inode::{FLAG_UNPLACED, InodeItem};
use syncline_format::items::preallocation::Preallocation;
use syncline_format::items::unplaced::Piece;
use syncline_format::{BLOCK_BYTES, Key, Kind};
use syncline_fs::Filesystem;
use syncline_fs::types::{Algorithm, FileType, Ino};

/// How a block of a file is stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stored {
    Data,
    Packed(Algorithm),
    /// Of a compressed unit of which not all blocks are used any more: it is compressed again, if
    /// that saves enough.
    Part,
    Reserved,
}

/// An inode.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Described {
    /// Mode, flags, names, owner, group, device, size.
    fixed: [u64; 7],
    times: Vec<(i64, u32)>,
    parent: Ino,
    xattrs: BTreeMap<Vec<u8>, Bytes>,
    target: Option<Bytes>,
    /// The directory whose limits apply.
    quota: Option<Ino>,
    /// Blocks that hold something.
    pub blocks: BTreeMap<u64, Stored>,
    /// A checksum of the contents.
    contents: u32,
}

/// A filesystem.
#[derive(Default, PartialEq, Eq)]
pub struct Whole {
    pub inodes: BTreeMap<Ino, Described>,
    pub names: BTreeMap<(Ino, Vec<u8>), Ino>,
    pub quotas: BTreeMap<Ino, (u64, u64)>,
    /// Blocks of files that lie on the same blocks of the device: each with the first of them.
    pub shared: BTreeMap<(Ino, u64), (Ino, u64)>,
}

/// Describes a filesystem that is open for reading.
pub fn describe(fs: &Arc<Filesystem>) -> Whole {
    let mut whole = Whole::default();
    let mut lies: BTreeMap<(u64, u64), Vec<(Ino, u64)>> = BTreeMap::new();
    let chunk = block_on(fs.store().scan(Key::new(1, Kind::Inode, 0), Key::MAX, usize::MAX >> 1)).unwrap();
    assert!(chunk.complete);
    let trees = trees(fs);
    // With the first block behind each.
    let alive: BTreeMap<Ino, u64> = inodes(&chunk.items)
        .filter(|(_, item)| item.nlink > 0)
        .map(|(ino, item)| (ino, item.size.div_ceil(BLOCK_BYTES as u64)))
        .collect();
    for (ino, item) in inodes(&chunk.items).filter(|(_, item)| item.nlink > 0) {
        let quota = trees.get(&item.quota).copied();
        whole.inodes.insert(ino, Described { quota, ..inode(fs, ino, &item) });
    }
    for (key, value) in chunk.items.iter().filter(|(key, _)| alive.contains_key(&key.object)) {
        match Kind::from_u8(key.kind) {
            Some(Kind::Dirent) => {
                let entry = Dirent::decode(value).unwrap();
                whole.names.insert((key.object, entry.name.to_vec()), entry.ino);
            }
            Some(Kind::Extent) => {
                let extent = Extent::decode(key.offset, value).unwrap();
                let blocks = &mut whole.inodes.get_mut(&key.object).unwrap().blocks;
                // Blocks that are left of a truncation that was cut short are no part of the file.
                for block in extent.file_block..extent.end().min(alive[&key.object]) {
                    let skip = block - extent.file_block;
                    let (stored, place) = match extent.packed {
                        None => (Stored::Data, (extent.addr + skip, 0)),
                        Some(packed) => (stored(packed), (extent.addr, packed.skip + skip + 1)),
                    };
                    blocks.insert(block, stored);
                    lies.entry(place).or_default().push((key.object, block));
                }
            }
            Some(Kind::Preallocation) => {
                let run = Preallocation::decode(key.offset, value).unwrap();
                let blocks = &mut whole.inodes.get_mut(&key.object).unwrap().blocks;
                blocks.extend((run.file_block..run.end()).map(|block| (block, Stored::Reserved)));
            }
            _ => {}
        }
    }
    // A file with contents in its inode item may have room for their block.
    for (ino, item) in inodes(&chunk.items) {
        if let Some(inode) = whole.inodes.get_mut(&ino)
            && item.data.is_some_and(|data| !data.is_empty())
        {
            inode.blocks.insert(0, Stored::Data);
        }
    }
    // Data that is only in the log lies nowhere, whatever an extent there says.
    for (key, _) in chunk.items.iter().filter(|(key, _)| key.kind == Kind::Unplaced as u8) {
        let block = Piece::decode(key.offset, &[]).unwrap().file_block;
        if let Some(inode) = whole.inodes.get_mut(&key.object) {
            inode.blocks.insert(block, Stored::Data);
        }
        lies.values_mut().for_each(|blocks| blocks.retain(|at| *at != (key.object, block)));
    }
    for blocks in lies.into_values().filter(|blocks| blocks.len() > 1) {
        let first = *blocks.iter().min().unwrap();
        whole.shared.extend(blocks.into_iter().map(|block| (block, first)));
    }
    let usage = |quota: syncline_fs::QuotaUsage| (quota.limits.bytes, quota.limits.inodes);
    let quotas = fs.quotas().into_iter().filter(|quota| whole.inodes.contains_key(&quota.root));
    whole.quotas = quotas.map(|quota| (quota.root, usage(quota))).collect();
    whole
}

fn inodes(items: &[(Key, Bytes)]) -> impl Iterator<Item = (Ino, InodeItem<'_>)> {
    let items = items.iter().filter(|(key, _)| key.kind == Kind::Inode as u8);
    items.map(|(key, value)| (key.object, InodeItem::decode(value).unwrap()))
}

fn inode(fs: &Arc<Filesystem>, ino: Ino, item: &InodeItem<'_>) -> Described {
    let kind = FileType::from_number((item.mode >> 12) as u8).unwrap();
    let names = block_on(fs.listxattr(ino)).unwrap();
    let names = names.split(|byte| *byte == 0).filter(|name| !name.is_empty());
    let xattrs = names.map(|name| (name.to_vec(), block_on(fs.getxattr(ino, name)).unwrap())).collect();
    let contents = match kind {
        FileType::Regular => contents(fs, ino, item.size),
        _ => 0,
    };
    Described {
        fixed: [
            item.mode.into(),
            (item.flags & !FLAG_UNPLACED).into(),
            item.nlink.into(),
            item.uid.into(),
            item.gid.into(),
            item.rdev.into(),
            item.size,
        ],
        times: [item.atime, item.mtime, item.ctime, item.btime]
            .map(|time| (time.seconds, time.nanoseconds))
            .into(),
        parent: item.parent,
        xattrs,
        target: (kind == FileType::Symlink).then(|| block_on(fs.readlink(ino)).unwrap()),
        quota: None,
        blocks: BTreeMap::new(),
        contents,
    }
}

/// The directories with limits, by the numbers of these.
fn trees(fs: &Arc<Filesystem>) -> BTreeMap<u64, Ino> {
    let (from, to) = (Key::new(0, Kind::Quota, 0), Key::new(0, Kind::Quota, u64::MAX));
    let chunk = block_on(fs.store().scan(from, to, 1 << 20)).unwrap();
    let root = |value: &Bytes| u64::from_le_bytes(value[..8].try_into().unwrap());
    chunk.items.iter().map(|(key, value)| (key.offset, root(value))).collect()
}

fn stored(packed: Packed) -> Stored {
    match packed.blocks < packed.unit_blocks {
        true => Stored::Part,
        false => Stored::Packed(packed.algorithm),
    }
}

fn contents(fs: &Arc<Filesystem>, ino: Ino, size: u64) -> u32 {
    let (mut at, mut sum) = (0, 0);
    while at < size {
        let pieces = block_on(fs.read(ino, at, 1 << 20)).unwrap();
        for piece in pieces {
            sum = crc32c::crc32c_append(sum, &piece);
            at += piece.len() as u64;
        }
    }
    sum
}

/// All of it as text. Long values stand as their checksums.
pub fn text(whole: &Whole) -> String {
    let mut lines = Vec::new();
    for ((dir, name), ino) in &whole.names {
        lines.push(format!("name {dir} {:?} {ino}", String::from_utf8_lossy(name)));
    }
    for (ino, it) in &whole.inodes {
        lines.push(format!(
            "inode {ino} {:?} {:?} {} {:?} {:08x}",
            it.fixed, it.times, it.parent, it.quota, it.contents
        ));
        for (name, value) in &it.xattrs {
            let name = String::from_utf8_lossy(name);
            lines.push(format!("  {name} {} {:08x}", value.len(), crc32c::crc32c(value)));
        }
        lines.extend(
            it.target
                .iter()
                .map(|target| format!("  target {} {:08x}", target.len(), crc32c::crc32c(target))),
        );
        lines.extend(it.blocks.iter().map(|(block, stored)| format!("  block {block} {stored:?}")));
    }
    lines.extend(whole.quotas.iter().map(|quota| format!("quota {quota:?}")));
    lines.extend(whole.shared.iter().map(|shared| format!("shared {shared:?}")));
    lines.join("\n") + "\n"
}

impl Whole {
    /// True if all names of an inode lie in the tree below `root`, or it is that directory.
    fn is_only_in(&self, ino: Ino, root: Ino) -> bool {
        let mut dirs = self.names.iter().filter(|(_, named)| **named == ino).map(|((dir, _), _)| *dir);
        ino == root || dirs.all(|dir| self.is_below(dir, root))
    }

    fn is_below(&self, mut dir: Ino, root: Ino) -> bool {
        while dir != root && dir != 1 {
            dir = self.inodes[&dir].parent;
        }
        dir == root
    }
}

/// Fails with the first difference.
pub fn require_same(sent: &Whole, received: &Whole, what: &str) {
    assert_eq!(sent.names, received.names, "{what}: names");
    for (ino, inode) in &sent.inodes {
        let other = received.inodes.get(ino).unwrap_or_else(|| panic!("{what}: inode {ino} is missing"));
        let mut other = other.clone();
        for (block, stored) in &inode.blocks {
            // It is not promised how data is compressed again.
            let anew = |other: &Stored| *stored != Stored::Reserved && *other != Stored::Reserved;
            if let Some(other) = other.blocks.get_mut(block).filter(|other| anew(other)) {
                *other = *stored;
            }
        }
        // An inode that counts in a tree in which it has lost its name counts by its names in the target.
        if !inode.quota.is_some_and(|root| sent.is_only_in(*ino, root)) {
            other.quota = inode.quota;
        }
        assert_eq!(*inode, other, "{what}: inode {ino}");
    }
    let numbers = |whole: &Whole| whole.inodes.keys().copied().collect::<Vec<_>>();
    assert_eq!(numbers(sent), numbers(received), "{what}: inodes");
    assert_eq!(sent.quotas, received.quotas, "{what}: quotas");
    assert_eq!(sent.shared, received.shared, "{what}: what is shared");
}
