//! A search for damage done by repairs: takes an image with all kinds of content, changes one item,
//! repairs it, and compares the result with the rules:
//!
//! - Everything that a read-only mount showed before the repair, it shows after it, byte for byte:
//!   objects with their attributes, xattrs, symlink targets and contents, names, and the contents
//!   of snapshots. An error does not silently become zeros.
//! - With any damage to the space map, a read-only mount shows what it showed of the sound image.
//! - A block of a tree node that rots does not alter anything that was written: everything readable
//!   after the repair reads as in the sound image, in each file that has its names. If it is an
//!   inner node, everything is readable.
//! - Otherwise the repair refuses, or fails, and no byte of the image has changed.
//! - A check of the result agrees with what the repair said, and an image it calls mended mounts
//!   for writing.
//! - A power cut at any moment of the repair leaves an image that shows the same, and that another
//!   repair completes.
//!
//! A seed decides the change and the moments of the power cuts.

mod cuts;
mod mutation;
mod view;

pub use mutation::{case, image};
pub use view::{View, difference, lie};

use crate::image::Image;
use crate::run::run;
use std::sync::{Arc, LazyLock};
use syncline_check::{Condition, FindingKind, Flaw, Repair, RepairOptions, Report};
use syncline_device::{Background, Device, MemoryDevice, Spawn, WorkerOptions, block_on};
use syncline_sim::RecordingDevice;
use syncline_store::Canary;

/// Where the background tasks of repairs run.
static BACKGROUND: LazyLock<Arc<dyn Spawn>> =
    LazyLock::new(|| Arc::new(Background::start(WorkerOptions::default()).expect("a thread can be started")));

/// Statistics of a search.
#[derive(Clone, Copy, Default, Debug)]
pub struct Figures {
    /// Images that were changed.
    pub mutations: u64,
    /// Changed images in which a check found nothing.
    pub clean: u64,
    /// Repairs that wrote to the image.
    pub repairs: u64,
    /// Repairs that refused.
    pub refused: u64,
    /// Repairs that failed with an error, without refusing.
    pub failed: u64,
    /// Images after power cuts.
    pub cuts: u64,
}

impl Figures {
    /// Adds another search's.
    pub fn add(&mut self, other: Self) {
        self.mutations += other.mutations;
        self.clean += other.clean;
        self.repairs += other.repairs;
        self.refused += other.refused;
        self.failed += other.failed;
        self.cuts += other.cuts;
    }
}

/// A rule that is deliberately broken.
#[derive(Clone, Copy, Debug)]
pub enum Planted {
    /// A rule of repairs.
    Flaw(Flaw),
    /// A rule of the store.
    Canary(Canary),
}

/// Tries one seed; an error says what is wrong.
pub fn attempt(seed: u64, planted: Option<Planted>) -> Result<Figures, String> {
    let (flaw, canary) = match planted {
        Some(Planted::Flaw(flaw)) => (Some(flaw), None),
        Some(Planted::Canary(canary)) => (None, Some(canary)),
        None => (None, None),
    };
    let case = case(seed);
    let damaged = case.on(image(seed));
    let before = View::of_breaking(damaged.snapshot(), canary);
    let rotten = mutation::rotten_node(&case, image(seed)).map(|level| (level, image(seed)));
    let found = match mutation::only_space_map(&case) {
        true => whole(image(seed), before.as_ref()),
        false => Ok(()),
    };
    let found = found.and_then(|()| try_one(seed, &damaged, before, rotten, flaw));
    found.map_err(|error| format!("seed {seed}: {error}\n{case:#?}"))
}

/// Repairs a device.
fn mend(device: Arc<dyn Device>, options: RepairOptions) -> Result<Repair, String> {
    let done = block_on(syncline_check::repair(device, BACKGROUND.clone(), &options, &mut |_| {}));
    done.map_err(|error| error.to_string())
}

fn examine(device: Arc<dyn Device>) -> Result<Report, String> {
    let report = block_on(syncline_check::check(device, BACKGROUND.clone(), &mut |_| {}));
    report.map_err(|error| error.to_string())
}

/// `rotten` is the level of the rotten node and the undamaged image, if rot of one node is the only
/// change.
fn try_one(
    seed: u64,
    damaged: &Arc<MemoryDevice>,
    before: Option<View>,
    rotten: Option<(u8, &Image)>,
    flaw: Option<Flaw>,
) -> Result<Figures, String> {
    let mut figures = Figures { mutations: 1, ..Figures::default() };
    let device = damaged.snapshot();
    let recording = RecordingDevice::new(device.clone());
    // Half of the repairs refuse if much would be lost.
    let accept_loss = seed.is_multiple_of(2);
    let options = RepairOptions { accept_loss, flaw, ..RepairOptions::default() };
    let done = mend(recording.clone(), options);
    let wrote = recording.position() > 0;
    let repair = match done {
        Err(_) if wrote => return Err("a repair that failed has written".into()),
        Err(_) => return Ok(Figures { failed: 1, ..figures }),
        Ok(repair) if repair.after.is_none() => {
            let refused = repair.refused.is_some();
            figures.clean += u64::from(repair.condition() == Condition::Clean);
            figures.refused += u64::from(refused);
            if wrote {
                return Err("a repair that changed nothing has written".into());
            }
            if refused && rotten.is_some_and(|(level, _)| level > 0) {
                return Err(format!("an inner node is lost, and the repair refuses: {:?}", repair.refused));
            }
            return Ok(figures);
        }
        Ok(repair) => repair,
    };
    figures.repairs += 1;
    honest(&device, &repair)?;
    let after = View::of(device.snapshot());
    let told: Vec<FindingKind> = repair.changes.iter().map(|change| change.kind).collect();
    if let Some(lost) = difference(before.as_ref(), after.as_ref(), &told) {
        return Err(format!("after the repair {lost}; it said {:#?}", repair.changes));
    }
    if let Some((level, sound)) = rotten {
        of_the_sound_one(level, sound, after.as_ref()).map_or(Ok(()), |wrong| {
            Err(format!("after the repair {wrong}; it said {:#?}", repair.changes))
        })?;
    }
    mounts(device.clone())?;
    figures.cuts += cuts::search(seed, damaged, recording.events(), before.as_ref(), &told)?;
    Ok(figures)
}

/// Checks that a read-only mount shows everything.
fn whole(sound: &Image, shown: Option<&View>) -> Result<(), String> {
    let sound = View::of(sound.device.snapshot());
    let missing = difference(sound.as_ref(), shown, &[]);
    missing.map_or(Ok(()), |missing| Err(format!("with another space map {missing}")))
}

/// The fault in the repair of an image with one rotten node, if any.
fn of_the_sound_one(level: u8, sound: &Image, after: Option<&View>) -> Option<String> {
    let sound = View::of(sound.device.snapshot())?;
    let lied = after.and_then(|after| lie(&sound, after));
    lied.or_else(|| if level > 0 { difference(Some(&sound), after, &[]) } else { None })
}

/// Checks that the repair's report agrees with a check.
fn honest(device: &Arc<MemoryDevice>, repair: &Repair) -> Result<(), String> {
    let report = examine(device.snapshot()).map_err(|error| format!("no check after the repair: {error}"))?;
    let clean = report.is_clean() && !report.incomplete;
    match repair.condition() {
        Condition::Repaired if clean => Ok(()),
        Condition::Damaged if report.findings.iter().all(|finding| is_data(finding.kind)) => Ok(()),
        said => Err(format!("the repair says {said:?}, a check finds {:#?}", report.findings)),
    }
}

fn is_data(kind: FindingKind) -> bool {
    matches!(kind, FindingKind::DataDamaged | FindingKind::DataUnreadable | FindingKind::SnapshotDamaged)
}

/// Checks that the image mounts for writing.
fn mounts(device: Arc<MemoryDevice>) -> Result<(), String> {
    let copy = device.snapshot();
    let mounted = run(|world| async move {
        let fs = crate::bases::open(copy, &world, crate::bases::store_options(9, false)).await?;
        fs.close().await?;
        fs.store().close().await?;
        Ok::<_, syncline_fs::FsError>(())
    });
    mounted.map_err(|error| format!("the repaired image does not mount: {error}"))
}
