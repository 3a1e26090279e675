//! Operations that meet on one file: one is stopped between two of its steps, another is begun and
//! perhaps stopped as well, and then comes a sync, which promises everything that had returned
//! before it. If it returns although others are stopped, the power fails.
//!
//! The search with threads meets each of these moments by luck, and then cuts the power there by
//! luck again.

use crate::threads::own;
use crate::threads::shared::crash;
use crate::threads::shared::mount::require_clean;
use crate::threads::shared::operations::{change, other, sync};
use crate::threads::shared::setup::Setup;
use crate::threads::shared::world::{HANDS, World};
use crate::threads::stops::{Progress, Stop};
use rand::rngs::StdRng;
use rand::seq::{IndexedRandom, SliceRandom};
use rand::{Rng, SeedableRng};
use std::fmt;
use std::ops::AddAssign;
use std::sync::Arc;
use std::thread::Scope;
use std::time::Duration;
use syncline_device::Spawn;
use syncline_store::Canary;

/// A bound on the number of turns; in each, an operation begins or a stopped one is let go.
const TURNS: usize = HANDS as usize;
/// An operation is stopped at one of this many places, if it gets that far; early places are more
/// likely.
const PLACES: u32 = 12;
/// How long an operation may take before it counts as waiting for stopped ones.
const PATIENCE: Duration = Duration::from_micros(700);

/// Statistics of meetings.
#[derive(Clone, Copy, Default, Debug)]
pub struct Figures {
    pub meetings: u64,
    /// Operations that were stopped.
    pub stopped: u64,
    /// Operations that had to wait for a stopped one.
    pub waited: u64,
    /// Syncs that returned while another operation was stopped.
    pub promised: u64,
    /// Power cuts.
    pub images: u64,
}

impl AddAssign for Figures {
    fn add_assign(&mut self, more: Self) {
        self.meetings += more.meetings;
        self.stopped += more.stopped;
        self.waited += more.waited;
        self.promised += more.promised;
        self.images += more.images;
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { meetings, stopped, waited, promised, images } = self;
        write!(
            f,
            "{meetings} meetings, {stopped} operations stopped, {waited} waited, {promised} syncs returned meanwhile, {images} power cuts"
        )
    }
}

/// Runs one meeting as the seed decides, with `canary` broken.
pub fn meet(seed: u64, spawn: &Arc<dyn Spawn>, canary: Option<Canary>) -> Figures {
    let mut random = StdRng::seed_from_u64(seed);
    let setup = Setup { canary, ..own::stopped(seed, &mut random) };
    let world = World::new(setup, spawn.clone());
    let begun = world.mount.recording.position();
    for _ in 0..random.random_range(0..4) {
        match random.random_range(0..8) {
            0..5 => change(&world, 0, &mut random),
            5 => sync(&world, 0, &mut random),
            _ => other(&world, 0, &mut random),
        }
    }
    let mut figures = Figures { meetings: 1, ..Figures::default() };
    std::thread::scope(|scope| {
        let mut table = Table::laid(&world, &mut random);
        for turn in (0..random.random_range(2..TURNS)).rev() {
            let last = turn == 0;
            if last || random.random_range(0..3) > 0 || !table.goes_on(&mut random) {
                table.join(scope, last, &mut random, &mut figures);
            }
        }
        table.leave(&mut random);
    });
    world.mount.require_sizes_logged(&format!("seed {seed}"));
    figures.images = crash::judge_promises(&world, begun, &mut random) as u64;
    let (device, spawn) = world.mount.close();
    if random.random_range(0..4) == 0 {
        require_clean(device, &spawn, &format!("seed {seed}, in the end"));
    }
    figures
}

/// The participants of a meeting.
struct Table<'a> {
    world: &'a World,
    hands: Vec<Arc<Stop>>,
    /// The operation that changes files; at most one at a time.
    changing: Option<Arc<Stop>>,
    /// Background work.
    background: Arc<Stop>,
}

impl<'a> Table<'a> {
    fn laid(world: &'a World, random: &mut StdRng) -> Self {
        let background = Stop::after((random.random_range(0..3) > 0).then(|| some_place(random)));
        world.mount.kept.stop(background.clone());
        Self { world, hands: Vec::new(), changing: None, background }
    }

    fn stopped(&self) -> Vec<&Arc<Stop>> {
        self.hands.iter().chain([&self.background]).filter(|stop| stop.is_stopped()).collect()
    }

    /// Lets one of the stopped operations continue, perhaps to be stopped again. Returns false if
    /// there are none.
    fn goes_on(&self, random: &mut StdRng) -> bool {
        let stopped = self.stopped();
        let Some(stop) = stopped.choose(random) else { return false };
        stop.let_go(random.random::<bool>().then(|| some_place(random)));
        stop.progress(PATIENCE);
        true
    }

    /// Begins an operation; the last one is a sync, and is not stopped.
    fn join<'scope>(
        &mut self,
        scope: &'scope Scope<'scope, 'a>,
        last: bool,
        random: &mut StdRng,
        figures: &mut Figures,
    ) {
        let others_are_stopped = !self.stopped().is_empty();
        let may_change = self.changing.as_ref().is_none_or(|stop| stop.has_ended());
        let changes = !last && may_change && random.random();
        let stop = Stop::after((!last && random.random_range(0..3) > 0).then(|| some_place(random)));
        let (world, hand, own) = (self.world, self.hands.len() as u64, stop.clone());
        let mut chance = StdRng::seed_from_u64(random.random());
        scope.spawn(move || {
            own.during(|| match chance.random_range(0..3) {
                _ if changes => change(world, hand, &mut chance),
                0 if !last => other(world, hand, &mut chance),
                _ => sync(world, hand, &mut chance),
            });
        });
        let progress = stop.progress(PATIENCE);
        world.note(hand, || progress.to_string());
        match progress {
            Progress::Stopped(_) => figures.stopped += 1,
            Progress::Waits => figures.waited += 1,
            Progress::Ended => figures.promised += u64::from(last && others_are_stopped),
        }
        if changes {
            self.changing = Some(stop.clone());
        }
        self.hands.push(stop);
        if world.setup.eager && !last {
            // Background work may have been woken.
            let progress = self.background.progress(PATIENCE / 4);
            world.note(hand, || format!("in the background: {progress}"));
        }
    }

    /// Lets all operations continue, in any order, and waits for their ends.
    fn leave(mut self, random: &mut StdRng) {
        let about = format!("{:?}", self.world.setup);
        let hands = self.hands.clone();
        self.hands.push(self.background);
        self.hands.shuffle(random);
        for stop in self.hands {
            stop.let_go(None);
            // Operations that waited for it end now, perhaps before others are let go.
            std::thread::sleep(PATIENCE / 4);
        }
        hands.iter().for_each(|stop| stop.wait(&about));
    }
}

fn some_place(random: &mut StdRng) -> u32 {
    random.random_range(0..PLACES).min(random.random_range(0..PLACES))
}
