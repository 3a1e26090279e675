//! Placing dirty blocks on the device: allocation, and the start of their writes.

use super::dirty::{Block, gather};
use crate::FsError;
use crate::filesystem::Filesystem;
use crate::receipt::Submitted;
use syncline_format::BlockRun;
use syncline_format::items::extent::{EXTENT_BLOCKS_MAX, Extent};
use syncline_store::{DataWrite, Reservation};

/// Most blocks of one data write.
const WRITE_BLOCKS_MAX: usize = 256;

/// Blocks of a file on their way to fresh addresses.
pub(crate) struct Placement {
    pub write: DataWrite,
    /// File block of each block of the write, growing.
    pub numbers: Vec<u64>,
}

/// What an extent item is to say about a placement's blocks.
#[derive(Default)]
pub(crate) struct Naming {
    pub extents: Vec<Extent>,
    pub named: Vec<(DataWrite, BlockRun)>,
}

/// Allocates room for frozen blocks (in order) and starts writing them: a file's dirty blocks lie together, in the order of the
/// file, whatever is between them. On an error nothing stays behind.
pub(crate) fn place(
    fs: &Filesystem,
    reservation: &mut Reservation,
    blocks: &[(u64, Block)],
    mut near: Option<u64>,
) -> Result<Vec<Placement>, FsError> {
    let mut placements = Vec::new();
    let mut rest = blocks;
    while !rest.is_empty() {
        let want = rest.len().min(WRITE_BLOCKS_MAX);
        let run = match fs.store.allocate(reservation, want as u64, near) {
            Ok(run) => run,
            Err(error) => {
                abandon(fs, &placements);
                return Err(error.into());
            }
        };
        let (now, later) = rest.split_at((run.blocks as usize).min(want));
        let write = fs.store.write_data(run, gather(now));
        placements.push(Placement { write, numbers: now.iter().map(|(number, _)| *number).collect() });
        near = Some(run.end());
        rest = later;
    }
    Ok(placements)
}

/// Notes placements that were written.
pub(crate) fn note(placements: &[Placement], note: &mut Submitted) {
    note.device_writes += placements.len() as u64;
    note.blocks += placements.iter().map(|placement| placement.write.run().blocks).sum::<u64>();
}

/// Gives back placements that will never be named.
pub(crate) fn abandon(fs: &Filesystem, placements: &[Placement]) {
    for placement in placements {
        fs.store.abandon(&placement.write, placement.write.run());
    }
}

impl Placement {
    /// Adds to `naming` the extents of those blocks that are `valid`, and returns the runs of the others.
    pub(crate) fn name(&self, naming: &mut Naming, valid: impl Fn(u64) -> bool) -> Vec<BlockRun> {
        let mut stale = Vec::new();
        let mut named = Vec::new();
        let start = self.write.run().start;
        for (index, (&number, &checksum)) in self.numbers.iter().zip(self.write.checksums()).enumerate() {
            let addr = start + index as u64;
            if !valid(number) {
                extend_run(&mut stale, addr);
                continue;
            }
            extend_run(&mut named, addr);
            match naming.extents.last_mut() {
                Some(last)
                    if last.end() == number
                        && last.run().end() == addr
                        && !number.is_multiple_of(EXTENT_BLOCKS_MAX) =>
                {
                    last.checksums.push(checksum);
                }
                _ => naming.extents.push(Extent {
                    file_block: number,
                    addr,
                    checksums: vec![checksum],
                    shared: false,
                }),
            }
        }
        naming.named.extend(named.into_iter().map(|run| (self.write.clone(), run)));
        stale
    }
}

fn extend_run(runs: &mut Vec<BlockRun>, addr: u64) {
    match runs.last_mut() {
        Some(last) if last.end() == addr => last.blocks += 1,
        _ => runs.push(BlockRun::new(addr, 1)),
    }
}
