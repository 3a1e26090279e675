//! SQLite with `synchronous=FULL`: one INSERT in each transaction, with a rollback journal and with
//! a write-ahead log, and an UPDATE of four rows with the latter.
//!
//! The load is the `sqlite3` shell: a statement goes in, and a line comes back when the transaction
//! is durable. The latency includes the way through two pipes, the same for all contestants.

use crate::error::During;
use crate::files::{Embedded, Opened};
use crate::jobs::{Job, drive};
use crate::workload::{Pace, Phase, Sample, Unit, Workload};
use crate::{BenchError, Interrupt, command};
use rand::Rng;
use std::ffi::OsStr;
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

const NAME: &str = "database";
/// Bytes of an inserted row.
const ROW_BYTES: u64 = 100;
/// Rows of the table that is updated, their bytes, and how many of them one transaction changes.
const ROWS: u64 = 20_000;
const UPDATED_BYTES: u64 = 200;
const UPDATED: usize = 4;
/// The extension that keeps databases in an image.
const EXTENSION: &str = "libsyncline_sqlite.so";
/// Printed once the previous statement is done.
const DONE: &str = "done";

/// The journal with which SQLite makes a transaction atomic.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Journal {
    /// The old pages, in a file that is removed at the end of each transaction.
    Rollback,
    /// The new pages, in a log.
    Wal,
}

/// The statement of a transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// One INSERT.
    Insert,
    /// One UPDATE of rows on pages far apart.
    Update,
}

/// The workload.
pub struct Sqlite {
    program: PathBuf,
    version: String,
    journal: Journal,
    change: Change,
}

/// The shell with a database open; killed when dropped.
struct Shell {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Shell {
    /// On this database.
    fn open(program: &Path, database: &OsStr) -> io::Result<Self> {
        let mut command = Command::new(program);
        command.args(["-batch", "-bail"]).arg(database);
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let input = child.stdin.take().expect("it was asked for");
        let output = BufReader::new(child.stdout.take().expect("it was asked for"));
        Ok(Self { child, input, output })
    }

    /// Executes a statement and waits until it is done.
    fn execute(&mut self, statement: &str) -> io::Result<()> {
        // A shell that has given up prints the reason at its end; the broken pipe shows only that
        // it has.
        let written = writeln!(self.input, "{statement}\nSELECT '{DONE}';");
        if written.is_err() {
            return Err(self.gave_up());
        }
        loop {
            let mut line = String::new();
            match self.output.read_line(&mut line)? {
                0 => return Err(self.gave_up()),
                _ if line.trim() == DONE => return Ok(()),
                // The output of a PRAGMA.
                _ => {}
            }
        }
    }

    fn gave_up(&mut self) -> io::Error {
        let mut text = String::new();
        if let Some(mut errors) = self.child.stderr.take() {
            // Without the shell's message the error is less helpful, but still an error.
            let _ = io::Read::read_to_string(&mut errors, &mut text);
        }
        io::Error::other(format!("sqlite3 ended: {}", text.trim()))
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Sqlite {
    /// With this journal and this transaction.
    pub fn new(journal: Journal, change: Change) -> Result<Self, BenchError> {
        let program = command::require("sqlite3", "sqlite3")?;
        let version = command::succeed(Command::new(&program).arg("--version"), None)?;
        let version = version.split_whitespace().next().unwrap_or_default().to_owned();
        Ok(Self { program, version, journal, change })
    }

    fn transactions(&self, mut shell: Shell, job: &mut Job<'_>) -> io::Result<()> {
        let mut rng = rand::rng();
        while job.goes_on() {
            let statement = match self.change {
                Change::Insert => format!("INSERT INTO t(data) VALUES(randomblob({ROW_BYTES}));"),
                Change::Update => {
                    let rows = [(); UPDATED].map(|()| rng.random_range(1..=ROWS).to_string()).join(",");
                    format!("UPDATE t SET data = randomblob({UPDATED_BYTES}) WHERE id IN ({rows});")
                }
            };
            job.time(|| shell.execute(&statement))?;
            job.done(match self.change {
                Change::Insert => ROW_BYTES,
                Change::Update => UPDATED_BYTES * UPDATED as u64,
            });
        }
        Ok(())
    }

    fn open(&self, directory: &Path) -> io::Result<Shell> {
        let mut shell = Shell::open(&self.program, directory.join(NAME).as_os_str())?;
        shell.execute(match self.journal {
            Journal::Rollback => "PRAGMA journal_mode=DELETE; PRAGMA synchronous=FULL;",
            Journal::Wal => "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;",
        })?;
        Ok(shell)
    }

    fn make_table(&self, shell: &mut Shell) -> io::Result<()> {
        shell.execute("CREATE TABLE t(id INTEGER PRIMARY KEY, data BLOB);")?;
        match self.change {
            Change::Insert => Ok(()),
            Change::Update => shell.execute(&format!(
                "WITH RECURSIVE n(i) AS (VALUES(1) UNION ALL SELECT i+1 FROM n WHERE i<{ROWS}) \
                 INSERT INTO t SELECT i, randomblob({UPDATED_BYTES}) FROM n;"
            )),
        }
    }
}

/// The extension for SQLite, if it lies beside this program.
fn extension() -> Option<PathBuf> {
    let beside = std::env::current_exe().ok()?.with_file_name(EXTENSION);
    beside.is_file().then_some(beside)
}

/// The database lies in the image, which the shell opens with the extension. It has the extension's own
/// journal, whatever the workload says.
impl Embedded for Sqlite {
    fn open<'a>(&'a self, image: &Path, _interrupt: &Interrupt) -> Result<Box<dyn Opened + 'a>, BenchError> {
        let extension = extension().ok_or(BenchError::Missing { program: EXTENSION, package: "syncline" })?;
        let open = || {
            let mut shell = Shell::open(&self.program, ":memory:".as_ref())?;
            shell.execute(&format!(".load '{}'", extension.display()))?;
            shell.execute(&format!(".open 'file:/{NAME}?vfs=syncline&image={}'", image.display()))?;
            // A shell that could not open the database goes on without one.
            shell.execute("SELECT syncline_sync(); PRAGMA synchronous=FULL;")?;
            self.make_table(&mut shell)?;
            Ok::<_, io::Error>(shell)
        };
        let shell = open().during(|| "making a database in the image".into())?;
        Ok(Box::new(InImage { load: self, shell: Some(shell) }))
    }
}

struct InImage<'a> {
    load: &'a Sqlite,
    shell: Option<Shell>,
}

impl Opened for InImage<'_> {
    fn run(&mut self, pace: Pace<'_>) -> Result<Sample, BenchError> {
        drive(self.shell.take().into_iter().collect(), pace, |shell, job| self.load.transactions(shell, job))
    }
}

impl Workload for Sqlite {
    fn suite(&self) -> &'static str {
        "sqlite"
    }

    fn title(&self) -> String {
        match self.change {
            Change::Insert => "SQLite, synchronous=FULL, one INSERT a transaction".into(),
            Change::Update => format!("SQLite, synchronous=FULL, UPDATE of {UPDATED} rows a transaction"),
        }
    }

    fn variant(&self) -> String {
        match self.journal {
            Journal::Rollback => "rollback journal".into(),
            Journal::Wal => "write-ahead log".into(),
        }
    }

    fn reads_back(&self) -> bool {
        true
    }

    fn phases(&self) -> Vec<Phase> {
        vec![Phase::warm("", Unit::PerSecond("transactions"), "transaction")]
    }

    fn engine(&self) -> String {
        format!("sqlite3 {}", self.version)
    }

    fn prepare(&self, _phase: usize, directory: &Path, _interrupt: &Interrupt) -> Result<(), BenchError> {
        let prepare = || self.make_table(&mut self.open(directory)?);
        prepare().during(|| "making a database".into())
    }

    fn run(&self, _phase: usize, directory: &Path, pace: Pace<'_>) -> Result<Sample, BenchError> {
        let shell = self.open(directory).during(|| "opening the database".into())?;
        drive(vec![shell], pace, |shell, job| self.transactions(shell, job))
    }

    fn embedded(&self) -> Option<&dyn Embedded> {
        extension().map(|_| self as &dyn Embedded)
    }
}
