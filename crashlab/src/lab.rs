//! crashlab for tests in Rust.

use crate::Error;
use crate::checker::in_folder;
use crate::explain::explain;
use crate::explore::{Case, Explorer, Judge, Limits, Verdict};
use crate::history::History;
use crate::model::{MODELS, Model};
use crate::plan::Plan;
use crate::record::record;
use crate::recording::Recording;
use crate::report::{Report, as_text};
use std::any::Any;
use std::ffi::OsString;
use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

mod function;

/// Records a program and looks for the power cut that breaks it.
///
/// ```text
/// #[test]
/// fn the_store_survives_power_cuts() {
///     let program = crashlab::Lab::function(|| {
///         Store::open(".").unwrap().put("key", "value").unwrap();
///         println!("stored");
///     });
///     crashlab::Lab::new().model("ext4").test(&program, |files, printed| {
///         let store = Store::open(files).map_err(|error| error.to_string())?;
///         if printed.contains("stored") {
///             assert_eq!(store.get("key"), Some("value"));
///         }
///         Ok(())
///     });
/// }
/// ```
pub struct Lab {
    model: &'static Model,
    folder: Option<PathBuf>,
    time: Duration,
}

impl Default for Lab {
    fn default() -> Self {
        Self { model: &MODELS[0], folder: None, time: Duration::from_secs(30) }
    }
}

impl Lab {
    /// The model `posix`, an empty folder, thirty seconds.
    pub fn new() -> Self {
        Self::default()
    }

    /// Explores what this model allows.
    ///
    /// # Panics
    ///
    /// If there is no model of this name.
    pub fn model(mut self, name: &str) -> Self {
        self.model = Model::named(name).unwrap_or_else(|| panic!("there is no model {name}"));
        self
    }

    /// Starts from a copy of this folder.
    pub fn folder(mut self, folder: impl Into<PathBuf>) -> Self {
        self.folder = Some(folder.into());
        self
    }

    /// Begins no further state after this time.
    pub fn time(mut self, time: Duration) -> Self {
        self.time = time;
        self
    }

    /// A program that is a function of a test: a command that runs the test again, up to here, and then
    /// this function, and ends. Its folder is the working folder, and what it prints is a promise. Whatever
    /// the test does before is done in that process too, but for [`Lab::find`], which returns `None`.
    ///
    /// # Panics
    ///
    /// If it is not called by a test, in the test's own thread.
    pub fn function(function: impl FnOnce()) -> Command {
        function::again(function)
    }

    /// Runs the program (its name, arguments and environment; not its folder) in a folder of its own, and
    /// `check` on the files of each state, with what the program had certainly printed. A check that
    /// panics has failed. Returns a report of the first state that fails.
    pub fn find(
        &self,
        program: &Command,
        check: impl Fn(&Path, &str) -> Result<(), String> + Sync,
    ) -> Result<Option<String>, Error> {
        if function::is_program() {
            // The test has passed here before, and is on its way to a later function.
            return Ok(None);
        }
        let stop = AtomicBool::new(false);
        let place = tempfile::Builder::new().prefix("crashlab-").tempdir();
        let place = place.map_err(|error| Error::file(&std::env::temp_dir(), error))?;
        let path = place.path().join("recording");
        let file = File::create_new(&path).map_err(|error| Error::file(&path, error))?;
        let empty = place.path().join("empty");
        std::fs::create_dir(&empty).map_err(|error| Error::file(&empty, error))?;
        let words: Vec<OsString> =
            [program.get_program()].into_iter().chain(program.get_args()).map(Into::into).collect();
        let environment = program.get_envs().map(|(name, value)| (name.to_owned(), value.map(Into::into)));
        let folder = self.folder.as_ref().unwrap_or(&empty);
        let outcome = record(folder, &words, environment.collect(), file, false, &stop)?;
        if outcome.exit_code != 0 {
            return Err(Error::Stopped(format!("the program ended with exit code {}", outcome.exit_code)));
        }
        if outcome.actions == 0 {
            let text = "the program did nothing to the files of its working folder: give it relative paths";
            return Err(Error::Usage(text.into()));
        }

        let history = History::new(Recording::open(&path)?)?;
        let judge = Closure { check, folder: place.path().to_owned() };
        let explorer = Explorer::new(&history, &judge);
        explorer.accept_the_end(None)?;
        let started = Instant::now();
        let jobs = std::thread::available_parallelism().map_or(1, usize::from);
        let limits = Limits { stop: &stop, until: Some(started + self.time), keep_going: false, jobs };
        let plan = Plan::new(self.model, history.events(), history.recording.begin, 0);
        let found = explorer.run(plan, limits)?;
        let Some(first) = found.failing.first() else { return Ok(None) };
        let until = Some(Instant::now() + self.time);
        let first = explain(&history, self.model, &explorer, &judge, first, Limits { until, ..limits })?;
        Ok(Some(as_text(&Report {
            path: None,
            history: &history,
            model: self.model,
            on: None,
            first: Some(first),
            failing: &found.failing,
            seen: &[],
            is_complete: found.is_complete,
            states: explorer.counts.states.load(Ordering::Relaxed),
            cases: explorer.counts.cases.load(Ordering::Relaxed),
            elapsed: started.elapsed(),
        })))
    }

    /// Like [`Lab::find`], for a test.
    ///
    /// # Panics
    ///
    /// With a report if a state fails, and if the program can't be recorded.
    pub fn test(&self, program: &Command, check: impl Fn(&Path, &str) -> Result<(), String> + Sync) {
        match self.find(program, check) {
            Ok(None) => {}
            Ok(Some(report)) => panic!("a power cut breaks it:\n{report}"),
            Err(error) => panic!("{error}"),
        }
    }
}

struct Closure<F> {
    check: F,
    folder: PathBuf,
}

impl<F: Fn(&Path, &str) -> Result<(), String> + Sync> Judge for Closure<F> {
    fn judge(&self, case: &Case<'_>) -> Result<Verdict, Error> {
        in_folder(&self.folder, case, |files| {
            let printed = String::from_utf8_lossy(case.printed);
            let checked = catch_unwind(AssertUnwindSafe(|| (self.check)(files, &printed)));
            let checked = checked.unwrap_or_else(|panic| Err(message(&*panic)));
            Ok(checked.map_or_else(Verdict::Failed, |()| Verdict::Passed))
        })
    }
}

/// The message of a panic.
fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("the check panicked").to_owned()
}
