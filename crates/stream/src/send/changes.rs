//! The stream of the changes since an older snapshot: new inodes, changed contents, changed names, and
//! the attributes of all inodes that changed.

use super::contents::{Contents, Range};
use super::difference::{Changed, Fate, Found};
use super::held::Held;
use super::places::Places;
use super::whole::Items;
use super::{attributes, decode, file_type, is_nameless, make, quotas, xattrs};
use crate::{Record, StreamError, Writer};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use syncline_format::items::extent::Extent;
use syncline_format::{Key, Kind};
use syncline_fs::types::{FileType, Ino};
use syncline_fs::{Filesystem, FsError};

const CAPABILITY: &[u8] = b"security.capability";

/// Writes the records.
pub(super) async fn send<W: Write>(
    before: &Filesystem,
    after: &Filesystem,
    writer: &mut Writer<W>,
) -> Result<(), StreamError> {
    let found = Found::between(before, after).await?;
    let mut places = Places::default();
    if !found.shared.is_empty() {
        note_unchanged(after, &found, &mut places).await?;
    }
    for (ino, changed) in &found.inodes {
        let Some(value) = item(after, *ino).await? else { continue };
        let item = decode(*ino, &value)?;
        match changed.fate {
            Fate::New => writer.put(&make(after, *ino, &item).await?)?,
            Fate::Stays if changed.resized && file_type(*ino, &item)? == FileType::Regular => {
                writer.put(&Record::Resize { ino: *ino, size: item.size })?;
            }
            _ => {}
        }
    }
    for (ino, changed) in &found.inodes {
        if changed.fate != Fate::Gone {
            send_inode(before, after, (*ino, changed), &mut places, writer).await?;
        }
    }
    send_names(before, after, &found, writer).await?;
    quotas(after, writer).await?;
    for (ino, changed) in &found.inodes {
        if changed.fate != Fate::Gone
            && let Some(value) = item(after, *ino).await?
        {
            writer.put(&attributes(*ino, &decode(*ino, &value)?))?;
        }
    }
    Ok(())
}

async fn item(fs: &Filesystem, ino: Ino) -> Result<Option<Bytes>, StreamError> {
    Ok(fs.store().get(Key::new(ino, Kind::Inode, 0)).await?)
}

/// Contents and extended attributes of a new or changed inode.
async fn send_inode<W: Write>(
    before: &Filesystem,
    after: &Filesystem,
    (ino, changed): (Ino, &Changed),
    places: &mut Places,
    writer: &mut Writer<W>,
) -> Result<(), StreamError> {
    let Some(value) = item(after, ino).await? else { return Ok(()) };
    let item_after = decode(ino, &value)?;
    let is_new = changed.fate == Fate::New;
    let ranges = if is_new { None } else { Some(&changed.ranges[..]) };
    if is_new || !changed.ranges.is_empty() {
        Contents { fs: after, ino, item: &item_after, ranges }.send(places, writer).await?;
    }
    let has_contents = !changed.ranges.is_empty() || changed.resized;
    if !is_new && !changed.xattrs && !has_contents {
        return Ok(());
    }
    let now = xattrs(after, ino, &item_after).await?;
    let old: BTreeMap<Vec<u8>, Bytes> = match item(before, ino).await? {
        Some(value) if !is_new => xattrs(before, ino, &decode(ino, &value)?).await?.into_iter().collect(),
        _ => BTreeMap::new(),
    };
    let names: BTreeSet<&[u8]> = now.iter().map(|(name, _)| &name[..]).collect();
    for name in old.keys().filter(|name| !names.contains(&name[..])) {
        writer.put(&Record::NoXattr { ino, name: name.clone() })?;
    }
    for (name, value) in &now {
        // New contents take the capability away where they arrive.
        if old.get(name) != Some(value) || (name == CAPABILITY && has_contents) {
            writer.put(&Record::Xattr { ino, name: name.clone(), value: value.clone() })?;
        }
    }
    Ok(())
}

/// Notes who has the blocks that changed files share with others: a file whose part there did not
/// change can be cloned from.
async fn note_unchanged(after: &Filesystem, found: &Found, places: &mut Places) -> Result<(), StreamError> {
    let mut extents = Items::of(after, Kind::Extent);
    let mut held: (Ino, Held) = (0, Held::default());
    while let Some((key, value)) = extents.next().await? {
        let ino = key.object;
        let extent = Extent::decode(key.offset, &value).map_err(|detail| FsError::Corrupt { ino, detail })?;
        let run = extent.run();
        let near = found.shared.partition_point(|shared| shared.1 <= run.start);
        let is_needed = found.shared.get(near).is_some_and(|shared| shared.0 < run.end());
        if !extent.shared || !is_needed {
            continue;
        }
        let changed: &[Range] = match found.inodes.get(&ino) {
            None => &[],
            Some(changed) if changed.fate == Fate::Stays => &changed.ranges[..],
            Some(_) => continue,
        };
        if held.0 != ino {
            held = (ino, Held::of(after, ino).await?);
        }
        let parts = held.1.parts(extent.file_block, extent.end());
        let unchanged = parts.into_iter().flat_map(|(first, end)| outside(first, end, changed));
        for slice in unchanged.filter_map(|(first, end)| extent.slice(first, end)) {
            places.note(ino, &slice);
        }
    }
    Ok(())
}

/// The parts of `first..end` outside of these ranges.
fn outside(first: u64, end: u64, ranges: &[Range]) -> Vec<Range> {
    let mut parts = Vec::new();
    let mut at = first;
    for range in &ranges[ranges.partition_point(|range| range.1 <= first)..] {
        if range.0 >= end {
            break;
        }
        parts.push((at, range.0.max(at)));
        at = range.1;
    }
    parts.push((at, end.max(at)));
    parts.retain(|(first, end)| first < end);
    parts
}

/// Takes the names away that are not there any more, and gives the new ones. An inode that loses a
/// name and stays is parked meanwhile: the order of names does not matter then, and a directory can
/// go where a directory of its own was.
async fn send_names<W: Write>(
    before: &Filesystem,
    after: &Filesystem,
    found: &Found,
    writer: &mut Writer<W>,
) -> Result<(), StreamError> {
    let fate = |ino: &Ino| found.inodes.get(ino).map_or(Fate::Stays, |changed| changed.fate);
    let mut parked = BTreeSet::new();
    for (dir, name, ino) in &found.removed {
        // An inode without a name, or in a directory without one, is not at the receiver.
        if is_nameless(before, *dir).await? {
            continue;
        }
        let is_dir = match item(before, *ino).await? {
            Some(value) => file_type(*ino, &decode(*ino, &value)?)? == FileType::Directory,
            None => continue,
        };
        let record = match (is_dir || fate(ino) == Fate::Stays) && parked.insert(*ino) {
            true => Record::Park { ino: *ino, dir: *dir, name: name.clone() },
            false => Record::Unlink { dir: *dir, name: name.clone() },
        };
        writer.put(&record)?;
    }
    for (dir, name, ino) in &found.added {
        if is_nameless(after, *dir).await? {
            continue;
        }
        writer.put(&Record::Place { ino: *ino, dir: *dir, name: name.clone() })?;
        parked.remove(ino);
    }
    for ino in parked {
        writer.put(&Record::Drop { ino })?;
    }
    Ok(())
}
