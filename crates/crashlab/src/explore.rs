//! Recovering the states of a recording, leaving out what was seen, and asking a judge about the rest.

use crate::{CrashlabError, Planned, Recording, State, tree};
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
use syncline_sim::{Cut, Fate};

/// States that wait for each worker.
const QUEUE_EACH: usize = 4;

/// What a judge says of a state.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Nothing is wrong.
    Passed,
    /// What is wrong.
    Failed(String),
}

/// A state to judge: recovered, and open.
pub struct Case<'a> {
    /// The filesystem. Changes are forgotten.
    pub fs: &'a Filesystem,
    /// Which state it is.
    pub state: &'a State,
    /// What COMMAND had printed for certain.
    pub printed: &'a [u8],
    /// Number of the worker that asks; no two ask with the same number at once.
    pub worker: usize,
}

/// Decides whether a state is as it should be.
pub trait Judge: Sync {
    /// Looks at a state. An error ends the exploration.
    fn judge(&self, case: &Case<'_>) -> Result<Verdict, CrashlabError>;
}

/// A state that fails.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failing {
    /// Its place in the plan.
    pub index: usize,
    /// The state.
    pub state: State,
    /// First position of its stretch.
    pub from: usize,
    /// What the judge said.
    pub output: String,
}

/// What was done so far.
#[derive(Default, Debug)]
pub struct Counts {
    /// States looked at.
    pub states: AtomicU64,
    /// Distinct images recovered.
    pub images: AtomicU64,
    /// Distinct pairs of a file tree and what had been printed: the judge was asked so often.
    pub cases: AtomicU64,
    /// Cases that failed.
    pub failing: AtomicU64,
}

/// A file tree, and how many lines had been printed.
type CaseKey = (u128, usize);

/// What is known of a case.
struct CaseEntry {
    /// The simplest state that leads to it.
    first: Failing,
    /// `None` while a worker asks.
    verdict: Option<Verdict>,
}

#[derive(Default)]
struct Seen {
    /// Trees by version of what is durable and what the open writes changed.
    images: HashMap<(u64, u128), u128>,
    cases: HashMap<CaseKey, CaseEntry>,
}

/// Looks at states.
pub struct Explorer<'a> {
    recording: &'a Recording,
    judge: &'a dyn Judge,
    stop: &'a AtomicBool,
    seen: Mutex<Seen>,
    /// What was done so far.
    pub counts: Counts,
}

struct Job {
    index: usize,
    planned: Planned,
    cut: Arc<Cut>,
}

impl<'a> Explorer<'a> {
    /// Looks at states of `recording`; `stop` ends that early.
    pub fn new(recording: &'a Recording, judge: &'a dyn Judge, stop: &'a AtomicBool) -> Self {
        Self { recording, judge, stop, seen: Mutex::default(), counts: Counts::default() }
    }

    /// Looks at all that is planned, with `jobs` workers, up to the first that fails unless told to keep going. The failing
    /// cases, each with its simplest state, in the order of the plan.
    pub fn run(
        &self,
        plan: &[Planned],
        jobs: usize,
        keep_going: bool,
    ) -> Result<Vec<Failing>, CrashlabError> {
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
                        // A state before one that has failed is still looked at: it would be the better one to tell.
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
    pub fn judge_one(&self, state: &State) -> Result<Verdict, CrashlabError> {
        let cut = self.recording.cut(state.position);
        let (from, output) = (state.position, String::new());
        let what = Failing { index: usize::MAX, state: state.clone(), from, output };
        // Nobody else asks by now, so there is a verdict.
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

    fn look(&self, job: &Job, worker: usize) -> Result<Option<Verdict>, CrashlabError> {
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

    /// The verdict on a state, asked for or known; `None` while another worker asks.
    pub(crate) fn evaluate(
        &self,
        what: Failing,
        cut: &Cut,
        worker: usize,
    ) -> Result<Option<Verdict>, CrashlabError> {
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

    /// The verdict on a case that was met before, which gets a simpler state if this is one.
    fn known(&self, key: CaseKey, what: &Failing) -> Option<Option<Verdict>> {
        let mut seen = self.seen.lock();
        let case = seen.cases.get_mut(&key)?;
        if what.index < case.first.index {
            case.first = what.clone();
        }
        Some(case.verdict.clone())
    }

    /// The same; a case that is new is the caller's to judge.
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

/// Opens an image and takes in its tree; what is wrong, if that fails.
fn recover(image: Arc<MemoryDevice>) -> Result<(Filesystem, u128), String> {
    let options = ImageOptions::new().access_time(AccessTime::Never);
    let fs =
        Filesystem::open_device(image, options).map_err(|error| format!("it can't be opened: {error}"))?;
    let tree = tree::digest(fs.engine())?;
    Ok((fs, tree))
}

/// What the writes that arrived have changed, as one number.
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
