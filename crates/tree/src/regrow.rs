//! An inner node that can't be read, made again from the nodes below it.
//!
//! Everything in an inner node but its generation follows from its children: their first keys, their addresses, the checksums of
//! their bytes. And whatever points to the lost node has the checksum of all its bytes. So it is known whether what was made again
//! is what was lost: the right children, all of them, none of them another than it was. Nothing else could prove that: a node carries no
//! checksum of its own and nothing that ties it to its filesystem, and file data may look like nodes.

use crate::frame::Place;
use crate::tree::{Caching, Tree};
use bytes::Bytes;
use std::collections::{BTreeSet, HashSet};
use syncline_device::AlignedBuf;
use syncline_format::node::{HEADER_BYTES, MAX_LEVEL, Node, NodeBuilder, POINTER_BYTES, header};
use syncline_format::superblock::{Pointer, TreeRoot};
use syncline_format::{BlockAddr, BlockRun, Geometry, KEY_BYTES, Key, crc};

/// Generations tried past that of the newest child. An inner node is written with its newest child, unless one was only taken
/// away; more of them would let chance say yes.
const GENERATIONS: u64 = 64;

/// An inner node that can't be read or is damaged.
#[derive(Clone, Copy, Debug)]
pub struct LostNode {
    /// Where it lies, and the checksum of its bytes.
    pub pointer: Pointer,
    /// Its level.
    pub level: u8,
    first: Option<Key>,
    bound: Option<Key>,
}

/// A node that was found and may be a child of a lost one.
#[derive(Clone, Copy, Debug)]
pub struct Stray {
    pointer: Pointer,
    level: u8,
    generation: u64,
    first: Key,
    last: Key,
}

impl Stray {
    /// Takes a node for one. `None` for the leaf of an empty tree.
    pub fn of(node: &Node) -> Option<Self> {
        Some(Self {
            pointer: Pointer { addr: node.addr(), checksum: crc(node.bytes()) },
            level: node.level(),
            generation: node.generation(),
            first: node.first_key()?,
            last: node.last_key()?,
        })
    }

    /// Where it lies.
    pub fn addr(&self) -> BlockAddr {
        self.pointer.addr
    }
}

/// What is left of a lost node.
pub struct Remains {
    bytes: Bytes,
    /// Its bytes hold the checksums of these children.
    children: Vec<Stray>,
    /// What stands where its keys were.
    keys: HashSet<[u8; KEY_BYTES]>,
}

impl Remains {
    /// True if a child with the first key of this one had its place in the node, as far as that can be read.
    pub fn have_key_of(&self, stray: &Stray) -> bool {
        self.keys.contains(&stray.first.to_bytes())
    }
}

impl Tree {
    /// The inner nodes of a tree that can't be had, as far as those above them can. Leaves are not read.
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

    /// Looks at what is left of a lost node: each address in it where a child lies whose bytes have the checksum that stands behind
    /// the address. Where in the node that is does not matter, so any part of it may be damaged.
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

    /// The node that lies at an address, if what lies there calls itself one.
    pub async fn stray_at(&self, addr: BlockAddr) -> Option<Stray> {
        Stray::of(&self.node_at(addr).await?)
    }

    /// The same with its contents.
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

/// The bytes of a lost node, made of those of the nodes that belong below it. `None` if they are not all there. `newest` is
/// the generation of the checkpoint that wrote the tree last.
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

/// Those that can lie below the lost node, none over another: first those whose checksums it held itself, then the newest.
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
