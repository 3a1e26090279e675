//! Written data is read back from memory, after write-back and after a remount.

use super::*;
use crate::data::flush::background;
use syncline_store::StoreError;

#[test]
fn bytes_come_back_from_memory_from_disk_and_after_a_remount() {
    let mount = Mount::new();
    let ino = mount.create("file");
    let data = pattern(1, 300_000);
    mount.write(ino, 0, &data);
    assert_eq!(mount.read(ino, 0, 400_000), data);
    mount.fsync(ino);
    assert_eq!(mount.read(ino, 100, 250_000), data[100..250_100]);
    mount.check_items(ino);
    let mount = mount.reopen();
    let ino = mount.find("file");
    assert_eq!(mount.size(ino), 300_000);
    assert_eq!(mount.read(ino, 0, 400_000), data);
    assert_eq!(mount.read(ino, 300_000, 10), b"");
    mount.check_items(ino);
}

#[test]
fn a_small_file_lies_in_its_inode_item() {
    let mount = Mount::new();
    let ino = mount.create("small");
    let free = mount.fs.store().space().free;
    mount.write(ino, 0, b"hello");
    mount.fsync(ino);
    mount.write(ino, 5, b", world");
    mount.fsync(ino);
    assert_eq!(mount.fs.counters().inline_writes, 2);
    assert_eq!(mount.fs.counters().submitted_bytes, 0);
    assert!(mount.fs.store().space().free <= free);
    assert_eq!(mount.blocks(ino), 1, "a file with contents shows some blocks");
    let mount = mount.reopen();
    let ino = mount.find("small");
    assert_eq!(mount.read(ino, 0, 100), b"hello, world");
    assert_eq!(mount.blocks(ino), 1);
    mount.check_items(ino);
}

#[test]
fn a_small_file_grows_into_blocks_and_back() {
    let mount = Mount::new();
    let ino = mount.create("growing");
    let mut expected = pattern(2, 2048);
    mount.write(ino, 0, &expected);
    mount.fsync(ino);
    // A gap, so that block 0 leaves the inode item although nothing is written to it.
    mount.write(ino, 50_000, b"far");
    expected.resize(50_000, 0);
    expected.extend_from_slice(b"far");
    assert_eq!(mount.read(ino, 0, 60_000), expected);
    mount.fsync(ino);
    let mount = mount.reopen();
    let ino = mount.find("growing");
    assert_eq!(mount.read(ino, 0, 60_000), expected);
    assert_eq!(mount.blocks(ino), 16);
    mount.check_items(ino);
    mount.truncate(ino, 1000).unwrap();
    expected.truncate(1000);
    assert_eq!(mount.read(ino, 0, 60_000), expected);
    mount.check_items(ino);
    let mount = mount.reopen();
    let ino = mount.find("growing");
    assert_eq!(mount.read(ino, 0, 60_000), expected);
    assert_eq!(mount.blocks(ino), 2, "1000 bytes in the inode item");
    mount.check_items(ino);
}

#[test]
fn appends_of_a_few_bytes_need_no_reads() {
    let mount = Mount::new();
    let ino = mount.create("log");
    let mut expected = Vec::new();
    for line in 0..500 {
        let text = pattern(line, 61);
        let offset = block_on(mount.fs.append(ino, Bytes::from(text.clone()), false)).unwrap();
        assert_eq!(offset, expected.len() as u64);
        expected.extend_from_slice(&text);
        mount.fsync(ino);
        block_on(mount.fs.store().checkpoint()).unwrap();
    }
    assert_eq!(mount.fs.counters().blocks_read_for_write, 0);
    assert_eq!(mount.read(ino, 0, 1 << 20), expected);
    mount.check_items(ino);
    let mount = mount.reopen();
    let ino = mount.find("log");
    assert_eq!(mount.read(ino, 0, 1 << 20), expected);
}

#[test]
fn offsets_beyond_four_gigabytes_and_holes() {
    let mount = Mount::new();
    let ino = mount.create("sparse");
    let far = (5 << 30) + 123;
    mount.write(ino, far, b"far away");
    mount.write(ino, 8192, b"near");
    assert_eq!(mount.size(ino), far + 8);
    mount.fsync(ino);
    assert_eq!(mount.read(ino, far - 3, 100), b"\0\0\0far away");
    assert_eq!(mount.read(ino, 8190, 8), b"\0\0near\0\0");
    assert!(mount.read(ino, 1 << 30, 1 << 20).iter().all(|&byte| byte == 0));
    assert_eq!(mount.blocks(ino), 16);
    let seek = |from| block_on(mount.fs.seek_data(ino, from));
    assert_eq!(seek(0).unwrap(), 8192);
    assert_eq!(seek(8200).unwrap(), 8200);
    assert_eq!(seek(12288).unwrap(), far & !4095);
    let hole = |from| block_on(mount.fs.seek_hole(ino, from));
    assert_eq!(hole(0).unwrap(), 0);
    assert_eq!(hole(8192).unwrap(), 12288);
    assert_eq!(hole(far).unwrap(), far + 8);
    assert!(matches!(seek(far + 8), Err(FsError::NoSuchAddress)));
    let mount = mount.reopen();
    let ino = mount.find("sparse");
    assert_eq!(mount.read(ino, far, 100), b"far away");
}

#[test]
fn seek_sees_what_is_only_in_memory() {
    let mount = Mount::new();
    let ino = mount.create("seek");
    mount.write(ino, 40_960, &[1; 8192]);
    assert_eq!(block_on(mount.fs.seek_data(ino, 0)).unwrap(), 40_960);
    assert_eq!(block_on(mount.fs.seek_hole(ino, 40_960)).unwrap(), 49_152);
    mount.truncate(ino, 100_000).unwrap();
    assert_eq!(block_on(mount.fs.seek_hole(ino, 41_000)).unwrap(), 49_152);
    assert!(matches!(block_on(mount.fs.seek_data(ino, 50_000)), Err(FsError::NoSuchAddress)));
}

#[test]
fn offsets_past_the_limit_are_refused() {
    let mount = Mount::new();
    let ino = mount.create("huge");
    let limit = i64::MAX as u64;
    mount.write(ino, limit - 4, b"last");
    assert_eq!(mount.size(ino), limit);
    assert!(matches!(mount.try_write(ino, limit - 3, b"over"), Err(FsError::TooLarge)));
    assert!(matches!(mount.try_write(ino, u64::MAX - 1, b"over"), Err(FsError::TooLarge)));
    assert!(matches!(
        block_on(mount.fs.append(ino, Bytes::from_static(b"x"), false)),
        Err(FsError::TooLarge)
    ));
    mount.fsync(ino);
    assert_eq!(mount.read(ino, limit - 4, 100), b"last");
    mount.truncate(ino, 0).unwrap();
    mount.check_items(ino);
}

#[test]
fn a_truncation_leaves_zeros_past_the_end() {
    let mount = Mount::new();
    for (name, synced) in [("dirty", false), ("synced", true)] {
        let ino = mount.create(name);
        mount.write(ino, 0, &pattern(3, 20_000));
        if synced {
            mount.fsync(ino);
        }
        mount.truncate(ino, 9_000).unwrap();
        mount.truncate(ino, 15_000).unwrap();
        let mut expected = pattern(3, 9_000);
        expected.resize(15_000, 0);
        assert_eq!(mount.read(ino, 0, 20_000), expected, "{name}");
        mount.check_items(ino);
    }
    let mount = mount.reopen();
    for name in ["dirty", "synced"] {
        let ino = mount.find(name);
        let mut expected = pattern(3, 9_000);
        expected.resize(15_000, 0);
        assert_eq!(mount.read(ino, 0, 20_000), expected, "{name}");
    }
}

#[test]
fn a_full_image_refuses_writes_and_takes_them_again() {
    let mount = Mount::sized(24 << 20, options());
    let keep = mount.create("keep");
    mount.write(keep, 0, &pattern(9, 200_000));
    let ino = mount.create("filler");
    let chunk = pattern(4, 256 << 10);
    let mut offset = 0;
    let error = loop {
        match mount.try_write(ino, offset, &chunk) {
            Ok(()) => offset += chunk.len() as u64,
            Err(error) => break error,
        }
        assert!(offset < 24 << 20, "more was accepted than there is");
    };
    assert!(matches!(error, FsError::Store(syncline_store::StoreError::NoSpace)), "{error}");
    assert_eq!(mount.size(ino), offset, "a refused write has no effect");
    // Accepted data can be written back: its room was reserved.
    mount.fsync(ino);
    mount.fsync(keep);
    for index in 0..offset / chunk.len() as u64 {
        assert_eq!(mount.read(ino, index * chunk.len() as u64, chunk.len()), chunk);
    }
    mount.check_items(ino);
    mount.truncate(ino, 0).unwrap();
    mount.write(ino, 0, &chunk);
    mount.fsync(ino);
    let mount = mount.reopen();
    assert_eq!(mount.read(mount.find("filler"), 0, 1 << 20), chunk);
    assert_eq!(mount.read(mount.find("keep"), 0, 1 << 20), pattern(9, 200_000));
}

#[test]
fn the_room_of_an_unlinked_file_is_there_for_the_next_write() {
    let mount = Mount::sized(24 << 20, options());
    let chunk = pattern(4, 1 << 20);
    for round in 0..5 {
        let name = format!("{round}");
        let ino = mount.create(&name);
        let mut offset = 0;
        while mount.try_write(ino, offset, &chunk).is_ok() {
            offset += chunk.len() as u64;
        }
        assert!(offset > 8 << 20, "round {round}: full after {offset} bytes");
        mount.fsync(ino);
        block_on(mount.fs.unlink(ROOT, name.as_bytes())).unwrap();
        mount.fs.forget(ino, 1);
    }
}

/// The kernel sends FORGET for an inode some time after it has removed the last name.
#[test]
fn room_is_waited_for_until_the_kernel_forgets_what_is_unlinked() {
    let mount = Mount::sized(24 << 20, options());
    let chunk = pattern(4, 1 << 20);
    let ino = mount.create("big");
    let mut offset = 0;
    while mount.try_write(ino, offset, &chunk).is_ok() {
        offset += chunk.len() as u64;
    }
    mount.fsync(ino);
    let other = mount.create("other");
    block_on(mount.fs.unlink(ROOT, b"big")).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(std::time::Duration::from_millis(20));
            mount.fs.forget(ino, 1);
        });
        mount.write(other, 0, &chunk);
    });
}

/// On a full image with a snapshot, which keeps removed blocks, a removal may be refused for lack
/// of room, but not for lack of the room that the removed file's own dirty data holds.
#[test]
fn the_room_of_what_is_removed_is_there_for_its_own_removal() {
    let mount = Mount::sized(24 << 20, options());
    let kept = mount.create("kept");
    mount.write(kept, 0, &pattern(1, 100_000));
    block_on(mount.fs.create_snapshot("kept")).unwrap();
    let ino = mount.create("waits");
    mount.write(ino, 0, &pattern(4, 1 << 20));
    block_on(mount.fs.unlink(ROOT, b"waits")).unwrap();
    let store = mount.fs.store();
    block_on(store.checkpoint()).unwrap();
    // Sets aside so much more than is available that nothing may draw on the reserve. The excess is
    // less than the dirty data.
    let _held = store.reserve_again((store.available_blocks() + 228) * 16 / 17);
    let refused = block_on(store.admit(syncline_store::Admission::Shrink));
    assert!(matches!(refused, Err(syncline_store::StoreError::NoSpace)), "{:?}", refused.err());
    mount.fs.forget(ino, 1);
    while !mount.fs.orphans_settled() {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    assert!(matches!(block_on(mount.fs.getattr(ino)), Err(FsError::Stale)));
}

/// A removal that was refused for lack of room is tried again once there is room, not only at the
/// next mount.
#[test]
fn a_removal_that_found_no_room_is_tried_again() {
    let mount = Mount::sized(24 << 20, options());
    let kept = mount.create("kept");
    mount.write(kept, 0, &pattern(1, 100_000));
    block_on(mount.fs.create_snapshot("kept")).unwrap();
    let ino = mount.create("waits");
    mount.write(ino, 0, &pattern(4, 8 << 20));
    mount.fsync(ino);
    block_on(mount.fs.unlink(ROOT, b"waits")).unwrap();
    let store = mount.fs.store();
    block_on(store.checkpoint()).unwrap();
    let held = store.reserve_again((store.available_blocks() + 300) * 16 / 17);
    mount.fs.forget(ino, 1);
    while !mount.fs.orphans_settled() {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    assert!(block_on(mount.fs.getattr(ino)).is_ok(), "it should have been refused");
    drop(held);
    let other = mount.create("other");
    let (chunk, mut offset) = (pattern(4, 1 << 20), 0);
    while mount.try_write(other, offset, &chunk).is_ok() {
        offset += chunk.len() as u64;
    }
    assert!(matches!(block_on(mount.fs.getattr(ino)), Err(FsError::Stale)), "full after {offset} bytes");
    assert!(offset > 12 << 20, "full after {offset} bytes");
}

/// Fills an image to the last block that an ordinary write gets. Returns the file and its length.
fn fill(mount: &Mount) -> (Ino, u64) {
    let ino = mount.create("filler");
    let mut offset = 0;
    for chunk in [256 << 10, 4096] {
        let bytes = pattern(4, chunk);
        while mount.try_write(ino, offset, &bytes).is_ok() {
            offset += chunk as u64;
        }
        mount.fsync(ino);
    }
    (ino, offset)
}

#[test]
fn what_is_there_is_overwritten_on_a_full_image() {
    let mount = Mount::sized(24 << 20, options());
    let (ino, len) = fill(&mount);
    // Synced data is named, which takes less than was set aside for it: a little more fits, but not
    // much.
    let refused = mount.try_write(ino, len, &[1; 1 << 20]).unwrap_err();
    assert!(matches!(refused, FsError::Store(syncline_store::StoreError::NoSpace)), "{refused}");
    // Overwrites several times the reserve, without a sync.
    for (round, chunk) in [(1, 300 << 10), (2, 4096), (3, 100_000)] {
        let mut offset = 0;
        while offset < len {
            let chunk = chunk.min(len - offset);
            mount.try_write(ino, offset, &vec![round; chunk as usize]).unwrap();
            offset += chunk;
        }
        assert!(mount.read(ino, 0, len as usize).iter().all(|&byte| byte == round));
    }
    mount.fsync(ino);
    mount.check_items(ino);
    block_on(mount.fs.unlink(ROOT, b"filler")).unwrap();
    mount.fs.forget(ino, 1);
}

#[test]
fn statfs_tells_as_much_as_one_file_gets() {
    let mount = Mount::sized(64 << 20, options());
    for round in 0..3 {
        let ino = mount.create(&format!("file {round}"));
        mount.write(ino, 0, &pattern(round, 3 << 20));
        mount.fsync(ino);
        let available = mount.fs.statfs().available;
        let all = Allocation::Preallocate { keep_size: false };
        mount.allocate(ino, all, 3 << 20, available * 4096).unwrap();
        let left = mount.fs.statfs().available;
        assert!(left * 50 <= available, "{left} blocks are left of {available}");
        mount.truncate(ino, 3 << 20).unwrap();
        mount.fsync(ino);
    }
}

#[test]
fn a_truncation_works_on_a_full_image() {
    let mount = Mount::sized(24 << 20, options());
    let (ino, mut offset) = fill(&mount);
    while mount.try_write(ino, offset, &pattern(4, 4096)).is_ok() {
        offset += 4096;
        mount.fsync(ino);
    }
    let error = mount.try_write(ino, offset, &[1; 4096]).unwrap_err();
    assert!(matches!(error, FsError::Store(syncline_store::StoreError::NoSpace)), "{error}");
    mount.truncate(ino, 5_001).unwrap();
    assert_eq!(mount.read(ino, 0, 10_000), pattern(4, 5_001));
    mount.check_items(ino);
    mount.write(ino, 5_001, &[1; 100_000]);
    mount.fsync(ino);
}

#[test]
fn removing_a_file_gives_its_blocks_back() {
    let mount = Mount::new();
    block_on(mount.fs.syncfs()).unwrap();
    let before = mount.fs.store().space().named;
    for round in 0..3 {
        let ino = mount.create("temporary");
        mount.write(ino, 0, &pattern(round, 3 << 20));
        if round > 0 {
            mount.fsync(ino);
        }
        mount.unlink("temporary");
        mount.fs.forget(ino, 1);
    }
    let mount = mount.reopen();
    block_on(mount.fs.syncfs()).unwrap();
    let after = mount.fs.store().space().named;
    assert!(after <= before + 64, "used before {before}, after {after}");
    assert_eq!(mount.fs.data.queue.dirty_bytes(), 0);
}

/// If it did, the background task would do nothing else, and the removal might need its thread.
#[test]
fn write_back_does_not_try_what_is_being_removed_again_and_again() {
    let mount = Mount::new();
    let ino = mount.create("file");
    mount.write(ino, 0, &pattern(1, 1 << 20));
    let inode = block_on(mount.fs.inode(ino)).unwrap();
    inode.state.lock().removing = true;
    let taken = mount.fs.data.queue.take_oldest().unwrap();
    block_on(background::write_back_taken(&mount.fs, &taken)).unwrap();
    assert!(mount.fs.data.queue.take_oldest().is_none());
    let mut state = inode.state.lock();
    state.removing = false;
    mount.fs.data.queue.note_dirty(&mount.fs, &inode, &mut state.data);
    drop(state);
    mount.fsync(ino);
    assert_eq!(mount.fs.data.queue.dirty_bytes(), 0);
    assert_eq!(mount.read(ino, 0, 1 << 20), pattern(1, 1 << 20));
}

#[test]
fn a_rotten_block_is_an_error_for_its_readers_only() {
    let mount = Mount::new();
    let ino = mount.create("rotten");
    mount.write(ino, 0, &pattern(5, 64 << 10));
    block_on(mount.fs.syncfs()).unwrap();
    let mount = mount.reopen();
    let ino = mount.find("rotten");
    let extents = block_on(crate::data::extents::lookup::all(mount.fs.store(), ino, 0, 16)).unwrap();
    let victim = extents.iter().find_map(|extent| extent.slice(5, 6)).unwrap();
    let mut bytes = pattern(5, 64 << 10)[5 * 4096..6 * 4096].to_vec();
    bytes[77] ^= 1;
    let device: &dyn syncline_device::Device = &*mount.device;
    let write = syncline_device::DeviceExt::write_at(device, victim.addr * 4096, vec![Bytes::from(bytes)]);
    block_on(write).unwrap();
    assert_eq!(mount.read(ino, 0, 5 * 4096), pattern(5, 5 * 4096));
    assert_eq!(block_on(mount.fs.read(ino, 5 * 4096 + 100, 10)).unwrap_err().errno(), 5);
    assert_eq!(mount.read(ino, 6 * 4096, 100), pattern(5, 64 << 10)[6 * 4096..6 * 4096 + 100]);
    // A partial write would have to keep bytes that can't be read; a write of the whole block
    // replaces them.
    assert_eq!(mount.try_write(ino, 5 * 4096 + 1, b"x").unwrap_err().errno(), 5);
    mount.write(ino, 5 * 4096, &[7; 4096]);
    mount.fsync(ino);
    assert_eq!(mount.read(ino, 5 * 4096, 4096), [7; 4096]);
}

/// Nor does a write of all bytes that the file has in its last block keep any of that.
#[test]
fn a_rotten_last_block_is_replaced_by_all_of_its_bytes() {
    let mount = Mount::new();
    let ino = mount.create("rotten");
    let size = 5 * 4096 + 100;
    mount.write(ino, 0, &pattern(5, size));
    block_on(mount.fs.syncfs()).unwrap();
    mount.fsync_placed(ino);
    let mount = mount.reopen();
    let ino = mount.find("rotten");
    let extents = block_on(crate::data::extents::lookup::all(mount.fs.store(), ino, 0, 6)).unwrap();
    let victim = extents.iter().find_map(|extent| extent.slice(5, 6)).unwrap();
    let device: &dyn syncline_device::Device = &*mount.device;
    let rot = vec![Bytes::from(vec![0xa5; 4096])];
    block_on(syncline_device::DeviceExt::write_at(device, victim.addr * 4096, rot)).unwrap();
    assert_eq!(mount.try_write(ino, 5 * 4096, &[7; 99]).unwrap_err().errno(), 5);
    assert_eq!(mount.try_write(ino, 5 * 4096 + 1, &[7; 99]).unwrap_err().errno(), 5);
    mount.write(ino, 4096, &pattern(6, size - 4096));
    mount.write(ino, size as u64 + 10, b"x");
    mount.fsync(ino);
    let mount = mount.crash();
    let found = mount.read(mount.find("rotten"), 4096, size);
    assert_eq!(found, [pattern(6, size - 4096), vec![0; 10], b"x".to_vec()].concat());
}

#[test]
fn a_write_clears_set_user_id_if_asked() {
    let mount = Mount::new();
    let ino = mount.create("tool");
    let mode = |permissions| {
        let changes = SetAttributes { permissions: Some(permissions), ..SetAttributes::default() };
        block_on(mount.fs.setattr(CALLER, ino, changes)).unwrap();
    };
    let permissions = || block_on(mount.fs.getattr(ino)).unwrap().permissions;
    mode(0o4755);
    block_on(mount.fs.write(ino, 0, Bytes::from_static(b"new"), false)).unwrap();
    assert_eq!(permissions(), 0o4755);
    // Too large to be taken along with another file's fsync.
    block_on(mount.fs.write(ino, 0, Bytes::from_static(&[1; 5000]), true)).unwrap();
    assert_eq!(permissions(), 0o755);
    // This is an attribute change: an fsync of anything carries it.
    mount.fsync(ROOT);
    let after = mount.crash();
    let found = after.find("tool");
    assert_eq!(block_on(after.fs.getattr(found)).unwrap().permissions, 0o755);
    assert_eq!(after.size(found), 0, "the data was not synced");
}

#[test]
fn several_tasks_write_one_file() {
    let mount = Mount::new();
    let ino = mount.create("shared");
    std::thread::scope(|scope| {
        for task in 0..4u64 {
            let mount = &mount;
            scope.spawn(move || {
                for round in 0..40 {
                    let offset = task * 500_000 + round * 10_001;
                    mount.write(ino, offset, &pattern(task, 10_001));
                    match round % 8 {
                        3 => mount.fsync(ino),
                        5 => assert_eq!(mount.read(ino, offset, 10_001), pattern(task, 10_001)),
                        7 => block_on(mount.fs.fsync(ino, true)).unwrap(),
                        _ => {}
                    }
                }
            });
        }
    });
    let check = |mount: &Mount, ino| {
        for task in 0..4u64 {
            for round in 0..40 {
                let offset = task * 500_000 + round * 10_001;
                assert_eq!(mount.read(ino, offset, 10_001), pattern(task, 10_001));
            }
        }
    };
    check(&mount, ino);
    mount.fsync(ino);
    mount.check_items(ino);
    let mount = mount.reopen();
    check(&mount, mount.find("shared"));
}

/// Until a small file lies in its inode item, it holds a block and room for its names. With many
/// such files, everything would be full long before it has to be.
#[test]
fn an_image_is_not_full_of_what_waits_to_be_written_back() {
    let mount = Mount::sized(32 << 20, options());
    let fill = |first: usize| {
        let make = |number: &usize| {
            let made = block_on(mount.fs.mknod(
                CALLER,
                ROOT,
                format!("{number}").as_bytes(),
                FileType::Regular,
                0o644,
                0,
            ));
            let written = made.and_then(|made| {
                mount.fs.forget(made.ino, 1);
                block_on(mount.fs.write(made.ino, 0, vec![7; 1900].into(), false))
            });
            let full = matches!(written, Err(FsError::Store(StoreError::NoSpace)));
            assert!(full || written.is_ok(), "{written:?}");
            !full
        };
        (first..).take_while(make).count()
    };
    let made = fill(0);
    assert!(made > 1000, "{made}");
    block_on(mount.fs.syncfs()).unwrap();
    let more = fill(1_000_000);
    assert!(more < made / 50, "{made}, and {more} after a sync");
}
