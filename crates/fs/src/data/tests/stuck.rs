//! Files that can't be written back, since their extents are damaged, beside sound ones.

use super::*;

const BLOCK: u64 = 4096;
/// Blocks of a damaged file.
const BLOCKS: usize = 10;
const LIMIT: u64 = 1 << 20;

fn mount() -> Mount {
    Mount::sized(64 << 20, Options { dirty_bytes_max: LIMIT, ..options() })
}

/// Makes a file whose only extent can't be decoded. Nothing that is written to it can be written back.
fn damaged(mount: &Mount, index: u64) -> Ino {
    let ino = mount.create(&format!("damaged{index}"));
    mount.write(ino, 0, &pattern(index, BLOCKS * 4096));
    mount.fsync_placed(ino);
    let key = Key::new(ino, Kind::Extent, 0);
    let mut value = block_on(mount.fs.store().get(key)).unwrap().unwrap().to_vec();
    value[8..10].fill(0);
    let mut transaction = syncline_store::Transaction::new();
    transaction.put(key, value);
    mount.fs.store().commit(transaction).unwrap();
    ino
}

/// Writes much more than the limit to a sound file.
fn write_sound(mount: &Mount) -> Ino {
    let ino = mount.create("sound");
    for at in 0..400 {
        mount.write(ino, at * 65536, &pattern(at, 65536));
        assert!(mount.fs.data.queue.dirty_bytes() <= LIMIT * 3 / 2);
    }
    mount.fsync(ino);
    for at in 0..400 {
        assert!(mount.read(ino, at * 65536, 65536) == pattern(at, 65536));
    }
    ino
}

#[test]
fn no_write_to_a_sound_file_fails_because_another_is_damaged() {
    let mount = mount();
    let file = damaged(&mount, 0);
    mount.write(file, 0, &pattern(7, BLOCKS * 4096));
    write_sound(&mount);
    assert_eq!(mount.read(file, 0, BLOCKS * 4096), pattern(7, BLOCKS * 4096), "it stays in memory (P5)");
    assert_eq!(block_on(mount.fs.fsync(file, false)).unwrap_err().errno(), 5);
}

#[test]
fn damaged_files_take_at_most_half_of_the_limit_from_sound_ones() {
    let mount = mount();
    let files: Vec<Ino> = (0..20).map(|index| damaged(&mount, index)).collect();
    files.iter().for_each(|&file| mount.write(file, 0, &pattern(7, BLOCKS * 4096)));
    write_sound(&mount);
    assert!(mount.fs.data.queue.dirty_bytes() >= 20 * BLOCKS as u64 * BLOCK, "all of it is stuck");
    let refused = mount.try_write(files[0], 0, &pattern(8, BLOCKS * 4096)).unwrap_err();
    assert_eq!(refused.errno(), 5, "no more of what can't be written back is accepted");
}

/// There is nothing left that could be written back to make room.
#[test]
fn writes_are_refused_when_more_than_the_limit_is_stuck() {
    let mount = mount();
    let files: Vec<Ino> = (0..60).map(|index| damaged(&mount, index)).collect();
    let write = |&file: &Ino| mount.try_write(file, 0, &pattern(7, BLOCKS * 4096));
    let refused: Vec<_> = files.iter().filter_map(|file| write(file).err()).collect();
    assert_eq!(refused.last().expect("there is no end").errno(), 5);
    assert!(mount.fs.data.queue.dirty_bytes() <= LIMIT * 3 / 2, "{}", mount.fs.data.queue.dirty_bytes());
    // Without them, there is room again.
    for (index, file) in files.iter().enumerate() {
        mount.unlink(&format!("damaged{index}"));
        mount.fs.forget(*file, 2);
    }
    block_on(mount.fs.wait_for_orphans());
}

/// A file that lies in its inode item, too: its next failure counts and is told again.
#[test]
fn a_small_file_that_could_be_written_back_again_is_not_stuck() {
    let mount = mount();
    let ino = mount.create("small");
    mount.write(ino, 0, &pattern(0, 100));
    mount.fsync(ino);
    let mount = mount.reopen();
    let inode = block_on(mount.fs.inode(ino)).unwrap();
    let write_back = || block_on(crate::data::flush::writeback::write_back(&mount.fs, &inode));
    let key = Key::new(ino, Kind::Extent, 0);
    for round in 1..3 {
        let mut transaction = syncline_store::Transaction::new();
        transaction.put(key, vec![0; 8]);
        mount.fs.store().commit(transaction).unwrap();
        mount.write(ino, 0, &pattern(round, 100));
        write_back().unwrap_err();
        assert_eq!(mount.fs.counters().writeback_errors, round);
        let mut transaction = syncline_store::Transaction::new();
        transaction.delete(key);
        mount.fs.store().commit(transaction).unwrap();
        write_back().unwrap();
        assert!(!inode.state.lock().data.failures.is_unwritten(), "it is written");
    }
}
