//! A small key-value store: one log of changes, the newest of each key remembered, rewritten when most of it is old.
//!
//!     cargo run --example keys keys.img set city Ulm

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::path::Path;
use syncline::{File, Filesystem, FormatOptions, ImageOptions, OpenOptions};

/// Keys and values, all in memory and each change in the log before the call returns.
pub struct Keys {
    fs: Filesystem,
    log: File,
    values: BTreeMap<String, String>,
    lines: usize,
}

fn append_to(fs: &Filesystem) -> io::Result<File> {
    Ok(OpenOptions::new().read(true).append(true).create(true).open(fs, "/log")?)
}

fn line(key: &str, value: Option<&str>) -> String {
    serde_json::json!([key, value]).to_string() + "\n"
}

impl Keys {
    /// Opens the store in an image, which is made if there is none.
    pub fn open(image: &Path) -> io::Result<Self> {
        let format = FormatOptions::default();
        let fs = Filesystem::open_or_create(image, 32 << 20, &format, ImageOptions::default())?;
        let mut log = append_to(&fs)?;
        let mut text = String::new();
        log.read_to_string(&mut text)?;
        let mut keys = Self { fs, log, values: BTreeMap::new(), lines: 0 };
        for line in text.lines() {
            // A crash cuts only lines off that were not synced, so never acknowledged.
            let Ok((key, value)) = serde_json::from_str(line) else { break };
            keys.remember(key, value);
        }
        Ok(keys)
    }

    fn remember(&mut self, key: String, value: Option<String>) {
        self.lines += 1;
        match value {
            Some(value) => drop(self.values.insert(key, value)),
            None => drop(self.values.remove(&key)),
        }
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.values.get(key).map(String::as_str)
    }

    /// Sets or removes a key; durable when it returns.
    pub fn set(&mut self, key: &str, value: Option<&str>) -> io::Result<()> {
        self.log.write_all(line(key, value).as_bytes())?;
        self.log.sync_data()?;
        self.remember(key.to_owned(), value.map(str::to_owned));
        if self.lines > 2 * self.values.len() + 100 { self.rewrite() } else { Ok(()) }
    }

    /// Puts the current values in place of the log: the old log or the new one is there, whatever
    /// happens.
    fn rewrite(&mut self) -> io::Result<()> {
        let lines: String = self.values.iter().map(|(key, value)| line(key, Some(value))).collect();
        self.fs.write("/log.new", lines)?;
        self.fs.rename("/log.new", "/log")?;
        self.log = append_to(&self.fs)?;
        self.lines = self.values.len();
        Ok(self.log.sync_all()?)
    }
}

/// Answers `set KEY VALUE`, `remove KEY` and `get KEY`.
pub fn run(image: &Path, words: &[&str]) -> io::Result<Option<String>> {
    let mut keys = Keys::open(image)?;
    match words {
        ["set", key, value] => keys.set(key, Some(value))?,
        ["remove", key] => keys.set(key, None)?,
        ["get", key] => return Ok(keys.get(key).map(str::to_owned)),
        _ => return Err(io::Error::other("usage: keys IMAGE set KEY VALUE | remove KEY | get KEY")),
    }
    Ok(None)
}

#[allow(dead_code, reason = "the tests include this file")]
fn main() -> io::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().skip(1).map(String::as_str).collect();
    if let Some(value) = run(Path::new(arguments.first().map_or("", String::as_str)), &words)? {
        println!("{value}");
    }
    Ok(())
}
