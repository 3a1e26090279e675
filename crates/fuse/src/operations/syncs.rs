//! FSYNC, FSYNCDIR and SYNCFS, and whom a sync is told.

use super::Answer;
use crate::abi::FSyncIn;
use crate::abi::flags::fsync as flags;
use crate::options::Synced;
use crate::page_cache::Change;
use crate::reply::Reply;
use crate::request::Request;
use crate::session::Session;
use syncline_fs::types::Ino;
use syncline_fs::{Durability, FsError};

/// Serves FSYNC and FSYNCDIR: files and directories alike (promise P1).
pub(super) async fn fsync(session: &Session, request: &Request) -> Answer {
    let input: FSyncIn = request.arguments().take()?;
    drop(session.pages(request.ino(), request.pid()).before_change(Change::Sync).await?);
    sync(session, request.ino(), input.flags & flags::DATA_ONLY != 0).await?;
    Ok(Reply::empty())
}

pub(super) async fn sync(session: &Session, ino: Ino, data_only: bool) -> Result<(), FsError> {
    session.fs().fsync(ino, data_only).await?;
    tell(session, &[ino], if data_only { Synced::Fdatasync } else { Synced::Fsync }).await
}

/// Tells the observer of a sync of these files, unless all are of class `ordered`: then it has made
/// nothing durable.
pub(super) async fn tell(session: &Session, inos: &[Ino], synced: fn(Ino) -> Synced) -> Result<(), FsError> {
    if !session.observes_syncs() {
        return Ok(());
    }
    for &ino in inos {
        if !matches!(session.fs().durability(ino).await?.1, Durability::Ordered(_)) {
            inos.iter().for_each(|&ino| session.synced(synced(ino)));
            break;
        }
    }
    Ok(())
}

pub(super) async fn syncfs(session: &Session) -> Answer {
    session.fs().syncfs().await?;
    session.synced(Synced::Filesystem);
    Ok(Reply::empty())
}
