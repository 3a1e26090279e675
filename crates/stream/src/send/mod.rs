//! Making a stream of a snapshot.

mod changes;
mod contents;
mod difference;
mod held;
mod kinds;
mod places;
mod whole;

use crate::header::NUMBERS_END;
use crate::{Header, Origin, Record, Restored, StreamError, Token, Writer};
use bytes::Bytes;
use std::io::Write;
use syncline_format::items::inode::{FLAG_CAPABILITY, FLAG_UNPLACED, InodeItem, MODE_PERMISSIONS, Time};
use syncline_format::{Key, Kind};
use syncline_fs::types::{FileType, Ino, ROOT, Timestamp};
use syncline_fs::{Filesystem, FsError};
use syncline_store::Snapshot;

/// A snapshot, open for reading.
pub struct Source<'a> {
    /// Its filesystem.
    pub fs: &'a Filesystem,
    /// Its entry in the table of snapshots.
    pub snapshot: Snapshot,
}

/// The stream of a snapshot, or of the changes since an older one of the same image. Returns how many
/// bytes it has. Takes memory for the changes, and for each piece of data that several files share.
pub async fn send(
    source: &Source<'_>,
    from: Option<&Source<'_>>,
    output: impl Write,
) -> Result<u64, StreamError> {
    send_from(source, from, None, output).await
}

/// The rest of the stream that [`send`] makes, behind the part that the receiver has. A snapshot never
/// changes, and its stream is always the same: the records that the receiver has are made again,
/// compared with the token, and not written.
pub async fn resume(
    source: &Source<'_>,
    from: Option<&Source<'_>>,
    token: &Token,
    output: impl Write,
) -> Result<u64, StreamError> {
    let superblock = source.fs.store().superblock();
    let parent_ns = from.map_or(0, |from| from.snapshot.created_ns);
    let other = |what: &str| Err(StreamError::OtherStream(what.to_owned()));
    if token.uuid != superblock.uuid {
        return other("it comes from another image");
    }
    if token.created_ns != source.snapshot.created_ns {
        return other("it is of another snapshot");
    }
    match (token.parent_ns, parent_ns) {
        (then, now) if then == now => {}
        (0, _) => return other("it was sent without --from"),
        (_, 0) => return other("it was sent with --from"),
        _ => return other("it was sent --from another snapshot"),
    }
    if token.filesystem_features & !superblock.features != 0 {
        return other("it has features that this image does not have");
    }
    send_from(source, from, Some(token), output).await
}

async fn send_from(
    source: &Source<'_>,
    from: Option<&Source<'_>>,
    token: Option<&Token>,
    output: impl Write,
) -> Result<u64, StreamError> {
    if let Some(from) = from
        && !is_older(&from.snapshot, &source.snapshot)
    {
        let name = |source: &Source<'_>| source.snapshot.name.clone();
        return Err(StreamError::Order { from: name(from), to: name(source) });
    }
    let superblock = source.fs.store().superblock();
    let mut numbers = numbers_end(source.fs).await?;
    if let Some(from) = from {
        numbers = numbers.max(numbers_end(from.fs).await?);
    }
    if numbers > NUMBERS_END {
        return Err(StreamError::Numbers);
    }
    let header = Header {
        uuid: superblock.uuid,
        // The image may have got others since the stream began.
        filesystem_features: token.map_or(superblock.features, |token| token.filesystem_features),
        next_object: numbers,
        objects: source.snapshot.objects,
        used_bytes: source.snapshot.used_blocks.saturating_mul(4096),
        snapshot: Origin::from(&source.snapshot),
        parent: from.map(|from| Origin::from(&from.snapshot)),
        resumed: token.map(|token| token.position),
    };
    let mut writer = Writer::new(output, &header)?;
    match from {
        None => whole::send(source.fs, &mut writer).await?,
        Some(from) => changes::send(from.fs, source.fs, &mut writer).await?,
    }
    writer.end()
}

/// True if a stream may lead from one snapshot of an image to another. A clock that was set back gives
/// a newer one an earlier time; one that came later may have been made before. But a receiver knows
/// them by their times.
fn is_older(from: &Snapshot, to: &Snapshot) -> bool {
    let (times, numbers) = (from.created_ns.cmp(&to.created_ns), from.id.cmp(&to.id));
    times.is_ne() && (times.is_lt() || numbers.is_lt())
}

/// A number greater than those of all inodes.
pub(crate) async fn numbers_end(fs: &Filesystem) -> Result<Ino, StreamError> {
    let last = fs.store().scan_near(Key::MIN, Key::MAX, Key::MAX, 1).await?;
    // An image may say anything.
    Ok(last.items.last().map_or(ROOT, |(key, _)| key.object).saturating_add(1))
}

/// The inode item with this value.
fn decode(ino: Ino, value: &Bytes) -> Result<InodeItem<'_>, StreamError> {
    Ok(InodeItem::decode(value).map_err(|detail| FsError::Corrupt { ino, detail })?)
}

fn file_type(ino: Ino, item: &InodeItem<'_>) -> Result<FileType, StreamError> {
    let detail = syncline_format::FormatError::Field { structure: "inode", field: "mode" };
    Ok(FileType::from_number((item.mode >> 12) as u8).ok_or(FsError::Corrupt { ino, detail })?)
}

/// The record that makes an inode.
async fn make(fs: &Filesystem, ino: Ino, item: &InodeItem<'_>) -> Result<Record, StreamError> {
    let target = match file_type(ino, item)? {
        FileType::Symlink => fs.readlink(ino).await?,
        _ => Bytes::new(),
    };
    Ok(Record::Make { ino, mode: item.mode, rdev: item.rdev, target })
}

/// The record with the attributes of an inode.
fn attributes(ino: Ino, item: &InodeItem<'_>) -> Record {
    let time = |time: Time| Timestamp { seconds: time.seconds, nanoseconds: time.nanoseconds };
    Record::Attributes {
        ino,
        restored: Restored {
            permissions: item.mode & MODE_PERMISSIONS,
            flags: item.flags & !(FLAG_CAPABILITY | FLAG_UNPLACED),
            uid: item.uid,
            gid: item.gid,
            times: [item.atime, item.mtime, item.ctime, item.btime].map(time),
        },
    }
}

/// All extended attributes of an inode.
async fn xattrs(
    fs: &Filesystem,
    ino: Ino,
    item: &InodeItem<'_>,
) -> Result<Vec<(Vec<u8>, Bytes)>, StreamError> {
    let mut all = Vec::new();
    if item.xattrs.is_empty() && item.xattr_items == 0 {
        return Ok(all);
    }
    let names = fs.listxattr(ino).await?;
    for name in names.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        all.push((name.to_vec(), fs.getxattr(ino, name).await?));
    }
    Ok(all)
}

/// The limits of all trees, but for directories that were removed and are still open.
async fn quotas<W: Write>(fs: &Filesystem, writer: &mut Writer<W>) -> Result<(), StreamError> {
    for quota in fs.quotas() {
        if is_nameless(fs, quota.root).await? {
            continue;
        }
        let (bytes, inodes) = (quota.limits.bytes, quota.limits.inodes);
        writer.put(&Record::Quota { dir: quota.root, bytes, inodes })?;
    }
    Ok(())
}

/// True for an inode that no stream knows.
async fn is_nameless(fs: &Filesystem, ino: Ino) -> Result<bool, StreamError> {
    let Some(value) = fs.store().get(Key::new(ino, Kind::Inode, 0)).await? else { return Ok(true) };
    Ok(decode(ino, &value)?.nlink == 0)
}
