//! The policy of an inode that a request changes: who loses setuid and setgid, the pages that the
//! kernel holds, and a sync that it leaves to us.

use super::{Answer, privileges, syncs};
use crate::page_cache::{Change, Changing};
use crate::reply::Reply;
use crate::request::Request;
use crate::session::Session;
use futures_lite::future::zip;
use syncline_fs::FsError;
use syncline_fs::types::Ino;

/// A change that may be carried out now.
#[must_use = "its answer has the growth of the file"]
pub(super) struct Policy<'a> {
    session: &'a Session,
    ino: Ino,
    /// The mode that the kernel has cached will be wrong.
    is_stale: bool,
    /// The sync to do before the answer: whether of the data only.
    sync: Option<bool>,
    pub(super) pages: Changing<'a>,
}

impl<'a> Policy<'a> {
    /// Called before a change of an inode. `goes`: it clears setuid and setgid.
    pub(super) async fn before(
        session: &'a Session,
        request: &Request,
        ino: Ino,
        goes: bool,
        change: Change<'_>,
    ) -> Result<Self, FsError> {
        let is_stale = privileges::prepare(session, request, ino, goes).await?;
        let sync = sync_left_to_us(&change);
        let pages = session.pages(ino, request.pid()).before_change(change).await?;
        Ok(Self { session, ino, is_stale, sync, pages })
    }

    /// Called when a write is carried out, before it is answered.
    pub(super) async fn carried_out(&self) -> Result<(), FsError> {
        let synced = async {
            match self.sync {
                Some(data_only) => syncs::sync(self.session, self.ino, data_only).await,
                None => Ok(()),
            }
        };
        // The pages that other programs have cached are stale, even if the sync fails.
        let (synced, ()) = zip(synced, self.pages.carried_out()).await;
        synced
    }

    /// The answer to the change.
    pub(super) fn answer(self, reply: Reply) -> Answer {
        Ok(reply.with_growth(self.pages.growth).with_stale_attributes(self.ino, self.is_stale))
    }
}

/// The sync that a write asks for by the flags of its descriptor, and that may not come as a request:
/// whether of the data only.
///
/// For a write through the page cache, or a direct one whose caller waits, the kernel sends an FSYNC
/// afterwards, which then finds nothing to do. For a write that came through AIO or io_uring, or on a
/// direct handle of ours, it relies on us. The request does not say which it is.
fn sync_left_to_us(change: &Change<'_>) -> Option<bool> {
    match *change {
        Change::Write { flags, is_past: true, .. } if flags & libc::O_DSYNC as u32 != 0 => {
            Some(flags & libc::O_SYNC as u32 != libc::O_SYNC as u32)
        }
        _ => None,
    }
}
