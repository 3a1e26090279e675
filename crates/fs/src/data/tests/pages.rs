//! Pages that are never torn (promise P9): whatever a submission cuts, it cuts between them.

use super::faults::moody;
use super::*;
use crate::data::flush::choose;
use crate::data::flush::start::{self, Submission};
use crate::data::flush::writeback::{self, Way, write_back};
use crate::data::memory::BLOCK;
use crate::data::memory::submission::Aim;
use crate::receipt::Submitted;
use std::ops::Range;

const PAGE: u64 = 64 << 10;

/// A file of so many blocks of version 1, all placed.
fn placed(mount: &Mount, blocks: u64) -> Arc<Inode> {
    let ino = mount.create("file");
    write(mount, ino, 0..blocks, 1);
    mount.fsync_placed(ino);
    block_on(mount.fs.inode(ino)).unwrap()
}

fn write(mount: &Mount, ino: Ino, blocks: Range<u64>, version: u8) {
    mount.write(ino, blocks.start * BLOCK, &vec![version; ((blocks.end - blocks.start) * BLOCK) as usize]);
}

/// The versions of the blocks that a crash now leaves, all that was committed being durable.
fn left(mount: &Mount) -> Vec<u8> {
    mount.fsync(ROOT);
    let after = mount.crash();
    let ino = after.find("file");
    after.read(ino, 0, 64 << 20).chunks(BLOCK as usize).map(|block| block[0]).collect()
}

/// Fails if a page has blocks of two versions; returns the versions of the pages.
fn pages(left: &[u8]) -> Vec<u8> {
    let whole = |page: &[u8]| page.iter().all(|version| *version == page[0]);
    assert!(left.chunks(16).all(whole), "{left:?}");
    left.chunks(16).map(|page| page[0]).collect()
}

/// One round of a write-back, whose rounds have `options.round_blocks`.
fn first_round(mount: &Mount, inode: &Arc<Inode>) {
    block_on(async {
        let writeback = inode.state.lock().data.writeback();
        let _writeback = writeback.lock().await;
        let end = inode.state.lock().begin_submission();
        let mut note = Submitted::default();
        writeback::round(&mount.fs, inode, 0..end, Way::WriteBack, &mut note).await.unwrap();
    });
}

#[test]
fn a_round_ends_between_pages() {
    for round_blocks in [1, 5, 17] {
        let mount = Mount::sized(64 << 20, Options { round_blocks, ..options() });
        let inode = placed(&mount, 64);
        write(&mount, inode.ino, 0..64, 2);
        first_round(&mount, &inode);
        let pages = pages(&left(&mount));
        assert!(pages.contains(&1) && pages.contains(&2), "{pages:?}");
    }
}

/// The blocks that a sync writes before its batch end between pages. So do the blocks that it writes
/// beside the batch.
#[test]
fn a_large_sync_is_divided_between_pages() {
    for parallel_blocks in [1, 5, 30] {
        let mount = Mount::sized(64 << 20, Options { parallel_blocks, ..options() });
        let inode = placed(&mount, 64);
        write(&mount, inode.ino, 0..64, 2);
        let split = choose::before_log_end(&mount.fs, &inode.state.lock(), 0, 64);
        assert!(split.is_some_and(|split| split.is_multiple_of(16)), "{split:?}");
        mount.fsync(inode.ino);
        assert_eq!(left(&mount), [2; 64]);
    }
}

/// The page is written after the submission has begun, and reaches over the end of the submission.
#[test]
fn a_page_that_comes_late_is_taken_as_a_whole() {
    let mount = Mount::new();
    let inode = placed(&mount, 32);
    write(&mount, inode.ino, 0..2, 2);
    block_on(async {
        let writeback = inode.state.lock().data.writeback();
        let _writeback = writeback.lock().await;
        let end = inode.state.lock().begin_submission();
        mount.fs.write(inode.ino, 0, vec![3; PAGE as usize].into(), false).await.unwrap();
        let _room = mount.fs.store().admit(syncline_store::Admission::Finish).await.unwrap();
        let _lease = inode.lease.write().await;
        let submission = Submission { inode: &inode, blocks: 0..end, aim: Aim::Place };
        start::submit(&mount.fs, &[submission], &mut Submitted::default()).await.unwrap();
    });
    assert_eq!(pages(&left(&mount)), [3, 1]);
}

/// The second of two writes fails, whose border lies in a page.
#[test]
fn a_failed_write_takes_the_rest_of_its_pages_with_it() {
    let (device, mount) = moody(options());
    let inode = placed(&mount, 288);
    write(&mount, inode.ino, 8..16, 2);
    for page in 1..18 {
        write(&mount, inode.ino, page * 16..(page + 1) * 16, 2);
    }
    device.hold_from(16 << 10);
    std::thread::scope(|scope| {
        let job = scope.spawn(|| block_on(write_back(&mount.fs, &inode)));
        device.wait_for_held_blocks(280);
        device.release_one();
        // They are tried again at another place.
        device.wait_for_held(1);
        let left = left(&mount);
        assert_eq!(left[8], 2, "the first write has been named");
        let pages = pages(&left[16..]);
        assert_eq!(pages[15..], [1, 1], "{pages:?}");
        device.release();
        job.join().unwrap().unwrap();
    });
    mount.fsync(inode.ino);
    assert_eq!(left(&mount)[8..], [2; 280]);
    mount.check_items(inode.ino);
}

/// Two writes of one round are named in two transactions, unless their border lies in a page.
#[test]
fn a_transaction_never_ends_in_a_page() {
    let mount = Mount::sized(64 << 20, Options { extents_at_once: 1, ..options() });
    let inode = placed(&mount, 544);
    let transactions_of = |blocks: Range<u64>| {
        blocks.clone().step_by(8).for_each(|block| write(&mount, inode.ino, block..block + 8, 2));
        let before = mount.fs.store().last_op().0;
        block_on(write_back(&mount.fs, &inode)).unwrap();
        mount.fs.store().last_op().0 - before
    };
    assert_eq!(transactions_of(0..272), 2, "256 blocks, and a page");
    assert_eq!(transactions_of(8..272), 1, "the first write ends in the middle of a page");
    assert_eq!(transactions_of(16..544), 3);
}

/// A page is appended, and half of it is written again before it is named.
#[test]
fn the_size_never_ends_within_a_page() {
    let (device, mount) = moody(Options { round_blocks: 16, ..options() });
    let ino = mount.create("file");
    mount.fsync(ROOT);
    write(&mount, ino, 0..16, 2);
    write(&mount, ino, 16..32, 2);
    let inode = block_on(mount.fs.inode(ino)).unwrap();
    device.hold_from(16 << 10);
    std::thread::scope(|scope| {
        let job = scope.spawn(|| block_on(write_back(&mount.fs, &inode)));
        device.wait_for_held_blocks(16);
        write(&mount, ino, 12..16, 3);
        device.release_and_hold();
        device.wait_for_held_blocks(16);
        assert_eq!(pages(&left(&mount)), [2]);
        device.release();
        job.join().unwrap().unwrap();
    });
    mount.fsync(ino);
    assert_eq!(left(&mount), [[2; 12].as_slice(), &[3; 4], &[2; 16]].concat());
}
