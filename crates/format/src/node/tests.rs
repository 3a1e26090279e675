use super::*;
use crate::crc;
use proptest::prelude::*;
use std::collections::BTreeMap;

const ADDR_HERE: BlockAddr = 640;

fn geometry(node_bytes: u32) -> Geometry {
    Geometry { total_blocks: 1 << 20, node_bytes, metadata: Metadata::Dup }
}

fn encode(builder: &NodeBuilder, node_bytes: u32) -> Vec<u8> {
    let mut out = vec![0xaa; node_bytes as usize];
    let checksum = builder.encode(&mut out, ADDR_HERE, 7);
    assert_eq!(checksum, crc(&out));
    out
}

fn decode(bytes: Vec<u8>, node_bytes: u32, level: u8) -> Result<Node, FormatError> {
    Node::decode(Bytes::from(bytes), geometry(node_bytes), ADDR_HERE, level)
}

fn key(offset: u64) -> Key {
    Key { object: offset / 10, kind: 3, offset }
}

fn leaf_of(items: &BTreeMap<u64, Vec<u8>>) -> NodeBuilder {
    let mut builder = NodeBuilder::new(4096, 0);
    for (&offset, value) in items {
        if !builder.push(key(offset), value) {
            break;
        }
    }
    builder
}

fn internal() -> Vec<u8> {
    let mut builder = NodeBuilder::new(4096, 2);
    for child in 0..20 {
        assert!(builder.push_child(
            key(child * 3),
            Pointer { addr: 1000 + child, copy: 5000 + child, checksum: child as u32 }
        ));
    }
    encode(&builder, 4096)
}

#[test]
fn the_layout_is_what_the_document_says() {
    let mut builder = NodeBuilder::new(4096, 0);
    assert!(builder.push(Key { object: 1, kind: 2, offset: 3 }, b"abc"));
    assert!(builder.push(Key { object: 1, kind: 2, offset: 0x0102030405060708 }, b"de"));
    let bytes = encode(&builder, 4096);
    assert_eq!(&bytes[..8], b"SYNCNODE");
    assert_eq!(bytes[8..16], 640u64.to_le_bytes());
    assert_eq!(bytes[16..24], 7u64.to_le_bytes());
    assert_eq!(bytes[24..28], 2u32.to_le_bytes());
    assert_eq!(bytes[28..32], 5u32.to_le_bytes());
    assert_eq!(bytes[32..40], [0; 8]);
    assert_eq!(bytes[40..57], [0, 0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 0, 0, 0, 3]);
    assert_eq!(bytes[66..74], [1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(bytes[74..82], [3, 0, 0, 0, 5, 0, 0, 0]);
    assert_eq!(&bytes[82..87], b"abcde");
    assert!(bytes[87..].iter().all(|&byte| byte == 0));
}

#[test]
fn children_read_back() {
    let node = decode(internal(), 4096, 2).unwrap();
    assert_eq!(node.len(), 20);
    for child in 0..20 {
        let pointer = Pointer { addr: 1000 + child, copy: 5000 + child, checksum: child as u32 };
        assert_eq!(node.child(child as usize), (key(child * 3), pointer));
        assert_eq!(node.child_for(key(child * 3)), child as usize);
        assert_eq!(node.child_for(key(child * 3 + 1)), child as usize);
    }
    assert_eq!(node.child_for(Key::MIN), 0);
    assert_eq!(node.child_for(Key::MAX), 19);
}

#[test]
fn four_of_the_largest_values_fit_a_node_of_any_size() {
    for node_bytes in [4096, 8192, 16384, 32768, 65536] {
        let mut builder = NodeBuilder::new(node_bytes, 0);
        let value = vec![9; geometry(node_bytes).max_value_bytes()];
        for offset in 0..4 {
            assert!(builder.push(key(offset), &value));
        }
        assert!(!builder.push(key(9), &value), "more than a node holds");
        assert_eq!(
            decode(encode(&builder, node_bytes), node_bytes, 0).unwrap().entry(3),
            (key(3), value.into())
        );
    }
}

#[test]
fn what_does_not_belong_here_is_refused() {
    let bytes = internal();
    let bytes_of = || Bytes::from(bytes.clone());
    let wrong = |field| FormatError::Field { structure: STRUCTURE, field };
    assert_eq!(Node::decode(bytes_of(), geometry(4096), 641, 2).unwrap_err(), wrong("own address"));
    assert_eq!(Node::decode(bytes_of(), geometry(4096), ADDR_HERE, 1).unwrap_err(), wrong("level"));
    let truncated = FormatError::Truncated { structure: STRUCTURE };
    assert_eq!(Node::decode(bytes_of(), geometry(8192), ADDR_HERE, 2).unwrap_err(), truncated);
    let change = |at: usize, value: &[u8]| {
        let mut bad = bytes.clone();
        bad[at..at + value.len()].copy_from_slice(value);
        decode(bad, 4096, 2).unwrap_err()
    };
    assert_eq!(change(0, b"X"), FormatError::Magic { structure: STRUCTURE });
    assert_eq!(change(COUNT, &u32::MAX.to_le_bytes()), wrong("count"));
    assert_eq!(change(VALUES_BYTES, &u32::MAX.to_le_bytes()), wrong("length of values"));
    assert_eq!(change(VALUES_BYTES, &412u32.to_le_bytes()), wrong("length of values"));
    assert_eq!(change(PADDING, &[1]), wrong("unused bytes"));
    assert_eq!(change(4095, &[1]), wrong("unused bytes"));
    assert_eq!(change(HEADER_BYTES, &[1]), wrong("order of keys"));
    let ends = HEADER_BYTES + 20 * KEY_BYTES;
    assert_eq!(change(ends, &13u32.to_le_bytes()), wrong("length of a pointer"));
    assert_eq!(change(ends + 4, &3u32.to_le_bytes()), wrong("order of ends"));
    let values = HEADER_BYTES + 20 * ENTRY_BYTES;
    assert_eq!(change(values, &u64::MAX.to_le_bytes()), wrong("child address"));
    assert_eq!(change(values, &3u64.to_le_bytes()), wrong("child address"));
}

#[test]
fn an_internal_node_has_children() {
    let empty = encode(&NodeBuilder::new(4096, 1), 4096);
    assert!(decode(empty, 4096, 1).is_err());
    let empty = encode(&NodeBuilder::new(4096, 0), 4096);
    assert!(decode(empty, 4096, 0).unwrap().is_empty());
}

fn items() -> impl Strategy<Value = BTreeMap<u64, Vec<u8>>> {
    prop::collection::btree_map(0..300u64, prop::collection::vec(any::<u8>(), 0..200), 0..120)
}

proptest! {
    #[test]
    fn a_leaf_reads_back_and_finds_what_a_map_finds(items in items(), probes in prop::collection::vec(0..310u64, 20)) {
        let builder = leaf_of(&items);
        let items: Vec<_> = items.into_iter().take(builder.len()).collect();
        let node = decode(encode(&builder, 4096), 4096, 0).unwrap();
        prop_assert_eq!(node.len(), items.len());
        prop_assert_eq!(node.used_bytes(), HEADER_BYTES + builder.used_bytes());
        for (index, (offset, value)) in items.iter().enumerate() {
            prop_assert_eq!(node.entry(index), (key(*offset), Bytes::from(value.clone())));
        }
        for probe in probes {
            let found = items.binary_search_by_key(&probe, |item| item.0);
            prop_assert_eq!(node.find(key(probe)), found);
            let at = found.unwrap_or_else(|at| at);
            for from in 0..=at {
                prop_assert_eq!(node.lower_bound(from, key(probe)), at);
            }
        }
    }

    #[test]
    fn runs_and_single_items_build_the_same_node(items in items(), cut in 0..120usize, first in 0..40usize) {
        let source = decode(encode(&leaf_of(&items), 4096), 4096, 0).unwrap();
        let (first, cut) = (first.min(source.len()), cut.min(source.len()));
        let mut single = NodeBuilder::new(4096, 0);
        let mut runs = NodeBuilder::new(4096, 0);
        for index in first..source.len() {
            let (key, value) = source.entry(index);
            prop_assert!(single.push(key, &value));
        }
        let cut = cut.max(first);
        prop_assert_eq!(runs.push_run(&source, first..cut), cut - first);
        prop_assert_eq!(runs.push_run(&source, cut..source.len()), source.len() - cut);
        prop_assert_eq!(encode(&single, 4096), encode(&runs, 4096));
    }

    #[test]
    fn a_run_stops_where_the_node_is_full_and_balance_keeps_the_items(items in items(), filler in 0..900usize) {
        let source = decode(encode(&leaf_of(&items), 4096), 4096, 0).unwrap();
        let mut front = NodeBuilder::new(4096, 0);
        front.push(Key::MIN, &vec![1; filler]);
        let taken = front.push_run(&source, 0..source.len());
        if taken < source.len() {
            let (key, value) = source.entry(taken);
            prop_assert!(!front.push(key, &value), "the run stopped too early");
        }
        let mut back = NodeBuilder::new(4096, 0);
        prop_assert_eq!(back.push_run(&source, taken..source.len()), source.len() - taken);
        let total = front.used_bytes() + back.used_bytes();
        if front.len() > 1 && front.used_bytes() > back.used_bytes() {
            front.balance(&mut back);
            prop_assert_eq!(front.used_bytes() + back.used_bytes(), total);
            prop_assert!(front.used_bytes().abs_diff(back.used_bytes()) <= 2 * 1000);
        }
        let (front, back) = (encode(&front, 4096), encode(&back, 4096));
        let (front, back) = (decode(front, 4096, 0).unwrap(), decode(back, 4096, 0).unwrap());
        let all: Vec<_> = (1..front.len()).map(|at| front.entry(at)).chain((0..back.len()).map(|at| back.entry(at))).collect();
        let wanted: Vec<_> = (0..source.len()).map(|at| source.entry(at)).collect();
        prop_assert_eq!(all, wanted);
    }

    /// Decoding arbitrary damage either fails or yields a node whose accessors all work.
    #[test]
    fn damaged_nodes_never_panic(
        items in items(),
        as_internal in any::<bool>(),
        damage in prop::collection::vec((0..4096usize, any::<u8>()), 1..6),
        header_damage in prop::collection::vec((0..HEADER_BYTES + 120, any::<u8>()), 0..3),
    ) {
        let mut bytes = if as_internal { internal() } else { encode(&leaf_of(&items), 4096) };
        for (at, value) in damage.into_iter().chain(header_damage) {
            bytes[at] = value;
        }
        let level = if as_internal { 2 } else { 0 };
        if let Ok(node) = decode(bytes, 4096, level) {
            for index in 0..node.len() {
                prop_assert_eq!(node.find(node.key(index)), Ok(index));
                if as_internal { node.child(index); } else { node.entry(index); }
            }
        }
    }
}
