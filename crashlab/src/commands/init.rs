//! `crashlab init`.

use super::{note, print, recordings};
use crate::Error;
use crate::action::Ino;
use crate::history::History;
use crate::recording::Recording;
use crate::state::State;
use std::collections::HashSet;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The most files and lines of a recording that a checker names.
const SHOWN_MAX: usize = 8;

/// Arguments of `crashlab init`.
#[derive(clap::Args)]
#[command(
    after_help = "If there is a recording in the working folder, the checker begins with its files and lines."
)]
pub struct Args {
    /// New file, in Python (.py) or for the shell (.sh)
    #[arg(default_value = "check.py")]
    file: PathBuf,
}

/// A language of checkers.
struct Language {
    interpreter: &'static str,
    template: &'static str,
    /// Between two words of a list.
    between: &'static str,
    quote: fn(&str) -> String,
}

impl Language {
    fn of(file: &Path) -> Option<Self> {
        match file.extension()?.to_str()? {
            "py" => Some(Self {
                interpreter: "python3",
                template: include_str!("init/check.py"),
                between: ", ",
                // A string of JSON is one of Python.
                quote: |text| serde_json::Value::from(text).to_string(),
            }),
            "sh" => Some(Self {
                interpreter: "sh",
                template: include_str!("init/check.sh"),
                between: " ",
                quote: for_shell,
            }),
            _ => None,
        }
    }
}

fn for_shell(text: &str) -> String {
    if !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || "/._-".contains(c)) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// Writes the first version of a checker.
pub fn run(Args { file }: Args) -> Result<ExitCode, Error> {
    let unknown = || Error::Usage(format!("{}: name a file that ends in .py or .sh", file.display()));
    let language = Language::of(&file).ok_or_else(unknown)?;
    let seen = match recordings(Path::new("."))?.pop().map(|path| Seen::of(&path)).transpose() {
        Ok(seen) => seen.unwrap_or_default(),
        Err(error) => {
            note(&error.to_string());
            Seen::default()
        }
    };
    // Names and lines of a recording may contain the marks themselves.
    let (head, tail) = language.template.split_once("@SEEN@\n").unwrap_or((language.template, ""));
    let [head, tail] = [head, tail].map(|part| part.replace("@FILES@", &seen.files(&language)));
    let text = format!("{head}{}{tail}", seen.comment());
    let mut created = File::create_new(&file).map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => Error::Usage(format!("{} exists: name another file", file.display())),
        _ => Error::file(&file, error),
    })?;
    created.write_all(text.as_bytes()).map_err(|error| Error::file(&file, error))?;
    // The checker runs in other folders.
    let path = std::path::absolute(&file).map_err(|error| Error::file(&file, error))?;
    let command = format!("{} {}", language.interpreter, for_shell(&path.to_string_lossy()));
    print(&format!(
        "{} is a first checker. Put in what your program promises, and then:\n\n  \
         crashlab record -- PROGRAM\n  crashlab explore --check {}\n",
        file.display(),
        for_shell(&command)
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// What a recording says about its program.
#[derive(Default)]
struct Seen {
    recording: PathBuf,
    /// Files that it changed, and that had contents when it had printed the first line, and at the end.
    names: Vec<String>,
    /// Other files that it changed and left.
    others: Vec<String>,
    lines: Vec<String>,
}

impl Seen {
    fn of(path: &Path) -> Result<Self, Error> {
        let history = History::new(Recording::open(path)?)?;
        let (events, begin) = (history.events(), history.recording.begin);
        let end = events.len();
        let changed: HashSet<Ino> = events[begin..].iter().filter_map(|event| event.action.ino()).collect();
        let files = |position| -> Result<Vec<String>, Error> {
            let tree = history.tree(&State { position, lost: Default::default() })?;
            let is_of_program = |ino| {
                changed.contains(&ino) && tree.contents(ino).is_some_and(|contents| !contents.is_empty())
            };
            let files = tree.walk().into_iter().filter(|(_, ino)| is_of_program(*ino));
            Ok(files.filter_map(|(path, _)| String::from_utf8(path).ok()).collect())
        };
        let promised = (begin..end).find(|position| !history.printed(*position).is_empty());
        let early = files(promised.unwrap_or(end))?;
        let (names, others) = files(end)?.into_iter().partition(|name| early.contains(name));
        let lines = String::from_utf8_lossy(history.printed(end)).lines().map(str::to_owned).collect();
        Ok(Self { recording: path.to_owned(), names, others, lines })
    }

    /// The names of the files, as words of a language.
    fn files(&self, language: &Language) -> String {
        let names = self.names.iter().take(SHOWN_MAX).map(|name| (language.quote)(name));
        names.collect::<Vec<_>>().join(language.between)
    }

    /// Lines of comment with the recorded files and promises.
    fn comment(&self) -> String {
        let Some(recording) = self.recording.file_name() else { return String::new() };
        let mut text = format!("\n# In {} the program printed", recording.to_string_lossy().escape_debug());
        text += if self.lines.is_empty() {
            " nothing, so it has promised nothing: let it print a line when something has to survive.\n"
        } else {
            ":\n"
        };
        let list = |text: &mut String, items: &[String]| {
            for item in items.iter().take(SHOWN_MAX) {
                let _ = writeln!(text, "#     {}", item.escape_debug());
            }
            if items.len() > SHOWN_MAX {
                let _ = writeln!(text, "#     and {} more", items.len() - SHOWN_MAX);
            }
        };
        list(&mut text, &self.lines);
        let others: Vec<String> = self.names.iter().skip(SHOWN_MAX).chain(&self.others).cloned().collect();
        if !others.is_empty() {
            text += "# Besides the files below it left:\n";
            list(&mut text, &others);
        }
        text
    }
}
