//! Sound images are called clean, in whatever state they were left.

use crate::common::{empty, examine, fill, sample};
use syncline::{Filesystem, ImageOptions};
use syncline_check::info;
use syncline_device::{Device, block_on};

#[test]
fn an_empty_image_and_a_full_one_are_clean() {
    let report = examine(empty());
    assert!(report.is_clean(), "{:#?}", report.findings);
    assert_eq!((report.inodes, report.names, report.orphans), (1, 0, 0));
    let (device, _) = sample();
    let report = examine(device);
    assert!(report.is_clean() && !report.incomplete, "{:#?}", report.findings);
    assert!(report.clean_unmount);
    assert_eq!((report.inodes, report.directories, report.names), (510, 3, 510));
    assert_eq!(report.data_blocks, 74 + 25 + 2);
}

#[test]
fn an_image_is_clean_at_every_moment_of_its_life() {
    let device = empty();
    let fs = Filesystem::open_device(device.clone(), ImageOptions::default()).unwrap();
    let check = |moment: &str| {
        let report = examine(device.snapshot());
        assert!(report.is_clean() && !report.incomplete, "{moment}: {:#?}", report.findings);
        report
    };
    fill(&fs);
    check("nothing synced");
    let file = fs.open_file("large").unwrap();
    file.sync_all().unwrap();
    assert!(check("one file synced").batches_replayed > 0);
    fs.sync().unwrap();
    check("checkpointed");
    for index in 0..400 {
        fs.remove_file(format!("directory/file {index}")).unwrap();
    }
    fs.write("large", vec![9; 123_456]).unwrap();
    fs.rename("small", "directory/small").unwrap();
    fs.open_file("second").unwrap().sync_all().unwrap();
    check("changed and synced");
    let open = fs.open_file("directory/linked").unwrap();
    fs.remove_file("directory/linked").unwrap();
    fs.remove_file("directory/below/again").unwrap();
    open.sync_all().unwrap();
    assert!(check("removed but open").orphans >= 1);
    drop((open, file));
    fs.close().unwrap();
    let report = check("closed");
    assert_eq!((report.orphans, report.batches_replayed), (0, 0));
    assert!(report.clean_unmount);
}

#[test]
fn the_description_of_an_image_is_what_was_chosen() {
    let (device, _) = sample();
    let device: std::sync::Arc<dyn Device> = device;
    let info = block_on(info(&device)).unwrap();
    assert_eq!((info.format_version, info.size_bytes, info.node_bytes), (1, crate::common::SIZE, 16384));
    assert_eq!((info.objects, info.clean, info.log_batches, info.superblocks_damaged), (510, true, 0, 0));
}
