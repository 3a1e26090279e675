//! Items of names: every encoded item decodes to itself, and no bytes make a decoder panic, loop or
//! allocate too much.

use proptest::collection::vec;
use proptest::prelude::*;
use syncline_format::items::dirent::Dirent;
use syncline_format::items::inode::{
    FIXED_BYTES, InodeItem, Target, Time, inline_bytes_max, xattr_bytes_max, xattr_section_bytes,
};
use syncline_format::items::parent::{Parent, parent_bytes_max, section_bytes};
use syncline_format::items::xattr::{CHUNK_ID_MAX, ChunkRef, Xattr, XattrValue};
use syncline_format::items::{HASH_MAX, SLOTS, hash_offsets};
use syncline_format::{Geometry, Metadata};

fn file_type() -> impl Strategy<Value = u8> {
    prop_oneof![Just(0o01), Just(0o02), Just(0o04), Just(0o06), Just(0o10), Just(0o12), Just(0o14)]
}

fn name() -> impl Strategy<Value = Vec<u8>> {
    vec(1u8..=255, 1..=255)
        .prop_map(|name| {
            name.into_iter().map(|byte| if byte == b'/' { b'_' } else { byte }).collect::<Vec<u8>>()
        })
        .prop_filter("the two names of every directory", |name| name != b"." && name != b"..")
}

fn chunks() -> impl Strategy<Value = ChunkRef> {
    (0..=CHUNK_ID_MAX, 0u32..=65536).prop_map(|(id, len_bytes)| ChunkRef { id, len_bytes })
}

fn time() -> impl Strategy<Value = Time> {
    (any::<i64>(), 0u32..1_000_000_000).prop_map(|(seconds, nanoseconds)| Time { seconds, nanoseconds })
}

/// The owned contents of an inode item, so that items can borrow them.
#[derive(Clone, Debug)]
struct Parts {
    file_type: u8,
    fields: [u32; 6],
    longs: [u64; 4],
    times: [Time; 4],
    data: Option<Vec<u8>>,
    target: Result<Vec<u8>, ChunkRef>,
    xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    parents: Vec<(u64, Vec<u8>)>,
}

fn parts() -> impl Strategy<Value = Parts> {
    let fields = prop::array::uniform6(any::<u32>());
    let longs = prop::array::uniform4(0..=CHUNK_ID_MAX);
    let target = prop_oneof![vec(any::<u8>(), 1..2048).prop_map(Ok), chunks().prop_map(Err)];
    let xattrs = vec((name(), vec(any::<u8>(), 0..100)), 0..4);
    let data = prop::option::of(vec(any::<u8>(), 0..2048));
    let parents = vec((1..=u64::MAX / 2, name()), 0..4);
    (file_type(), fields, longs, prop::array::uniform4(time()), data, target, xattrs, parents).prop_map(
        |(file_type, fields, longs, times, data, target, xattrs, parents)| Parts {
            file_type,
            fields,
            longs,
            times,
            data,
            target,
            xattrs,
            parents,
        },
    )
}

impl Parts {
    fn item(&self) -> InodeItem<'_> {
        let (regular, directory, symlink) =
            (self.file_type == 0o10, self.file_type == 0o04, self.file_type == 0o12);
        let data = self.data.as_deref().filter(|_| regular);
        let target = match &self.target {
            Ok(bytes) => Target::Here(bytes),
            Err(chunks) => Target::Chunks(*chunks),
        };
        let [flags, nlink, uid, gid, rdev, xattr_items] = self.fields;
        let [size, blocks, generation, next_chunk] = self.longs;
        let [atime, mtime, ctime, btime] = self.times;
        InodeItem {
            mode: (u16::from(self.file_type) << 12) | (flags as u16 & 0o7777),
            flags,
            nlink,
            uid,
            gid,
            rdev,
            size: size.max(data.map_or(0, |data| data.len() as u64)),
            blocks,
            generation,
            parent: if directory { blocks | 1 } else { 0 },
            atime,
            mtime,
            ctime,
            btime,
            next_chunk,
            xattr_items,
            xattr_list_bytes: xattr_items / 2,
            data,
            target: symlink.then_some(target),
            xattrs: self.xattrs.iter().map(|(name, value)| (&name[..], &value[..])).collect(),
            parents: self.parents.iter().map(|(parent, name)| Parent { parent: *parent, name }).collect(),
            parent_items: xattr_items / 3,
            quota: next_chunk / 2,
            xattr_units: nlink / 2,
        }
    }
}

proptest! {
    #[test]
    fn directory_entries_come_back(ino in 1..=u64::MAX / 2, file_type in file_type(), name in name()) {
        let dirent = Dirent { ino, file_type, name: &name };
        let value = dirent.encode();
        prop_assert_eq!(Dirent::decode(&value), Ok(dirent));
    }

    #[test]
    fn xattrs_come_back(name in name(), value in vec(any::<u8>(), 0..3000), chunks in chunks()) {
        for value in [XattrValue::Here(&value), XattrValue::Chunks(chunks)] {
            let xattr = Xattr { name: &name, value };
            let value = xattr.encode();
            prop_assert_eq!(Xattr::decode(&value), Ok(xattr));
        }
    }

    #[test]
    fn parent_pointers_come_back(parent in 1..=u64::MAX / 2, name in name()) {
        let pointer = Parent { parent, name: &name };
        let value = pointer.encode();
        prop_assert_eq!(Parent::decode(&value), Ok(pointer));
    }

    #[test]
    fn inodes_come_back(parts in parts()) {
        let item = parts.item();
        let value = item.encode();
        prop_assert_eq!(InodeItem::decode(&value), Ok(item));
        for end in 0..value.len().min(FIXED_BYTES + 8) {
            // Every section ends where its length says, so a shorter item is incomplete or has
            // fewer sections.
            if let Ok(shorter) = InodeItem::decode(&value[..end]) {
                prop_assert!(end >= FIXED_BYTES && shorter.encode() == value[..end]);
            }
        }
    }

    /// Anything that decodes encodes to the same bytes: each value has a single encoding.
    #[test]
    fn random_bytes_are_refused_or_mean_one_thing(mut bytes in vec(any::<u8>(), 0..400), file_type in file_type()) {
        if let Some(byte) = bytes.get_mut(1) {
            // Get past the first check at least.
            *byte = (*byte & 0o17) | (file_type << 4);
        }
        if let Ok(item) = InodeItem::decode(&bytes) {
            prop_assert_eq!(item.encode(), bytes.clone());
        }
        if let Ok(dirent) = Dirent::decode(&bytes) {
            prop_assert_eq!(dirent.encode(), bytes.clone());
        }
        if let Ok(xattr) = Xattr::decode(&bytes) {
            prop_assert_eq!(xattr.encode(), bytes.clone());
        }
        if let Ok(parent) = Parent::decode(&bytes) {
            prop_assert_eq!(parent.encode(), bytes.clone());
        }
    }

    #[test]
    fn damaged_inodes_are_refused_or_mean_one_thing(
        parts in parts(),
        damage in vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut value = parts.item().encode();
        for (index, byte) in damage {
            let index = index.index(value.len());
            value[index] = byte;
        }
        // Sections may come in any order; encoding puts them in a fixed order.
        if let Ok(item) = InodeItem::decode(&value) {
            let again = item.encode();
            prop_assert_eq!(again.len(), value.len());
            prop_assert_eq!(InodeItem::decode(&again), Ok(item));
        }
    }
}

#[test]
fn contradictions_are_refused() {
    let directory = InodeItem { mode: 0o040755, parent: 1, ..InodeItem::default() };
    assert!(InodeItem::decode(&directory.encode()).is_ok());
    let refused = [
        InodeItem { parent: 0, ..directory.clone() },
        InodeItem { mode: 0o100644, ..directory.clone() },
        InodeItem { mode: 0o030755, ..directory.clone() },
        InodeItem { size: 1 << 63, ..directory.clone() },
        InodeItem { data: Some(b"x"), size: 1, ..directory.clone() },
        InodeItem { mode: 0o120777, parent: 0, ..directory.clone() },
        InodeItem { mode: 0o100644, parent: 0, data: Some(b"xy"), size: 1, ..directory.clone() },
        InodeItem { atime: Time { seconds: 0, nanoseconds: 1_000_000_000 }, ..directory.clone() },
        InodeItem { xattrs: vec![(b"", b"value")], ..directory.clone() },
        InodeItem { parents: vec![Parent { parent: 0, name: b"name" }], ..directory.clone() },
        InodeItem { parents: vec![Parent { parent: 1, name: b"a/b" }], ..directory.clone() },
        InodeItem { parents: vec![Parent { parent: 1 << 63, name: b"name" }], ..directory.clone() },
    ];
    for item in refused {
        assert!(InodeItem::decode(&item.encode()).is_err(), "{item:?}");
    }
    for name in [&b"."[..], b"..", b"", b"a/b", b"a\0b", &[b'n'; 256]] {
        assert!(Dirent::decode(&Dirent { ino: 2, file_type: 0o10, name }.encode()).is_err(), "{name:?}");
    }
}

/// An inode item fits into a leaf even if everything in it is as long as possible.
#[test]
fn the_longest_inode_item_fits() {
    for node_bytes in [4096, 8192, 16384, 32768, 65536] {
        let (data, most) = (vec![1; inline_bytes_max(node_bytes)], parent_bytes_max(node_bytes));
        let value = vec![2; xattr_bytes_max(node_bytes) - xattr_section_bytes(b"user.x", b"")];
        let mut item = InodeItem { mode: 0o100644, size: data.len() as u64, ..InodeItem::default() };
        item.data = Some(&data);
        item.xattrs = vec![(b"user.x", &value)];
        item.parents = vec![Parent { parent: 1, name: b"n" }; most / section_bytes(b"n")];
        item.parent_items = 1;
        let bytes = item.encode();
        let room = Geometry { total_blocks: 4096, node_bytes, metadata: Metadata::Dup }.max_value_bytes();
        let spare = most % section_bytes(b"n");
        assert!(bytes.len() + spare <= room, "{} and {spare} of {room} bytes", bytes.len());
        assert_eq!(InodeItem::decode(&bytes), Ok(item));
        assert!(most >= section_bytes(&[b'n'; 48]), "{most} bytes: the names of every day fit");
    }
}

#[test]
fn offsets_of_one_hash_are_its_own_and_cookies_fit_63_bits() {
    let (first, last) = hash_offsets(0);
    assert_eq!((first, last), (0, SLOTS - 1));
    assert_eq!(hash_offsets(1).0, last + 1);
    assert!(i64::try_from(hash_offsets(HASH_MAX).1 + 3).is_ok());
    assert_eq!(hash_offsets(u64::MAX), hash_offsets(HASH_MAX));
}

/// The bytes of one item of each kind, so that a change of the format can't go unnoticed.
#[test]
fn layouts_are_what_the_format_says() {
    let dirent = Dirent { ino: 0x0102, file_type: 0o10, name: b"name" }.encode();
    assert_eq!(dirent, b"\x02\x01\0\0\0\0\0\0\x08name");
    let here = Xattr { name: b"user.a", value: XattrValue::Here(b"v") }.encode();
    assert_eq!(here, b"\x06\0user.av");
    let chunks = ChunkRef { id: 3, len_bytes: 65536 };
    let there = Xattr { name: b"user.a", value: XattrValue::Chunks(chunks) }.encode();
    assert_eq!(there, b"\x06\x01user.a\x03\0\0\0\0\0\0\0\0\0\x01\0");
    assert_eq!(chunks.offset(2), 0x3_0002);
    let item = InodeItem {
        mode: 0o100644,
        nlink: 1,
        size: 2,
        ctime: Time { seconds: -1, nanoseconds: 7 },
        data: Some(b"hi"),
        xattrs: vec![(b"user.a", b"v")],
        parents: vec![Parent { parent: 0x0102, name: b"name" }],
        parent_items: 3,
        quota: 0x0102,
        xattr_units: 0x0304,
        ..InodeItem::default()
    };
    let value = item.encode();
    assert_eq!(value[..2], 0o100644u16.to_le_bytes());
    assert_eq!((value[8], value[24]), (1, 2));
    assert_eq!(value[72..80], [0xff; 8]);
    assert_eq!(value[96], 7);
    let inode_number_of_parent_to_birth = 48..104;
    assert_eq!(inode_number_of_parent_to_birth.len(), 8 + 4 * 8 + 4 * 4);
    let parents = b"\x05\0\x0c\0\x02\x01\0\0\0\0\0\0name\x06\0\x04\0\x03\0\0\0";
    let counted = b"\x07\0\x08\0\x02\x01\0\0\0\0\0\0\x08\0\x04\0\x04\x03\0\0";
    let sections = [&b"\x01\0\x02\0hi\x04\0\x08\0\x06user.av"[..], parents, counted].concat();
    assert_eq!(value[FIXED_BYTES..], sections);
}
