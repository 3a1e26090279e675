//! Paths by inode number, from the starting image and the batches of the log.

use crate::{CutsError, Recording, tree};
use bytes::{Bytes, BytesMut};
use std::collections::HashMap;
use syncline::{Filesystem, ImageOptions};
use syncline_device::{Device, block_on};
use syncline_format::batch::{BatchHeader, HEADER_BYTES, Record, Records};
use syncline_format::items::dirent::Dirent;
use syncline_format::items::extent::Extent;
use syncline_format::{BLOCK_BYTES, BlockRun, Geometry, Key, Kind, crc};
use syncline_fs::types::{FileType, Ino, ROOT};
use syncline_powercut::Event;

/// Most directories in a path.
const DEPTH_MAX: usize = 2048;

/// Names by inode number, at a position in the log.
#[derive(Clone)]
pub struct Names {
    geometry: Geometry,
    /// Directory and name of each inode.
    named: HashMap<Ino, (Ino, Vec<u8>)>,
    /// The inode that each entry's key leads to.
    entries: HashMap<Key, Ino>,
    /// Number of events applied.
    position: usize,
}

/// A batch of the log.
pub(crate) struct Batch {
    pub(crate) header: BatchHeader,
    payload: Bytes,
}

/// An extent in a batch: file blocks from `file_block` on are in `run`.
pub(crate) struct Placed {
    pub(crate) run: BlockRun,
    pub(crate) ino: Ino,
    pub(crate) file_block: u64,
}

impl Batch {
    /// The batch in a write, if it is one.
    pub(crate) fn of(event: &Event, geometry: Geometry) -> Option<Self> {
        let Event::Write { offset, bufs } = event else { return None };
        let mut bytes = BytesMut::new();
        bufs.iter().for_each(|buf| bytes.extend_from_slice(buf));
        let (header, _) = BatchHeader::decode(&bytes, geometry).ok()?;
        let end = HEADER_BYTES.checked_add(header.payload_bytes as usize)?;
        let payload = bytes.freeze();
        let payload = (end <= payload.len()).then(|| payload.slice(HEADER_BYTES..end))?;
        let own = header.addr == offset / BLOCK_BYTES as u64 && crc(&payload) == header.payload_checksum;
        own.then_some(Self { header, payload })
    }

    pub(crate) fn records(&self, geometry: Geometry) -> impl Iterator<Item = Record<'_>> {
        Records::new(&self.payload, geometry).filter_map(Result::ok)
    }

    /// The extents of files in the batch.
    pub(crate) fn placed(&self, geometry: Geometry) -> Vec<Placed> {
        let placed = self.records(geometry).filter_map(|record| match record {
            Record::Put(key, value) if key.kind == Kind::Extent as u8 => {
                let extent = Extent::decode(key.offset, value).ok()?;
                Some(Placed { run: extent.run(), ino: key.object, file_block: extent.file_block })
            }
            _ => None,
        });
        placed.collect()
    }
}

impl Names {
    /// The names in the starting image.
    pub fn new(recording: &Recording) -> Result<Self, CutsError> {
        let device: std::sync::Arc<dyn Device> = recording.base.snapshot();
        let geometry = block_on(syncline_store::read_superblocks(&device))?.superblock.geometry;
        let fs = Filesystem::open_device(device, ImageOptions::read_only())?;
        let mut named = HashMap::new();
        let mut todo = vec![ROOT];
        while let Some(directory) = todo.pop() {
            // Unreadable entries just have no name here.
            for entry in block_on(tree::entries(fs.engine(), directory)).unwrap_or_default() {
                if entry.file_type == FileType::Directory && !named.contains_key(&entry.ino) {
                    todo.push(entry.ino);
                }
                named.insert(entry.ino, (directory, entry.name));
            }
        }
        Ok(Self { geometry, named, entries: HashMap::new(), position: 0 })
    }

    /// Sizes of the image.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Advances to `position`, applying every batch submitted before it.
    pub fn advance(&mut self, recording: &Recording, position: usize) {
        let events = recording.events.get(self.position..position).unwrap_or_default();
        let geometry = self.geometry;
        for batch in events.iter().filter_map(|event| Batch::of(event, geometry)) {
            self.apply(&batch);
        }
        self.position = self.position.max(position);
    }

    fn apply(&mut self, batch: &Batch) {
        for record in batch.records(self.geometry) {
            match record {
                Record::Put(key, value) if key.kind == Kind::Dirent as u8 => {
                    if let Ok(entry) = Dirent::decode(value) {
                        self.named.insert(entry.ino, (key.object, entry.name.to_vec()));
                        self.entries.insert(key, entry.ino);
                    }
                }
                Record::Delete(key) if key.kind == Kind::Dirent as u8 => self.forget(key),
                _ => {}
            }
        }
    }

    /// Removes an entry; another name may be the inode's newest one then.
    fn forget(&mut self, key: Key) {
        let Some(ino) = self.entries.remove(&key) else { return };
        if self.named.get(&ino).is_some_and(|(directory, _)| *directory == key.object) {
            let other = self.entries.iter().any(|(other, named)| *named == ino && other.object == key.object);
            if !other {
                self.named.remove(&ino);
            }
        }
    }

    /// The path of an inode, or its number if no name is known.
    pub fn path(&self, ino: Ino) -> String {
        let mut names: Vec<String> = Vec::new();
        let mut current = ino;
        while current != ROOT {
            match self.named.get(&current) {
                Some((directory, name)) if names.len() < DEPTH_MAX => {
                    names.push(String::from_utf8_lossy(name).into_owned());
                    current = *directory;
                }
                _ => return format!("inode {ino}"),
            }
        }
        names.reverse();
        format!("/{}", names.join("/"))
    }
}
