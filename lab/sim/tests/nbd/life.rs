//! Lives of a filesystem on one server, each ended by the death of its host, in every second case
//! together with the server.

use crate::nbd::nemesis::{May, Nemesis, Outcome};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::sync::Arc;
use std::time::Duration;
use syncline_device::{Device, MemoryDevice};
use syncline_nbdlab as server;
use syncline_nbdlab::{Lab, Spec};
use syncline_net::nbd::lab::Canary;
use syncline_net::{NbdDevice, NbdOptions, Wait};
use syncline_sim::lab::{self, Subject, World, recover};
use syncline_sim::{AwaitedDevice, Latency, Simulation};

/// No answer takes this long.
const LIMIT: Duration = Duration::from_secs(60);

/// How thorough a run is.
#[derive(Clone, Copy)]
pub struct Plan {
    /// Hosts that die, at most.
    pub lives: u32,
    /// Power cuts of host and server that are looked at after each life.
    pub images: u32,
    /// Requests may fail.
    pub faults: bool,
    /// A rule of the client to break on purpose.
    pub canary: Option<Canary>,
}

impl Default for Plan {
    fn default() -> Self {
        Self { lives: 4, images: 3, faults: false, canary: None }
    }
}

/// Counts of the events in runs.
#[derive(Clone, Copy, Default)]
pub struct Seen {
    pub lives: u64,
    /// Hosts that died in the middle of something.
    pub cuts: u64,
    pub strikes: u64,
    pub restarts: u64,
    pub reconnects: u64,
    pub replayed: u64,
    pub requests: u64,
    pub images: u64,
}

impl Seen {
    pub fn add(&mut self, other: Self) {
        self.lives += other.lives;
        self.cuts += other.cuts;
        self.strikes += other.strikes;
        self.restarts += other.restarts;
        self.reconnects += other.reconnects;
        self.replayed += other.replayed;
        self.requests += other.requests;
        self.images += other.images;
    }
}

/// The models of which one must allow the state that the next life finds.
type Allowed<S> = Vec<Arc<<S as Subject>::Model>>;

/// The model that allows an image, and a model of the state recovered from it.
type FoundBy<S> = (Arc<<S as Subject>::Model>, Arc<<S as Subject>::Model>);

/// Runs one seed; an error is a violation.
pub fn run_seed<S: Subject>(subject: &S, seed: u64, plan: Plan) -> Result<Seen, String> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let (base, model) = subject.base();
    let size = base.size_bytes() as usize;
    let lab = Lab::new(rng.random(), spec(size as u64, &mut rng));
    lab.store(|store| store.load(&base.image()));
    let mut seen = Seen::default();
    let mut models = vec![model];
    for life in 0..rng.random_range(1..=plan.lives) {
        models = live(subject, &lab, &mut rng, plan, models, size, &mut seen)
            .map_err(|what| format!("life {life}: {what}"))?;
        seen.lives += 1;
        judge_cuts(subject, &lab, &mut rng, plan, &models, size, &mut seen)
            .map_err(|what| format!("after life {life}, host and server without power: {what}"))?;
        if rng.random() {
            lab.crash();
        }
    }
    let image = image(&lab, size);
    find(subject, &image, &models, &mut rng).map_err(|what| format!("in the end: {what}"))?;
    seen.requests = lab.inner.log.lock().unwrap_or_else(|log| log.into_inner()).len() as u64;
    seen.images += 1;
    Ok(seen)
}

fn spec(size: u64, rng: &mut ChaCha8Rng) -> Spec {
    let mut flags = server::FLUSH;
    for (flag, chance) in [
        (server::FUA, 0.7),
        (server::TRIM, 0.5),
        (server::MULTI_CONN, 0.7),
        (server::WRITE_ZEROES, 0.5),
        (server::FAST_ZERO, 0.5),
    ] {
        flags |= if rng.random_bool(chance) { flag } else { 0 };
    }
    let blocks = [None, Some((512, 4096, 16 << 10)), Some((1, 4096, 1 << 20))][rng.random_range(0..3)];
    Spec { size, flags, blocks, structured: rng.random() }
}

/// The image that a client finds on the server now.
fn image(lab: &Lab, size: usize) -> Arc<MemoryDevice> {
    MemoryDevice::from_image(&lab.store(|store| store.contents(size)))
}

/// Opens a copy of an image with each of the models.
fn find<S: Subject>(
    subject: &S,
    image: &Arc<MemoryDevice>,
    models: &[Arc<S::Model>],
    rng: &mut ChaCha8Rng,
) -> Result<FoundBy<S>, String> {
    let seed = rng.random();
    let mut wrong = String::new();
    for model in models {
        match recover(subject, seed, image, model) {
            Ok(came_back) => return Ok((model.clone(), came_back)),
            Err(what) => wrong = if wrong.is_empty() { what } else { format!("{wrong}; or {what}") },
        }
    }
    Err(wrong)
}

/// Looks at some of the images that server and host leave if both lose power now.
fn judge_cuts<S: Subject>(
    subject: &S,
    lab: &Lab,
    rng: &mut ChaCha8Rng,
    plan: Plan,
    models: &[Arc<S::Model>],
    size: usize,
    seen: &mut Seen,
) -> Result<(), String> {
    for _ in 0..plan.images {
        let mut store = lab.store(|store| store.clone());
        store.rng = SeedableRng::seed_from_u64(rng.random());
        store.crash();
        let image = MemoryDevice::from_image(&store.contents(size));
        find(subject, &image, models, rng)?;
        seen.images += 1;
    }
    Ok(())
}

/// Lives one life. Returns models: one of them allows the image at the end of the life.
fn live<S: Subject>(
    subject: &S,
    lab: &Lab,
    rng: &mut ChaCha8Rng,
    plan: Plan,
    models: Allowed<S>,
    size: usize,
    seen: &mut Seen,
) -> Result<Allowed<S>, String> {
    let found = image(lab, size);
    let (before, came_back) = find(subject, &found, &models, rng)?;
    seen.images += 1;

    let options = NbdOptions {
        connections: rng.random_range(1..=4),
        kept_bytes: [256 << 20, 1 << 20, 256 << 10][rng.random_range(0..3)],
        canary: plan.canary,
        ..NbdOptions::default()
    };
    let mut nemesis = Nemesis::new(lab, ChaCha8Rng::seed_from_u64(rng.random()));
    let device = NbdDevice::open(&lab.location(Wait::Seconds(30)), options)
        .map_err(|error| format!("the export does not open: {error}"))?;
    let simulation = Simulation::new(rng.random());
    let awaited = AwaitedDevice::new(&simulation, device.clone(), Latency::default(), LIMIT);
    let laboratory = lab::Plan { faults: plan.faults, ..lab::Plan::default() };
    let world = World::elsewhere(awaited, &found, &simulation, rng.random(), laboratory);

    // A recovery is cut, or the server forgets something, but not both: such an image could be one
    // that neither model describes.
    let cuts_recovery = rng.random_bool(0.2);
    nemesis.until_cut = cuts_recovery.then(|| rng.random_range(0..3_000));
    let may = May { restart: !cuts_recovery && models.len() == 1, fail: false };
    let opening = subject.open(world.clone(), before.clone(), usize::MAX);
    let after = match nemesis.drive(&simulation, opening, may)? {
        Outcome::Cut => {
            seen.cuts += 1;
            vec![came_back, before]
        }
        Outcome::Ended(opened) => {
            let longest = [300, 3_000, 30_000][rng.random_range(0..3)];
            nemesis.until_cut = rng.random_bool(0.85).then(|| rng.random_range(0..longest));
            let may = May { restart: true, fail: plan.faults };
            let model = opened.model.clone();
            let work = subject.work(world, opened.handle, opened.model);
            match nemesis.drive(&simulation, work, may)? {
                Outcome::Cut => seen.cuts += 1,
                Outcome::Ended(()) => {}
            }
            vec![model]
        }
    };
    // The host is dead: the server carries out none of its further requests.
    lab.end_clients();
    drop(simulation);
    lab.faults(|faults| *faults = Default::default());
    let counters = device.counters();
    seen.reconnects += counters.reconnects;
    seen.replayed += counters.rewritten;
    (seen.strikes, seen.restarts) = (seen.strikes + nemesis.strikes, seen.restarts + nemesis.restarts);
    Ok(after)
}
