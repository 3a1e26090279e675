//! The operations that meet on a few files: one that changes them, others that leave their contents
//! alone, and syncs.

use super::ledger::Ledger;
use super::setup::SearchOwn;
use super::world::World;
use super::{files, names, owner, whole};
use rand::Rng;
use rand::rngs::StdRng;
use syncline_device::block_on;
use syncline_fs::types::{Algorithm, RenameFlags};

/// Mostly the same file.
fn some_file(random: &mut StdRng) -> usize {
    usize::from(random.random_range(0..8) == 0)
}

/// Changes a file; only one operation at a time may.
pub fn change(world: &World, hand: u64, random: &mut StdRng) {
    owner::some_change(world, hand, some_file(random), &[0, 1], random);
}

/// An operation that leaves file contents alone.
pub fn other(world: &World, hand: u64, random: &mut StdRng) {
    let file = &world.owned[some_file(random)];
    match random.random_range(0..10) {
        0 => owner::look(world, hand, file),
        1 => {
            let algorithm = [None, Some(Algorithm::Lz4)][random.random_range(0..2)];
            owner::compress(world, hand, file.ino, algorithm, random.random());
        }
        2 => whole::step(world, hand, random),
        3 => names::step(world, hand, random),
        4 => files::step(world, hand, random),
        _ => whole::poke(world, hand, random),
    }
}

/// Syncs a file in one of the possible ways.
pub fn sync(world: &World, hand: u64, random: &mut StdRng) {
    let (fs, index) = (&world.mount.fs, some_file(random));
    let ino = world.owned[index].ino;
    let way = random.random_range(0..9);
    if way < 4 {
        return owner::sync(world, hand, ino, way % 2 == 0);
    }
    world.note(hand, || format!("syncs {ino} in way {way}"));
    let promise = Ledger::promise(world, &[ino], false);
    match way {
        4 => {
            world.must(block_on(fs.sync_many(&[ino], 0)));
            world.follow_up();
        }
        5 => world.must(block_on(fs.syncfs())),
        6 => {
            let made = block_on(fs.create_snapshot(&format!("of {hand} {}", world.next_write())));
            // It is a single checkpoint and is not retried.
            let met: &[i32] = if world.setup.own.device_fails() { &[5] } else { &[] };
            if world.expect(made, met).is_none() {
                return;
            }
        }
        // The name is durable, so the data written before it got the name is too; likewise the data
        // before a barrier.
        7 if !rename(world, index) => return,
        7 => world.must(block_on(fs.fsync(world.keep, false))),
        _ => {
            world.must(block_on(fs.barrier(&[ino])));
            world.must(block_on(fs.fsync(world.keep, false)));
        }
    }
    world.ledger.record(world, promise);
}

/// Renames a file to its other name; returns false if another thread is about to.
fn rename(world: &World, index: usize) -> bool {
    let flags = RenameFlags { no_replace: true, ..RenameFlags::default() };
    [("a", "b"), ("b", "a")].into_iter().any(|(from, to)| {
        let (from, to) = (format!("{index}{from}"), format!("{index}{to}"));
        let fs = &world.mount.fs;
        let renamed = fs.rename(world.keep, from.as_bytes(), world.keep, to.as_bytes(), flags);
        world.expect(block_on(renamed), &[2, 17]).is_some()
    })
}
