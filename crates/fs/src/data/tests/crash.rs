//! Files that were not synced, after a crash.

use super::*;

/// Everything that was ever written is there after this crash; the test judges which sizes and
/// contents were logged.
#[test]
fn the_logged_size_never_passes_dirty_data() {
    let mount = Mount::new();
    let ino = mount.create("file");
    mount.write(ino, 0, &pattern(1, 10_000));
    mount.fsync(ino);
    mount.write(ino, 10_000, &pattern(2, 50_000));
    // An attribute change logs the inode while data is dirty.
    let changes = SetAttributes { permissions: Some(0o600), ..SetAttributes::default() };
    block_on(mount.fs.setattr(CALLER, ino, changes)).unwrap();
    mount.fsync(ROOT);
    let after = mount.crash();
    let ino = after.find("file");
    assert_eq!(after.size(ino), 10_000);
    assert_eq!(after.read(ino, 0, 100_000), pattern(1, 10_000));
    assert_eq!(block_on(after.fs.getattr(ino)).unwrap().permissions, 0o600);
}

#[test]
fn a_truncation_upward_is_ordered_metadata() {
    let mount = Mount::new();
    let ino = mount.create("file");
    mount.write(ino, 0, &[9; 6000]);
    mount.truncate(ino, 20_000).unwrap();
    mount.fsync(ROOT);
    let after = mount.crash();
    let ino = after.find("file");
    assert_eq!(after.size(ino), 20_000);
    assert!(
        after.read(ino, 0, 20_000).iter().all(|&byte| byte == 0),
        "data that was not written reads as zeros"
    );
}

#[test]
fn what_lies_past_the_logged_end_is_zeros_when_the_file_grows() {
    let mount = Mount::new();
    let ino = mount.create("file");
    mount.write(ino, 0, &pattern(3, 30_000));
    mount.fsync(ino);
    mount.truncate(ino, 9_001).unwrap();
    mount.fsync(ROOT);
    let after = mount.crash();
    let ino = after.find("file");
    assert_eq!(after.size(ino), 9_001);
    after.truncate(ino, 30_000).unwrap();
    let mut expected = pattern(3, 9_001);
    expected.resize(30_000, 0);
    assert_eq!(after.read(ino, 0, 30_000), expected);
    after.check_items(ino);
}

/// Commits the first transaction of a truncation that takes several.
fn cut_in_the_middle(mount: &Mount, ino: Ino, size: u64) {
    let inode = block_on(mount.fs.inode(ino)).unwrap();
    {
        let mut state = inode.state.lock();
        state.attr.size = size;
        state.data.logged.set_size(size);
        let mut transaction = syncline_store::Transaction::new();
        state.put(&mut transaction);
        mount.fs.store().commit(transaction).unwrap();
    }
    mount.fsync(ROOT);
}

/// Extents past the end, as an interrupted truncation of a file with very many extents leaves them.
#[test]
fn stale_extents_are_removed_before_the_file_grows() {
    let mount = Mount::new();
    let ino = mount.create("file");
    mount.write(ino, 0, &pattern(4, 100_000));
    mount.fsync(ino);
    cut_in_the_middle(&mount, ino, 8192);
    let after = mount.crash();
    let ino = after.find("file");
    assert_eq!(after.size(ino), 8192);
    after.write(ino, 50_000, b"new");
    let mut expected = pattern(4, 8192);
    expected.resize(50_000, 0);
    expected.extend_from_slice(b"new");
    assert_eq!(after.read(ino, 0, 200_000), expected);
    after.fsync(ino);
    after.check_items(ino);
    assert_eq!(after.blocks(ino), 3 * 8);
}

/// Unsharing does not bring stale extents back either: it makes shared blocks dirty, but none past
/// the end.
#[test]
fn stale_extents_are_not_unshared() {
    let (device, mount) = super::faults::moody(options());
    let one = mount.create("one");
    mount.write(one, 0, &pattern(4, 100_000));
    mount.fsync_placed(one);
    let ino = mount.create("file");
    block_on(mount.fs.copy_range((one, 0), (ino, 0), 100_000, false)).unwrap();
    mount.fsync(ino);
    cut_in_the_middle(&mount, ino, 8192);
    let Mount { fs, device: below, spawn, options } = mount;
    block_on(fs.close()).unwrap();
    block_on(fs.store().close()).unwrap();
    drop(fs);
    let mount = Mount::open_through(device.clone(), below, spawn, options);
    assert_eq!(mount.size(ino), 8192);
    let failed = || mount.fs.counters().writeback_errors;
    device.fail.store(true, std::sync::atomic::Ordering::SeqCst);
    assert!(mount.allocate(ino, Allocation::UnshareRange { keep_size: true }, 0, 100_000).is_err());
    assert!(failed() > 0);
    device.fail.store(false, std::sync::atomic::Ordering::SeqCst);
    mount.truncate(ino, 100_000).unwrap();
    assert!(mount.read(ino, 8192, 100_000).iter().all(|&byte| byte == 0));
}

#[test]
fn a_replaced_file_is_old_or_new_without_any_fsync() {
    let mount = Mount::new();
    let old = mount.create("target");
    mount.write(old, 0, &pattern(5, 20_000));
    mount.fsync(old);
    let new = mount.create("temporary");
    mount.write(new, 0, &pattern(6, 30_000));
    let flags = crate::types::RenameFlags::default();
    block_on(mount.fs.rename(ROOT, b"temporary", ROOT, b"target", flags)).unwrap();
    let before = mount.crash();
    let contents = before.read(before.find("target"), 0, 100_000);
    assert!(contents == pattern(5, 20_000) || contents == pattern(6, 30_000));
    // Another file's fsync carries the rename, and with it the data.
    mount.fsync(ROOT);
    let after = mount.crash();
    assert_eq!(after.read(after.find("target"), 0, 100_000), pattern(6, 30_000));
}

/// Makes a file, which is written to before `Naming` gives it the name "final".
type Making = fn(&Mount) -> Ino;
type Naming = fn(&Mount, Ino);

fn rename(mount: &Mount, flags: crate::types::RenameFlags) {
    block_on(mount.fs.rename(ROOT, b"temporary", ROOT, b"final", flags)).unwrap();
}

/// git writes each object under a temporary name, links it to its own, removes the temporary name,
/// and syncs another file, if any.
#[test]
fn a_name_never_comes_back_without_what_was_written_before() {
    let named = |mount: &Mount| mount.create("temporary");
    let nameless = |mount: &Mount| block_on(mount.fs.tmpfile(CALLER, ROOT, 0o644, true)).unwrap().ino;
    let ways: [(&str, Making, Naming); 5] = [
        ("link", named, |mount, ino| {
            block_on(mount.fs.link(ino, ROOT, b"final")).unwrap();
            mount.unlink("temporary");
        }),
        ("first name", nameless, |mount, ino| {
            block_on(mount.fs.link(ino, ROOT, b"final")).unwrap();
        }),
        ("rename", named, |mount, _| rename(mount, crate::types::RenameFlags::default())),
        ("rename over another", named, |mount, _| {
            mount.create("final");
            rename(mount, crate::types::RenameFlags::default());
        }),
        ("exchange", named, |mount, _| {
            mount.create("final");
            rename(mount, crate::types::RenameFlags { exchange: true, ..Default::default() });
        }),
    ];
    // In the inode item, in the log, beside the batch, and partly before it.
    for len in [300, 9_000, 200_000, 3 << 20] {
        for (way, made, name) in &ways {
            let mount = Mount::new();
            let (other, ino) = (mount.create("other"), made(&mount));
            mount.write(ino, 0, &pattern(7, len));
            name(&mount, ino);
            mount.fsync(other);
            let after = mount.crash();
            assert!(after.read(after.find("final"), 0, 4 << 20) == pattern(7, len), "{way}, {len} bytes");
        }
    }
}
