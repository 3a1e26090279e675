//! Searches behind the end of the chain for proof that the chain was longer.
//!
//! A batch that could not be accepted, and all after it, counts as never written, unless a later
//! batch calls it durable. That later batch may lie in the same segment, or in one that a batch
//! beyond the end leads to.

use crate::Window;
use syncline_device::DeviceError;
use syncline_format::batch::{BatchHeader, lead_copy_addr};
use syncline_format::superblock::LogStart;
use syncline_format::{BlockRun, Epoch, Geometry};

/// The target of the search, and the segments still to be searched.
pub(crate) struct Search<'a> {
    geometry: Geometry,
    epoch: Epoch,
    end: LogStart,
    /// Segments that batches beyond the end lead to.
    ahead: Vec<BlockRun>,
    /// Receives the first error if unreadable blocks are passed over.
    unreadable: Option<&'a mut Option<DeviceError>>,
}

impl<'a> Search<'a> {
    /// A search behind `end`.
    pub(crate) fn new(
        geometry: Geometry,
        epoch: Epoch,
        end: LogStart,
        unreadable: Option<&'a mut Option<DeviceError>>,
    ) -> Self {
        Self { geometry, epoch, end, ahead: Vec::new(), unreadable }
    }

    /// Finds a batch that proves that the chain was longer, and durable. Searches the rest of the
    /// segment and, if `beyond`, every segment that batches found there lead to.
    pub(crate) async fn find_contradiction(
        &mut self,
        window: &mut Window,
        beyond: bool,
    ) -> Result<Option<BatchHeader>, DeviceError> {
        let end = self.end;
        let rest = BlockRun::new(end.addr, end.segment.end() - end.addr);
        let found = self.look_through(window, rest, end.segment).await?;
        if found.is_some() || !beyond {
            return Ok(found);
        }
        let copy = BlockRun::new(lead_copy_addr(end.segment), 1);
        if let Some(later) = self.look_through(window, copy, end.segment).await? {
            return Ok(Some(later));
        }
        let mut searched = vec![end.segment];
        while let Some(segment) = self.ahead.pop() {
            // Segments of one log do not overlap; a damaged image could otherwise lead in circles
            // for ever.
            if searched.iter().any(|other| segment.start < other.end() && other.start < segment.end()) {
                continue;
            }
            searched.push(segment);
            if let Some(later) = self.look_through(window, segment, segment).await? {
                return Ok(Some(later));
            }
        }
        Ok(None)
    }

    /// Searches `run`, a part of `segment`.
    async fn look_through(
        &mut self,
        window: &mut Window,
        run: BlockRun,
        segment: BlockRun,
    ) -> Result<Option<BatchHeader>, DeviceError> {
        for addr in run.start..run.end() {
            let block = match (window.read(BlockRun::new(addr, 1), run.end()).await, &mut self.unreadable) {
                (Ok(block), _) => block,
                (Err(error), Some(unreadable)) => {
                    unreadable.get_or_insert(error);
                    continue;
                }
                (Err(error), None) => return Err(error),
            };
            let Ok((header, _)) = BatchHeader::decode(block, self.geometry) else { continue };
            let is_copy = addr == lead_copy_addr(segment) && header.segment == segment;
            let beyond = header.epoch == self.epoch && header.seq >= self.end.seq;
            if !beyond || header.addr != addr && !is_copy {
                continue;
            }
            if header.seq > self.end.seq && header.durable_seq >= self.end.seq {
                return Ok(Some(header));
            }
            if header.leads_on() {
                self.ahead.push(header.next_segment);
            }
        }
        Ok(None)
    }
}
