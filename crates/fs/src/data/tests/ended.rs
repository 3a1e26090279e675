//! The state after a submission has ended, and the handling of one that ended short.

use super::faults::{Moody, moody_breaking};
use super::*;
use crate::data::flush::{background, writeback};
use crate::data::memory::BLOCK;
use crate::inode::InodeState;
use crate::receipt::Submitted;
use syncline_store::{Canary, Lab};

const SIZE: u64 = 20 * BLOCK;

/// A file of which everything is named, in the state that it would have if the last transaction had
/// logged too small a size.
fn behind(mount: &Mount) -> Arc<Inode> {
    let ino = mount.create("behind");
    mount.write(ino, 0, &pattern(1, SIZE as usize));
    mount.fsync_placed(ino);
    let inode = block_on(mount.fs.inode(ino)).unwrap();
    inode.state.lock().data.logged.set_size(5 * BLOCK);
    inode
}

fn logged_size(inode: &Inode) -> u64 {
    inode.state.lock().data.logged.size()
}

#[test]
fn a_last_round_that_finds_nothing_to_name_logs_the_size() {
    let mount = Mount::new();
    let inode = behind(&mount);
    block_on(async {
        let writeback = inode.state.lock().data.writeback();
        let _writeback = writeback.lock().await;
        inode.state.lock().begin_submission();
        let mut note = Submitted::default();
        // A truncation has removed the blocks of this round.
        writeback::round(&mount.fs, &inode, 20..30, writeback::Way::WriteBack, &mut note).await.unwrap();
    });
    assert_eq!(logged_size(&inode), SIZE);
    let mount = mount.reopen();
    assert_eq!(mount.size(mount.find("behind")), SIZE);
}

#[test]
fn what_is_behind_is_neither_forgotten_nor_taken_for_written_back() {
    let mount = Mount::new();
    let inode = behind(&mount);
    assert!(!inode.is_idle(), "the cache would forget {SIZE} bytes");
    // As at the end of a write-back.
    let taken = mount.fs.data.queue.take_oldest().expect("it was written to");
    mount.fs.data.queue.finish(&mount.fs, &taken);
    assert_eq!(
        mount.fs.data.queue.all_dirty().iter().map(|dirty| dirty.ino).collect::<Vec<_>>(),
        [inode.ino]
    );
    block_on(background::write_back_everything(&mount.fs)).unwrap();
    assert_eq!(logged_size(&inode), SIZE);
    mount.fs.data.queue.finish(&mount.fs, &inode);
    block_on(mount.fs.store().sync(mount.fs.store().last_op())).unwrap();
    assert_eq!(mount.crash().size(inode.ino), SIZE);
}

const ROUND: u64 = 64;

/// A new file of more than one round, whose writes are held from now on.
fn of_rounds(canary: Option<Canary>, blocks: u64) -> (Arc<Moody>, Mount, Arc<Inode>) {
    let options = Options { round_blocks: ROUND, parallel_blocks: 8, ..options() };
    let (device, mount) = moody_breaking(canary, options);
    let ino = mount.create("file");
    mount.write(ino, 0, &pattern(3, (blocks * BLOCK) as usize));
    let inode = block_on(mount.fs.inode(ino)).unwrap();
    device.hold_from(0);
    (device, mount, inode)
}

/// Looks at the state, because writes of the log may be held as well and the number of held writes
/// tells nothing.
fn wait_until(state: impl Fn(&InodeState) -> bool, inode: &Inode) {
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(120);
    while !state(&inode.state.lock()) {
        assert!(std::time::Instant::now() < deadline, "it did not come");
        std::thread::yield_now();
    }
}

/// The logged size, which is that of the file after a crash, and the count of the check in `ended`.
fn logged_in_the_end(mount: &Mount, inode: &Inode) -> (u64, u64) {
    let logged = logged_size(inode);
    block_on(mount.fs.store().sync(mount.fs.store().last_op())).unwrap();
    let crashed = mount.crash();
    assert_eq!(crashed.size(crashed.find("file")), logged);
    (logged, mount.fs.counters().submissions_short)
}

fn require_all(course: impl Fn() -> (u64, u64), size: u64, what: &str) {
    let (logged, short) = course();
    assert!(logged >= size && short == 0, "{logged} of {size} bytes, {what}");
}

/// A truncation comes after a write-back has begun, and ends within a block that the write-back has
/// yet to take. While that block is in flight, it or the block before it is written again. The
/// write-back must still name everything that was there when it began.
#[test]
fn a_truncation_leaves_what_a_submission_has_to_log() {
    const LAST: u64 = ROUND + 4;
    let size = LAST * BLOCK + 100;
    for again in [LAST, LAST - 1] {
        let course = || {
            let (device, mount, inode) = of_rounds(None, LAST + 50);
            std::thread::scope(|scope| {
                let ending = scope.spawn(|| block_on(writeback::write_back(&mount.fs, &inode)));
                device.wait_for_held_blocks(ROUND);
                mount.truncate(inode.ino, size).unwrap();
                device.release_and_hold();
                wait_until(|state| state.data.blocks.is_in_flight(LAST), &inode);
                mount.write(inode.ino, again * BLOCK, &pattern(4, BLOCK as usize));
                device.release();
                ending.join().unwrap().unwrap();
            });
            logged_in_the_end(&mount, &inode)
        };
        require_all(course, size, &format!("block {again}"));
    }
}

/// A truncation ends within a block that the first round has placed: it rewrites the block, and
/// names it. Blocks before it were written again while they were in flight: more blocks than a sync
/// logs.
#[test]
fn a_truncation_within_what_has_a_place_leaves_it_too() {
    const EDGE: u64 = ROUND - 10;
    let size = EDGE * BLOCK + 100;
    type Way = fn(&Filesystem, &Arc<Inode>);
    let ways: [(&str, Way); 2] = [
        ("write-back", |fs, inode| block_on(writeback::write_back(fs, inode)).unwrap()),
        ("fsync", |fs, inode| block_on(fs.fsync(inode.ino, false)).unwrap()),
    ];
    for (what, way) in ways {
        let course = || {
            let (device, mount, inode) = of_rounds(None, ROUND + 40);
            std::thread::scope(|scope| {
                let ending = scope.spawn(|| way(&mount.fs, &inode));
                device.wait_for_held_blocks(ROUND);
                mount.write(inode.ino, 10 * BLOCK, &pattern(4, 9 * BLOCK as usize));
                device.release_and_hold();
                wait_until(|state| state.data.blocks.is_in_flight(ROUND), &inode);
                mount.write(inode.ino, EDGE * BLOCK, &pattern(5, BLOCK as usize));
                mount.truncate(inode.ino, size).unwrap();
                device.release();
                ending.join().unwrap();
            });
            logged_in_the_end(&mount, &inode)
        };
        require_all(course, size, what);
    }
}

/// Truncations end within two blocks that are in flight, the second in a later round, and one more
/// truncation cuts the second block off. The first block still belongs to the submission.
#[test]
fn a_block_that_a_truncation_put_back_is_not_forgotten_for_another() {
    const EDGE: u64 = 10;
    const ALL: u64 = ROUND + 56;
    // Without the last truncation, the second block makes the submission look again, and it finds
    // the first too.
    for (cut_off, canary) in [(false, None), (true, None), (true, Some(Canary::ForgetRecalled))] {
        let (device, mount, inode) = of_rounds(canary, ALL);
        let ino = inode.ino;
        std::thread::scope(|scope| {
            let ending = scope.spawn(|| block_on(mount.fs.fsync(ino, false)).unwrap());
            device.wait_for_held_blocks(ROUND);
            mount.truncate(ino, EDGE * BLOCK + 100).unwrap();
            // Growing: from then on the logged size is not behind.
            mount.truncate(ino, ALL * BLOCK).unwrap();
            // More blocks than a sync logs.
            mount.write(ino, 0, &pattern(4, 9 * BLOCK as usize));
            mount.write(ino, (ROUND + 6) * BLOCK, &pattern(5, 40 * BLOCK as usize));
            device.release_and_hold();
            wait_until(|state| state.data.blocks.is_in_flight(ROUND + 16), &inode);
            mount.truncate(ino, (ROUND + 16) * BLOCK + 100).unwrap();
            if cut_off {
                mount.truncate(ino, (ROUND + 11) * BLOCK).unwrap();
            }
            device.release();
            ending.join().unwrap();
        });
        let expected = &pattern(3, (ALL * BLOCK) as usize)[(EDGE * BLOCK) as usize..][..100];
        assert!(mount.read(ino, EDGE * BLOCK, 100) == expected);
        let crashed = mount.crash();
        let found = crashed.find("file");
        let kept = crashed.read(found, EDGE * BLOCK, 100) == expected;
        assert_eq!(kept, canary.is_none(), "cut off: {cut_off}, broken: {canary:?}");
    }
}

/// The check itself works: a broken rule is counted where it is broken, by every kind of sync.
#[test]
fn a_submission_that_leaves_the_size_behind_is_counted() {
    let made = Mount::new();
    let sound = made.create("sound");
    made.write(sound, 0, &pattern(1, SIZE as usize));
    made.fsync(sound);
    assert_eq!(made.fs.counters().submissions_short, 0);
    type Way = fn(&Filesystem, Ino);
    let ways: [(&str, Way); 4] = [
        ("fsync", |fs, ino| block_on(fs.fsync(ino, false)).unwrap()),
        ("fdatasync", |fs, ino| block_on(fs.fsync(ino, true)).unwrap()),
        ("syncfs", |fs, _| block_on(fs.syncfs()).unwrap()),
        ("of many", |fs, ino| block_on(fs.sync_many(&[ino], 0)).unwrap()),
    ];
    for (what, way) in ways {
        let store_options =
            StoreOptions { lab: Lab::breaking(Some(Canary::SizeBehind)), ..StoreOptions::default() };
        let opening = Store::open(made.device.snapshot(), store_options, made.spawn.clone());
        let (store, _) = block_on(opening).unwrap();
        let fs = block_on(Filesystem::open(store, made.spawn.clone(), options())).unwrap();
        let ino = block_on(fs.mknod(CALLER, ROOT, b"file", FileType::Regular, 0o644, 0)).unwrap().ino;
        block_on(fs.write(ino, 0, pattern(2, SIZE as usize).into(), false)).unwrap();
        way(&fs, ino);
        assert!(fs.counters().submissions_short > 0, "{what}");
    }
}
