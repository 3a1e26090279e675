//! One life. A program runs on a mount. After each look, the data that it and other processes see is
//! compared with the model. Then the daemon is killed or the mount is unmounted, and the remaining state is
//! compared.

use super::daemon::{Daemon, make_image};
use super::generator::Generator;
use super::looks::{COUNTS, Found, check};
use super::model::Model;
use super::step::{Step, Who};
use super::worker::Worker;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use syncline_device::{Background, FileDevice, OpenOptions, Spawn, WorkerOptions, block_on};
use syncline_fuse::control;
use syncline_store::Canary;
use tempfile::TempDir;

/// A limit that no program reaches.
const ROOM: u64 = 40 << 20;

/// How a life ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Unmounted,
    Killed,
    KilledMeanwhile,
}

pub struct Life {
    place: TempDir,
    options: Vec<String>,
    canary: Option<Canary>,
    generator: Generator,
    model: Model,
    end: End,
    /// The steps so far, for a message.
    log: Vec<String>,
}

/// The three processes beside the daemon.
struct Others {
    program: Worker,
    witness: Worker,
    lister: Worker,
}

impl Life {
    pub fn new(seed: u64, options: &[&str], canary: Option<Canary>) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let end = [End::Unmounted, End::Unmounted, End::Killed, End::KilledMeanwhile][rng.random_range(0..4)];
        Self {
            place: tempfile::tempdir().expect("a temporary folder"),
            options: options.iter().map(|option| (*option).to_owned()).collect(),
            canary,
            generator: Generator::new(rng),
            model: Model::new(options),
            end,
            log: Vec::new(),
        }
    }

    fn image(&self) -> PathBuf {
        self.place.path().join("image")
    }

    fn root(&self) -> PathBuf {
        self.place.path().join("mount")
    }

    fn mount(&self, snapshot: Option<&str>) -> Result<Daemon, String> {
        let options: Vec<&str> = self.options.iter().map(String::as_str).collect();
        Daemon::start(&self.image(), &self.root(), &options, self.canary, snapshot)
    }

    /// Lives it. The error says what was wrong, after which steps.
    pub fn live(mut self) -> Result<(), String> {
        self.run().map_err(|what| format!("{what}\nafter\n  {}", self.log.join("\n  ")))
    }

    /// Lives another one, in which the program only counts, while one snapshot after another is made.
    pub fn count(mut self) -> Result<(), String> {
        const SNAPSHOTS: usize = 12;
        self.end = End::Unmounted;
        let (daemon, mut others) = self.begin()?;
        let failed = |errno: i32| std::io::Error::from_raw_os_error(errno).to_string();
        others.program.ask(&format!("count {COUNTS}all"))?.map_err(failed)?;
        for number in 0..SNAPSHOTS {
            let step = Step::Snapshot(format!("s{number}"));
            self.ask_the_daemon(&step, &mut others.program)?;
            self.model.made(&step, true);
        }
        others.program.ask("rest")?.map_err(failed)?;
        drop(others);
        daemon.unmount()?;
        self.look_afterwards()
    }

    /// Makes an image, and starts all processes.
    fn begin(&self) -> Result<(Daemon, Others), String> {
        make_image(&self.image());
        std::fs::create_dir(self.root()).map_err(|error| error.to_string())?;
        let daemon = self.mount(None)?;
        let start = |name: &str| Worker::start(&self.root(), &self.place.path().join(name));
        let (program, witness, lister) = (start("program"), start("witness"), start("lister"));
        Ok((daemon, Others { program, witness, lister }))
    }

    fn run(&mut self) -> Result<(), String> {
        let (mut daemon, mut others) = self.begin()?;
        let steps = self.generator.rng.random_range(40..160);
        for _ in 0..steps {
            self.step(&mut others)?;
        }
        match self.end {
            End::Unmounted => {}
            End::Killed => daemon.kill(),
            End::KilledMeanwhile => self.kill_meanwhile(&mut daemon, &mut others)?,
        }
        drop(others);
        if self.end == End::Unmounted {
            daemon.unmount()?;
        } else {
            drop(daemon);
        }
        self.look_afterwards()
    }

    fn step(&mut self, others: &mut Others) -> Result<(), String> {
        let (who, step) = self.generator.next(&self.model);
        let line = step.line(&self.model);
        self.log.push(format!("{who:?}: {line}"));
        let answer = match who {
            Who::Program => others.program.ask(&line)?,
            Who::Witness => others.witness.ask(&line)?,
            Who::Lister => others.lister.ask(&line)?,
            Who::Owner => self.ask_the_daemon(&step, &mut others.program).map(|()| Ok(Vec::new()))?,
        };
        let answer = answer.map_err(|errno| std::io::Error::from_raw_os_error(errno).to_string())?;
        self.model.made(&step, true);
        check(&self.model, &step, &answer)
    }

    fn ask_the_daemon(&self, step: &Step, program: &mut Worker) -> Result<(), String> {
        let root = self.root();
        let failed = |errno: i32| std::io::Error::from_raw_os_error(errno).to_string();
        let done = match step {
            Step::SyncAll => control::sync(&root),
            Step::Snapshot(name) => control::create_snapshot(&root, name),
            Step::SnapshotMeanwhile(name) => {
                program.ask(&format!("count {COUNTS}{name}"))?.map_err(failed)?;
                let done = control::create_snapshot(&root, name);
                program.ask("rest")?.map_err(failed)?;
                done
            }
            Step::Quota { dir, on: true } => {
                control::set_quota(&root.join(self.model.path_of(*dir)), Some(ROOM), None)
            }
            Step::Quota { dir, .. } => control::remove_quota(&root.join(self.model.path_of(*dir))),
            Step::Grow(size) => control::resize(&root, Some(*size)).map(drop),
            other => unreachable!("{other:?} is not for the daemon"),
        };
        done.map_err(|error| error.to_string())
    }

    /// Kills the daemon while the program makes a step, which may be there afterwards or not.
    fn kill_meanwhile(&mut self, daemon: &mut Daemon, others: &mut Others) -> Result<(), String> {
        let (who, step) = self.generator.next(&self.model);
        if who != Who::Program {
            daemon.kill();
            return Ok(());
        }
        let line = step.line(&self.model);
        self.log.push(format!("{who:?}: {line} (the daemon is killed meanwhile)"));
        others.program.tell(&line)?;
        std::thread::sleep(Duration::from_micros(self.generator.rng.random_range(0..1500)));
        daemon.kill();
        let told = others.program.hear().is_ok_and(|answer| answer.is_ok());
        self.model.made(&step, told);
        Ok(())
    }

    /// Mounts again, and compares everything; the snapshots too.
    fn look_afterwards(&mut self) -> Result<(), String> {
        let daemon = self.mount(None).map_err(|what| format!("mounting again: {what}"))?;
        let found = Found::read(&self.root())?;
        match self.end {
            End::Unmounted => found.check_all(&self.model),
            _ => found.check_after_crash(&self.model),
        }
        .map_err(|what| format!("mounted again: {what}"))?;
        // It is used on.
        let more = self.root().join("more");
        std::fs::write(&more, [7; 10_000])
            .and_then(|()| std::fs::remove_file(&more))
            .map_err(|e| e.to_string())?;
        daemon.unmount()?;
        for kept in &self.model.kept {
            let wrong = |what: String| format!("snapshot {}: {what}", kept.name);
            let daemon = self.mount(Some(&kept.name)).map_err(wrong)?;
            let checked = Found::read(&self.root()).and_then(|found| found.check_kept(&self.model, kept));
            checked.map_err(wrong)?;
            daemon.unmount().map_err(wrong)?;
        }
        self.check_image()
    }

    fn check_image(&self) -> Result<(), String> {
        let device =
            FileDevice::open(self.image(), OpenOptions::default()).map_err(|error| error.to_string())?;
        let spawn: Arc<dyn Spawn> = Arc::new(Background::start(WorkerOptions::default()).expect("it starts"));
        let report = block_on(syncline_check::check(device, spawn, &mut |_| {}));
        let report = report.map_err(|error| format!("check: {error}"))?;
        syncline_sim::unexplained(&report).map_or(Ok(()), |finding| Err(format!("check: {finding:?}")))
    }
}
