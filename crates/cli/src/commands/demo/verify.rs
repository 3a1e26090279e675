//! The writes and files that were acknowledged, and the check that they are there.

use super::power::{SLOT_BLOCKS, SLOTS};
use crate::failure::{Cause, Failure};
use std::ops::AddAssign;
use syncline::{Filesystem, OpenOptions};
use syncline_device::BLOCK_BYTES;
use syncline_powercut::block_of;

/// A write that was followed by an fsync.
pub struct Acknowledged {
    /// Slot in the file.
    pub slot: u64,
    /// Identifies the data written there.
    pub tag: u64,
    /// Position in the recording before the write.
    pub begun: usize,
    /// Position in the recording after the fsync was answered.
    pub answered: usize,
}

/// A file that was created and fsynced.
struct Created {
    tag: u64,
    len: usize,
    answered: usize,
}

/// The actions of one thread, in order.
#[derive(Default)]
pub struct JobHistory {
    writes: Vec<Acknowledged>,
    created: Vec<Created>,
}

/// The amounts that were compared.
#[derive(Clone, Copy, Default)]
pub struct Compared {
    /// fsyncs that had been answered before the cut.
    pub fsyncs: u64,
    /// Bytes that had to be there.
    pub bytes: u64,
    /// Names that had to be there.
    pub files: u64,
}

impl AddAssign for Compared {
    fn add_assign(&mut self, other: Self) {
        self.fsyncs += other.fsyncs;
        self.bytes += other.bytes;
        self.files += other.files;
    }
}

impl JobHistory {
    /// The file that the job overwrites.
    pub fn file_name(job: u64) -> String {
        format!("job {job}")
    }

    /// A file that the job creates.
    pub fn created_name(job: u64, tag: u64) -> String {
        format!("job {job}, file {tag}")
    }

    /// Number of answered fsyncs.
    pub fn fsyncs(&self) -> u64 {
        (self.writes.len() + self.created.len()) as u64
    }

    /// Records an overwrite.
    pub fn wrote(&mut self, write: Acknowledged) {
        self.writes.push(write);
    }

    /// Records a new file.
    pub fn created(&mut self, tag: u64, len: usize, answered: usize) {
        self.created.push(Created { tag, len, answered });
    }
}

fn lost(text: String) -> Failure {
    Failure::of(Cause::Damaged, text)
}

/// Compares one job's files with what had been acknowledged at `position`.
pub fn verify(fs: &Filesystem, job: u64, history: &JobHistory, position: usize) -> Result<Compared, Failure> {
    let mut compared = Compared::default();
    for file in history.created.iter().filter(|file| file.answered <= position) {
        let name = JobHistory::created_name(job, file.tag);
        let expected: Vec<u8> =
            (0..SLOT_BLOCKS).flat_map(|block| block_of(file.tag, block)).take(file.len).collect();
        let found = fs.read(&name).map_err(|error| lost(format!("{name} is lost: {error}")))?;
        if found != expected {
            return Err(lost(format!("{name} differs from the written data")));
        }
        compared += Compared { fsyncs: 1, bytes: file.len as u64, files: 1 };
    }
    let name = JobHistory::file_name(job);
    let answered = history.writes.iter().filter(|write| write.answered <= position).count();
    if answered > 0 {
        compared += overwritten(fs, &name, history, position)?;
        compared += Compared { fsyncs: answered as u64, bytes: 0, files: 1 };
    }
    Ok(compared)
}

/// Checks that each slot of the job's file has the newest acknowledged contents, or, block by
/// block, data of a write that began later.
fn overwritten(
    fs: &Filesystem,
    name: &str,
    history: &JobHistory,
    position: usize,
) -> Result<Compared, Failure> {
    let file = OpenOptions::new()
        .read(true)
        .open(fs, name)
        .map_err(|error| lost(format!("{name} is lost: {error}")))?;
    let mut compared = Compared::default();
    let mut found = vec![0; SLOT_BLOCKS as usize * BLOCK_BYTES];
    for slot in 0..SLOTS {
        let writes = || history.writes.iter().filter(move |write| write.slot == slot);
        let Some(newest) = writes().rfind(|write| write.answered <= position) else { continue };
        let allowed: Vec<u64> = std::iter::once(newest.tag)
            .chain(
                writes()
                    .filter(|write| write.answered > position && write.begun <= position)
                    .map(|write| write.tag),
            )
            .collect();
        let offset = slot * found.len() as u64;
        file.read_exact_at(&mut found, offset)
            .map_err(|error| lost(format!("{name} at {offset}: {error}")))?;
        for (index, block) in found.chunks(BLOCK_BYTES).enumerate() {
            let number = slot * SLOT_BLOCKS + index as u64;
            if !allowed.iter().any(|&tag| block == block_of(tag, number)) {
                return Err(lost(format!("block {number} of {name} differs from the acknowledged data")));
            }
        }
        compared.bytes += found.len() as u64;
    }
    Ok(compared)
}
