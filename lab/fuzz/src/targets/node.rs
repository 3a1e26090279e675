//! Tree nodes.

use super::from_bytes;
use arbitrary::Arbitrary;
use bytes::Bytes;
use syncline_format::node::{ENTRY_BYTES, HEADER_BYTES, Node, NodeBuilder, pointer_bytes};
use syncline_format::{Geometry, Key, Metadata, crc};

const GEOMETRY: Geometry = Geometry { total_blocks: 4096, node_bytes: 4096, metadata: Metadata::Dup };
const ADDR: u64 = 100;

/// A node given as entries, then changed in places; or as bytes.
#[derive(Arbitrary, Debug)]
enum Input<'a> {
    Entries {
        level: u8,
        entries: Vec<(u8, u8, u64, &'a [u8])>,
        changes: Vec<(u16, u8)>,
        probe: (u8, u8, u64),
    },
    Bytes {
        level: u8,
        bytes: &'a [u8],
    },
}

/// Decodes a node.
///
/// - It never panics, whatever the bytes, and neither do operations on a decoded node.
/// - A node that was built decodes to the entries it was built from.
/// - The format is canonical: building a decoded node's entries again gives the bytes that were
///   read.
/// - Keys ascend; binary searches find what a linear search finds; children are inside the image.
pub fn node(bytes: &[u8]) {
    let Some(input) = from_bytes::<Input<'_>>(bytes) else { return };
    let (mut block, level, probe) = match input {
        Input::Entries { level, entries, changes, probe } => {
            let level = level % 3;
            let mut block = build(level, &entries);
            for (at, value) in changes {
                // Mostly in the used part.
                let at = usize::from(at) % block.len();
                block[at] = value;
            }
            (block, level, Key { object: probe.0.into(), kind: probe.1, offset: probe.2 })
        }
        Input::Bytes { level, bytes } => (bytes.to_vec(), level, Key { object: 0, kind: 1, offset: 5 }),
    };
    let _ = Node::decode(Bytes::copy_from_slice(&block), GEOMETRY, ADDR, level);
    block.resize(GEOMETRY.node_bytes as usize, 0);
    if let Ok(node) = Node::decode(Bytes::from(block), GEOMETRY, ADDR, level) {
        examine(&node, level, probe);
    }
}

/// Builds a node and reads it back.
fn build(level: u8, entries: &[(u8, u8, u64, &[u8])]) -> Vec<u8> {
    let mut sorted: Vec<_> = entries
        .iter()
        .map(|(object, kind, offset, value)| {
            (Key { object: u64::from(*object), kind: *kind, offset: *offset }, *value)
        })
        .collect();
    sorted.sort_by_key(|(key, _)| *key);
    sorted.dedup_by_key(|(key, _)| *key);
    let mut builder = NodeBuilder::new(GEOMETRY.node_bytes, level);
    let pointer = |value: &[u8]| {
        let mut bytes = vec![0; pointer_bytes(GEOMETRY.metadata)];
        // Low bytes of both addresses.
        for (at, byte) in [0, 1, 12, 13].into_iter().zip(value) {
            bytes[at] = *byte;
        }
        bytes
    };
    let pushed: Vec<_> = sorted
        .into_iter()
        .map(|(key, value)| (key, if level == 0 { value.to_vec() } else { pointer(value) }))
        .take_while(|(key, value)| builder.push(*key, value))
        .collect();
    let mut block = vec![0xff; GEOMETRY.node_bytes as usize];
    assert_eq!(builder.encode(&mut block, ADDR, 7), crc(&block));
    if level == 0 {
        let node =
            Node::decode(Bytes::copy_from_slice(&block), GEOMETRY, ADDR, 0).expect("a built leaf is sound");
        assert_eq!(node.len(), pushed.len());
        for (index, (key, value)) in pushed.iter().enumerate() {
            assert_eq!((node.key(index), node.value(index)), (*key, &value[..]));
        }
    }
    block
}

fn examine(node: &Node, level: u8, probe: Key) {
    assert!(node.used_bytes() <= node.bytes().len());
    let keys: Vec<Key> = (0..node.len()).map(|index| node.key(index)).collect();
    assert!(keys.is_sorted_by(|one, next| one < next));
    assert_eq!((node.first_key(), node.last_key()), (keys.first().copied(), keys.last().copied()));
    let mut builder = NodeBuilder::new(GEOMETRY.node_bytes, level);
    let mut values = 0;
    for (index, key) in keys.iter().enumerate() {
        let (_, value) = node.entry(index);
        values += value.len();
        assert!(builder.push(*key, &value), "what was read fits");
        if level > 0 {
            assert!(GEOMETRY.has(node.child(index).1, GEOMETRY.node_blocks()));
        }
    }
    assert_eq!(node.used_bytes(), HEADER_BYTES + keys.len() * ENTRY_BYTES + values);
    let mut again = vec![0; node.bytes().len()];
    builder.encode(&mut again, node.addr(), node.generation());
    assert_eq!(&again[..], &node.bytes()[..], "one node, one encoding");
    let place = keys.iter().position(|key| *key >= probe).unwrap_or(keys.len());
    assert_eq!(node.find(probe).unwrap_or_else(|place| place), place);
    assert_eq!(node.find(probe).is_ok(), keys.get(place) == Some(&probe));
    for from in [0, place / 2, place] {
        assert_eq!(node.lower_bound(from, probe), place);
    }
    assert!(node.child_for(probe) < keys.len().max(1));
    copy_runs(node, level, place);
}

/// Copies the entries in two runs, as a merge does; this must give the same node.
fn copy_runs(node: &Node, level: u8, split: usize) {
    let mut builder = NodeBuilder::new(GEOMETRY.node_bytes, level);
    assert_eq!(builder.push_run(node, 0..split), split);
    assert_eq!(builder.push_run(node, split..node.len()), node.len() - split);
    let mut again = vec![0; node.bytes().len()];
    builder.encode(&mut again, node.addr(), node.generation());
    assert_eq!(&again[..], &node.bytes()[..]);
}
