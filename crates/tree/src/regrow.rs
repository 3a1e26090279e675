//! Restores an unreadable inner node from the nodes below it.
//!
//! Everything in an inner node except its generation follows from its children: their first keys,
//! their addresses, and the checksums of their bytes. The pointer to the lost node holds the
//! checksum of all its bytes, so that checksum tells whether the restored node equals the lost one,
//! with exactly the right children. Nothing else could prove that: a node carries no checksum of
//! its own and nothing that ties it to its filesystem, and file data may look like nodes.

use crate::frame::Place;
use crate::tree::{Caching, Tree};
use bytes::Bytes;
use std::collections::{BTreeSet, HashSet};
use syncline_device::AlignedBuf;
use syncline_format::node::{HEADER_BYTES, MAX_LEVEL, Node, NodeBuilder, POINTER_BYTES, header};
use syncline_format::superblock::{Pointer, TreeRoot};
use syncline_format::{BlockAddr, BlockRun, Geometry, KEY_BYTES, Key, crc};

/// Number of generations tried beyond that of the newest child. An inner node is written together
/// with its newest child, unless only a child was removed. Trying more would risk a match by
/// chance.
const GENERATIONS: u64 = 64;

/// An inner node that can't be read or is damaged.
#[derive(Clone, Copy, Debug)]
pub struct LostNode {
    /// Its address, and the checksum of its bytes.
    pub pointer: Pointer,
    /// Its level.
    pub level: u8,
    first: Option<Key>,
    bound: Option<Key>,
}

/// A node found by searching, which may be a child of a lost one.
#[derive(Clone, Copy, Debug)]
pub struct Stray {
    pointer: Pointer,
    level: u8,
    generation: u64,
    first: Key,
    last: Key,
}

impl Stray {
    /// The stray of a node; `None` for the leaf of an empty tree.
    pub fn of(node: &Node) -> Option<Self> {
        Some(Self {
            pointer: Pointer { addr: node.addr(), checksum: crc(node.bytes()) },
            level: node.level(),
            generation: node.generation(),
            first: node.first_key()?,
            last: node.last_key()?,
        })
    }

    /// The node's address.
    pub fn addr(&self) -> BlockAddr {
        self.pointer.addr
    }
}

/// The remains of a lost node.
pub struct Remains {
    bytes: Bytes,
    /// The children whose checksums its bytes hold.
    children: Vec<Stray>,
    /// The bytes at the positions of its keys.
    keys: HashSet<[u8; KEY_BYTES]>,
}

impl Remains {
    /// True if the node had an entry with the first key of `stray`, as far as its bytes can be
    /// read.
    pub fn have_key_of(&self, stray: &Stray) -> bool {
        self.keys.contains(&stray.first.to_bytes())
    }
}

impl Tree {
    /// The inner nodes of a tree that can't be read, as far as the nodes above them can. Leaves are
    /// not read.
    pub async fn lost_inner_nodes(&self, root: TreeRoot) -> Vec<LostNode> {
        let (mut lost, mut places) = (Vec::new(), vec![Place::root(root)]);
        while let Some(place) = places.pop() {
            if place.level == 0 || place.level > MAX_LEVEL {
                continue;
            }
            match self.load(place, None, Caching::Bypass).await {
                Ok(node) => {
                    places.extend((0..node.len()).map(|index| Place::child(&node, index, place.bound)));
                }
                Err(_) => {
                    let Place { pointer, level, first, bound } = place;
                    lost.push(LostNode { pointer, level, first, bound });
                }
            }
        }
        lost
    }

    /// Examines the remains of a lost node: finds each address in them that is followed by a
    /// checksum matching the bytes of a child at that address. The position within the node does
    /// not matter, so any part of it may be damaged.
    pub async fn remains(&self, lost: &LostNode) -> Remains {
        let geometry = self.geometry.get();
        let Some(bytes) = self.bytes_at(lost.pointer.addr, geometry.node_bytes as usize).await else {
            return Remains { bytes: Bytes::new(), children: Vec::new(), keys: HashSet::new() };
        };
        let mut pointers = BTreeSet::new();
        for window in bytes[HEADER_BYTES..].windows(POINTER_BYTES) {
            let addr = u64::from_le_bytes(window[..8].try_into().expect("eight bytes"));
            let checksum = u32::from_le_bytes(window[8..].try_into().expect("four bytes"));
            if geometry.contains(BlockRun::new(addr, geometry.node_blocks())) {
                pointers.insert((addr, checksum));
            }
        }
        let mut children = Vec::new();
        for (addr, checksum) in pointers {
            let found = self.stray_at(addr).await;
            children.extend(found.filter(|it| it.pointer.checksum == checksum && it.level + 1 == lost.level));
        }
        let keys = bytes[HEADER_BYTES..].chunks_exact(KEY_BYTES);
        let keys = keys.map(|key| key.try_into().expect("as long as a key")).collect();
        Remains { bytes, children, keys }
    }

    /// The node at an address, if the bytes there look like a node of that address.
    pub async fn stray_at(&self, addr: BlockAddr) -> Option<Stray> {
        Stray::of(&self.node_at(addr).await?)
    }

    /// The node at an address with its contents, if the bytes there are one.
    pub async fn node_at(&self, addr: BlockAddr) -> Option<Node> {
        let geometry = self.geometry.get();
        let start = self.bytes_at(addr, syncline_format::BLOCK_BYTES).await?;
        let (own, level) = header(&start)?;
        if own != addr {
            return None;
        }
        let bytes = self.bytes_at(addr, geometry.node_bytes as usize).await?;
        Node::decode(bytes, geometry, addr, level).ok()
    }

    async fn bytes_at(&self, addr: BlockAddr, len: usize) -> Option<Bytes> {
        let inside =
            self.geometry.get().contains(BlockRun::new(addr, (len / syncline_format::BLOCK_BYTES) as u64));
        if !inside {
            return None;
        }
        Some(self.tracker.read(crate::tree::offset_bytes(addr), len).await.ok()?.into_bytes())
    }
}

/// Restores the bytes of a lost node from the nodes that belong below it; `None` if some are
/// missing. `newest` is the generation of the checkpoint that last wrote the tree.
pub fn regrow<'a>(
    geometry: Geometry,
    lost: &LostNode,
    remains: &Remains,
    strays: impl Iterator<Item = &'a Stray>,
    newest: u64,
) -> Option<Bytes> {
    let children = children(lost, remains, strays, newest);
    let least = children.iter().map(|child| child.generation).max()?;
    let mut node = NodeBuilder::new(geometry.node_bytes, lost.level);
    for child in &children {
        if !node.push_child(child.first, child.pointer) {
            return None;
        }
    }
    if lost.first.is_some_and(|first| node.first_key() != Some(first)) {
        return None;
    }
    let said =
        remains.bytes.get(16..24).map(|bytes| u64::from_le_bytes(bytes.try_into().expect("eight bytes")));
    let mut bytes = AlignedBuf::zeroed(geometry.node_bytes as usize);
    let right = said
        .into_iter()
        .chain(least..=newest.min(least.saturating_add(GENERATIONS)))
        .find(|generation| node.encode(&mut bytes, lost.pointer.addr, *generation) == lost.pointer.checksum);
    right.map(|_| bytes.into_bytes())
}

/// Nodes that fit below the lost node, none overlapping another: first the nodes whose checksums it
/// held itself, then the newest.
fn children<'a>(
    lost: &LostNode,
    remains: &Remains,
    strays: impl Iterator<Item = &'a Stray>,
    newest: u64,
) -> Vec<Stray> {
    let fits = |stray: &&Stray| {
        stray.level + 1 == lost.level
            && stray.generation <= newest
            && lost.first.is_none_or(|first| first <= stray.first)
            && lost.bound.is_none_or(|bound| stray.last < bound)
    };
    let mut others: Vec<&Stray> = strays.filter(fits).collect();
    others.sort_by_key(|stray| std::cmp::Reverse(stray.generation));
    let mut chosen: std::collections::BTreeMap<Key, Stray> = std::collections::BTreeMap::new();
    for stray in remains.children.iter().filter(fits).chain(others) {
        let before = chosen.range(..=stray.last).next_back();
        if before.is_none_or(|(_, before)| before.last < stray.first) {
            chosen.insert(stray.first, *stray);
        }
    }
    chosen.into_values().collect()
}
