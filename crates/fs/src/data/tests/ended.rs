//! What a submission leaves when it has ended, and what is left over from one that has not said all.

use super::faults::{Moody, moody_breaking};
use super::*;
use crate::data::{BLOCK, dirty_queue, submit, writeback};
use crate::inode::InodeState;
use crate::receipt::Submitted;
use syncline_store::Canary;

const SIZE: u64 = 20 * BLOCK;

/// A file of which everything is named, as it would be if the last transaction had logged a size that is behind.
fn behind(mount: &Mount) -> Arc<Inode> {
    let ino = mount.create("behind");
    mount.write(ino, 0, &pattern(1, SIZE as usize));
    mount.fsync_placed(ino);
    let inode = block_on(mount.fs.inode(ino)).unwrap();
    inode.state.lock().data.disk_size = 5 * BLOCK;
    inode
}

fn logged_size(inode: &Inode) -> u64 {
    inode.state.lock().data.disk_size
}

#[test]
fn a_last_round_that_finds_nothing_to_name_logs_the_size() {
    let mount = Mount::new();
    let inode = behind(&mount);
    block_on(async {
        let writeback = inode.state.lock().data.writeback.clone();
        let _writeback = writeback.lock().await;
        submit::begin(&mut inode.state.lock());
        let mut note = Submitted::default();
        // A truncation has taken what was to be written in this round.
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
    let taken = mount.fs.data.take_oldest().expect("it was written to");
    mount.fs.data.finish(&mount.fs, &taken);
    assert_eq!(mount.fs.data.all_dirty().iter().map(|dirty| dirty.ino).collect::<Vec<_>>(), [inode.ino]);
    block_on(dirty_queue::write_back_everything(&mount.fs)).unwrap();
    assert_eq!(logged_size(&inode), SIZE);
    mount.fs.data.finish(&mount.fs, &inode);
    block_on(mount.fs.store().sync(mount.fs.store().last_op())).unwrap();
    assert_eq!(mount.crash().size(inode.ino), SIZE);
}

const ROUND: u64 = 64;

/// A fresh file of more than one round, whose writes wait from now on.
fn of_rounds(canary: Option<Canary>, blocks: u64) -> (Arc<Moody>, Mount, Arc<Inode>) {
    let options = Options { round_blocks: ROUND, parallel_blocks: 8, ..options() };
    let (device, mount) = moody_breaking(canary, options);
    let ino = mount.create("file");
    mount.write(ino, 0, &pattern(3, (blocks * BLOCK) as usize));
    let inode = block_on(mount.fs.inode(ino)).unwrap();
    device.hold_from(0);
    (device, mount, inode)
}

/// The log may be on its way as well, so what is held does not tell.
fn wait_until(state: impl Fn(&InodeState) -> bool, inode: &Inode) {
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while !state(&inode.state.lock()) {
        assert!(std::time::Instant::now() < deadline, "it did not come");
        std::thread::yield_now();
    }
}

/// The size that is logged, which is that of the file after a crash, and what the trap has counted.
fn logged_in_the_end(mount: &Mount, inode: &Inode) -> (u64, u64) {
    let logged = logged_size(inode);
    block_on(mount.fs.store().sync(mount.fs.store().last_op())).unwrap();
    let crashed = mount.crash();
    assert_eq!(crashed.size(crashed.find("file")), logged);
    (logged, mount.fs.counters().submissions_short)
}

fn require_all(course: impl Fn(Option<Canary>) -> (u64, u64), size: u64, what: &str) {
    let (logged, short) = course(None);
    assert!(logged >= size && short == 0, "{logged} of {size} bytes, {what}");
    let (logged, short) = course(Some(Canary::TruncateBehind));
    assert!(logged < size && short == 1, "{logged} of {size} bytes, {what}: the trap is blind");
}

/// A truncation comes after a write-back has begun, and ends within a block that this has yet to take. While it is on its way to the device that
/// block, or one before it, is written again. The write-back ends when all that was there when it began is named.
#[test]
fn a_truncation_leaves_what_a_submission_has_to_log() {
    const LAST: u64 = ROUND + 4;
    let size = LAST * BLOCK + 100;
    for again in [LAST, LAST - 1] {
        let course = |canary| {
            let (device, mount, inode) = of_rounds(canary, LAST + 50);
            std::thread::scope(|scope| {
                let ending = scope.spawn(|| block_on(writeback::write_back(&mount.fs, &inode)));
                device.wait_for_held_blocks(ROUND);
                mount.truncate(inode.ino, size).unwrap();
                device.release_and_hold();
                wait_until(|state| state.data.in_flight.contains(LAST), &inode);
                mount.write(inode.ino, again * BLOCK, &pattern(4, BLOCK as usize));
                device.release();
                ending.join().unwrap().unwrap();
            });
            logged_in_the_end(&mount, &inode)
        };
        require_all(course, size, &format!("block {again}"));
    }
}

/// The same with a block that the first round has given a place: the truncation writes it anew, and names it. The logged size is behind, since
/// blocks before it were written again while they were on their way: more than a sync logs whole.
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
        let course = |canary| {
            let (device, mount, inode) = of_rounds(canary, ROUND + 20);
            std::thread::scope(|scope| {
                let ending = scope.spawn(|| way(&mount.fs, &inode));
                device.wait_for_held_blocks(ROUND);
                mount.write(inode.ino, 10 * BLOCK, &pattern(4, 6 * BLOCK as usize));
                device.release_and_hold();
                wait_until(|state| state.data.in_flight.contains(ROUND), &inode);
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

/// Truncations end within two blocks that are in flight, the second in a later round, and one more cuts that one off. The first is still
/// the submission's.
#[test]
fn a_block_that_a_truncation_put_back_is_not_forgotten_for_another() {
    const EDGE: u64 = 10;
    const ALL: u64 = ROUND + 56;
    // Without the last truncation the second block reminds of the first.
    for (cut_off, canary) in [(false, None), (true, None), (true, Some(Canary::ForgetRecalled))] {
        let (device, mount, inode) = of_rounds(canary, ALL);
        let ino = inode.ino;
        std::thread::scope(|scope| {
            let ending = scope.spawn(|| block_on(mount.fs.fsync(ino, false)).unwrap());
            device.wait_for_held_blocks(ROUND);
            mount.truncate(ino, EDGE * BLOCK + 100).unwrap();
            // Upward: the logged size is behind nothing from then on.
            mount.truncate(ino, ALL * BLOCK).unwrap();
            // More than a sync logs whole.
            mount.write(ino, 0, &pattern(4, 6 * BLOCK as usize));
            mount.write(ino, (ROUND + 6) * BLOCK, &pattern(5, 40 * BLOCK as usize));
            device.release_and_hold();
            wait_until(|state| state.data.in_flight.contains(ROUND + 16), &inode);
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

/// The trap shuts: a broken rule is counted where it is broken, whatever the way.
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
        let store_options = StoreOptions { canary: Some(Canary::SizeBehind), ..StoreOptions::default() };
        let opening = Store::open(made.device.snapshot(), store_options, made.spawn.clone());
        let (store, _) = block_on(opening).unwrap();
        let fs = block_on(Filesystem::open(store, made.spawn.clone(), options())).unwrap();
        let ino = block_on(fs.mknod(CALLER, ROOT, b"file", FileType::Regular, 0o644, 0)).unwrap().ino;
        block_on(fs.write(ino, 0, pattern(2, SIZE as usize).into(), false)).unwrap();
        way(&fs, ino);
        assert!(fs.counters().submissions_short > 0, "{what}");
    }
}
