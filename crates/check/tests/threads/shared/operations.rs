//! What those do who meet at a few files: one who changes them, others who leave their contents alone, and syncs.

use super::ledger::Ledger;
use super::setup::SearchOwn;
use super::world::World;
use super::{files, names, owner, whole};
use rand::Rng;
use rand::rngs::StdRng;
use syncline_device::block_on;
use syncline_fs::types::{Algorithm, RenameFlags};

/// Mostly the same one.
fn some_file(random: &mut StdRng) -> usize {
    usize::from(random.random_range(0..8) == 0)
}

/// Changes a file; one at a time does.
pub fn change(world: &World, hand: u64, random: &mut StdRng) {
    owner::some_change(world, hand, some_file(random), &[0, 1], random);
}

/// What leaves the contents of files alone.
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

/// A sync of a file, in one of the ways in which there is one.
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
        4 => world.must(block_on(fs.sync_many(&[ino], 0))),
        5 => world.must(block_on(fs.syncfs())),
        6 => {
            let made = block_on(fs.create_snapshot(&format!("of {hand} {}", world.next_write())));
            // It is one checkpoint, and is not tried again.
            let met: &[i32] = if world.setup.own.device_fails() { &[5] } else { &[] };
            if world.expect(made, met).is_none() {
                return;
            }
        }
        // The name is there, so what was written before it got it is, too; and so with what a barrier came before.
        7 if !rename(world, index) => return,
        7 => world.must(block_on(fs.fsync(world.keep, false))),
        _ => {
            world.must(block_on(fs.barrier(&[ino])));
            world.must(block_on(fs.fsync(world.keep, false)));
        }
    }
    world.ledger.record(world, promise);
}

/// Gives a file its other name; false if somebody else is about to.
fn rename(world: &World, index: usize) -> bool {
    let flags = RenameFlags { no_replace: true, ..RenameFlags::default() };
    [("a", "b"), ("b", "a")].into_iter().any(|(from, to)| {
        let (from, to) = (format!("{index}{from}"), format!("{index}{to}"));
        let fs = &world.mount.fs;
        let renamed = fs.rename(world.keep, from.as_bytes(), world.keep, to.as_bytes(), flags);
        world.expect(block_on(renamed), &[2, 17]).is_some()
    })
}
