//! Atomic writes that meet: calls that waited while the one that they mean ended.

use super::*;
use futures_lite::future::poll_once;
use std::pin::pin;

/// A commit waits for the write-back of earlier writes. When the commit goes on, its atomic write
/// has ended, and the next one is half done.
#[test]
fn a_commit_that_comes_late_takes_nothing_of_the_next_one() {
    let mount = Mount::new();
    let ino = mount.create("file");
    mount.write(ino, 0, &[1; 20_000]);
    mount.fsync(ino);
    let inode = block_on(mount.fs.inode(ino)).unwrap();
    let writeback = inode.state.lock().data.writeback();
    let first = mount.start(ino);
    mount.put(ino, 0, &[2; 100]);
    let busy = block_on(writeback.lock());
    let mut late = pin!(mount.fs.commit_atomic_write(first));
    assert!(block_on(poll_once(late.as_mut())).is_none());
    mount.abort(ino);
    let next = mount.start(ino);
    mount.put(ino, 0, &[3; 8000]);
    drop(busy);
    assert_eq!(block_on(late).unwrap_err().errno(), 5);
    assert_eq!(mount.fs.atomic_write_of(ino), Some(next));
    let after = mount.crash();
    assert!(after.read(after.find("file"), 0, 30_000) == [1; 20_000], "half of it came back");
    mount.put(ino, 8000, &[3; 12_000]);
    mount.commit(ino);
    let after = mount.crash();
    assert!(after.read(after.find("file"), 0, 30_000) == [3; 20_000]);
}

/// An abort waits for its turn behind the commit of its own atomic write, and behind the start of
/// the next one.
#[test]
fn an_abort_that_comes_late_takes_nothing_of_the_next_one_back() {
    let mount = Mount::new();
    let ino = mount.create("file");
    let inode = block_on(mount.fs.inode(ino)).unwrap();
    let first = mount.start(ino);
    mount.put(ino, 0, &[2; 100]);
    let busy = block_on(inode.lease.read());
    let mut late = pin!(mount.fs.abort_atomic_write(first));
    let mut commit = pin!(mount.fs.commit_atomic_write(first));
    let mut again = pin!(mount.fs.start_atomic_write(ino));
    assert!(block_on(poll_once(commit.as_mut())).is_none());
    assert!(block_on(poll_once(again.as_mut())).is_none());
    assert!(block_on(poll_once(late.as_mut())).is_none());
    drop(busy);
    block_on(commit).unwrap();
    block_on(again).unwrap();
    mount.put(ino, 0, &[3; 8000]);
    assert!(!block_on(late).unwrap(), "what it meant was committed");
    mount.commit(ino);
    assert!(mount.crash().read(ino, 0, 30_000) == [3; 8000]);
}

/// Half of it would be missing.
#[test]
fn nothing_goes_on_with_what_was_taken_back() {
    let mount = Mount::new();
    let ino = mount.create("file");
    let first = mount.start(ino);
    mount.put(ino, 0, &[2; 100]);
    mount.abort(ino);
    for begins_again in [false, true] {
        assert_eq!(block_on(mount.fs.commit_atomic_write(first)).unwrap_err().errno(), 5);
        let data = Bytes::from_static(&[2; 100]);
        assert_eq!(block_on(mount.fs.write_atomically(first, 0, data, false)).unwrap_err().errno(), 5);
        if !begins_again {
            mount.start(ino);
        }
    }
}

/// A thread waits with a write while another thread aborts the atomic write that the write belongs
/// to, and perhaps begins the next one.
#[test]
fn a_write_that_waits_is_taken_back_with_what_it_is_a_part_of() {
    let old = [1; 20_000];
    for begins_again in [false, true] {
        let mount = Mount::new();
        let ino = mount.create("file");
        mount.write(ino, 0, &old);
        mount.fsync(ino);
        let inode = block_on(mount.fs.inode(ino)).unwrap();
        let first = mount.start(ino);
        mount.put(ino, 0, &[2; 8192]);
        let busy = block_on(inode.lease.read());
        let mut end = pin!(mount.fs.abort_atomic_write(first));
        assert!(block_on(poll_once(end.as_mut())).is_none());
        let data = Bytes::from_static(&[2; 4096]);
        let mut late = pin!(mount.fs.write_atomically(first, 8192, data, false));
        let mut again = pin!(mount.fs.start_atomic_write(ino));
        if begins_again {
            assert!(block_on(poll_once(again.as_mut())).is_none());
        }
        assert!(block_on(poll_once(late.as_mut())).is_none());
        drop(busy);
        assert!(block_on(end).unwrap());
        if begins_again {
            block_on(again).unwrap();
        }
        assert_eq!(block_on(late).unwrap_err().errno(), 5);
        assert!(mount.read(ino, 0, 30_000) == old);
        let after = mount.crash();
        assert!(after.read(after.find("file"), 0, 30_000) == old);
    }
}

/// Room that was preallocated is there for an atomic write too, and comes back with an abort.
#[test]
fn preallocated_blocks_have_their_room_on_a_full_filesystem() {
    let mount = Mount::formatted(16 << 20, 4096, options());
    let ino = mount.create("file");
    mount.allocate(ino, Allocation::Preallocate { keep_size: false }, 0, 2 << 20).unwrap();
    let filler = mount.create("filler");
    let full = (0..).map(|at| mount.try_write(filler, at << 16, &[7; 1 << 16])).find_map(Result::err);
    assert_eq!(full.unwrap().errno(), 28);
    block_on(mount.fs.syncfs()).unwrap();
    for byte in 1..4 {
        mount.start(ino);
        for at in 0..16 {
            mount.put(ino, at << 17, &[byte; 1 << 17]);
        }
        mount.fs.data.room.check();
        if byte < 3 {
            mount.abort(ino);
            mount.fs.data.room.check();
            assert!(mount.read(ino, 0, 2 << 20) == vec![0; 2 << 20]);
        }
    }
    mount.commit(ino);
    assert_eq!(mount.fs.data.room.blocks(), 0);
    mount.check_items(ino);
    let after = mount.crash();
    assert!(after.read(after.find("file"), 0, 2 << 20) == vec![3; 2 << 20]);
}
