//! Recovers the states of a recording, skips those already seen, and asks a judge about the rest.

use crate::{CutsError, Planned, Recording, State, tree};
use parking_lot::Mutex;
use siphasher::sip128::{Hasher128, SipHasher13};
use std::collections::{BTreeSet, HashMap};
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use syncline::{Filesystem, ImageOptions};
use syncline_device::{BLOCK_BYTES, DeviceExt, MemoryDevice, block_on};
use syncline_fs::AccessTime;
use syncline_powercut::{Cut, Fate};

/// States queued for each worker.
const QUEUE_EACH: usize = 4;

/// A judge's verdict on a state.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The state is fine.
    Passed,
    /// The state is wrong, for this reason.
    Failed(String),
}

/// A state to judge, recovered and opened.
pub struct Case<'a> {
    /// The filesystem. Changes to it are discarded.
    pub fs: &'a Filesystem,
    /// The state.
    pub state: &'a State,
    /// The output that COMMAND had certainly printed.
    pub printed: &'a [u8],
    /// Number of the worker that asks; no two workers use the same number at once.
    pub worker: usize,
}

/// Decides whether a state is correct.
pub trait Judge: Sync {
    /// Judges a state. An error ends the exploration.
    fn judge(&self, case: &Case<'_>) -> Result<Verdict, CutsError>;
}

/// A state that failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failing {
    /// Its index in the plan.
    pub index: usize,
    /// The state.
    pub state: State,
    /// First position of the stretch that the state belongs to.
    pub from: usize,
    /// The judge's output.
    pub output: String,
}

/// Progress so far.
#[derive(Default, Debug)]
pub struct Counts {
    /// States explored.
    pub states: AtomicU64,
    /// Distinct images recovered.
    pub images: AtomicU64,
    /// Distinct pairs of a file tree and the output before it, which is the number of times the
    /// judge was asked.
    pub cases: AtomicU64,
    /// Cases that failed.
    pub failing: AtomicU64,
}

/// A file tree, and the number of lines printed before the power cut.
type CaseKey = (u128, usize);

/// The known facts about a case.
struct CaseEntry {
    /// The simplest state that leads to it.
    first: Failing,
    /// `None` while a worker is judging it.
    verdict: Option<Verdict>,
}

#[derive(Default)]
struct Seen {
    /// File trees by the version of the durable contents and a hash of the open writes' changes.
    images: HashMap<(u64, u128), u128>,
    cases: HashMap<CaseKey, CaseEntry>,
}

/// Explores states.
pub struct Explorer<'a> {
    recording: &'a Recording,
    judge: &'a dyn Judge,
    stop: &'a AtomicBool,
    seen: Mutex<Seen>,
    /// Progress so far.
    pub counts: Counts,
}

struct Job {
    index: usize,
    planned: Planned,
    cut: Arc<Cut>,
}

impl<'a> Explorer<'a> {
    /// Explores states of `recording`; setting `stop` ends the exploration early.
    pub fn new(recording: &'a Recording, judge: &'a dyn Judge, stop: &'a AtomicBool) -> Self {
        Self { recording, judge, stop, seen: Mutex::default(), counts: Counts::default() }
    }

    /// Explores the whole plan with `jobs` workers, up to the first failure unless told to keep
    /// going. Returns the failing cases, each with its simplest state, in the order of the plan.
    pub fn run(&self, plan: &[Planned], jobs: usize, keep_going: bool) -> Result<Vec<Failing>, CutsError> {
        let (sender, receiver) = mpsc::sync_channel::<Job>(jobs * QUEUE_EACH);
        let receiver = Mutex::new(receiver);
        let (failed, error) = (AtomicBool::new(false), Mutex::new(None));
        let enough = || {
            let failed = failed.load(Ordering::Relaxed) && !keep_going;
            failed || self.stop.load(Ordering::Relaxed) || error.lock().is_some()
        };
        std::thread::scope(|scope| {
            for worker in 0..jobs {
                let (receiver, failed, error, enough) = (&receiver, &failed, &error, &enough);
                scope.spawn(move || {
                    loop {
                        let job = receiver.lock().recv();
                        let Ok(job) = job else { return };
                        // States that precede a failing one are still explored: an earlier failure
                        // is better to report.
                        if self.stop.load(Ordering::Relaxed) || error.lock().is_some() {
                            continue;
                        }
                        match self.look(&job, worker) {
                            Ok(Some(Verdict::Failed(_))) => failed.store(true, Ordering::Relaxed),
                            Ok(_) => {}
                            Err(what) => drop(error.lock().get_or_insert(what)),
                        }
                        let _ = enough();
                    }
                });
            }
            self.feed(plan, &sender, &enough);
            drop(sender);
        });
        match error.into_inner() {
            Some(error) => Err(error),
            None => Ok(self.failing()),
        }
    }

    /// The verdict on one state.
    pub fn judge_one(&self, state: &State) -> Result<Verdict, CutsError> {
        let cut = self.recording.cut(state.position);
        let (from, output) = (state.position, String::new());
        let what = Failing { index: usize::MAX, state: state.clone(), from, output };
        // No other worker is judging now, so there is a verdict.
        Ok(self.evaluate(what, &cut, 0)?.unwrap_or(Verdict::Passed))
    }

    fn feed(&self, plan: &[Planned], sender: &mpsc::SyncSender<Job>, enough: &dyn Fn() -> bool) {
        let mut images = self.recording.images();
        let mut latest: Option<(usize, Arc<Cut>)> = None;
        for (index, planned) in plan.iter().enumerate() {
            if enough() {
                return;
            }
            let end = planned.stretch.end;
            let cut = match &latest {
                Some((at, cut)) if *at == end => cut.clone(),
                _ => Arc::new(images.cut(end)),
            };
            latest = Some((end, cut.clone()));
            if sender.send(Job { index, planned: planned.clone(), cut }).is_err() {
                return;
            }
        }
    }

    fn look(&self, job: &Job, worker: usize) -> Result<Option<Verdict>, CutsError> {
        let state = &job.planned.state;
        let (index, from) = (job.index, job.planned.stretch.begin);
        let failing = Failing { index, state: state.clone(), from, output: String::new() };
        let verdict = self.evaluate(failing, &job.cut, worker);
        self.counts.states.fetch_add(1, Ordering::Relaxed);
        verdict
    }

    /// The failing cases.
    fn failing(&self) -> Vec<Failing> {
        let seen = self.seen.lock();
        let failed = seen.cases.values().filter_map(|case| match &case.verdict {
            Some(Verdict::Failed(output)) => Some(Failing { output: output.clone(), ..case.first.clone() }),
            _ => None,
        });
        let mut failed: Vec<Failing> = failed.collect();
        failed.sort_by_key(|failing| failing.index);
        failed
    }

    /// The verdict on a state, new or already known; `None` while another worker is judging the
    /// same case.
    pub(crate) fn evaluate(
        &self,
        what: Failing,
        cut: &Cut,
        worker: usize,
    ) -> Result<Option<Verdict>, CutsError> {
        let fates = what.state.fates(cut);
        let image = cut.image(&fates);
        let id = (cut.version(), changes(cut, &image, &fates));
        let lines = self.recording.lines_before(what.state.position);
        let known = self.seen.lock().images.get(&id).copied();
        if let Some(tree) = known
            && let Some(verdict) = self.known((tree, lines), &what)
        {
            return Ok(verdict);
        }
        let recovered = recover(image);
        if known.is_none() {
            self.counts.images.fetch_add(1, Ordering::Relaxed);
        }
        let (tree, fs) = match &recovered {
            Ok((fs, tree)) => (*tree, Ok(fs)),
            Err(text) => (hash_of(text), Err(text)),
        };
        self.seen.lock().images.insert(id, tree);
        if let Some(verdict) = self.claim((tree, lines), &what) {
            return Ok(verdict);
        }
        let verdict = match fs {
            Ok(fs) => {
                let printed = self.recording.printed(lines);
                self.judge.judge(&Case { fs, state: &what.state, printed: &printed, worker })?
            }
            Err(text) => Verdict::Failed(format!("Syncline itself fails here: {text}")),
        };
        self.counts.cases.fetch_add(1, Ordering::Relaxed);
        if matches!(verdict, Verdict::Failed(_)) {
            self.counts.failing.fetch_add(1, Ordering::Relaxed);
        }
        if let Some(case) = self.seen.lock().cases.get_mut(&(tree, lines)) {
            case.verdict = Some(verdict.clone());
        }
        Ok(Some(verdict))
    }

    /// The verdict on a known case; notes this state if it is simpler.
    fn known(&self, key: CaseKey, what: &Failing) -> Option<Option<Verdict>> {
        let mut seen = self.seen.lock();
        let case = seen.cases.get_mut(&key)?;
        if what.index < case.first.index {
            case.first = what.clone();
        }
        Some(case.verdict.clone())
    }

    /// Like `known`, but registers a new case, which the caller must judge.
    fn claim(&self, key: CaseKey, what: &Failing) -> Option<Option<Verdict>> {
        if let Some(verdict) = self.known(key, what) {
            return Some(verdict);
        }
        let mut seen = self.seen.lock();
        if let Some(case) = seen.cases.get(&key) {
            return Some(case.verdict.clone());
        }
        seen.cases.insert(key, CaseEntry { first: what.clone(), verdict: None });
        None
    }
}

/// Opens an image and hashes its tree; the error says what failed.
fn recover(image: Arc<MemoryDevice>) -> Result<(Filesystem, u128), String> {
    let options = ImageOptions::new().access_time(AccessTime::Never);
    let fs =
        Filesystem::open_device(image, options).map_err(|error| format!("it can't be opened: {error}"))?;
    let tree = tree::digest(fs.engine())?;
    Ok((fs, tree))
}

/// A hash of the changes made by the writes that arrived.
fn changes(cut: &Cut, image: &MemoryDevice, fates: &[Fate]) -> u128 {
    let durable = cut.image(&[]);
    let arrived = (0..cut.open().len()).zip(fates).filter(|(_, fate)| **fate != Fate::Lost);
    let blocks: BTreeSet<u64> = arrived
        .flat_map(|(index, _)| {
            let (offset, len) = cut.range(index);
            (offset..offset + len).step_by(BLOCK_BYTES)
        })
        .collect();
    let mut hasher = SipHasher13::new();
    for block in blocks {
        let read = |device: &MemoryDevice| block_on(device.read_at(block, BLOCK_BYTES)).ok();
        let (Some(new), Some(old)) = (read(image), read(&durable)) else { continue };
        if new[..] != old[..] {
            block.hash(&mut hasher);
            hasher.write(&new);
        }
    }
    hasher.finish128().as_u128()
}

fn hash_of(text: &str) -> u128 {
    let mut hasher = SipHasher13::new();
    text.hash(&mut hasher);
    hasher.finish128().as_u128()
}
