//! Two hosts that take an image from each other.

use super::checker::{Followed, unchanged};
use super::daemon::{Daemon, program};
use super::machine::{Host, SERVER};
use super::nemesis::{Moment, Plan, Restart, Trouble};
use super::report::Report;
use super::search::{Kind, Length};
use super::view::{Found, read_cell};
use super::writers::Writers;
use crate::support::ceph::Cluster;
use crate::support::run;
use rand::{Rng, RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::VecDeque;
use std::fs;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use syncline_nbdlab::{Lab, Spec, command};
use syncline_net::Wait;

const IMAGE_BYTES: u64 = 256 << 20;
/// A long record is more than one request.
const REQUEST_MAX: u32 = 64 << 10;
/// The records of so many earlier mounts stay on the image and are compared.
const REMEMBERED: usize = 4;
/// In spite of all troubles, some host has the image after this time.
const MOUNTED_WITHIN: Duration = Duration::from_secs(150);
/// If a mount takes longer, its messages are shown.
const SLOW: Duration = Duration::from_secs(40);
/// A host that was followed has nothing more to say after this time.
const ENDED_WITHIN: Duration = Duration::from_secs(60);
/// Rounds between two checks of the whole image.
const CHECKED_EVERY: u64 = 8;

/// A mount that has the image.
struct Live {
    mount: u64,
    /// Which of the two hosts.
    host: usize,
    daemon: Daemon,
    writers: Writers,
    /// The contents of the cell that this mount found.
    cell: Vec<u8>,
}

/// The state that a host found when it came.
struct Sight {
    /// Of the mount that it follows.
    found: Found,
    cell: Vec<u8>,
    since: Instant,
}

pub struct Pair {
    kind: Kind,
    number: usize,
    hosts: [Host; 2],
    image: String,
    server: Option<Arc<Lab>>,
    restarts: Vec<JoinHandle<()>>,
    /// How long the search is.
    time: Duration,
    rng: ChaCha8Rng,
    mounts: u64,
    /// The mounts before the one that is followed, with the records found of each, oldest first.
    past: VecDeque<(u64, Found)>,
    live: Option<Live>,
    report: Report,
}

impl Pair {
    /// A pair with an image of its own, which one of them has.
    pub fn new(number: usize, length: Length, ceph: Option<Arc<Cluster>>) -> Self {
        let seed = length.seed.wrapping_add(number as u64);
        let hosts = [Host::new(2 * number + 1), Host::new(2 * number + 2)];
        let server = ceph.is_none().then(|| {
            let address = format!("{SERVER}:{}", 10_000 + number).parse().expect("an address");
            let blocks = Some((4096, 4096, REQUEST_MAX));
            let spec = Spec { size: IMAGE_BYTES, blocks, ..Spec::default() };
            Arc::new(Lab::on(address, seed, spec))
        });
        let image = match (&ceph, &server) {
            (Some(ceph), _) => format!("{}&wait=60", ceph.image(&format!("disk{number}")).display()),
            (_, Some(server)) => server.location(Wait::Seconds(60)).to_string(),
            _ => unreachable!("one of them is there"),
        };
        let mut mkfs = hosts[0].command(&program());
        mkfs.args(["mkfs", &image]);
        if ceph.is_some() {
            mkfs.args(["--size", &IMAGE_BYTES.to_string()]);
        }
        run(mkfs).ok();
        let kind = if ceph.is_some() { Kind::Ceph } else { Kind::Nbd };
        let mut pair = Self {
            kind,
            number,
            hosts,
            image,
            server,
            restarts: Vec::new(),
            time: length.time,
            rng: ChaCha8Rng::seed_from_u64(seed),
            mounts: 0,
            past: VecDeque::new(),
            live: None,
            report: Report::default(),
        };
        pair.come_first();
        pair
    }

    /// Rounds until the time is over.
    pub fn search(&mut self, goes_on: &dyn Fn() -> bool, found: &AtomicBool) {
        let mut rounds = 0;
        while goes_on() && self.live.is_some() && self.report.violations.is_empty() {
            self.round();
            rounds += 1;
            if rounds % CHECKED_EVERY == 0 && self.report.violations.is_empty() {
                self.rest();
            }
        }
        if !self.report.violations.is_empty() {
            found.store(true, Ordering::SeqCst);
        }
    }

    /// A last check; returns the report.
    pub fn end(mut self) -> Report {
        if self.report.violations.is_empty() {
            self.rest();
        }
        if let Some(mut live) = self.live.take() {
            live.daemon.kill();
        }
        if let Some(server) = &self.server {
            let (crashes, forgetful) = server.store(|store| (store.crashes, store.forgetful_crashes));
            self.report.troubles.extend([("server-killed", crashes), ("server-forgot", forgetful)]);
        }
        std::mem::take(&mut self.report)
    }

    fn wrong(&mut self, what: impl IntoIterator<Item = String>) {
        for (index, what) in what.into_iter().enumerate() {
            self.report.violations.push(what.clone());
            // One is enough to see it; a host that goes on breaks the same rule all the time.
            if index >= 10 {
                continue;
            }
            println!("{:?} pair {}, round {}: {what}", self.kind, self.number, self.report.takeovers);
        }
    }

    /// The image goes from the host that has it to another.
    fn round(&mut self) {
        let Some(mut live) = self.live.take() else { return };
        let plan = Plan::random(&mut self.rng, self.kind, self.time);
        plan.restarts_at_work.iter().for_each(|restart| self.restart(*restart));
        std::thread::sleep(plan.works);
        if let Some((trouble, time)) = plan.interlude {
            self.report.count("interludes");
            self.begin(&mut live, trouble);
            std::thread::sleep(time);
            self.heal(&live, trouble);
        }
        self.report.count(plan.trouble.name());
        self.begin(&mut live, plan.trouble);
        plan.restarts.iter().for_each(|restart| self.restart(*restart));
        std::thread::sleep(plan.pause);
        let (next, sight) = self.follow(&plan, live.host, live.mount).unzip();
        self.report.takeovers += 1;
        std::thread::sleep(plan.heal_after);
        self.heal(&live, plan.trouble);
        self.leave(live, sight);
        self.restarts.drain(..).for_each(|restart| restart.join().expect("no panic"));
        self.live = next;
    }

    /// Another mount has the image: it looks at the records on the image, and begins to write. `None` is a
    /// violation.
    fn follow(&mut self, plan: &Plan, former: usize, follows: u64) -> Option<(Live, Sight)> {
        while self.report.violations.is_empty() {
            let Some((host, daemon)) = self.taken(plan, former) else {
                self.wrong(["no host gets the image".to_owned()]);
                break;
            };
            if let Some(sight) = self.look(&daemon, follows) {
                return Some((self.come(host, daemon, sight.cell.clone()), sight));
            }
        }
        None
    }

    fn begin(&mut self, live: &mut Live, trouble: Trouble) {
        match trouble {
            Trouble::None => {}
            Trouble::Stop => live.daemon.stop(),
            Trouble::Kill => live.daemon.kill(),
            Trouble::Cut(cut) => self.hosts[live.host].cut(cut),
        }
    }

    fn heal(&self, live: &Live, trouble: Trouble) {
        match trouble {
            Trouble::None | Trouble::Kill => {}
            Trouble::Stop => live.daemon.go_on(),
            Trouble::Cut(_) => self.hosts[live.host].heal(),
        }
    }

    /// The server loses its power after a while. A moment that does not come in this round may come in
    /// a later one.
    fn restart(&mut self, Restart { after, moment, down }: Restart) {
        let Some(server) = self.server.clone() else { return };
        self.restarts.push(std::thread::spawn(move || {
            std::thread::sleep(after);
            server.faults(|faults| {
                faults.away_after_crash = down;
                match moment {
                    Moment::Now => faults.away_until = Some(Instant::now() + down),
                    Moment::BeforeFlush => faults.crash_before = Some(command::FLUSH),
                    Moment::AtRequest(number) => faults.crash_after = Some(number),
                }
            });
            if moment == Moment::Now {
                server.crash();
            }
        }));
    }

    fn new_name(&mut self) -> String {
        self.mounts += 1;
        format!("pair{}-mount{}", self.number, self.mounts)
    }

    /// Mounts the image on another host than `former`, or on the same once more, as often as it
    /// takes.
    fn taken(&mut self, plan: &Plan, former: usize) -> Option<(usize, Daemon)> {
        let limit = Instant::now() + MOUNTED_WITHIN;
        let mut kill_after = plan.kill_taker;
        let mut said = String::new();
        while Instant::now() < limit {
            let reaches = !matches!(plan.trouble, Trouble::Cut(_));
            let same = reaches && self.rng.random_bool(0.2);
            let host = if same { former } else { 1 - former };
            let name = self.new_name();
            let began = Instant::now();
            let mut daemon = Daemon::start(&self.hosts[host], &self.image, &name, plan.takeover);
            let until = kill_after.take().map_or(limit, |after| began + after);
            if daemon.mounted_before(until) {
                self.report.waited.push(began.elapsed());
                if began.elapsed() > SLOW {
                    println!(
                        "{:?} pair {}: mounted after {:?}: {}",
                        self.kind,
                        self.number,
                        began.elapsed(),
                        daemon.words()
                    );
                }
                return Some((host, daemon));
            }
            if daemon.ended() {
                self.report.count("refused");
                let words = daemon.last_words();
                if said != words {
                    println!("{:?} pair {}: {words}", self.kind, self.number);
                    said = words;
                }
            } else {
                self.report.count("taker-killed");
            }
            drop(daemon);
            std::thread::sleep(Duration::from_millis(300));
        }
        None
    }

    /// The first mount of the image.
    fn come_first(&mut self) {
        let name = self.new_name();
        let mut daemon = Daemon::start(&self.hosts[0], &self.image, &name, false);
        assert!(daemon.mounted_before(Instant::now() + MOUNTED_WITHIN), "{}", daemon.words());
        self.live = Some(self.come(0, daemon, Vec::new()));
    }

    /// Begins to write on a mount.
    fn come(&mut self, host: usize, daemon: Daemon, cell: Vec<u8>) -> Live {
        let seed = self.rng.next_u64();
        let writers = Writers::start(self.mounts, &daemon.directory, seed);
        Live { mount: self.mounts, host, daemon, writers, cell }
    }

    /// Looks at the records on the image, before anything is written, and compares them with the records
    /// found before. `None` if the mount has ended meanwhile.
    fn look(&mut self, daemon: &Daemon, follows: u64) -> Option<Sight> {
        let since = Instant::now();
        let directory = &daemon.directory;
        match self.compare(directory, follows) {
            Ok((found, cell)) => Some(Sight { found, cell, since }),
            Err(error) => {
                // One that can still write should have been able to read.
                let works = fs::File::create(directory.join("probe")).and_then(|file| {
                    file.write_all_at(b"works", 0)?;
                    file.sync_all()
                });
                match works {
                    Ok(()) => self.wrong([format!("unreadable: mount {}: {error}", self.mounts)]),
                    Err(_) => self.report.count("ended-while-looking"),
                }
                println!("{:?} pair {}: {error}: {}", self.kind, self.number, daemon.words());
                None
            }
        }
    }

    fn compare(&mut self, directory: &Path, follows: u64) -> io::Result<(Found, Vec<u8>)> {
        for index in 0..self.past.len() {
            let (mount, before) = &self.past[index];
            let wrong = unchanged(*mount, before, &Found::read(directory, *mount)?);
            self.wrong(wrong);
        }
        let found = Found::read(directory, follows)?;
        let cell = read_cell(directory)?;
        while self.past.len() >= REMEMBERED {
            let (mount, _) = self.past.pop_front().expect("it is not empty");
            Found::remove(directory, mount)?;
        }
        Ok((found, cell))
    }

    /// The end of a host that was followed. It goes on trying for a moment before.
    fn leave(&mut self, mut live: Live, sight: Option<Sight>) {
        let limit = Instant::now() + ENDED_WITHIN;
        let ends = Instant::now() + Duration::from_secs(2);
        while !live.writers.have_ended() && Instant::now() < limit {
            if Instant::now() > ends {
                live.writers.end();
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        if !live.writers.have_ended() {
            self.report.count("hung");
            let words = live.daemon.words();
            self.wrong([format!("hung: mount {} answers nothing: {words}", live.mount)]);
        }
        live.daemon.kill();
        self.judge(&live, sight);
    }

    fn judge(&mut self, live: &Live, sight: Option<Sight>) {
        let journal = live.writers.journal.now();
        self.report.asked += journal.len() as u64;
        self.report.acknowledged +=
            journal.values().filter(|asked| asked.acknowledged.is_some()).count() as u64;
        let Some(Sight { found, cell, since }) = sight else { return };
        let late = journal.values().filter(|asked| asked.acknowledged.is_some_and(|at| at > since));
        self.report.answered_late += late.count() as u64;
        let followed = Followed {
            mount: live.mount,
            journal: &journal,
            found: &found,
            cell: &cell,
            cell_before: &live.cell,
            since,
        };
        let wrong = followed.check();
        self.wrong(wrong);
        self.past.push_back((live.mount, found));
    }

    /// The holder gives the image back; it is checked, and taken again.
    fn rest(&mut self) {
        let Some(live) = self.live.take() else { return };
        println!("{:?} pair {} so far: {}", self.kind, self.number, self.report);
        live.writers.end();
        let limit = Instant::now() + ENDED_WITHIN;
        while !live.writers.have_ended() && Instant::now() < limit {
            std::thread::sleep(Duration::from_millis(10));
        }
        let mut umount = Command::new(program());
        umount.arg("umount").arg(&live.daemon.directory);
        // A mount that has failed can't be given back; then the next one waits for its end.
        if run(umount).code != 0 {
            self.report.count("not-given-back");
        }
        let Live { mount, mut daemon, writers, cell, host } = live;
        daemon.kill();
        self.check();
        let (next, sight) = self.follow(&Plan::wait(), host, mount).unzip();
        self.report.followed += 1;
        self.judge(&Live { mount, host, daemon, writers, cell }, sight);
        self.live = next;
    }

    fn check(&mut self) {
        let limit = Instant::now() + MOUNTED_WITHIN;
        loop {
            let mut check = self.hosts[0].command(&program());
            check.args(["check", &self.image]);
            let answer = run(check);
            match answer.code {
                0 => break self.report.checks += 1,
                // Somebody has it, or the storage is away.
                8 if Instant::now() < limit => std::thread::sleep(Duration::from_secs(1)),
                _ => break self.wrong([format!("check: {answer:?}")]),
            }
        }
    }
}
