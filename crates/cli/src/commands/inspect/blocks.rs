//! Superblocks, the space map, and the contents of a block.

use super::answer::{Answer, number};
use super::decode;
use super::image::Image;
use super::tree::{contains, each_item, walk};
use serde_json::{Value, json};
use syncline_device::{FlushTracker, block_on};
use syncline_format::items::extent::Extent;
use syncline_format::superblock::Superblock;
use syncline_format::{BLOCK_BYTES, BlockRun, Geometry, Key, Kind};
use syncline_space::{PageReader, Space};

/// The most references to a block that are shown.
const REFERENCES_MAX: usize = 1000;

/// A superblock's fields.
fn told(superblock: &Superblock) -> Value {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    json!({
        "uuid": uuid::Uuid::from_bytes(superblock.uuid).to_string(), "label": superblock.label_text(),
        "total_blocks": superblock.geometry.total_blocks, "node_bytes": superblock.geometry.node_bytes,
        "generation": superblock.generation, "epoch": hex(&superblock.epoch),
        "tree": { "block": superblock.tree.node.addr, "copy": decode::copy(superblock.tree.node), "level": superblock.tree.level,
            "checksum": decode::crc(superblock.tree.node.checksum) },
        "space_map": { "block": superblock.space.page.addr, "copy": decode::copy(superblock.space.page), "level": superblock.space.level,
            "checksum": decode::crc(superblock.space.page.checksum) },
        "log": { "number": superblock.log.seq, "block": superblock.log.addr,
            "segment": decode::run(superblock.log.segment), "prev": decode::crc(superblock.log.prev) },
        "features": superblock.features, "next_object": superblock.next_object,
        "operation": superblock.op_seq, "tree_nodes": superblock.tree_nodes,
        "used_blocks": superblock.used_blocks, "objects": superblock.objects,
        "hash_seed": hex(&superblock.hash_seed), "created_ns": superblock.created_ns, "clean": superblock.clean,
    })
}

/// The newest superblock, and a list of the unreadable parts.
pub fn info(image: &Image) -> Answer {
    let mut answer = told(image.superblock()?);
    answer["device_blocks"] = image.blocks().into();
    match image.salvaged() {
        Ok(salvaged) => {
            answer["slot"] = salvaged.slot.into();
            answer["log_segments"] = salvaged.segments.iter().map(|run| decode::run(*run)).collect();
            answer["log_damage"] = json!(salvaged.log_cut);
            if !salvaged.space_map {
                answer["space_map_damage"] = "it can't be read; 'space' says why".into();
            }
        }
        Err(why) => answer["damage"] = why.into(),
    }
    Ok(answer)
}

/// Every copy of the superblocks.
pub fn superblocks(image: &Image) -> Answer {
    if image.blocks() < Geometry::MIN_BLOCKS {
        return Err("the image is smaller than the smallest filesystem (16 MiB)".into());
    }
    let mut list = Vec::new();
    for slot in 0..2 {
        for (copy, addr) in Geometry::superblock_copies_for(image.blocks(), slot).into_iter().enumerate() {
            let mut one = match image.read(addr, 1) {
                Ok(block) if block.iter().all(|&byte| byte == 0) => json!({ "state": "never written" }),
                Ok(block) => match Superblock::decode(&block) {
                    Ok(superblock) => told(&superblock),
                    Err(error) => json!({ "error": error.to_string() }),
                },
                Err(error) => json!({ "error": error }),
            };
            (one["name"], one["at_block"]) = (format!("slot {slot} copy {copy}").into(), addr.into());
            list.push(one);
        }
    }
    Ok(list.into())
}

/// The space map that the newest superblock refers to.
fn map(image: &Image) -> Result<std::sync::Arc<Space>, String> {
    let superblock = image.superblock()?;
    let pages = PageReader::new(FlushTracker::new(image.device.clone()));
    block_on(Space::load(&pages, superblock.geometry, superblock.space)).map_err(|error| error.to_string())
}

/// The totals of the space map.
pub fn space(image: &Image) -> Answer {
    let map = map(image)?;
    let counters = map.counters();
    let pages: Vec<String> = map.map_runs().into_iter().map(decode::run).collect();
    Ok(json!({ "total_blocks": counters.total, "named_blocks": counters.named, "free_blocks": counters.free,
        "as_of": "the last checkpoint, without the log", "own_pages": pages.join(" ") }))
}

/// The state of a block, and everything that lies there or refers to it.
pub fn block(image: &Image, arguments: &[&str]) -> Answer {
    let block = number(arguments[0])?;
    if block >= image.blocks() {
        return Err(format!("block {block} is outside: the device has {} blocks", image.blocks()));
    }
    let mut list = Vec::new();
    for slot in 0..2 {
        if image.blocks() >= Geometry::MIN_BLOCKS
            && Geometry::superblock_copies_for(image.blocks(), slot).contains(&block)
        {
            list.push(json!({ "name": format!("superblock slot {slot}") }));
        }
    }
    let (checkpoint, after_log) = match map(image) {
        Ok(map) => {
            let pages = map.map_runs().into_iter().filter(|run| contains(*run, block));
            list.extend(pages.map(|run| json!({ "name": "space map page", "blocks": decode::run(run) })));
            let now =
                image.store().map(|store| store.named_runs().into_iter().any(|run| contains(run, block)));
            (state(Ok(map.is_named(block))), state(now))
        }
        Err(why) => (state(Err(why.clone())), state(Err(why))),
    };
    let mut notes = Vec::new();
    match image.salvaged() {
        Ok(salvaged) => {
            let segments = salvaged.segments.iter().filter(|run| contains(**run, block));
            list.extend(segments.map(|run| json!({ "name": "log segment", "blocks": decode::run(*run) })));
        }
        Err(why) => notes.push(why),
    }
    if let Err(why) =
        nodes_at(image, block, &mut list).and_then(|()| extents_at(image, block, &mut list, &mut notes))
    {
        notes.push(why);
    }
    notes.dedup();
    Ok(json!({ "block": block, "byte_offset": block * BLOCK_BYTES as u64, "space_map": checkpoint,
        "with_the_log": after_log, "references": list.len(), "notes": notes, "list": list }))
}

fn state(named: Result<bool, String>) -> String {
    named.map_or_else(|why| format!("unknown: {why}"), |named| if named { "in use" } else { "free" }.into())
}

fn nodes_at(image: &Image, block: u64, list: &mut Vec<Value>) -> Result<(), String> {
    let blocks = image.geometry()?.node_blocks();
    walk(image, |level, pointer, node| {
        let copies = pointer.places().map(|addr| BlockRun::new(addr, blocks));
        if let Some(run) = copies.into_iter().find(|run| contains(*run, block)) {
            let error = node.err().map(ToString::to_string);
            list.push(
                json!({ "name": "tree node", "level": level, "blocks": decode::run(run), "error": error }),
            );
        }
    })
}

/// Every extent on the block, of all files.
fn extents_at(
    image: &Image,
    block: u64,
    list: &mut Vec<Value>,
    notes: &mut Vec<String>,
) -> Result<(), String> {
    let lost = each_item(image, Key::MIN, Key::MAX, |key, value| {
        if key.kind == Kind::Extent as u8
            && let Ok(extent) = Extent::decode(key.offset, value)
            && contains(extent.run(), block)
        {
            let at = block - extent.addr;
            let checksum = extent.checksums.get(at as usize).map(|&checksum| decode::crc(checksum));
            // A block of a compressed unit belongs to all file blocks in the unit.
            let file_block = extent.file_block + if extent.packed.is_some() { 0 } else { at };
            let mut told = json!({ "name": "file data", "inode": key.object, "file_block": file_block,
                "extent": decode::run(extent.run()), "checksum": checksum, "shared": extent.shared });
            if let Some(packed) = &extent.packed {
                told["compressed"] = decode::packed(packed);
            }
            list.push(told);
        }
        list.len() < REFERENCES_MAX
    })?;
    if !lost.is_empty() {
        notes.push(format!("{} tree nodes could not be read: there may be more", lost.len()));
    }
    Ok(())
}

/// The bytes of a block.
pub fn hex(image: &Image, arguments: &[&str]) -> Answer {
    const ROW: usize = 32;
    let bytes = image.read(number(arguments[0])?, 1)?;
    let mut lines = Vec::new();
    let mut blank = false;
    for (at, row) in bytes.chunks(ROW).enumerate() {
        if row.iter().all(|&byte| byte == 0) {
            if !blank {
                lines.push("*".to_owned());
            }
            blank = true;
            continue;
        }
        blank = false;
        let digits: Vec<String> =
            row.chunks(4).map(|word| word.iter().map(|byte| format!("{byte:02x}")).collect()).collect();
        let text: String =
            row.iter().map(|&byte| if byte.is_ascii_graphic() { byte as char } else { '.' }).collect();
        lines.push(format!("{:04x}  {}  {text}", at * ROW, digits.join(" ")));
    }
    Ok(lines.into())
}
