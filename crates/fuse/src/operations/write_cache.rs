//! Work for mounts whose kernel keeps writes (`-o writeback_cache`): asking for what it has before
//! anything that goes by a file's contents, taking what it hands over, and telling what was lost.
//! See [`crate::write_cache`].

use super::page_cache::{PAGE, over};
use super::{Answer, Refusal};
use crate::abi::flags::{getattr as getattr_flags, setattr as valid};
use crate::abi::{GetAttrIn, SetAttrIn, WriteIn, WriteOut};
use crate::reply::Reply;
use crate::session::Session;
use crate::write_cache::{BecomingStrict, HANDLE_WRITES};
use bytes::Bytes;
use std::time::Duration;
use syncline_device::Worker;
use syncline_fs::types::{Attributes, FileType, Ino, RenameFlags, SetAttributes, SetTime, WrittenTimes};
use syncline_fs::{Durability, FsError};

/// How long a request waits for the kernel while that hands nothing over, of any file.
const PATIENCE: Duration = Duration::from_secs(60);
/// Behind all pages of a file.
const END: u64 = i64::MAX as u64;
/// How often and after which time to look whether a file is still open: the kernel tells of a close
/// when it is over.
const CLOSES: usize = 20;
const CLOSE: Duration = Duration::from_millis(5);

/// True for an open with these flags that counts, unless it goes past the cache.
pub(super) fn is_counted(session: &Session, flags: u32) -> bool {
    session.write_cache().is_on() && flags as i32 & libc::O_ACCMODE != libc::O_RDONLY
}

/// True for an open whose writes must come at once: that of a file of class `strict`. Any other
/// open for writing is counted.
pub(super) async fn goes_past(session: &Session, ino: Ino, flags: u32) -> Result<bool, FsError> {
    let cache = session.write_cache();
    if !is_counted(session, flags) {
        return Ok(false);
    }
    if !cache.opened(ino) {
        return Ok(true);
    }
    // Only looked at now that the opening is counted: whoever changes the class meanwhile sees that
    // the file is open.
    let is_strict = async {
        let may_be = session.fs().may_be_strict();
        Ok::<_, FsError>(may_be && session.fs().durability(ino).await?.1 == Durability::Strict)
    };
    let is_strict = is_strict.await;
    if !matches!(is_strict, Ok(false)) {
        Box::pin(released(session, ino)).await;
    }
    is_strict
}

/// Called for the RELEASE of a handle that went through the cache. The kernel has handed over what
/// was written through it.
pub(super) async fn released(session: &Session, ino: Ino) {
    let cache = session.write_cache();
    if cache.closed(ino) && session.fs().take_times(ino, |_| cache.times_at_close(ino)).await.is_err() {
        // A file that was removed, or a filesystem that gave up writing, has none to keep.
        cache.times_at_close(ino);
    }
}

/// Serves a WRITE of pages that the kernel kept.
pub(super) async fn write(session: &Session, ino: Ino, input: &WriteIn, data: Bytes) -> Answer {
    let cache = session.write_cache();
    let range = input.offset..input.offset + u64::from(input.size);
    let end = |size| cache.appended_from(ino, size);
    match session.fs().write_kept(ino, input.offset, data, end).await {
        Ok(()) => cache.pages_came(ino, &range),
        Err(error) => {
            if cache.failed(ino, range.clone(), error.errno()) {
                tracing::warn!(
                    ino,
                    offset = input.offset,
                    %error,
                    "what was written to a file is lost: its programs are told by write, fsync or close; \
                     'syncline path DIR INODE' names it"
                );
            }
            // The kernel takes its pages for written now. Without them, programs read what is there.
            // Without attributes, it asks for them before the next write(2).
            session.page_cache().letting_go.let_go_later(ino, range);
            return Ok(Reply::error(error.errno()).with_stale_attributes(ino));
        }
    }
    Ok(Reply::fixed(&WriteOut { size: input.size, padding: 0 }))
}

/// Called before a read that bypasses the page cache. The kernel has written back what it has of the
/// range, but not what it has behind: without that, a hole before it lies behind the end.
///
/// If too many requests wait for pages already, the read may be short. (They may be as many as the
/// kernel has in flight in the background, where it would have the write-back too.)
pub(super) async fn before_direct_read(session: &Session, ino: Ino, end: u64) -> Result<(), FsError> {
    let size = session.fs().getattr(ino).await?.size;
    if end > size {
        let behind = size - size % PAGE..END;
        session.page_cache().letting_go.let_go(ino, vec![behind]).await;
    }
    Ok(())
}

/// Called for a GETATTR. The kernel sends one with the handle of a writer before write(2), if it has
/// no attributes that it trusts, and keeps nothing of a write if that fails. So what is known to be
/// refused later is refused now, and a program that writes on learns that something is lost.
pub(super) async fn require_writable(session: &Session, ino: Ino, input: &GetAttrIn) -> Result<(), Refusal> {
    let by_writer = input.flags & getattr_flags::HANDLE != 0 && input.handle & HANDLE_WRITES != 0;
    if !by_writer {
        return Ok(());
    }
    if session.fs().file_flags(ino).await?.immutable {
        return Err(Refusal::Errno(libc::EPERM));
    }
    session.write_cache().untold(ino).map_or(Ok(()), |errno| Err(Refusal::Errno(errno)))
}

/// Has the kernel hand over everything that was written to a file, as far as that can be taken, and
/// drop its pages.
///
/// It hands over what it has by then, though programs write on. It writes pages back one by one for
/// this, and needs none of the locks that it may hold for a request about names or for an ioctl. Never
/// called for one that holds a page, or blocks write-back.
pub(super) async fn fetch(session: &Session, ino: Ino) -> Result<(), Refusal> {
    if !session.write_cache().is_open(ino) {
        return Ok(());
    }
    // Boxed, so that the futures of requests that need nothing of this have no room for it.
    let letting_go = &session.page_cache().letting_go;
    match Box::pin(letting_go.let_go_in_turn(ino, 0..END, stalls(session, PATIENCE))).await {
        true => Ok(()),
        false => Err(Refusal::Errno(libc::EBUSY)),
    }
}

/// Ends when the kernel has handed nothing over for so long. What it has may be as much as memory
/// holds, and go to a slow device.
pub(super) async fn stalls(session: &Session, patience: Duration) {
    loop {
        let before = session.write_cache().progress();
        over(patience).await;
        if session.write_cache().progress() == before {
            return;
        }
    }
}

/// Fails if something that was written to the file could not be taken and is missing.
pub(super) fn require_whole(session: &Session, ino: Ino) -> Result<(), Refusal> {
    session.write_cache().lost(ino).map_or(Ok(()), |errno| Err(Refusal::Errno(errno)))
}

/// Has the kernel hand over several files. Fails if something of one of them is missing.
pub(super) async fn hand_over_all(session: &Session, inos: &[Ino]) -> Result<(), Refusal> {
    for &ino in inos {
        fetch(session, ino).await?;
        require_whole(session, ino)?;
    }
    Ok(())
}

/// The same for all files; what was lost of one is for its own programs to be told.
pub(super) async fn hand_over_everything(session: &Session) -> Result<(), Refusal> {
    if session.write_cache().is_empty() {
        return Ok(());
    }
    for ino in session.write_cache().open_files() {
        fetch(session, ino).await?;
    }
    Ok(())
}

/// Has the kernel hand over a file before it gets another name, so that the name never comes back
/// without the contents (P3); both files before an exchange. What the names lead to can't change
/// meanwhile: the kernel holds the directories.
pub(super) async fn before_rename(
    session: &Session,
    (dir, old): (Ino, &[u8]),
    (new_dir, new): (Ino, &[u8]),
    flags: RenameFlags,
) -> Result<(), Refusal> {
    let cache = session.write_cache();
    if cache.is_empty() && !cache.has_losses() {
        return Ok(());
    }
    let Some(ino) = session.fs().number_of(dir, old).await? else { return Ok(()) };
    let replaced = session.fs().number_of(new_dir, new).await?;
    hand_over_for_name(session, ino, replaced.is_some()).await?;
    match replaced {
        Some(other) if flags.exchange => hand_over_for_name(session, other, true).await,
        _ => Ok(()),
    }
}

/// The same for a file that gets a name. Half a file gets none, even if its programs have closed it:
/// few look at what close(2) returns. It replaces no other file even if the kernel has forgotten it.
async fn hand_over_for_name(session: &Session, ino: Ino, replaces: bool) -> Result<(), Refusal> {
    fetch(session, ino).await?;
    let cache = session.write_cache();
    let missing = if replaces { cache.missing(ino) } else { cache.missing_of_known(ino) };
    missing.map_or(Ok(()), |errno| Err(Refusal::Errno(errno)))
}

/// The same before a link, if it gives a file its first name.
pub(super) async fn before_first_name(session: &Session, ino: Ino) -> Result<(), Refusal> {
    let is_nameless = async { Ok::<_, FsError>(session.fs().getattr(ino).await?.nlink == 0) };
    let cache = session.write_cache();
    if (cache.is_open(ino) || cache.missing_of_known(ino).is_some()) && is_nameless.await? {
        hand_over_for_name(session, ino, false).await?;
    }
    Ok(())
}

/// Sets the times that hold once the kernel has nothing left to hand over, as before an FSYNC.
pub(super) async fn take_settled(session: &Session, ino: Ino) -> Result<(), FsError> {
    let cache = session.write_cache();
    if cache.is_unsettled(ino) {
        session.fs().take_times(ino, |_| cache.settled_times(ino)).await?;
    }
    Ok(())
}

/// Called before a write past the cache through a handle of class `strict`: the kernel will not
/// move the file's times.
pub(super) async fn before_write_past(session: &Session, ino: Ino) -> Result<(), FsError> {
    let cache = session.write_cache();
    if cache.is_on() && !cache.is_known_to_be_stale(ino) {
        let mtime = session.fs().getattr(ino).await?.mtime;
        cache.written_past(ino, mtime);
    }
    Ok(())
}

/// Keeps a file out of the cache while it becomes of class `strict`. EBUSY if a program has it open
/// for writing: what that writes would not be durable when it is answered.
pub(super) async fn become_strict(
    session: &Session,
    ino: Ino,
) -> Result<Option<BecomingStrict<'_>>, Refusal> {
    let cache = session.write_cache();
    if !cache.is_on() || session.fs().getattr(ino).await?.file_type != FileType::Regular {
        return Ok(None);
    }
    for _ in 0..CLOSES {
        if let Some(becoming) = cache.become_strict(ino) {
            return Ok(Some(becoming));
        }
        let Some(worker) = Worker::try_current() else { break };
        worker.sleep(CLOSE).await;
    }
    Err(Refusal::Errno(libc::EBUSY))
}

/// The times that a SETATTR sets, as the kernel keeps them.
fn times(changes: &SetAttributes) -> Option<WrittenTimes> {
    match (changes.mtime, changes.ctime) {
        (Some(SetTime::To(mtime)), Some(ctime)) => Some(WrittenTimes { mtime, ctime }),
        _ => None,
    }
}

/// Serves a SETATTR with which the kernel hands over the times of writes; `None` for any other.
///
/// It comes with the handle of somebody who writes. Without one it looks like utimensat(2), and
/// is logged at once as that is, unless the file has no name left.
pub(super) async fn take_times(
    session: &Session,
    ino: Ino,
    input: &SetAttrIn,
    changes: &SetAttributes,
) -> Result<Option<Attributes>, FsError> {
    let cache = session.write_cache();
    if !cache.is_on() || input.valid & !valid::HANDLE != valid::MTIME | valid::CTIME {
        return Ok(None);
    }
    let Some(times) = times(changes) else { return Ok(None) };
    let before = session.fs().getattr(ino).await?;
    if input.valid & valid::HANDLE == 0 && before.nlink > 0 {
        return Ok(None);
    }
    take(session, ino, times).await?;
    Ok(Some(session.fs().getattr(ino).await?))
}

/// Takes times that the kernel hands over.
pub(super) async fn take(session: &Session, ino: Ino, times: WrittenTimes) -> Result<(), FsError> {
    let cache = session.write_cache();
    session.fs().take_times(ino, |file| Some(cache.handed_over(ino, times, file.mtime))).await
}

/// Called for any other SETATTR: returns the changes to make, and the times to take when they are
/// made. A truncation brings the kernel's times along, which are those of a write.
pub(super) async fn sort(
    session: &Session,
    ino: Ino,
    changes: SetAttributes,
) -> Result<(SetAttributes, Option<WrittenTimes>), FsError> {
    let cache = session.write_cache();
    if !cache.is_on() {
        return Ok((changes, None));
    }
    if changes.size.is_some() {
        return Ok((SetAttributes { mtime: None, ctime: None, ..changes }, times(&changes)));
    }
    if changes.atime.is_none()
        && cache.is_known_to_be_stale(ino)
        && let Some(times) = times(&changes)
    {
        // It may be the kernel's, without a handle, with an mtime that it has not moved.
        let before = session.fs().getattr(ino).await?.mtime;
        let taken = cache.handed_over(ino, times, before);
        return Ok((SetAttributes { mtime: Some(SetTime::To(taken.mtime)), ..changes }, None));
    }
    if changes.mtime.is_some() {
        cache.times_are_set(ino);
    } else if let Some(ctime) = changes.ctime {
        cache.ctime_moves(ino, ctime);
    }
    Ok((changes, None))
}
