//! The block in which a file ends: contents that are named with a size never reach past it, or they
//! would show when the file grows after a crash.

use super::faults::{Moody, moody_breaking};
use super::*;
use crate::data::flush::writeback;
use crate::data::memory::BLOCK;
use syncline_format::BLOCK_BYTES;

const ROUND: u64 = 64;
/// More blocks than any batch of the log has here, and fewer than a round.
const HELD: usize = 30 * BLOCK_BYTES;

/// A file that is written back in rounds, and its device, which can hold writes.
fn of_rounds() -> (Arc<Moody>, Mount, Arc<Inode>) {
    let (device, mount) =
        moody_breaking(None, Options { round_blocks: ROUND, parallel_blocks: 8, ..options() });
    let ino = mount.create("file");
    let inode = block_on(mount.fs.inode(ino)).unwrap();
    (device, mount, inode)
}

/// The state after a crash when everything that was committed is durable.
fn crash_synced(mount: &Mount) -> Mount {
    block_on(mount.fs.store().sync(mount.fs.store().last_op())).unwrap();
    mount.crash()
}

/// Fails unless the file has `size` bytes, with zeros behind them when it grows.
fn require_zeros_behind(crashed: &Mount, size: u64) {
    let ino = crashed.find("file");
    assert!(block_on(crashed.fs.ends_in_zeros(ino)).unwrap());
    assert_eq!(crashed.size(ino), size);
    let grown = size.next_multiple_of(BLOCK) + BLOCK;
    crashed.truncate(ino, grown).unwrap();
    assert!(crashed.read(ino, size, BLOCK_BYTES).iter().all(|&byte| byte == 0));
}

#[test]
fn a_round_names_no_more_of_the_last_block_than_the_size_says() {
    let (device, mount, inode) = of_rounds();
    mount.write(inode.ino, 0, &pattern(1, 4426));
    mount.fsync_placed(inode.ino);
    mount.write(inode.ino, 1781, &pattern(2, (ROUND + 60) as usize * BLOCK_BYTES));
    device.hold_from(HELD);
    let crashed = std::thread::scope(|scope| {
        let ending = scope.spawn(|| block_on(writeback::write_back(&mount.fs, &inode)));
        device.wait_for_held_blocks(ROUND);
        // The block in which the logged size ends is written again while it is in flight.
        mount.write(inode.ino, BLOCK, &pattern(3, 100));
        device.release_and_hold();
        device.wait_for_held_blocks(HELD as u64 / BLOCK);
        let crashed = crash_synced(&mount);
        device.release();
        ending.join().unwrap().unwrap();
        crashed
    });
    require_zeros_behind(&crashed, ROUND * BLOCK);
}

#[test]
fn a_submission_logs_what_it_names_of_the_block_that_an_append_has_filled() {
    const LAST: u64 = ROUND + 40;
    for fsync in [false, true] {
        let (device, mount, inode) = of_rounds();
        mount.write(inode.ino, 0, &pattern(1, LAST as usize * BLOCK_BYTES + 100));
        device.hold_from(HELD);
        std::thread::scope(|scope| {
            let ending = scope.spawn(|| match fsync {
                true => block_on(mount.fs.fsync(inode.ino, false)),
                false => block_on(writeback::write_back(&mount.fs, &inode)),
            });
            device.wait_for_held_blocks(ROUND);
            // More blocks than a sync logs, so that without the submission's floor the logged size
            // would stay behind.
            mount.write(inode.ino, 10 * BLOCK, &pattern(3, 6 * BLOCK_BYTES));
            mount.write(inode.ino, LAST * BLOCK + 100, &pattern(4, 1000));
            device.release();
            ending.join().unwrap().unwrap();
        });
        require_zeros_behind(&crash_synced(&mount), LAST * BLOCK + 1100);
    }
}
