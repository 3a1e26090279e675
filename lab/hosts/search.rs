//! Pairs of hosts side by side, until the time is over.

use super::machine::{SERVER, folder};
use super::pair::Pair;
use super::report::Report;
use crate::support::ceph::{self, Cluster};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

/// The storage of the images.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Nbd,
    Ceph,
}

impl Kind {
    /// The missing program, if one is not installed.
    pub fn missing(self) -> Option<String> {
        match self {
            Self::Nbd => None,
            Self::Ceph => ceph::missing(),
        }
    }
}

/// How much is searched.
#[derive(Clone, Copy)]
pub struct Length {
    pub time: Duration,
    pub pairs: usize,
    pub seed: u64,
    /// Ends at the first violation.
    pub until_found: bool,
}

impl Length {
    pub fn of(time: Duration, pairs: usize) -> Self {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
        let seed = super::number("SYNCLINE_HOSTS_SEED", now.as_millis() as u64);
        let pairs = super::number("SYNCLINE_HOSTS_PAIRS", pairs as u64) as usize;
        Self { time, pairs, seed, until_found: false }
    }
}

/// Searches, and returns a report.
pub fn search(kind: Kind, length: Length) -> Report {
    println!("{kind:?}: SYNCLINE_HOSTS_SEED={} SYNCLINE_HOSTS_PAIRS={}", length.seed, length.pairs);
    let osds = super::number("SYNCLINE_HOSTS_OSDS", 1) as usize;
    let ceph = (kind == Kind::Ceph).then(|| Arc::new(Cluster::start(folder().join("ceph"), osds, SERVER, 5)));
    let (until, found) = (Instant::now() + length.time, AtomicBool::new(false));
    let goes_on = || Instant::now() < until && !(length.until_found && found.load(Ordering::SeqCst));
    let mut sum = Report::default();
    std::thread::scope(|scope| {
        let troubles = ceph.as_ref().map(|ceph| {
            let rng = ChaCha8Rng::seed_from_u64(length.seed ^ u64::MAX);
            scope.spawn(|| trouble_cluster(ceph, osds, rng, &goes_on))
        });
        let pairs: Vec<_> = (0..length.pairs)
            .map(|number| {
                let (ceph, goes_on, found) = (ceph.clone(), &goes_on, &found);
                scope.spawn(move || {
                    let mut pair = Pair::new(number, length, ceph);
                    pair.search(goes_on, found);
                    pair.end()
                })
            })
            .collect();
        for (number, pair) in pairs.into_iter().enumerate() {
            let report = pair.join().unwrap_or_else(|_| panic!("pair {number} panicked"));
            println!("{kind:?} pair {number}: {report}");
            sum.add(report);
        }
        if let Some(troubles) = troubles {
            sum.add(troubles.join().expect("no panic"));
        }
    });
    println!("{kind:?}: seed {}: {sum}", length.seed);
    sum
}

/// Kills the cluster's daemons by chance and starts them again.
fn trouble_cluster(
    ceph: &Cluster,
    osds: usize,
    mut rng: ChaCha8Rng,
    goes_on: &(dyn Fn() -> bool + Sync),
) -> Report {
    let mut report = Report::default();
    loop {
        let pause = Instant::now() + Duration::from_millis(rng.random_range(8_000..30_000));
        while Instant::now() < pause {
            if !goes_on() {
                return report;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        let osd = rng.random_bool(0.7).then(|| rng.random_range(0..osds));
        let does = |action| osd.map_or_else(|| ceph.monitor(action), |osd| ceph.osd(osd, action));
        does("kill");
        std::thread::sleep(Duration::from_millis(rng.random_range(100..3_000)));
        does("start");
        report.count(if osd.is_some() { "osd-killed" } else { "monitor-killed" });
    }
}
