//! An append-only journal and its index, made durable together: one flush for both, and after a power cut both or neither.
//!
//!     cargo run --example journal journal.img

use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;
use syncline::{File, Filesystem, FormatOptions, ImageOptions, OpenOptions};

/// Entries of any length, found by their number: the index has the offset at which each ends.
pub struct Journal {
    fs: Filesystem,
    entries: File,
    index: File,
}

impl Journal {
    /// Opens the journal in an image, which is made if there is none.
    pub fn open(image: &Path) -> io::Result<Self> {
        let fs =
            Filesystem::open_or_create(image, 32 << 20, &FormatOptions::default(), ImageOptions::default())?;
        let open = |path| OpenOptions::new().read(true).write(true).create(true).open(&fs, path);
        let (entries, index) = (open("/entries")?, open("/index")?);
        Ok(Self { fs, entries, index })
    }

    /// Number of entries.
    pub fn count(&self) -> io::Result<u64> {
        Ok(self.index.metadata()?.len() / 8)
    }

    fn end_of(&self, number: u64) -> io::Result<u64> {
        let mut end = [0; 8];
        self.index.read_exact_at(&mut end, number * 8)?;
        Ok(u64::from_le_bytes(end))
    }

    /// Appends entries and returns when all of them would survive a crash.
    pub fn append(&self, entries: &[&str]) -> io::Result<()> {
        let count = self.count()?;
        let mut end = if count == 0 { 0 } else { self.end_of(count - 1)? };
        for (number, entry) in (count..).zip(entries) {
            self.entries.write_all_at(entry.as_bytes(), end)?;
            end += entry.len() as u64;
            self.index.write_all_at(&end.to_le_bytes(), number * 8)?;
        }
        Ok(self.fs.sync_many(&[&self.entries, &self.index])?)
    }

    /// One entry.
    pub fn entry(&self, number: u64) -> io::Result<String> {
        let start = if number == 0 { 0 } else { self.end_of(number - 1)? };
        let mut entries = &self.entries;
        entries.seek(SeekFrom::Start(start))?;
        let mut entry = String::new();
        entries.take(self.end_of(number)? - start).read_to_string(&mut entry)?;
        Ok(entry)
    }

    /// Flushes that the image has cost so far.
    pub fn flushes(&self) -> u64 {
        self.fs.statistics().store.flushes_issued
    }
}

/// Appends three entries and returns everything that the journal has.
pub fn run(image: &Path) -> io::Result<Vec<String>> {
    let journal = Journal::open(image)?;
    let before = journal.flushes();
    journal.append(&["opened the shop", "sold a loaf", "closed the shop"])?;
    println!("three entries in two files cost {} flush", journal.flushes() - before);
    (0..journal.count()?).map(|number| journal.entry(number)).collect()
}

#[allow(dead_code, reason = "the tests include this file")]
fn main() -> io::Result<()> {
    let image = std::env::args_os().nth(1).ok_or_else(|| io::Error::other("usage: journal IMAGE"))?;
    for (number, entry) in run(Path::new(&image))?.into_iter().enumerate() {
        println!("{number}: {entry}");
    }
    Ok(())
}
