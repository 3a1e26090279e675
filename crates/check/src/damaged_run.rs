//! Damaged blocks of a file that follow each other, as one finding: a long range of lost data must
//! not fill a report.

use crate::finding::{Finding, FindingKind};
use syncline_format::BlockAddr;

/// The damaged blocks that were found last.
#[derive(Default)]
pub(crate) struct DamagedRun(Option<Run>);

struct Run {
    object: u64,
    file_block: u64,
    blocks: u64,
    /// Where the first block lies, and the one behind the last.
    addr: BlockAddr,
    next_addr: BlockAddr,
    /// The text for the first block, if it is the only one, and the text for several blocks.
    one: String,
    several: String,
}

impl DamagedRun {
    /// Adds a damaged block. If it does not continue the run, returns the finding of that and begins
    /// another one.
    ///
    /// In a range that a repair made unreadable, all extents lie in the same blocks.
    pub(crate) fn add(
        &mut self,
        object: u64,
        (file_block, addr): (u64, BlockAddr),
        (one, several): (String, String),
    ) -> Option<Finding> {
        if let Some(run) = &mut self.0
            && (run.object, run.file_block + run.blocks) == (object, file_block)
            && [run.next_addr, run.addr].contains(&addr)
        {
            run.blocks += 1;
            run.next_addr = addr + 1;
            return None;
        }
        let ended = self.end();
        self.0 = Some(Run { object, file_block, blocks: 1, addr, next_addr: addr + 1, one, several });
        ended
    }

    /// Ends the run.
    pub(crate) fn end(&mut self) -> Option<Finding> {
        let Run { object, file_block, blocks, addr, one, several, .. } = self.0.take()?;
        let text = match blocks {
            1 => format!("block {file_block} of the file{one}"),
            _ => format!("blocks {file_block} to {} of the file{several}", file_block + blocks - 1),
        };
        Some(Finding { kind: FindingKind::DataDamaged, object: Some(object), block: Some(addr), text })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_a_range_are_one_finding() {
        let (mut run, mut found) = (DamagedRun::default(), Vec::new());
        let blocks = [
            (7, 0, 100),
            (7, 1, 101),
            // The same blocks of the device once more.
            (7, 2, 100),
            (7, 3, 101),
            // Behind a block that is sound.
            (7, 5, 103),
            // Elsewhere.
            (7, 6, 300),
            (8, 7, 301),
        ];
        for (object, file_block, addr) in blocks {
            let texts = (format!(" is {addr}"), " are wrong".to_owned());
            found.extend(run.add(object, (file_block, addr), texts));
        }
        found.extend(run.end());
        assert!(run.end().is_none());
        let told: Vec<_> = found.iter().map(|one| (one.object, one.block, one.text.as_str())).collect();
        assert_eq!(
            told,
            [
                (Some(7), Some(100), "blocks 0 to 3 of the file are wrong"),
                (Some(7), Some(103), "block 5 of the file is 103"),
                (Some(7), Some(300), "block 6 of the file is 300"),
                (Some(8), Some(301), "block 7 of the file is 301"),
            ]
        );
    }
}
