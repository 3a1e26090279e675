//! Power cuts under load. The engine runs on a device that records each write and flush. From the
//! recording, images are made that a power cut may leave at any moment; they are opened and
//! compared with what had been acknowledged by then.

use super::interrupt::Interrupt;
use super::jobs;
use super::verify::{Acknowledged, Compared, JobHistory, verify};
use crate::commands::image;
use crate::failure::{Cause, Failure};
use indicatif::{HumanBytes, HumanCount, HumanDuration, ProgressBar};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use syncline::{Filesystem, FormatOptions, ImageOptions};
use syncline_device::{MemoryDevice, block_on};
use syncline_powercut::{CrashImages, RecordingDevice, block_of};
use syncline_store::Canary;

/// Size of the image, in memory.
const IMAGE_BYTES: u64 = 256 << 20;
/// Number of threads that write.
const JOBS: u64 = 8;
/// Places in each thread's file, of [`SLOT_BLOCKS`] each.
pub const SLOTS: u64 = 48;
/// Blocks of a write: 64 KiB.
pub const SLOT_BLOCKS: u64 = 16;
/// The load ends when this much has been recorded, since the recording is in memory.
const RECORDED_BYTES_MAX: u64 = 384 << 20;
/// One in this many operations creates a file instead of overwriting.
const CREATE_ONE_IN: u32 = 8;

/// The parameters of a run.
pub struct Plan {
    /// Decides everything random except the order in which threads run.
    pub seed: u64,
    /// Number of power cuts.
    pub cuts: u64,
    /// How long the load lasts.
    pub load: Duration,
    /// A rule to break on purpose, to test this demo.
    pub canary: Option<Canary>,
}

/// The results of a run.
pub struct Outcome {
    load: Duration,
    fsyncs: u64,
    written_bytes: u64,
    cuts: u64,
    compared: Compared,
    open_writes: u64,
    recoveries: Vec<Duration>,
}

impl Outcome {
    fn median_recovery(&self) -> Duration {
        let mut recoveries = self.recoveries.clone();
        recoveries.sort_unstable();
        recoveries.get(recoveries.len() / 2).copied().unwrap_or_default()
    }

    /// The results as JSON. There are some only if nothing was lost.
    pub fn json(&self) -> Value {
        json!({
            "threads": JOBS,
            "seconds": self.load.as_secs_f64(),
            "fsyncs": self.fsyncs,
            "written_bytes": self.written_bytes,
            "cuts": self.cuts,
            "writes_on_their_way": self.open_writes,
            "recovery_median_ms": self.median_recovery().as_secs_f64() * 1000.0,
            "compared": {
                "fsyncs": self.compared.fsyncs, "bytes": self.compared.bytes, "files": self.compared.files,
            },
            "lost": 0,
        })
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let median = self.median_recovery();
        writeln!(
            f,
            "Load:      {JOBS} threads for {}, {} fsyncs acknowledged, {} written",
            HumanDuration(self.load),
            HumanCount(self.fsyncs),
            HumanBytes(self.written_bytes)
        )?;
        writeln!(
            f,
            "Cuts:      {}, with {:.1} writes on their way each; recovery took {:.1} ms (median)",
            self.cuts,
            self.open_writes as f64 / self.cuts.max(1) as f64,
            median.as_secs_f64() * 1000.0
        )?;
        writeln!(
            f,
            "Compared:  {} acknowledged fsyncs, {} of data and {} files\n           by name, byte for byte",
            HumanCount(self.compared.fsyncs),
            HumanBytes(self.compared.bytes),
            HumanCount(self.compared.files)
        )?;
        write!(f, "Lost:      nothing. Every image recovered, and checked clean.")
    }
}

/// Runs the load, cuts the power, and compares.
pub fn run(plan: &Plan, interrupt: &Interrupt, bar: &ProgressBar) -> Result<Outcome, Failure> {
    let mut rng = StdRng::seed_from_u64(plan.seed);
    let base = MemoryDevice::new(IMAGE_BYTES);
    syncline::format_device(base.clone(), &FormatOptions::default())?;
    let recording = RecordingDevice::new(base.snapshot());
    // Frequent checkpoints, so that cuts fall into them too.
    let checkpoint_interval = Duration::from_millis(300);
    let options = ImageOptions::new()
        .checkpoint_interval(checkpoint_interval)
        .laboratory(|store, _| store.lab.canary = plan.canary);
    let fs = Filesystem::open_device(recording.clone(), options)?;
    let start = recording.position();
    bar.set_message("cuts (writing)");
    let started = Instant::now();
    let histories = load(&fs, &recording, rng.random(), plan.load, interrupt)?;
    let load = started.elapsed();
    let written_bytes = fs.statistics().store.device_write_bytes;
    let events = recording.events();
    fs.close()?;
    interrupt.check()?;

    bar.set_message("cuts");
    let mut positions: Vec<usize> = (0..plan.cuts).map(|_| rng.random_range(start..=events.len())).collect();
    positions.sort_unstable();
    let mut images = CrashImages::new(&base, events, rng.random());
    let fsyncs = histories.iter().map(JobHistory::fsyncs).sum();
    let mut outcome = Outcome {
        load,
        fsyncs,
        written_bytes,
        cuts: plan.cuts,
        compared: Compared::default(),
        open_writes: 0,
        recoveries: Vec::new(),
    };
    for position in positions {
        let cut_seed = rng.random();
        let image = images.at(position, cut_seed);
        outcome.open_writes += images.open_writes() as u64;
        let failed = |failure: Failure| {
            let code = failure.code();
            Failure::new(format!("power cut at event {position}, seed {cut_seed}: {failure}")).with_code(code)
        };
        examine(image, position, &histories, &mut outcome).map_err(failed)?;
        bar.inc(1);
        interrupt.check()?;
    }
    Ok(outcome)
}

/// Examines one image: it must check clean, open, and contain what was acknowledged.
fn examine(
    image: Arc<MemoryDevice>,
    position: usize,
    histories: &[JobHistory],
    outcome: &mut Outcome,
) -> Result<(), Failure> {
    let report = block_on(syncline_check::check(image.clone(), image::background()?, &mut |_| {}))?;
    if let Some(finding) = report.findings.first() {
        return Err(Failure::of(Cause::Damaged, format!("the image does not check clean: {finding}")));
    }
    let started = Instant::now();
    let fs = Filesystem::open_device(image, ImageOptions::default())?;
    outcome.recoveries.push(started.elapsed());
    for (job, history) in histories.iter().enumerate() {
        outcome.compared += verify(&fs, job as u64, history, position)?;
    }
    Ok(fs.close()?)
}

/// Runs all jobs at once, until the time is up or enough was recorded.
fn load(
    fs: &Filesystem,
    recording: &Arc<RecordingDevice>,
    seed: u64,
    limit: Duration,
    interrupt: &Interrupt,
) -> Result<Vec<JobHistory>, Failure> {
    let started = Instant::now();
    let enough =
        || started.elapsed() >= limit || fs.statistics().store.device_write_bytes > RECORDED_BYTES_MAX;
    let jobs = (0..JOBS).collect();
    jobs::run(jobs, interrupt, enough, |job, stop| work(fs, recording, job, seed ^ job, stop))
}

/// One thread: overwrites places of its file, or creates files, and records when each fsync was
/// answered.
fn work(
    fs: &Filesystem,
    recording: &RecordingDevice,
    job: u64,
    seed: u64,
    stop: &AtomicBool,
) -> Result<JobHistory, Failure> {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut history = JobHistory::default();
    let own = fs.create_file(JobHistory::file_name(job))?;
    let mut tag = job << 32;
    while !stop.load(Ordering::Relaxed) {
        tag += 1;
        let create = rng.random_range(0..CREATE_ONE_IN) == 0;
        let slot = if create { 0 } else { rng.random_range(0..SLOTS) };
        let data: Vec<u8> =
            (0..SLOT_BLOCKS).flat_map(|block| block_of(tag, slot * SLOT_BLOCKS + block)).collect();
        let begun = recording.position();
        if create {
            // Small and large files: in the inode item, and in blocks.
            let len = rng.random_range(1..=data.len() / 4);
            let file = fs.create_file(JobHistory::created_name(job, tag))?;
            file.write_all_at(&data[..len], 0)?;
            file.sync_all()?;
            history.created(tag, len, recording.position());
        } else {
            own.write_all_at(&data, slot * data.len() as u64)?;
            own.sync_all()?;
            history.wrote(Acknowledged { slot, tag, begun, answered: recording.position() });
        }
    }
    Ok(history)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(canary: Option<Canary>) -> Result<Outcome, Failure> {
        let plan = Plan { seed: 1, cuts: 20, load: Duration::from_millis(500), canary };
        run(&plan, &Interrupt::default(), &ProgressBar::hidden())
    }

    #[test]
    fn nothing_is_lost() {
        let outcome = cut(None).unwrap();
        assert!(outcome.compared.fsyncs > 0 && outcome.compared.bytes > 0);
        assert_eq!(outcome.recoveries.len(), 20);
    }

    /// The demo notices data loss: without its flushes the engine loses what it acknowledged.
    #[test]
    fn a_skipped_flush_is_noticed() {
        // On a busy machine half a second may be too short to acknowledge much.
        let lost = || cut(Some(Canary::SkipFlush)).err();
        let failure = (0..5).find_map(|_| lost()).expect("something is lost");
        assert_eq!(failure.code(), Cause::Damaged as u8, "{failure}");
    }
}
