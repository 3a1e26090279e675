//! One life: a few hands that work on a few files, and then the judges.

use crate::own::few_hands;
use crate::shared::mount::require_clean;
use crate::shared::setup::Setup;
use crate::shared::world::World;
use crate::shared::{crash, directories, operations};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use std::sync::Arc;
use syncline_device::Spawn;
use syncline_schedules::{Control, Spawner, Time};
use syncline_sync::block_on;

/// Power cuts at moments of promises.
const CUTS: usize = 1;

/// From this many steps of each hand on, every image is checked at the end; the check then takes a
/// small part of the time.
const LONG_STEPS: u64 = 10;

/// Runs one life as the seed decides, after changing the setup with `changed`.
pub fn live(control: &Arc<Control>, changed: impl FnOnce(Setup) -> Setup) {
    let time = Time::start();
    let spawn: Arc<dyn Spawn> = Arc::new(Spawner(time.clone()));
    let mut random = StdRng::seed_from_u64(control.seed());
    let setup = changed(few_hands(control.seed(), &mut random));
    let world = Arc::new(World::new(setup, spawn));
    for _ in 0..random.random_range(0..4) {
        step(&world, 0, &mut random);
    }
    control.quiet(false);
    let hands: Vec<_> = (0..setup.own.hands)
        .map(|hand| {
            let (world, mut random) = (world.clone(), StdRng::seed_from_u64(random.random()));
            shuttle::thread::spawn(move || {
                for _ in 0..world.setup.steps {
                    step(&world, hand, &mut random);
                }
                // In most lives a final sync promises the operations before it.
                if random.random_range(0..3) > 0 {
                    operations::sync(&world, hand, &mut random);
                }
            })
        })
        .collect();
    for hand in hands {
        hand.join().expect("a panic ends the life");
    }
    control.quiet(true);
    judge(control, &world, &mut random);
    block_on(time.settle());
    control.mix(u64::from(world.mount.recording.digest()));
}

/// One random operation: the first hand changes files; the others read, share, rename and sync
/// them.
fn step(world: &World, hand: u64, random: &mut StdRng) {
    match random.random_range(0..10) {
        0..5 if hand == 0 => operations::change(world, hand, random),
        5 if hand == 0 => directories::step(world, hand, random),
        6..9 => operations::other(world, hand, random),
        _ => operations::sync(world, hand, random),
    }
}

fn judge(control: &Control, world: &World, random: &mut StdRng) {
    world.mount.require_sizes_logged(&format!("seed {}", world.setup.seed));
    let end = world.mount.recording.position();
    let promises = world.ledger.positions();
    // The world was made before any promise.
    let mut cuts: Vec<(usize, bool)> =
        promises.choose_multiple(random, CUTS).map(|&position| (position, true)).collect();
    if cuts.is_empty() || random.random_range(0..4) == 0 {
        let first = promises.iter().min().copied().unwrap_or(end);
        cuts.push((random.random_range(first..=end), false));
    }
    let images = crash::judge_cuts(world, cuts, random);
    let (device, spawn) = world.mount.close();
    if random.random_range(0..4) == 0 || world.setup.steps >= LONG_STEPS {
        require_clean(device, &spawn, &format!("seed {}, in the end", world.setup.seed));
    }
    control.judged(images as u64, promises.len() as u64);
}
