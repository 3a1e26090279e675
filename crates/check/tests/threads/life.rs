//! One life: threads that use one filesystem, and then the judges.

use crate::threads::own::{Spread, many_threads};
use crate::threads::shared::setup::Setup;
use crate::threads::shared::watchdog::Guard;
use crate::threads::shared::world::World;
use crate::threads::shared::{crash, directories, end, files, names, owner, whole};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::fmt;

/// Steps of each thread in a life.
pub const STEPS: u64 = 200;

/// Figures of a life.
pub struct Figures {
    pub setup: Setup,
    pub events: usize,
    pub acknowledged: usize,
    pub images: usize,
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { setup, events, acknowledged, images } = self;
        write!(
            f,
            "{events} device events, {acknowledged} syncs with a promise, {images} power cuts, {setup:?}"
        )
    }
}

/// Runs one life as the seed decides, after changing the setup with `changed`.
pub fn live(seed: u64, changed: impl FnOnce(Setup) -> Setup) -> Figures {
    let mut random = StdRng::seed_from_u64(seed);
    let setup = changed(many_threads(seed, STEPS, &mut random));
    println!("seed {seed}: {setup:?}");
    let world = World::new(setup, Spread::start());
    let begun = world.mount.recording.position();
    std::thread::scope(|scope| {
        let watch = scope.spawn(|| world.watchdog.watch(&format!("{setup:?}")));
        let threads = (0..setup.threads).map(|thread| {
            let (world, random) = (&world, StdRng::seed_from_u64(random.random()));
            scope.spawn(move || run(world, thread, random))
        });
        let threads: Vec<_> = threads.collect();
        let ended: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
        world.watchdog.end();
        let _ = watch.join();
        ended.into_iter().for_each(|ended| ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
    });
    let acknowledged = world.ledger.positions().len();
    let images = crash::judge(&world, begun, &mut random);
    let events = world.mount.recording.position();
    end::judge(world);
    Figures { setup, events, acknowledged, images }
}

fn run(world: &World, thread: u64, mut random: StdRng) {
    let _guard = Guard { watchdog: &world.watchdog, thread };
    for _ in 0..world.setup.steps {
        if world.watchdog.has_failed() {
            return;
        }
        match random.random_range(0..20) {
            0..6 => owner::step(world, thread, &mut random),
            6..8 => directories::step(world, thread, &mut random),
            8..13 => files::step(world, thread, &mut random),
            13..17 => names::step(world, thread, &mut random),
            17..19 => whole::poke(world, thread, &mut random),
            _ => whole::step(world, thread, &mut random),
        }
    }
}
