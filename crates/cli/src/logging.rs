//! Log lines on standard error, or in the system's log. A command reports its outcome in one line of
//! its own, so only a daemon logs, once it serves; `-v` and `SYNCLINE_LOG` show more, from the start.

use crate::log_limit::Limited;
use crate::log_thread::{LogThread, plain};
use crate::syslog::{SOCKET, Syslog, Tag, Tagged};
use clap::{ArgAction, ValueEnum};
use std::io;
use std::path::Path;
use std::sync::OnceLock;
use tracing::{Level, Metadata};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry, fmt, reload};

/// The variable with the levels: one for all, or some for parts, as in
/// `debug,syncline_store=trace`.
const LEVELS: &str = "SYNCLINE_LOG";
/// The variable with the format.
const FORMAT: &str = "SYNCLINE_LOG_FORMAT";

static FILTER: OnceLock<reload::Handle<EnvFilter, Registry>> = OnceLock::new();
static CHOSEN: OnceLock<Choices> = OnceLock::new();
static THREAD: OnceLock<LogThread> = OnceLock::new();
/// Set if the lines go to the system's log.
static TAG: OnceLock<Tag> = OnceLock::new();

/// How log lines look.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Format {
    /// For people.
    Text,
    /// An object in each line.
    Json,
}

/// Choices that every command knows.
#[derive(Clone, Debug, clap::Args)]
pub struct Choices {
    /// Log more on standard error: information, with -vv details for finding errors, with -vvv
    /// everything
    #[arg(short, long, global = true, action = ArgAction::Count, conflicts_with = "quiet")]
    verbose: u8,
    /// Log errors only, without progress
    #[arg(short, long, global = true)]
    quiet: bool,
    /// Form of log lines: text, or json with an object in each
    #[arg(long, global = true, value_name = "FORMAT", value_enum)]
    log_format: Option<Format>,
}

impl Choices {
    /// The level chosen on the command line.
    fn level(&self) -> Option<&'static str> {
        match (self.quiet, self.verbose) {
            (true, _) => Some("error"),
            (_, 0) => None,
            (_, 1) => Some("info"),
            (_, 2) => Some("debug"),
            _ => Some("trace"),
        }
    }

    /// The levels from the command line, or else from the environment.
    fn levels(&self) -> Option<String> {
        self.level().map(str::to_owned).or_else(|| std::env::var(LEVELS).ok())
    }

    fn format(&self) -> Format {
        let of_environment = || Format::from_str(&std::env::var(FORMAT).ok()?, true).ok();
        self.log_format.or_else(of_environment).unwrap_or(Format::Text)
    }
}

/// Starts logging as chosen; logs nothing by default.
pub fn start(choices: Choices) {
    let levels = choices.levels().and_then(|levels| EnvFilter::try_new(levels).ok());
    let (filter, handle) = reload::Layer::new(levels.unwrap_or_else(|| EnvFilter::new("off")));
    let lines = fmt::layer().with_writer(Output).with_ansi(false);
    let lines = match choices.format() {
        Format::Text => lines.boxed(),
        Format::Json => lines.json().flatten_event(true).boxed(),
    };
    tracing_subscriber::registry().with(filter).with(Limited::new(lines)).init();
    let _ = FILTER.set(handle);
    let _ = CHOSEN.set(choices);
}

/// The destination of a line: standard error or the system's log, for a daemon through a thread of
/// its own.
struct Output;

impl<'a> MakeWriter<'a> for Output {
    type Writer = Box<dyn io::Write>;

    fn make_writer(&'a self) -> Self::Writer {
        writer(Level::INFO)
    }

    fn make_writer_for(&'a self, of: &Metadata<'_>) -> Self::Writer {
        writer(*of.level())
    }
}

fn writer(level: Level) -> Box<dyn io::Write> {
    match (THREAD.get(), TAG.get()) {
        (Some(thread), Some(tag)) => Box::new(Tagged { tag: tag.clone(), level, output: thread.writer() }),
        (Some(thread), None) => Box::new(thread.writer()),
        _ => Box::new(crate::printed::stderr()),
    }
}

/// From now on warnings and errors are logged, unless something else was chosen. Serving threads
/// never wait for the reader of the log.
pub fn serve() {
    THREAD.get_or_init(|| LogThread::start(crate::printed::stderr(), plain));
    log_warnings();
}

/// The same, for a daemon that was given no file: into the system's log, if there is one.
pub fn serve_into_syslog(mount_point: &Path) {
    // Where nothing reads the socket, standard error has been turned into /dev/null.
    let Ok(syslog) = Syslog::connect(Path::new(SOCKET)) else { return serve() };
    let tag = Tag { about: crate::printed::one_line(mount_point.display()) };
    let _ = TAG.set(tag.clone());
    THREAD.get_or_init(|| LogThread::start(syslog, move |text| tag.tagged(Level::WARN, text)));
    log_warnings();
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        tracing::error!("{panic}");
        usual(panic);
    }));
}

fn log_warnings() {
    let chosen = CHOSEN.get().and_then(Choices::levels);
    if chosen.is_none()
        && let Some(handle) = FILTER.get()
    {
        // Fails only if the subscriber is gone.
        let _ = handle.reload(EnvFilter::new("warn"));
    }
}

/// Called when the program is about to end: writes the pending log lines, if somebody reads them.
pub fn end() {
    if let Some(thread) = THREAD.get() {
        thread.end();
    }
}

/// True if progress is unwanted, by this command line or by that of the command that started this
/// daemon.
pub fn is_quiet() -> bool {
    CHOSEN.get().and_then(Choices::levels).as_deref() == Some("error")
}

/// The environment with which a daemon logs as chosen.
pub fn environment() -> Vec<(&'static str, String)> {
    let Some(choices) = CHOSEN.get() else { return Vec::new() };
    let format = choices.format().to_possible_value().map(|value| (FORMAT, value.get_name().to_owned()));
    choices.level().map(|level| (LEVELS, level.to_owned())).into_iter().chain(format).collect()
}
