//! Items and records as JSON. If something can't be decoded, the error is printed with the bytes.

use serde_json::{Value, json};
use syncline_format::items::dirent::Dirent;
use syncline_format::items::extent::{Algorithm, Extent, Packed};
use syncline_format::items::inode::{InodeItem, Target, Time};
use syncline_format::items::parent::Parent;
use syncline_format::items::preallocation::{self, Preallocation};
use syncline_format::items::quota::Quota;
use syncline_format::items::shared::SharedRun;
use syncline_format::items::unplaced::Piece;
use syncline_format::items::xattr::{Xattr, XattrValue};
use syncline_format::superblock::Pointer;
use syncline_format::{BlockRun, FormatError, Key, Kind};

/// The most bytes of a value that are shown.
const SHOWN_MAX: usize = 64;

/// Bytes as text; bytes that are not text, and control characters, are replaced.
pub fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// Bytes as hexadecimal digits, cut off if there are many.
pub fn hex(bytes: &[u8]) -> String {
    let shown: String = bytes.iter().take(SHOWN_MAX).map(|byte| format!("{byte:02x}")).collect();
    if bytes.len() > SHOWN_MAX { format!("{shown}... ({} bytes)", bytes.len()) } else { shown }
}

/// `100+4`: four blocks from block 100 on.
pub fn run(run: BlockRun) -> String {
    format!("{}+{}", run.start, run.blocks)
}

/// The address of the second copy, if there is one.
pub fn copy(pointer: Pointer) -> Option<u64> {
    (pointer.copy != 0).then_some(pointer.copy)
}

/// A checksum.
pub fn crc(checksum: impl Into<u32>) -> String {
    format!("{:08x}", checksum.into())
}

/// `17 inode 0`.
pub fn key(key: Key) -> String {
    let kind = Kind::from_u8(key.kind).map_or_else(|| key.kind.to_string(), |kind| kind.name().to_owned());
    format!("{} {kind} {}", key.object, key.offset)
}

/// An item, decoded according to its key.
pub fn item(of: Key, value: &[u8]) -> Value {
    let decoded = match Kind::from_u8(of.kind) {
        Some(Kind::Inode) => InodeItem::decode(value).map(|inode| inode_item(&inode)),
        Some(Kind::Dirent) => Dirent::decode(value)
            .map(|entry| json!({ "name": lossy(entry.name), "inode": entry.ino, "type": entry.file_type })),
        Some(Kind::Extent) => Extent::decode(of.offset, value).map(|extent| self::extent(&extent)),
        Some(Kind::Xattr) => Xattr::decode(value).map(|xattr| self::xattr(&xattr)),
        Some(Kind::Parent) => Parent::decode(value).map(|parent| self::parent(&parent)),
        Some(Kind::Shared) => SharedRun::decode(of.offset, value)
            .map(|shared| json!({ "blocks": run(shared.run), "references": shared.count })),
        Some(Kind::Preallocation) if of.object == 0 => {
            preallocation::decode_sum(value).map(|blocks| json!({ "inode": of.offset, "blocks": blocks }))
        }
        Some(Kind::Preallocation) => Preallocation::decode(of.offset, value)
            .map(|room| json!({ "file_block": room.file_block, "blocks": room.blocks })),
        Some(Kind::Unplaced) => Piece::decode(of.offset, value)
            .map(|piece| json!({ "file_block": piece.file_block, "at": piece.at, "contents": hex(value) })),
        Some(Kind::Quota) => Quota::decode(value).map(|quota| quota_item(of.offset, &quota)),
        Some(Kind::Orphan) => Ok(json!({ "inode": of.offset })),
        Some(Kind::Chunk) | None => Ok(json!({ "bytes": hex(value) })),
    };
    let mut told = decoded.unwrap_or_else(|error| broken(&error, value));
    told["key"] = key(of).into();
    told
}

fn quota_item(number: u64, quota: &Quota) -> Value {
    json!({ "quota": number, "root": quota.root, "being_set": quota.is_being_set(),
        "limit_bytes": quota.limit_bytes, "limit_inodes": quota.limit_inodes,
        "used_units": quota.used_units, "used_inodes": quota.used_inodes })
}

fn broken(error: &FormatError, value: &[u8]) -> Value {
    json!({ "error": error.to_string(), "bytes": hex(value) })
}

/// An extent.
pub fn extent(extent: &Extent) -> Value {
    let checksums: Vec<String> = extent.checksums.iter().map(|&checksum| crc(checksum)).collect();
    let mut told = json!({ "file_block": extent.file_block, "blocks": run(extent.run()),
        "shared": extent.shared, "checksums": checksums.join(" ") });
    if let Some(packed) = &extent.packed {
        told["compressed"] = self::packed(packed);
    }
    told
}

/// How an extent is compressed, and which blocks of the unit it covers.
pub fn packed(packed: &Packed) -> Value {
    let algorithm = match packed.algorithm {
        Algorithm::Lz4 => "lz4",
        Algorithm::Zstd => "zstd",
    };
    json!({ "algorithm": algorithm, "bytes": packed.bytes, "unit_blocks": packed.unit_blocks,
        "first": packed.skip, "file_blocks": packed.blocks })
}

fn xattr(xattr: &Xattr<'_>) -> Value {
    let value = match xattr.value {
        XattrValue::Here(value) => lossy(&value[..value.len().min(SHOWN_MAX)]),
        XattrValue::Chunks(chunks) => format!("in chunks: {chunks:?}"),
    };
    json!({ "name": lossy(xattr.name), "value": value })
}

fn parent(parent: &Parent<'_>) -> Value {
    json!({ "directory": parent.parent, "name": lossy(parent.name) })
}

fn time(time: Time) -> String {
    format!("{}.{:09}", time.seconds, time.nanoseconds)
}

/// An inode item.
pub fn inode_item(inode: &InodeItem<'_>) -> Value {
    let target = inode.target.map(|target| match target {
        Target::Here(bytes) => lossy(bytes),
        Target::Chunks(chunks) => format!("in chunks: {chunks:?}"),
    });
    let xattrs: Vec<Value> = inode
        .xattrs
        .iter()
        .map(|(name, value)| json!({ "name": lossy(name), "value": lossy(&value[..value.len().min(SHOWN_MAX)]) }))
        .collect();
    json!({
        "mode": format!("{:o}", inode.mode), "flags": inode.flags, "nlink": inode.nlink,
        "uid": inode.uid, "gid": inode.gid, "rdev": inode.rdev,
        "size": inode.size, "blocks_512": inode.blocks, "generation": inode.generation,
        "directory_parent": inode.parent,
        "atime": time(inode.atime), "mtime": time(inode.mtime), "ctime": time(inode.ctime),
        "btime": time(inode.btime),
        "inline_bytes": inode.data.map(<[u8]>::len), "target": target,
        "xattrs": xattrs, "xattr_items": inode.xattr_items,
        "parents": inode.parents.iter().map(parent).collect::<Vec<_>>(), "parent_items": inode.parent_items,
        "quota": inode.quota, "xattr_units": inode.xattr_units,
    })
}
