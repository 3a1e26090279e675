//! Describes what a power cut has lost in terms of files.

use crate::names::{Batch, Names};
use crate::{CutsError, Recording, State};
use std::collections::BTreeSet;
use syncline_format::batch::Record;
use syncline_format::{BLOCK_BYTES, BlockRun, Kind};
use syncline_powercut::{Cut, Event, Fate};

/// Names shown for a batch.
const NAMES_MAX: usize = 6;

/// An open write and its fate.
#[derive(Clone, Debug)]
pub struct Described {
    /// The fate of the write.
    pub fate: Fate,
    /// A description of the write.
    pub what: String,
    /// Its length.
    pub bytes: u64,
}

/// The writes that were open at a power cut.
pub fn describe(recording: &Recording, state: &State, cut: &Cut) -> Result<Vec<Described>, CutsError> {
    let mut names = Names::new(recording)?;
    names.advance(recording, state.position);
    let fates = state.fates(cut);
    let open: Vec<usize> = cut.open().collect();
    let described = open.iter().enumerate().map(|(index, id)| Described {
        fate: fates.get(index).copied().unwrap_or(Fate::Lost),
        what: what(recording, &names, *id),
        bytes: cut.range(index).1,
    });
    Ok(described.collect())
}

/// The writes that came after `position`, up to the end of the first flush behind them.
pub fn describe_next(recording: &Recording, position: usize) -> Result<Vec<String>, CutsError> {
    let is_write = |event: &&Event| matches!(event, Event::Write { .. });
    let rest = recording.events.get(position..).unwrap_or_default();
    let first = rest.iter().take_while(|event| !is_write(event)).count();
    let group = rest[first..].iter().take_while(|event| !matches!(event, Event::FlushEnded { ok: true, .. }));
    let end = position + first + group.count();
    let mut names = Names::new(recording)?;
    names.advance(recording, end);
    let writes = (position..end).filter(|id| is_write(&&recording.events[*id]));
    Ok(writes.map(|id| what(recording, &names, id)).collect())
}

fn what(recording: &Recording, names: &Names, id: usize) -> String {
    let event = &recording.events[id];
    let Event::Write { offset, bufs } = event else { return "no write".to_owned() };
    let geometry = names.geometry();
    if let Some(batch) = Batch::of(event, geometry) {
        return format!("log batch {}: {}", batch.header.seq, changes(&batch, names));
    }
    let blocks = bufs.iter().map(|buf| buf.len() as u64).sum::<u64>() / BLOCK_BYTES as u64;
    let run = BlockRun::new(offset / BLOCK_BYTES as u64, blocks);
    let copies = [0, 1].map(|slot| geometry.superblock_copies(slot));
    if copies.as_flattened().contains(&run.start) {
        return "superblock".to_owned();
    }
    if let Some(data) = data(recording, names, id, run) {
        return data;
    }
    match bufs.first().map(|buf| &buf[..8]) {
        Some(b"SYNCNODE") => "tree node of a checkpoint".to_owned(),
        Some(start) if start.starts_with(b"SLSP") => "space map of a checkpoint".to_owned(),
        _ => "data that no later batch names".to_owned(),
    }
}

/// Describes the changes in a batch.
fn changes(batch: &Batch, names: &Names) -> String {
    let mut seen = BTreeSet::new();
    for record in batch.records(names.geometry()) {
        let (key, value) = match record {
            Record::Put(key, value) => (key, Some(value)),
            Record::Delete(key) => (key, None),
            _ => continue,
        };
        let gone = if value.is_none() { " (removed)" } else { "" };
        let text = match Kind::from_u8(key.kind) {
            Some(Kind::Inode) => format!("inode of {}{gone}", names.path(key.object)),
            Some(Kind::Unplaced) => format!("contents of {}", names.path(key.object)),
            Some(Kind::Extent) => format!("extents of {}", names.path(key.object)),
            Some(Kind::Xattr | Kind::Chunk) => format!("attributes of {}", names.path(key.object)),
            // The entries with the names are described themselves.
            Some(Kind::Orphan | Kind::Parent | Kind::Shared | Kind::Quota) => continue,
            Some(Kind::Preallocation) if key.object == 0 => continue,
            Some(Kind::Preallocation) => format!("room of {}", names.path(key.object)),
            Some(Kind::Dirent) => match value.and_then(entry_name) {
                Some(name) => format!("name '{name}' in {}", names.path(key.object)),
                None => format!("a name in {} (removed)", names.path(key.object)),
            },
            None => continue,
        };
        seen.insert(text);
    }
    if seen.is_empty() {
        return "no changes".to_owned();
    }
    let more = seen.len().saturating_sub(NAMES_MAX);
    let shown: Vec<String> = seen.into_iter().take(NAMES_MAX).collect();
    let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{}{rest}", shown.join(", "))
}

fn entry_name(value: &[u8]) -> Option<String> {
    let entry = syncline_format::items::dirent::Dirent::decode(value).ok()?;
    Some(String::from_utf8_lossy(entry.name).into_owned())
}

/// Describes the file data in a write, from the first later batch that places an extent there.
fn data(recording: &Recording, names: &Names, id: usize, run: BlockRun) -> Option<String> {
    let later = recording.events[id + 1..].iter();
    let placed = later.filter_map(|event| Batch::of(event, names.geometry())).find_map(|batch| {
        let inside = |addr: u64| addr >= run.start && addr < run.end();
        let here: Vec<_> =
            batch.placed(names.geometry()).into_iter().filter(|placed| inside(placed.run.start)).collect();
        (!here.is_empty()).then_some(here)
    })?;
    let mut texts = Vec::new();
    for placed in placed.iter().take(NAMES_MAX) {
        let last = placed.file_block + placed.run.blocks - 1;
        texts.push(format!("{} (blocks {} to {last})", names.path(placed.ino), placed.file_block));
    }
    Some(format!("data of {}", texts.join(", ")))
}
