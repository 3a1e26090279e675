//! Operations on the whole filesystem, and operations of others on files that have an owner.

use super::directories;
use super::files::attributes;
use super::judge::{read, values_of};
use super::ledger::Ledger;
use super::records::RECORD_BYTES;
use super::world::{CALLER, World};
use rand::Rng;
use rand::rngs::StdRng;
use syncline_device::block_on;
use syncline_fs::types::{Ino, RenameFlags, SetAttributes, SetTime};
use syncline_fs::{Allocation, QuotaLimits};

/// One random operation on everything.
pub fn step(world: &World, thread: u64, random: &mut StdRng) {
    let fs = &world.mount.fs;
    let all: Vec<Ino> = world.owned.iter().map(|file| file.ino).collect();
    match random.random_range(0..10) {
        0 | 1 => {
            world.note(thread, || "syncs everything".into());
            let promise = Ledger::promise(world, &all, false);
            world.must(block_on(fs.syncfs()));
            world.ledger.record(world, promise);
        }
        2 => {
            let name = format!("snapshot{}", random.random_range(0..3));
            world.note(thread, || format!("makes {name}"));
            let promise = Ledger::promise(world, &all, false);
            if world.expect(block_on(fs.create_snapshot(&name)), &[17]).is_some() {
                world.ledger.record(world, promise);
            }
        }
        3 => {
            let name = format!("snapshot{}", random.random_range(0..3));
            world.note(thread, || format!("deletes {name}"));
            world.expect(block_on(fs.delete_snapshot(&name)), &[2, 16]);
        }
        4 => {
            world.note(thread, || "tells of snapshots and room".into());
            world.must(block_on(fs.snapshots()));
            let statfs = fs.statfs();
            assert!(statfs.free <= statfs.blocks && statfs.available <= statfs.free);
        }
        5 | 6 if world.setup.quotas => quotas(world, thread, random),
        _ => {
            let directory = &world.directories[random.random_range(0..world.directories.len())];
            world.note(thread, || format!("lists directory {} of another", directory.ino));
            let returned = directory.history.returned();
            let found = world.judged(directories::list(fs, directory.ino));
            world.judged(directory.require_listed(returned, &found));
        }
    }
}

fn quotas(world: &World, thread: u64, random: &mut StdRng) {
    let fs = &world.mount.fs;
    let dir = world.shared[random.random_range(0..world.shared.len())];
    world.note(thread, || format!("changes the quota of {dir}"));
    match random.random_range(0..4) {
        0 => {
            world.expect(block_on(fs.remove_quota(dir)), &[2]);
        }
        1 => {
            world.expect(block_on(fs.quota(dir)), &[2]);
        }
        way => {
            let bytes = if way == 2 { 0 } else { random.random_range(100 << 10..1 << 20) };
            let limits = QuotaLimits { bytes, inodes: if random.random() { 0 } else { 12 } };
            world.expect(block_on(fs.set_quota(dir, limits)), &[16]);
        }
    }
}

/// One random operation on a file that mostly another thread owns; it leaves the contents alone.
pub fn poke(world: &World, thread: u64, random: &mut StdRng) {
    let fs = &world.mount.fs;
    let index = random.random_range(0..world.owned.len());
    let (file, ino) = (&world.owned[index], world.owned[index].ino);
    match random.random_range(0..15) {
        0..5 => {
            let first = if random.random() { 0 } else { random.random_range(0..1024) };
            let len = random.random_range(1..2048);
            world.note(thread, || format!("reads {len} records from {first} of {ino}, another's"));
            let returned = file.history.returned();
            let found = read(world, ino, first as u64 * RECORD_BYTES, len as u64 * RECORD_BYTES);
            let values = world.judged(values_of(ino, first as u64, &found));
            world.judged(file.require_read(returned, first, len, &values));
        }
        5 | 6 => {
            let data_only = random.random();
            world.note(thread, || format!("syncs {ino}, another's, data only {data_only}"));
            let promise = Ledger::promise(world, &[ino], data_only);
            world.must(block_on(fs.fsync(ino, data_only)));
            world.follow_up();
            world.ledger.record(world, promise);
        }
        7 | 8 => {
            let several: Vec<Ino> =
                world.owned.iter().map(|file| file.ino).filter(|_| random.random()).collect();
            world.note(thread, || format!("syncs {several:?}"));
            let promise = Ledger::promise(world, &several, false);
            world.must(block_on(fs.sync_many(&several, 0)));
            world.follow_up();
            world.ledger.record(world, promise);
        }
        9 | 10 => names(world, thread, index, random),
        11 => {
            world.note(thread, || format!("defragments {ino}, another's"));
            world.must(block_on(fs.defragment(ino, 0, random.random())));
        }
        12 => attributes(world, thread, ino, random),
        13 => {
            let (offset, len) = (random.random_range(0..16) * 4096, random.random_range(1..16) * 4096);
            let keep_size = true;
            let what = [Allocation::Preallocate { keep_size }, Allocation::UnshareRange { keep_size }];
            let what = what[random.random_range(0..2)];
            world.note(thread, || format!("{what:?} {offset}+{len} of {ino}, another's"));
            world.must(block_on(fs.allocate(ino, what, offset, len, false)));
        }
        _ => {
            world.note(thread, || format!("sets times of {ino}, another's"));
            let set = SetAttributes {
                atime: Some(SetTime::Now),
                mtime: Some(SetTime::Now),
                ..SetAttributes::default()
            };
            world.must(block_on(fs.setattr(CALLER, ino, set)));
        }
    }
}

/// Renames a file back and forth, or adds a second name and removes it. The file always has a name.
fn names(world: &World, thread: u64, index: usize, random: &mut StdRng) {
    let (fs, dir) = (&world.mount.fs, world.keep);
    let name = |letter: char| format!("{index}{letter}");
    let ino = world.owned[index].ino;
    world.note(thread, || format!("renames {ino}, another's"));
    match random.random_range(0..4) {
        0 => {
            if world.expect(block_on(fs.link(ino, dir, name('c').as_bytes())), &[17]).is_some() {
                fs.forget(ino, 1);
            }
        }
        1 => {
            world.expect(block_on(fs.unlink(dir, name('c').as_bytes())), &[2]);
        }
        way => {
            let (from, to) = if way == 2 { ('a', 'b') } else { ('b', 'a') };
            let flags = RenameFlags { no_replace: true, ..RenameFlags::default() };
            let renamed = block_on(fs.rename(dir, name(from).as_bytes(), dir, name(to).as_bytes(), flags));
            world.expect(renamed, &[2, 17]);
        }
    }
}
