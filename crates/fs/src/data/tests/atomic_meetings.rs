//! Atomic writes that meet: of two handles, and of two threads with one handle.

use super::*;
use futures_lite::future::poll_once;
use std::pin::pin;

const FIRST: u64 = 7;
const SECOND: u64 = 8;

impl Mount {
    fn write_through(&self, ino: Ino, handle: u64, offset: u64, data: &[u8]) {
        let data = Bytes::copy_from_slice(data);
        block_on(self.fs.write_through(ino, self.fs.through(ino, handle), offset, data, false)).unwrap();
    }
}

/// A commit waits for the write-back of what came before. When it goes on, the atomic write that it
/// meant has ended, and the next one is half done, by another handle or by the same one.
#[test]
fn a_commit_that_comes_late_takes_nothing_of_the_next_one() {
    for next in [SECOND, FIRST] {
        let mount = Mount::new();
        let ino = mount.create("file");
        mount.write(ino, 0, &[1; 20_000]);
        mount.fsync(ino);
        let inode = block_on(mount.fs.inode(ino)).unwrap();
        let writeback = inode.state.lock().data.writeback.clone();
        block_on(mount.fs.start_atomic_write(ino, FIRST)).unwrap();
        mount.write_through(ino, FIRST, 0, &[2; 100]);
        let busy = block_on(writeback.lock());
        let mut late = pin!(mount.fs.commit_atomic_write(ino, FIRST));
        assert!(block_on(poll_once(late.as_mut())).is_none());
        assert!(block_on(mount.fs.abort_atomic_write(ino, FIRST)).unwrap());
        block_on(mount.fs.start_atomic_write(ino, next)).unwrap();
        mount.write_through(ino, next, 0, &[3; 8000]);
        drop(busy);
        assert_eq!(block_on(late).unwrap_err().errno(), 22);
        assert_eq!(mount.fs.atomic_writer(ino), Some(next));
        let after = mount.crash();
        assert!(after.read(after.find("file"), 0, 30_000) == [1; 20_000], "half of it came back");
        mount.write_through(ino, next, 8000, &[3; 12_000]);
        block_on(mount.fs.commit_atomic_write(ino, next)).unwrap();
        let after = mount.crash();
        assert!(after.read(after.find("file"), 0, 30_000) == [3; 20_000]);
    }
}

/// An abort waits for its turn behind the commit of what it meant, and behind the next start.
#[test]
fn an_abort_that_comes_late_takes_nothing_of_the_next_one_back() {
    let mount = Mount::new();
    let ino = mount.create("file");
    let inode = block_on(mount.fs.inode(ino)).unwrap();
    let first = block_on(mount.fs.start_atomic_write(ino, FIRST)).unwrap();
    mount.write_through(ino, FIRST, 0, &[2; 100]);
    let busy = block_on(inode.lease.read());
    let mut late = pin!(mount.fs.abort_atomic_write(ino, FIRST));
    let mut commit = pin!(mount.fs.commit_atomic_write(ino, FIRST));
    let mut again = pin!(mount.fs.start_atomic_write(ino, FIRST));
    assert!(block_on(poll_once(commit.as_mut())).is_none());
    assert!(block_on(poll_once(again.as_mut())).is_none());
    assert!(block_on(poll_once(late.as_mut())).is_none());
    drop(busy);
    block_on(commit).unwrap();
    let second = block_on(again).unwrap();
    assert!(!first.is_beside(&second) && !first.was_taken_back());
    mount.write_through(ino, FIRST, 0, &[3; 8000]);
    assert!(!block_on(late).unwrap(), "what it meant was committed");
    block_on(mount.fs.commit_atomic_write(ino, FIRST)).unwrap();
    assert!(mount.crash().read(ino, 0, 30_000) == [3; 8000]);
}

/// It finds none open, as an fdatasync would, but something is missing.
#[test]
fn a_commit_of_what_was_taken_back_fails() {
    let mount = Mount::new();
    let ino = mount.create("file");
    let begun = block_on(mount.fs.start_atomic_write(ino, FIRST)).unwrap();
    mount.write_through(ino, FIRST, 0, &[2; 100]);
    assert!(block_on(mount.fs.abort_atomic_write(ino, FIRST)).unwrap());
    assert_eq!(block_on(mount.fs.commit_begun(ino, &begun)).unwrap_err().errno(), 5);
    block_on(mount.fs.commit_atomic_write(ino, FIRST)).unwrap();
}

/// One thread closes the file while another one waits with its write, which was a part of what is taken
/// back. It stays one if the same handle begins again before it gets its turn.
#[test]
fn a_write_that_waits_is_taken_back_with_what_it_is_a_part_of() {
    let old = [1; 20_000];
    for (is_mapped, begins_again) in [(false, false), (false, true), (true, false), (true, true)] {
        let mount = Mount::new();
        let ino = mount.create("file");
        mount.write(ino, 0, &old);
        mount.fsync(ino);
        let inode = block_on(mount.fs.inode(ino)).unwrap();
        block_on(mount.fs.start_atomic_write(ino, FIRST)).unwrap();
        mount.write_through(ino, FIRST, 0, &[2; 8192]);
        let busy = block_on(inode.lease.read());
        let mut end = pin!(mount.fs.abort_atomic_write(ino, FIRST));
        assert!(block_on(poll_once(end.as_mut())).is_none());
        let (through, data) = (mount.fs.through(ino, FIRST), Bytes::from_static(&[2; 4096]));
        let late = async {
            match is_mapped {
                false => mount.fs.write_through(ino, through, 8192, data, false).await,
                true => mount.fs.write_mapped(ino, 8192, data).await,
            }
        };
        let mut late = pin!(late);
        let mut again = pin!(mount.fs.start_atomic_write(ino, FIRST));
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
        block_on(mount.fs.start_atomic_write(ino, FIRST)).unwrap();
        for at in 0..16 {
            mount.write_through(ino, FIRST, at << 17, &[byte; 1 << 17]);
        }
        mount.fs.data.room.check();
        if byte < 3 {
            assert!(block_on(mount.fs.abort_atomic_write(ino, FIRST)).unwrap());
            mount.fs.data.room.check();
            assert!(mount.read(ino, 0, 2 << 20) == vec![0; 2 << 20]);
        }
    }
    block_on(mount.fs.commit_atomic_write(ino, FIRST)).unwrap();
    assert_eq!(mount.fs.data.room.blocks(), 0);
    mount.check_items(ino);
    let after = mount.crash();
    assert!(after.read(after.find("file"), 0, 2 << 20) == vec![3; 2 << 20]);
}
