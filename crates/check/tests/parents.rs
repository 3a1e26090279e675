//! Parent pointers in items of their own: damage in either direction is found, and mended to match
//! the directories.

use crate::common::{SIZE, examine, expect, items, plant, single, spawn};
use std::sync::Arc;
use syncline::{Filesystem, ImageOptions, format_device};
use syncline_check::{Condition, FindingKind, RepairOptions, repair};
use syncline_device::{MemoryDevice, block_on};
use syncline_format::items::inode::InodeItem;
use syncline_format::items::parent::Parent;
use syncline_format::{Key, Kind};
use syncline_store::{Store, Transaction};

const NAMES: usize = 60;

/// An image with an inode of many long names, its number and its paths.
fn image(parent_pointers: bool) -> (Arc<MemoryDevice>, u64, Vec<Vec<u8>>) {
    let device = MemoryDevice::new(SIZE);
    let format = single().parent_pointers(parent_pointers);
    format_device(device.clone(), &format).unwrap();
    let fs = Filesystem::open_device(device.clone(), ImageOptions::default()).unwrap();
    fs.create_dir_all("one/two").unwrap();
    fs.write("first", "contents").unwrap();
    let mut paths = vec![b"/first".to_vec()];
    for index in 0..NAMES {
        let path = format!("/one/two/{}{index}", "n".repeat(100));
        fs.hard_link("first", &path).unwrap();
        paths.push(path.into_bytes());
    }
    paths.sort_unstable();
    let ino = fs.metadata("first").unwrap().ino();
    fs.close().unwrap();
    (device, ino, paths)
}

fn paths(device: &Arc<MemoryDevice>, ino: u64) -> Vec<Vec<u8>> {
    Filesystem::open_device(device.clone(), ImageOptions::read_only()).unwrap().paths(ino).unwrap()
}

type Damage = fn(&Store, u64, &mut Transaction);

const DAMAGES: [(FindingKind, Damage); 6] = [
    (FindingKind::ParentMissing, |store, ino, transaction| {
        transaction.delete(items(store, ino, Kind::Parent)[7].0);
    }),
    (FindingKind::ParentDangling, |_, ino, transaction| {
        let pointer = Parent { parent: 1, name: b"no such name" };
        transaction.put(Key::new(ino, Kind::Parent, 12345), pointer.encode());
    }),
    (FindingKind::NameHash, |store, ino, transaction| {
        let (key, value) = items(store, ino, Kind::Parent).swap_remove(7);
        transaction.delete(key);
        transaction.put(Key { offset: key.offset ^ (1 << 40), ..key }, value);
    }),
    (FindingKind::DuplicateName, |store, ino, transaction| {
        let (key, value) = items(store, ino, Kind::Parent).swap_remove(7);
        transaction.put(Key { offset: key.offset + 1, ..key }, value);
    }),
    (FindingKind::ItemMalformed, |store, ino, transaction| {
        transaction.put(items(store, ino, Kind::Parent)[7].0, vec![0; 20]);
    }),
    // More than an inode item may hold.
    (FindingKind::InodeContradiction, |store, ino, transaction| {
        let key = Key::new(ino, Kind::Inode, 0);
        let value = block_on(store.get(key)).unwrap().unwrap();
        let moved = items(store, ino, Kind::Parent);
        let mut item = InodeItem::decode(&value).unwrap();
        for (key, value) in &moved[..10] {
            item.parents.push(Parent::decode(value).unwrap());
            item.parent_items -= 1;
            transaction.delete(*key);
        }
        transaction.put(key, item.encode());
    }),
];

#[test]
fn what_is_wrong_with_items_is_found_and_mended() {
    let (sound, ino, expected) = image(true);
    assert!(examine(sound.clone()).is_clean());
    assert_eq!(paths(&sound, ino), expected);
    for (kind, damage) in DAMAGES {
        let device = sound.snapshot();
        plant(&device, |store, transaction| {
            assert!(items(store, ino, Kind::Parent).len() > NAMES / 2);
            damage(store, ino, transaction);
        });
        expect(&examine(device.clone()), kind);
        let done = block_on(repair(device.clone(), spawn(), &RepairOptions::default(), &mut |_| {})).unwrap();
        assert_eq!(done.condition(), Condition::Repaired, "{}: {done:#?}", kind.name());
        assert!(
            done.changes.iter().any(|change| change.kind == kind),
            "{}: {:#?}",
            kind.name(),
            done.changes
        );
        assert_eq!(paths(&device, ino), expected, "{}", kind.name());
    }
}

/// On an image without parent pointers a pointer means nothing.
#[test]
fn pointers_where_none_are_kept_are_taken_away() {
    let (device, ino, _) = image(false);
    assert!(examine(device.clone()).is_clean());
    plant(&device, |store, transaction| {
        assert!(items(store, ino, Kind::Parent).is_empty());
        let pointer = Parent { parent: 1, name: b"first" };
        transaction.put(Key::new(ino, Kind::Parent, 1), pointer.encode());
    });
    expect(&examine(device.clone()), FindingKind::ParentDangling);
    let done = block_on(repair(device, spawn(), &RepairOptions::default(), &mut |_| {})).unwrap();
    assert_eq!(done.condition(), Condition::Repaired, "{done:#?}");
}
