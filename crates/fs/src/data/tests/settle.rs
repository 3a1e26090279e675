//! Operations that need a file without dirty data, while somebody writes it faster than the device takes
//! it.

use super::faults::{Moody, moody_sized};
use super::*;
use crate::data::flush::start::{self, Submission};
use crate::data::flush::{many, submit};
use crate::data::memory::submission::Aim;
use crate::receipt::Submitted;

const MIB: u64 = 1 << 20;
/// More than one transaction would take.
const WRITTEN: u64 = 80;

fn slow() -> (Arc<Moody>, Mount) {
    let options = Options { dirty_bytes_max: 256 << 20, writeback_start_bytes: 256 << 20, ..options() };
    moody_sized(256 << 20, None, options)
}

fn contents(mebibyte: u64) -> Vec<u8> {
    pattern(mebibyte, MIB as usize)
}

/// Writes to `ino` while the device holds the writes of `operation` back.
fn beside_a_writer<T: Send>(
    device: &Moody,
    mount: &Mount,
    ino: Ino,
    operation: impl FnOnce() -> T + Send,
) -> T {
    (0..8).for_each(|at| mount.write(ino, at * MIB, &contents(at)));
    device.hold_from(64 << 10);
    std::thread::scope(|scope| {
        let operation = scope.spawn(operation);
        device.wait_for_held(1);
        (8..WRITTEN).for_each(|at| mount.write(ino, at * MIB, &contents(at)));
        device.release();
        operation.join().unwrap()
    })
}

fn check(mount: &Mount, ino: Ino, mebibytes: u64) {
    assert_eq!(mount.size(ino), mebibytes * MIB);
    for at in 0..mebibytes {
        assert!(mount.read(ino, at * MIB, MIB as usize) == contents(at), "MiB {at}");
    }
    mount.check_items(ino);
}

#[test]
fn a_file_that_is_being_written_can_be_copied() {
    let (device, mount) = slow();
    let (from, to) = (mount.create("from"), mount.create("to"));
    let copied = beside_a_writer(&device, &mount, from, || {
        block_on(mount.fs.copy_range((from, 0), (to, 0), 1 << 30, false))
    });
    assert_eq!(copied.unwrap(), 8 * MIB);
    check(&mount, to, 8);
    mount.fsync(from);
    let mount = mount.crash();
    check(&mount, mount.find("from"), WRITTEN);
    check(&mount, mount.find("to"), 8);
}

#[test]
fn a_tree_in_which_a_file_is_being_written_gets_a_quota() {
    let (device, mount) = slow();
    let dir = block_on(mount.fs.mkdir(CALLER, ROOT, b"dir", 0o755)).unwrap().ino;
    let made = mount.fs.mknod(CALLER, dir, b"file", FileType::Regular, 0o644, 0);
    let ino = block_on(made).unwrap().ino;
    let limits = crate::QuotaLimits { bytes: 1 << 40, inodes: 0 };
    let set = beside_a_writer(&device, &mount, ino, || block_on(mount.fs.set_quota(dir, limits))).unwrap();
    assert!(!set.being_set && set.used_inodes == 2, "{set:?}");
    mount.fsync(ino);
    check(&mount, ino, WRITTEN);
    mount.check_quotas();
}

#[test]
fn blocks_of_a_file_that_is_being_written_can_be_moved() {
    let (device, mount) = slow();
    let ino = mount.create("file");
    beside_a_writer(&device, &mount, ino, || mount.allocate(ino, Allocation::InsertRange, 0, 4096)).unwrap();
    assert_eq!(mount.size(ino), WRITTEN * MIB + 4096);
    for at in 0..WRITTEN {
        assert!(mount.read(ino, at * MIB + 4096, MIB as usize) == contents(at), "MiB {at}");
    }
    mount.check_items(ino);
}

/// A crash between two parts leaves a prefix: a size that passes no block which is still to come. They end
/// between pages.
#[test]
fn what_is_submitted_in_parts_survives_in_order() {
    const BLOCK: u64 = 4096;
    let written = [0..9, 20..23, 36..40, 50..51];
    let contents = |block: u64| pattern(block, if block == 50 { 1000 } else { BLOCK as usize });
    for (round_blocks, parts) in [(1, 3), (2, 3), (5, 2), (64, 1)] {
        let mount = Mount::sized(64 << 20, Options { round_blocks, ..options() });
        let ino = mount.create("file");
        mount.fsync(ROOT);
        for block in written.iter().cloned().flatten() {
            mount.write(ino, block * BLOCK, &contents(block));
        }
        let inode = block_on(mount.fs.inode(ino)).unwrap();
        let _writeback = block_on(submit::hold_writebacks(&[&inode]));
        let _lease = block_on(inode.lease.write());
        let sync = || block_on(mount.fs.store().sync(mount.fs.store().last_op())).unwrap();
        inode.state.lock().begin_submission();
        let part = Submission { inode: &inode, blocks: 0..16, aim: Aim::Place };
        block_on(start::submit_part(&mount.fs, part, &mut Submitted::default())).unwrap();
        sync();
        let crashed = mount.crash();
        assert_eq!(crashed.size(crashed.find("file")), 16 * BLOCK, "the size passes nothing that is to come");
        let first = mount.fs.store().last_op().0;
        block_on(many::submit_rest(&mount.fs, &inode)).unwrap();
        assert_eq!(mount.fs.store().last_op().0 - first, parts, "one transaction for each part");
        sync();
        let crashed = mount.crash();
        assert_eq!(crashed.size(crashed.find("file")), 50 * BLOCK + 1000);
        for block in written.iter().cloned().flatten() {
            let found = crashed.read(crashed.find("file"), block * BLOCK, BLOCK as usize);
            assert!(found == contents(block), "block {block}");
        }
        crashed.check_items(crashed.find("file"));
    }
}
