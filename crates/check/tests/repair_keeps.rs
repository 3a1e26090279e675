//! What a mount could read before a repair it reads after it, byte for byte.

mod common;

use common::survey::survey;
use common::{plant, sample, spawn};
use syncline::device::block_on;
use syncline::{Filesystem, ImageOptions};
use syncline_check::{Condition, FindingKind, repair};
use syncline_format::Key;

/// Keys are ordered by kind, and no kind has the number 0: such an item comes before the inode item.
#[test]
fn a_stray_item_in_front_of_an_inode_item_takes_nothing_along() {
    let (device, inodes) = sample();
    let fs = Filesystem::open_device(device.clone(), ImageOptions::default()).unwrap();
    let link = fs.symlink_metadata("short link").unwrap().ino();
    let mode = |fs: &Filesystem| fs.symlink_metadata("directory").unwrap().permissions();
    fs.set_permissions("directory", 0o2750).unwrap();
    let permissions = mode(&fs);
    fs.close().unwrap();
    let before = survey(&device);
    let numbers = [1, inodes.small, inodes.large, inodes.directory, inodes.long_link, link];
    plant(&device, |_, transaction| {
        for object in numbers {
            transaction.put(Key { object, kind: 0, offset: 7 }, vec![1]);
        }
    });
    assert_eq!(survey(&device), before, "a mount does not mind");
    let done = block_on(repair(device.clone(), spawn(), false, &mut |_| {})).unwrap();
    assert_eq!(done.condition(), Condition::Repaired, "{:#?}", done.after);
    let kinds: Vec<_> = done.changes.iter().map(|change| change.kind).collect();
    assert_eq!(kinds, [FindingKind::ItemMalformed; 6], "{:#?}", done.changes);
    assert_eq!(survey(&device), before);
    let fs = Filesystem::open_device(device, ImageOptions::default()).unwrap();
    assert_eq!(mode(&fs), permissions);
}
