//! Nodes and items.

use super::answer::{Answer, number, number_or};
use super::decode;
use super::image::Image;
use serde_json::{Value, json};
use syncline_device::{FlushTracker, block_on};
use syncline_format::node::{MAX_LEVEL, Node, header};
use syncline_format::superblock::Pointer;
use syncline_format::{BlockRun, Geometry, Key, Kind, crc};
use syncline_tree::{Tree, TreeError};

/// The most nodes and items shown by default.
const MOST: u64 = 100;
/// The size of a walk's cache.
const CACHE_BYTES: usize = 1 << 20;

/// Visits every node, continuing past damaged ones.
pub fn walk(
    image: &Image,
    mut visit: impl FnMut(u8, Pointer, Result<&Node, &TreeError>) + Send,
) -> Result<(), String> {
    let superblock = image.superblock()?;
    let tree = Tree::new(FlushTracker::new(image.device.clone()), superblock.geometry, CACHE_BYTES);
    block_on(tree.walk(superblock.tree, &mut visit));
    Ok(())
}

/// The nodes of the tree.
pub fn tree(image: &Image, arguments: &[&str]) -> Answer {
    let most = number_or(arguments, 0, MOST)?;
    let mut nodes = Vec::new();
    let (mut count, mut damaged) = (0u64, 0u64);
    walk(image, |level, pointer, node| {
        count += 1;
        damaged += u64::from(node.is_err());
        if count > most && node.is_ok() {
            return;
        }
        nodes.push(match node {
            Ok(node) => json!({ "level": level, "block": pointer.addr, "copy": decode::copy(pointer),
                "checksum": decode::crc(pointer.checksum), "generation": node.generation(), "items": node.len(), "first": node.first_key().map(decode::key) }),
            Err(error) => json!({ "level": level, "block": pointer.addr, "error": error.to_string() }),
        });
    })?;
    Ok(json!({ "nodes": count, "damaged": damaged, "shown": nodes.len(), "list": nodes }))
}

/// A node and its contents.
pub fn node(image: &Image, arguments: &[&str]) -> Answer {
    let superblock = image.superblock()?;
    let addr = number_or(arguments, 0, superblock.tree.node.addr)?;
    let geometry = superblock.geometry;
    let bytes = image.read(addr, geometry.node_blocks())?.into_bytes();
    let checksum = decode::crc(crc(&bytes));
    // A second copy has the address of the first in it.
    let own = header(&bytes).map_or(addr, |(own, _)| own);
    let node = decoded(&bytes, geometry, own)?;
    let entries: Vec<Value> = (0..node.len())
        .map(|index| match node.level() {
            0 => decode::item(node.key(index), node.value(index)),
            _ => {
                let (key, pointer) = node.child(index);
                json!({ "key": decode::key(key), "block": pointer.addr, "copy": decode::copy(pointer),
                    "checksum": decode::crc(pointer.checksum) })
            }
        })
        .collect();
    Ok(json!({ "block": addr, "level": node.level(), "generation": node.generation(), "checksum": checksum,
        "used_bytes": node.used_bytes(), "list": entries }))
}

/// Decodes a node, whatever level it states.
pub fn decoded(bytes: &bytes::Bytes, geometry: Geometry, addr: u64) -> Result<Node, String> {
    let tries = (0..=MAX_LEVEL).map(|level| Node::decode(bytes.clone(), geometry, addr, level));
    let mut first = None;
    for tried in tries {
        match tried {
            Ok(node) => return Ok(node),
            Err(error) => first = first.or(Some(error)),
        }
    }
    Err(format!("no node lies at block {addr}: {}", first.map(|error| error.to_string()).unwrap_or_default()))
}

/// Calls `take` for the items of a range until it returns false; returns the nodes that could not
/// be read.
pub fn each_item(
    image: &Image,
    from: Key,
    to: Key,
    mut take: impl FnMut(Key, &[u8]) -> bool,
) -> Result<Vec<Value>, String> {
    const EACH: usize = 256;
    let store = image.store()?;
    let mut lost = Vec::new();
    let mut next = Some(from);
    while let Some(from) = next {
        let mut tell = |bad: syncline_store::Unreadable| {
            lost.push(json!({ "block": bad.addr, "first": bad.first.map(decode::key), "error": bad.error.to_string() }));
        };
        let chunk = block_on(store.scan_readable(from, to, EACH, &mut tell));
        for (key, value) in &chunk.items {
            if !take(*key, value) {
                return Ok(lost);
            }
        }
        next =
            chunk.items.last().and_then(|(key, _)| key.next()).filter(|next| !chunk.complete && *next <= to);
    }
    Ok(lost)
}

/// The range of the items of one kind of an object.
pub fn of_kind(object: u64, kind: Kind) -> (Key, Key) {
    (Key::new(object, kind, 0), Key::new(object, kind, u64::MAX))
}

/// The items from an object on.
pub fn items(image: &Image, arguments: &[&str]) -> Answer {
    let from = Key { object: number_or(arguments, 0, 0)?, kind: 0, offset: 0 };
    let most = number_or(arguments, 1, MOST)?;
    let mut list = Vec::new();
    let mut more = false;
    let lost = each_item(image, from, Key::MAX, |key, value| {
        more = list.len() as u64 >= most;
        if !more {
            list.push(decode::item(key, value));
        }
        !more
    })?;
    Ok(json!({ "more": more, "unreadable": lost, "list": list }))
}

/// One item.
pub fn item(image: &Image, arguments: &[&str]) -> Answer {
    let kind = match arguments[1].parse() {
        Ok(number) => number,
        Err(_) => (0..=u8::MAX)
            .find(|&number| Kind::from_u8(number).is_some_and(|kind| kind.name() == arguments[1]))
            .ok_or_else(|| {
                let known = (0..=u8::MAX).filter_map(Kind::from_u8).map(Kind::name);
                format!("there is no kind '{}': {}", arguments[1], known.collect::<Vec<_>>().join(", "))
            })?,
    };
    let wanted = Key { object: number(arguments[0])?, kind, offset: number_or(arguments, 2, 0)? };
    let found = block_on(image.store()?.get(wanted)).map_err(|error| error.to_string())?;
    let value = found.ok_or_else(|| format!("there is no item {}", decode::key(wanted)))?;
    let mut told = decode::item(wanted, &value);
    told["value_bytes"] = value.len().into();
    told["raw"] = decode::hex(&value).into();
    Ok(told)
}

/// Whether a block lies in a run.
pub fn contains(run: BlockRun, block: u64) -> bool {
    block >= run.start && block - run.start < run.blocks
}
