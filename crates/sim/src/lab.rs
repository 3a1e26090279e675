//! The crash laboratory itself: run, cut, look what came back, go on from there.
//!
//! A run consists of *power cycles*, and each of these of one or more *lives* of the process: a life ends by being
//! killed, which loses nothing that the device was told, or by a power cut, which loses whatever the device may lose.
//! At several positions of a cycle's log images are made and opened, also with a second power cut during recovery.

use crate::executor::Interrupted;
use crate::rest::{Pace, Rested, Watched, rest};
use crate::{
    CrashImages, Effect, Fault, FaultDevice, Latency, Piece, RecordingDevice, Script, SimDevice, Simulation,
    Stalled, ThroughDevice,
};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use syncline_device::{Device, MemoryDevice, Operation, Spawn};
use syncline_fs::Clock;
use syncline_store::Canary;

/// Limits of memory are looked at once in so many steps of a watched run.
const STEPS_BETWEEN_LOOKS: u64 = 16;

/// A future that a subject returns.
pub type Work<T> = Pin<Box<dyn Future<Output = Result<T, String>> + Send>>;

/// Where something runs: its device, its executor, and a seed of its own.
#[derive(Clone)]
pub struct World {
    /// The device.
    pub device: Arc<dyn Device>,
    /// The record of what happens to it.
    pub log: Arc<RecordingDevice>,
    /// What lies on the device, without its delays. Not to be written.
    pub image: Arc<MemoryDevice>,
    /// Where background tasks run.
    pub spawn: Arc<dyn Spawn>,
    /// Virtual time.
    pub clock: Arc<dyn Clock>,
    /// Decides about everything random in this life.
    pub seed: u64,
    /// Operations may fail.
    pub faulty: bool,
    /// A rule to break on purpose.
    pub canary: Option<Canary>,
    /// How much is to be done.
    pub load: Load,
    /// Flushes take up to a minute, and so may everything else.
    pub slow: bool,
    script: Arc<Script>,
    life: u32,
}

impl World {
    fn new(
        device: Arc<dyn Device>,
        log: &Arc<RecordingDevice>,
        image: &Arc<MemoryDevice>,
        simulation: &Simulation,
        seed: u64,
        context: &Context,
    ) -> Self {
        Self {
            device,
            log: log.clone(),
            image: image.clone(),
            spawn: simulation.spawner(),
            clock: simulation.clock(),
            seed,
            faulty: context.plan.faults,
            canary: context.plan.canary,
            load: context.plan.load,
            slow: context.plan.slow,
            script: context.script.clone(),
            life: context.life,
        }
    }

    /// A nap of so many microseconds; far longer beside a slow device.
    pub(crate) async fn nap(&self, micros: u64) {
        let stretched = Duration::from_micros(micros) * if self.slow { 500 } else { 1 };
        self.spawn.sleep(stretched).await;
    }

    /// The seeds of a task's actions that take part, of `count` that `rng` decides about.
    pub(crate) fn actions(&self, task: u32, count: u32, rng: &mut ChaCha8Rng) -> Vec<u64> {
        let all: Vec<u64> = (0..count).map(|_| rng.random()).collect();
        let takes = |index| self.script.takes(Piece::Action { life: self.life, task, index });
        (0..).zip(all).filter_map(|(index, seed)| takes(index).then_some(seed)).collect()
    }
}

/// What is put through power cuts: an engine and the model of what it promises.
pub trait Subject: Send + Sync + 'static {
    /// What was done so far, with the positions at which promises were given.
    type Model: Send + Sync + 'static;
    /// An open engine.
    type Handle: Send + 'static;

    /// A fresh image and the model of its contents.
    fn base(&self) -> (Arc<MemoryDevice>, Arc<Self::Model>);
    /// Opens what a crash after `position` events left, compares it with what `model` allows, and returns a model of
    /// what came back.
    fn open(&self, world: World, model: Arc<Self::Model>, position: usize) -> Work<Opened<Self>>;
    /// What can be seen of it from outside.
    fn watch(&self, world: &World, handle: &Self::Handle, model: &Arc<Self::Model>) -> Arc<dyn Watched>;
    /// Does things, and notes them in the model.
    fn work(&self, world: World, handle: Self::Handle, model: Arc<Self::Model>) -> Work<()>;
}

/// What came back.
pub struct Opened<S: Subject + ?Sized> {
    /// The engine.
    pub handle: S::Handle,
    /// A model that starts with what came back.
    pub model: Arc<S::Model>,
    /// Position in the device log at which recovery had ended: from here on only this model counts.
    pub recovered_at: usize,
}

/// How thorough a run is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Plan {
    /// Power cycles, each going on from an image that the one before left.
    pub cycles: u32,
    /// Lives in a cycle, at most.
    pub lives: u32,
    /// Images made of each cycle.
    pub images: u32,
    /// Power cuts during the recovery of each image.
    pub recovery_cuts: u32,
    /// Let operations of the device fail.
    pub faults: bool,
    /// A rule to break on purpose.
    pub canary: Option<Canary>,
    /// What the lives are filled with.
    pub load: Load,
    /// Slow devices, tasks that run late, and an hour of rest after each life. All the while somebody looks whether every block has
    /// its owner and memory its limits.
    pub slow: bool,
    /// Whether devices flush behind writes; every second one does if that is not said.
    pub through: Option<bool>,
}

/// How much a life does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Load {
    /// Tasks at a time.
    pub tasks: u32,
    /// Actions of each task: at least, and fewer than.
    pub actions: (u32, u32),
    /// Small caches and limits, an image that is often full, and operations of the device that often take very long.
    pub pressure: bool,
}

impl Default for Plan {
    fn default() -> Self {
        let load = Load { tasks: 4, actions: (5, 60), pressure: false };
        Self {
            cycles: 2,
            lives: 2,
            images: 6,
            recovery_cuts: 1,
            faults: false,
            canary: None,
            load,
            slow: false,
            through: None,
        }
    }
}

impl Plan {
    /// A long run: some hundred thousand actions. A life is not longer because the model keeps all that it wrote.
    pub fn long() -> Self {
        let load = Load { tasks: 16, actions: (60, 260), pressure: true };
        Self { cycles: 60, lives: 3, images: 4, load, ..Self::default() }
    }
}

/// A plan at work: which life it is in, and what of it takes part.
struct Context {
    plan: Plan,
    script: Arc<Script>,
    life: u32,
}

/// What a run looked at.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Explored {
    /// Images opened and compared.
    pub images: u64,
    /// Device events recorded.
    pub events: u64,
    /// Actions of the workload.
    pub actions: u64,
    /// Checksum over all logs: equal for equal runs.
    pub digest: u32,
    /// What was seen of those that are watched.
    pub rested: Rested,
}

impl Explored {
    /// Adds another run's figures.
    pub fn add(&mut self, other: Self) {
        self.images += other.images;
        self.events += other.events;
        self.actions += other.actions;
        self.digest = self.digest.rotate_left(5) ^ other.digest;
        self.rested.add(other.rested);
    }
}

/// One life of the process, as far as checking needs it.
struct Life<M> {
    /// Position in the log from which on its model counts.
    from: usize,
    model: Arc<M>,
}

/// Runs one seed; what was wrong, if something was.
pub fn run_seed<S: Subject>(subject: &S, seed: u64, plan: Plan) -> Result<Explored, String> {
    run_script(subject, seed, plan, &Script::whole())
}

/// The same with those pieces only that `script` says.
pub fn run_script<S: Subject>(
    subject: &S,
    seed: u64,
    plan: Plan,
    script: &Arc<Script>,
) -> Result<Explored, String> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let (mut image, mut model) = subject.base();
    let mut explored = Explored::default();
    for cycle in 0..plan.cycles {
        let base = image.snapshot();
        let context = Context { plan, script: script.clone(), life: cycle * plan.lives };
        let (log, lives, rested) = run_cycle(subject, &mut rng, &context, image, model)
            .map_err(|what| format!("cycle {cycle}: {what}"))?;
        let events = log.position() as u64;
        explored.add(Explored { events, digest: log.digest(), rested, ..Explored::default() });
        let mut images = CrashImages::new(&base, log.events(), rng.random());
        let mut positions: Vec<usize> =
            (0..plan.images.max(1)).map(|_| rng.random_range(0..=log.position())).collect();
        positions.sort_unstable();
        let next = rng.random_range(0..positions.len());
        let mut go_on = None;
        for (index, position) in positions.into_iter().enumerate() {
            tracing::info!("looking at a power cut after event {position}");
            let found = images.at(position, rng.random());
            let life = lives.iter().rev().find(|life| life.from <= position).expect("the first is from 0");
            let start = check_image(subject, &mut rng, &context, &found, life, position, &mut explored)
                .map_err(|what| {
                    format!("cycle {cycle}, cut after event {position} of {}: {what}", log.position())
                })?;
            if index == next {
                go_on = Some((found, start));
            }
        }
        (image, model) = go_on.expect("one of the positions was chosen");
    }
    explored.actions =
        script.taken().iter().filter(|piece| matches!(piece, Piece::Action { .. })).count() as u64;
    Ok(explored)
}

type Log = Arc<RecordingDevice>;
/// What was recorded, the lives that the process had meanwhile, and what was seen of them.
type Recorded<M> = (Log, Vec<Life<M>>, Rested);

/// Lets the process live and be killed on one device, without a power cut.
fn run_cycle<S: Subject>(
    subject: &S,
    rng: &mut ChaCha8Rng,
    cycle: &Context,
    memory: Arc<MemoryDevice>,
    model: Arc<S::Model>,
) -> Result<Recorded<S::Model>, String> {
    let log = RecordingDevice::new(memory.clone());
    let mut lives = vec![Life { from: 0, model }];
    let plan = cycle.plan;
    let mut rested = Rested::default();
    for life in 0..rng.random_range(1..=plan.lives.max(1)) {
        let context = Context { plan, script: cycle.script.clone(), life: cycle.life + life };
        let simulation = Simulation::new(rng.random());
        let pace = if plan.slow { Pace::slow(rng, plan.faults) } else { Pace::usual(plan.load.pressure) };
        let (device, faults) = stack(&simulation, &log, &memory, rng.random(), plan, &pace);
        let world = World::new(device, &log, &memory, &simulation, rng.random(), &context);
        let before = lives.last().expect("there is one").model.clone();
        let early = faults.is_some() && rng.random_range(0..4) == 0;
        if early {
            break_something(&faults, rng, &context);
        }
        tracing::info!("a life begins at event {}", log.position());
        let opening = subject.open(world.clone(), before, log.position());
        match drive(&simulation, opening) {
            Ok(opened) => {
                if !early {
                    break_something(&faults, rng, &context);
                }
                lives.push(Life { from: opened.recovered_at, model: opened.model.clone() });
                let watched = plan.slow.then(|| subject.watch(&world, &opened.handle, &opened.model));
                let work = subject.work(world, opened.handle, opened.model);
                match watched {
                    None => drive(&simulation, work)?,
                    Some(watched) => {
                        simulation.let_tasks_run_late(pace.late);
                        drive_watched(&simulation, work, &*watched, &mut rested)?;
                        simulation.let_tasks_run_late(false);
                        faults.iter().for_each(|faults| faults.mend());
                        rested.add(rest(&simulation, &*watched, &log)?);
                    }
                }
                simulation.run_steps(rng.random_range(0..60));
            }
            // A recovery that meets errors may give up; what it leaves is looked at like everything else.
            Err(_) if pace.latency.stalls_fail => {}
            Err(_) if faults.is_some_and(|faults| faults.injected() > 0) => {}
            Err(what) => return Err(what),
        }
        simulation.kill();
    }
    Ok((log, lives, rested))
}

/// The devices of one life, from the engine's side down to `memory`.
///
/// Without faults the record is on top, so that it tells what was on its way at a power cut. With faults it lies below
/// them: it shall tell what really happened.
fn stack(
    simulation: &Simulation,
    log: &Log,
    memory: &Arc<MemoryDevice>,
    seed: u64,
    plan: Plan,
    pace: &Pace,
) -> (Arc<dyn Device>, Option<Arc<FaultDevice>>) {
    let latency = pace.latency;
    let (device, faults): (Arc<dyn Device>, _) = if plan.faults {
        let faults = FaultDevice::seeded(log.continued(memory.clone()), seed);
        (SimDevice::new(simulation, faults.clone(), latency), Some(faults))
    } else {
        (log.continued(SimDevice::new(simulation, memory.clone(), latency)), None)
    };
    if plan.through.unwrap_or(seed.is_multiple_of(2)) {
        (ThroughDevice::new(device), faults)
    } else {
        (device, faults)
    }
}

/// Adds a few rules.
fn break_something(faults: &Option<Arc<FaultDevice>>, rng: &mut ChaCha8Rng, context: &Context) {
    let Some(faults) = faults else { return };
    for index in 0..rng.random_range(1..4) {
        let (operation, other) = match rng.random_range(0..20) {
            0..10 => (Operation::Write, Effect::Partial),
            10..16 => (Operation::Flush, Effect::Partial),
            16..18 => (Operation::Read, Effect::FlippedBit),
            18 => (Operation::Read, Effect::Zeros),
            _ => (Operation::Read, Effect::Elsewhere),
        };
        let effect = if rng.random() { Effect::Error } else { other };
        let times = match rng.random_range(0..8) {
            // The same wrong bytes time and again are what the device holds, as far as anyone can tell.
            _ if matches!(effect, Effect::Zeros | Effect::Elsewhere) => 1,
            0..5 => 1,
            5..7 => rng.random_range(2..5),
            _ => u64::MAX,
        };
        let fault = Fault { effect, after: rng.random_range(0..50), ..Fault::next(operation, times) };
        if context.script.takes(Piece::Fault { life: context.life, index }) {
            faults.add(fault);
        }
    }
}

/// Opens an image, with power cuts on the way; a model of what came back.
fn check_image<S: Subject>(
    subject: &S,
    rng: &mut ChaCha8Rng,
    context: &Context,
    image: &Arc<MemoryDevice>,
    life: &Life<S::Model>,
    position: usize,
    explored: &mut Explored,
) -> Result<Arc<S::Model>, String> {
    let (log, came_back) = open_once(subject, rng, context, image, life, position)?;
    explored.images += 1;
    let mut images = CrashImages::new(image, log.events(), rng.random());
    let mut cuts: Vec<usize> =
        (0..context.plan.recovery_cuts).map(|_| rng.random_range(0..=log.position())).collect();
    cuts.sort_unstable();
    for cut in cuts {
        let again = images.at(cut, rng.random());
        // What came back the first time was not promised to anybody, but the log that tells it must not be disturbed.
        let same = Life { from: 0, model: came_back.clone() };
        open_once(subject, rng, context, &again, &same, 0)
            .map_err(|what| format!("recovery cut after event {cut} of {}: {what}", log.position()))?;
        explored.images += 1;
    }
    Ok(came_back)
}

/// Opens a copy of an image; the log of what recovery did, and what came back.
fn open_once<S: Subject>(
    subject: &S,
    rng: &mut ChaCha8Rng,
    context: &Context,
    image: &Arc<MemoryDevice>,
    life: &Life<S::Model>,
    position: usize,
) -> Result<(Log, Arc<S::Model>), String> {
    let simulation = Simulation::new(rng.random());
    let image = image.snapshot();
    let device = RecordingDevice::new(SimDevice::new(&simulation, image.clone(), Latency::default()));
    let plan = Plan { faults: false, ..context.plan };
    let sound = Context { plan, script: context.script.clone(), life: context.life };
    let world = World::new(device.clone(), &device, &image, &simulation, rng.random(), &sound);
    let opened = drive(&simulation, subject.open(world, life.model.clone(), position))?;
    Ok((device, opened.model))
}

/// The same; looks at every moment of rest, and now and then in between.
fn drive_watched<T: Send + 'static>(
    simulation: &Simulation,
    work: Work<T>,
    watched: &dyn Watched,
    rested: &mut Rested,
) -> Result<T, String> {
    let mut steps = 0_u64;
    let started_ns = simulation.now_ns();
    let mut look = |simulation: &Simulation| {
        steps += 1;
        if simulation.is_at_rest() {
            rested.look(watched)?;
        } else if steps.is_multiple_of(STEPS_BETWEEN_LOOKS) {
            watched.limits()?;
        }
        Ok(())
    };
    let outcome = simulation.run_watched(work, &mut look);
    rested.virtual_ns += simulation.now_ns() - started_ns;
    match outcome {
        Ok(result) => result,
        Err(Interrupted::Wrong(what)) => Err(what),
        Err(Interrupted::Stalled(stalled)) => Err(told(stalled)),
    }
}

fn drive<T: Send + 'static>(simulation: &Simulation, work: Work<T>) -> Result<T, String> {
    simulation.run(work).map_err(told)?
}

fn told(stalled: Stalled) -> String {
    match stalled {
        Stalled::Stuck => "stalled: everybody waits for something".to_owned(),
        Stalled::Busy => "stalled: somebody tries the same for ever".to_owned(),
    }
}
