//! The crash laboratory itself: run, cut the power, check what came back, continue from there.
//!
//! A run consists of *power cycles*, and each cycle of one or more *lives* of the process. A life
//! ends with a kill, which loses nothing that was sent to the device, or with a power cut, which
//! loses whatever the device may lose. At several positions of a cycle's log, images are made and
//! opened, also with a second power cut during recovery.

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

/// Steps of a watched run between two checks of the memory limits.
const STEPS_BETWEEN_LOOKS: u64 = 16;

/// A future that a subject returns.
pub type Work<T> = Pin<Box<dyn Future<Output = Result<T, String>> + Send>>;

/// The surroundings of one life: its device, its executor, and a seed of its own.
#[derive(Clone)]
pub struct World {
    /// The device.
    pub device: Arc<dyn Device>,
    /// The record of the device's operations.
    pub log: Arc<RecordingDevice>,
    /// The contents of the device, without its delays. Must not be written.
    pub image: Arc<MemoryDevice>,
    /// Where background tasks run.
    pub spawn: Arc<dyn Spawn>,
    /// Virtual time.
    pub clock: Arc<dyn Clock>,
    /// Decides everything random in this life.
    pub seed: u64,
    /// Device operations may fail.
    pub faulty: bool,
    /// A rule to break on purpose.
    pub canary: Option<Canary>,
    /// How much to do.
    pub load: Load,
    /// Flushes, and any other operation, may take up to a minute.
    pub slow: bool,
    script: Arc<Script>,
    life: u32,
}

impl World {
    /// The surroundings of a life on a device that is not the laboratory's own. The power of the device is
    /// cut when its end is there. `image` is what the device holds. Nothing is recorded: every promise made
    /// until the cut counts.
    pub fn elsewhere(
        device: Arc<dyn Device>,
        image: &Arc<MemoryDevice>,
        simulation: &Simulation,
        seed: u64,
        plan: Plan,
    ) -> Self {
        let log = RecordingDevice::new(image.clone());
        // Position 0 belongs to snapshots: later promises do not concern them.
        log.flush(Box::new(drop));
        let context = Context { plan, script: Script::whole(), life: 0 };
        Self::new(device, &log, image, simulation, seed, &context)
    }

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

    /// Sleeps this many microseconds; 500 times as long on a slow device.
    pub(crate) async fn nap(&self, micros: u64) {
        let stretched = Duration::from_micros(micros) * if self.slow { 500 } else { 1 };
        self.spawn.sleep(stretched).await;
    }

    /// Draws the seeds of a task's `count` actions from `rng`, and returns those of the actions
    /// that take part.
    pub(crate) fn actions(&self, task: u32, count: u32, rng: &mut ChaCha8Rng) -> Vec<u64> {
        let all: Vec<u64> = (0..count).map(|_| rng.random()).collect();
        let takes = |index| self.script.takes(Piece::Action { life: self.life, task, index });
        (0..).zip(all).filter_map(|(index, seed)| takes(index).then_some(seed)).collect()
    }
}

/// The subject of the power cuts: an engine and the model of its promises.
pub trait Subject: Send + Sync + 'static {
    /// The history so far, with the positions at which promises were given.
    type Model: Send + Sync + 'static;
    /// An open engine.
    type Handle: Send + 'static;

    /// A fresh image and the model of its contents.
    fn base(&self) -> (Arc<MemoryDevice>, Arc<Self::Model>);
    /// Opens the image that a crash after `position` events left, compares it with what `model`
    /// allows, and returns a model of the state that came back.
    fn open(&self, world: World, model: Arc<Self::Model>, position: usize) -> Work<Opened<Self>>;
    /// The engine as an outside observer can watch it.
    fn watch(&self, world: &World, handle: &Self::Handle, model: &Arc<Self::Model>) -> Arc<dyn Watched>;
    /// Runs the workload and records it in the model.
    fn work(&self, world: World, handle: Self::Handle, model: Arc<Self::Model>) -> Work<()>;
}

/// The result of a recovery.
pub struct Opened<S: Subject + ?Sized> {
    /// The engine.
    pub handle: S::Handle,
    /// A model that starts with the recovered state.
    pub model: Arc<S::Model>,
    /// Position in the device log at which recovery ended; from here on only this model counts.
    pub recovered_at: usize,
}

/// How thorough a run is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Plan {
    /// Power cycles; each continues from an image that the previous one left.
    pub cycles: u32,
    /// Most lives in a cycle.
    pub lives: u32,
    /// Images made of each cycle.
    pub images: u32,
    /// Power cuts during the recovery of each image.
    pub recovery_cuts: u32,
    /// Let operations of the device fail.
    pub faults: bool,
    /// A rule to break on purpose.
    pub canary: Option<Canary>,
    /// How much each life does.
    pub load: Load,
    /// Slow devices, tasks that run late, and an hour of rest after each life. All the while every
    /// block's owner and the memory limits are checked.
    pub slow: bool,
    /// Whether devices offer write-through; `None`: every second one does.
    pub through: Option<bool>,
}

/// The amount of work in a life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Load {
    /// Tasks that run at the same time.
    pub tasks: u32,
    /// Actions of each task: at least the first number, fewer than the second.
    pub actions: (u32, u32),
    /// Small caches and limits, an image that is often full, and device operations that often take
    /// very long.
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
    /// A long run: some hundred thousand actions. Lives are no longer than usual because the model
    /// keeps everything that a life wrote.
    pub fn long() -> Self {
        let load = Load { tasks: 16, actions: (60, 260), pressure: true };
        Self { cycles: 60, lives: 3, images: 4, load, ..Self::default() }
    }
}

/// A plan in progress: the current life, and the pieces that take part.
struct Context {
    plan: Plan,
    script: Arc<Script>,
    life: u32,
}

/// Statistics of a run.
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
    /// Statistics of the watched lives.
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

/// One life of the process, as needed for checking.
struct Life<M> {
    /// Position in the log from which on its model counts.
    from: usize,
    model: Arc<M>,
}

/// Runs one seed; an error is a violation.
pub fn run_seed<S: Subject>(subject: &S, seed: u64, plan: Plan) -> Result<Explored, String> {
    run_script(subject, seed, plan, &Script::whole())
}

/// Like `run_seed`, with only the pieces in `script`.
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
/// The record, the lives of the process during it, and the statistics of watching them.
type Recorded<M> = (Log, Vec<Life<M>>, Rested);

/// Runs lives on one device, each ended by a kill, without a power cut.
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
        simulation.set_clock_often();
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
            // Recovery may give up on errors. The image it leaves is checked like any other.
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
/// Without faults the recorder is on top, so that the record has the operations in flight at a
/// power cut. With faults it is below them, so that the record has what really happened.
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

/// Adds a few faults.
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
            // If the same wrong bytes came back every time, they would count as the device's
            // contents.
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

/// Opens an image, with power cuts during recovery; returns a model of the recovered state.
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
        // The recovered state was not promised to anyone, but recovery must not disturb the log
        // that leads to it.
        let same = Life { from: 0, model: came_back.clone() };
        open_once(subject, rng, context, &again, &same, 0)
            .map_err(|what| format!("recovery cut after event {cut} of {}: {what}", log.position()))?;
        explored.images += 1;
    }
    Ok(came_back)
}

/// Opens a copy of an image that the end of a life left, with a sound device; returns a model of the
/// recovered state.
pub fn recover<S: Subject>(
    subject: &S,
    seed: u64,
    image: &Arc<MemoryDevice>,
    model: &Arc<S::Model>,
) -> Result<Arc<S::Model>, String> {
    let context = Context { plan: Plan::default(), script: Script::whole(), life: 0 };
    let life = Life { from: 0, model: model.clone() };
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    open_once(subject, &mut rng, &context, image, &life, usize::MAX).map(|(_, model)| model)
}

/// Opens a copy of an image; returns the record of the recovery and the recovered model.
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

/// Like `drive`, but checks every moment of rest, and the limits now and then in between.
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
