//! Values of items.

use syncline_format::items::dirent::{Dirent, is_name};
use syncline_format::items::extent::{EXTENT_BLOCKS_MAX, Extent, FILE_BLOCKS_MAX};
use syncline_format::items::inode::{InodeItem, SIZE_MAX, Target};
use syncline_format::items::parent::Parent;
use syncline_format::items::preallocation::{Preallocation, decode_sum, encode_sum};
use syncline_format::items::quota::Quota;
use syncline_format::items::shared::{COUNT_MIN, SHARED_BLOCKS_MAX, SharedRun};
use syncline_format::items::unplaced::Piece;
use syncline_format::items::xattr::{CHUNK_ID_MAX, VALUE_BYTES_MAX, Xattr, XattrValue, is_xattr_name};
use syncline_format::items::{SLOT_BITS, hash_offsets};
use syncline_format::{BLOCK_BYTES, KEY_BYTES, Key, Kind};

/// Decodes the value of an item; the first byte of the input selects its kind.
///
/// - It never panics, whatever the bytes.
/// - Items are canonical: a decoded item encodes to the bytes that were read, except for the order
///   of an inode item's sections, where encoding again changes nothing.
/// - Decoded items respect the limits of docs/FORMAT.md: names, sizes, lengths, positions.
/// - A key reads back from its bytes, which sort like keys; the next key is the least greater one.
pub fn item(bytes: &[u8]) {
    let Some((&kind, value)) = bytes.split_first() else { return };
    match Kind::from_u8(kind % 12) {
        Some(Kind::Inode) => inode(value),
        Some(Kind::Dirent) => dirent(value),
        Some(Kind::Extent) => extent(value),
        Some(Kind::Xattr) => xattr(value),
        Some(Kind::Shared) => shared(value),
        Some(Kind::Parent) => parent(value),
        Some(Kind::Preallocation) => preallocation(value),
        Some(Kind::Quota) => quota(value),
        Some(Kind::Unplaced) => unplaced(value),
        Some(Kind::Chunk | Kind::Orphan) | None => keys(value),
    }
}

fn unplaced(value: &[u8]) {
    let Some((offset, value)) = value.split_first_chunk() else { return };
    let Ok(piece) = Piece::decode(u64::from_le_bytes(*offset), value) else { return };
    let mut block = vec![0; BLOCK_BYTES];
    block[piece.at..piece.at + value.len()].copy_from_slice(value);
    assert_eq!(piece.encode(&block), value);
    assert_eq!(piece.offset(), u64::from_le_bytes(*offset));
    assert!(piece.file_block < FILE_BLOCKS_MAX);
}

fn quota(value: &[u8]) {
    let Ok(quota) = Quota::decode(value) else { return };
    assert_eq!(quota.encode(), value);
    assert!(quota.root != 0 && quota.root <= u64::MAX / 2);
}

fn inode(value: &[u8]) {
    let Ok(item) = InodeItem::decode(value) else { return };
    let again = item.encode();
    let decoded = InodeItem::decode(&again).expect("what was encoded decodes");
    assert_eq!(decoded, item);
    assert_eq!(again.len(), value.len(), "nothing is lost and nothing added");
    assert_eq!(again[..120], value[..120], "the fixed fields are canonical");
    assert_eq!(decoded.encode(), again);
    assert!(item.size <= SIZE_MAX && item.next_chunk <= CHUNK_ID_MAX);
    assert!(item.data.is_none_or(|data| data.len() as u64 <= item.size));
    assert!(item.xattrs.iter().all(|(name, _)| is_xattr_name(name)));
    assert!(item.parents.iter().all(|pointer| is_name(pointer.name) && pointer.parent != 0));
    if let Some(Target::Chunks(chunks)) = item.target {
        assert!(chunks.id <= CHUNK_ID_MAX && chunks.len_bytes as usize <= VALUE_BYTES_MAX);
    }
}

fn dirent(value: &[u8]) {
    let Ok(entry) = Dirent::decode(value) else { return };
    assert_eq!(entry.encode(), value);
    assert!(is_name(entry.name) && entry.ino != 0 && entry.ino <= i64::MAX as u64);
}

fn shared(value: &[u8]) {
    let Some((start, value)) = value.split_first_chunk() else { return };
    let start = u64::from_le_bytes(*start);
    let Ok(shared) = SharedRun::decode(start, value) else { return };
    assert_eq!(shared.encode(), value);
    assert!(shared.count >= COUNT_MIN && shared.run.start == start);
    assert_eq!(start / SHARED_BLOCKS_MAX, (shared.run.end() - 1) / SHARED_BLOCKS_MAX);
}

fn extent(value: &[u8]) {
    let Some((block, value)) = value.split_first_chunk() else { return };
    let file_block = u64::from_le_bytes(*block);
    let Ok(extent) = Extent::decode(file_block, value) else { return };
    assert_eq!(extent.encode(), value);
    assert!((1..=EXTENT_BLOCKS_MAX).contains(&extent.blocks()) && extent.file_block < FILE_BLOCKS_MAX);
    assert_eq!(extent.file_block / EXTENT_BLOCKS_MAX, (extent.end() - 1) / EXTENT_BLOCKS_MAX);
    assert!(extent.run().end() > extent.addr);
    let middle = extent.file_block + extent.blocks() / 2;
    let halves = [extent.slice(0, middle), extent.slice(middle, u64::MAX)];
    let Some(packed) = &extent.packed else {
        let joined: Vec<u32> = halves.iter().flatten().flat_map(|half| half.checksums.clone()).collect();
        return assert_eq!(joined, extent.checksums, "two halves are the whole");
    };
    assert!(packed.skip + extent.blocks() <= packed.unit_blocks && packed.unit_blocks <= EXTENT_BLOCKS_MAX);
    assert!(extent.run().blocks < packed.unit_blocks && packed.bytes > 0);
    assert!(halves.iter().flatten().all(|half| half.run() == extent.run()), "each part needs all of it");
    assert_eq!(halves.iter().flatten().map(Extent::blocks).sum::<u64>(), extent.blocks());
    // The item itself serves as the device's contents.
    let stored: Vec<u8> = value.iter().copied().cycle().take(packed.bytes as usize).collect();
    if let Ok(unit) = syncline_codec::unpack(packed, &stored) {
        assert_eq!(unit.len() as u64, packed.unit_blocks * syncline_format::BLOCK_BYTES as u64);
    }
}

fn xattr(value: &[u8]) {
    let Ok(item) = Xattr::decode(value) else { return };
    assert_eq!(item.encode(), value);
    assert!(is_xattr_name(item.name));
    if let XattrValue::Chunks(chunks) = item.value {
        assert!(chunks.id <= CHUNK_ID_MAX && chunks.len_bytes as usize <= VALUE_BYTES_MAX);
        assert_eq!(chunks.offset(u16::MAX) >> 16, chunks.id);
    }
}

fn parent(value: &[u8]) {
    let Ok(pointer) = Parent::decode(value) else { return };
    assert_eq!(pointer.encode(), value);
    assert!(is_name(pointer.name) && pointer.parent != 0 && pointer.parent <= i64::MAX as u64);
}

fn preallocation(value: &[u8]) {
    let Some((block, value)) = value.split_first_chunk() else { return };
    let file_block = u64::from_le_bytes(*block);
    let Ok(item) = Preallocation::decode(file_block, value) else { return };
    assert_eq!(item.encode(), value);
    assert!(item.blocks > 0 && item.end() > item.file_block && item.end() <= FILE_BLOCKS_MAX);
    assert_eq!(decode_sum(value).map(encode_sum).as_deref(), Ok(value));
}

fn keys(value: &[u8]) {
    let Some((one, rest)) = value.split_first_chunk::<KEY_BYTES>() else { return };
    let key = Key::from_bytes(one);
    assert_eq!(key.to_bytes(), *one);
    match key.next() {
        Some(next) => assert!(next > key && next.to_bytes() > *one),
        None => assert_eq!(key, Key::MAX),
    }
    let (first, last) = hash_offsets(key.offset);
    assert!(first <= last && last < (1 << 63) - 3 && first >> SLOT_BITS == last >> SLOT_BITS);
    if let Some(other) = rest.first_chunk::<KEY_BYTES>() {
        assert_eq!(Key::from_bytes(other).cmp(&key), other.cmp(one), "the order of bytes is that of keys");
    }
}
