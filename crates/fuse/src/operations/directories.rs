//! OPENDIR and RELEASEDIR, and READDIR and READDIRPLUS: as many entries as the kernel has room for.

use super::attributes::{entry_out, type_bits};
use super::{Answer, Refusal};
use crate::abi::flags::open as open_flags;
use crate::abi::{DIRENT_ALIGN, Dirent, DirentPlus, EntryOut, OpenOut, ReadIn};
use crate::reply::Reply;
use crate::request::Request;
use crate::session::Session;
use syncline_fs::types::{Attributes, DirectoryEntry};
use zerocopy::IntoBytes;

/// Assumed length of a name when estimating how many entries to ask for.
const NAME_BYTES_GUESSED: usize = 16;
/// The most entries asked for at once.
const ENTRIES_AT_ONCE: usize = 1024;

/// Entries in the kernel's format, never longer than it asked for.
struct EntryBuffer {
    bytes: Vec<u8>,
    capacity: usize,
}

impl EntryBuffer {
    fn new(session: &Session, size: u32) -> Self {
        let capacity = size.min(session.negotiated().transfer_bytes_max) as usize;
        Self { bytes: Vec::with_capacity(capacity.min(64 << 10)), capacity }
    }

    /// How many entries of `fixed` bytes and a name are likely to fit; 0 if none will.
    fn likely_entries(&self, fixed: usize) -> usize {
        let room = self.capacity - self.bytes.len();
        if room < fixed + DIRENT_ALIGN {
            return 0;
        }
        (room / (fixed + NAME_BYTES_GUESSED)).clamp(1, ENTRIES_AT_ONCE)
    }

    /// Adds an entry, or returns false if it does not fit.
    fn push(&mut self, fixed: &[u8], name: &[u8]) -> bool {
        let len = (fixed.len() + name.len()).next_multiple_of(DIRENT_ALIGN);
        if self.bytes.len() + len > self.capacity {
            return false;
        }
        let end = self.bytes.len() + len;
        self.bytes.extend_from_slice(fixed);
        self.bytes.extend_from_slice(name);
        self.bytes.resize(end, 0);
        true
    }

    /// The answer. An empty one means "end of directory", so if not even the first entry fits, the
    /// answer must be an error.
    fn finish(self, stopped_early: bool) -> Answer {
        if self.bytes.is_empty() && stopped_early {
            return Err(Refusal::Malformed);
        }
        Ok(Reply::empty().with_data(self.bytes))
    }
}

fn dirent(entry: &DirectoryEntry) -> Dirent {
    Dirent {
        ino: entry.ino,
        offset: entry.cookie,
        name_len: entry.name.len() as u32,
        file_type: type_bits(entry.file_type) >> 12,
    }
}

/// OPENDIR. The answer keeps the kernel from caching listings, and saves nothing else: refused with
/// ENOSYS, directories would be opened and closed without asking, and their listings cached.
///
/// That cache can't be right. It is filled by all open descriptors together, each from where it
/// is, and looked at for changes only where one begins at the first entry:
///
/// - A reads half of a directory into the cache; a name comes into that half, or goes; B begins to
///   list, past the cache, since that is not complete; A reads the rest, and the cache is complete;
///   B goes on in it, and finds the first half as it was before the change. B may have made it.
/// - After seekdir(3) back to anything but the beginning, names show that have been removed since.
///
/// It would be right only if each change of a directory dropped it: a notification for each name.
/// (READDIRPLUS itself is safe: the kernel holds the directory's lock while it asks and until it has
/// linked the entries, and every change takes that lock alone.)
pub(super) fn open() -> Answer {
    Ok(Reply::fixed(&OpenOut { open_flags: open_flags::KEEP_CACHE, ..OpenOut::default() }))
}

/// RELEASEDIR: there is nothing to release.
pub(super) fn release() -> Answer {
    Ok(Reply::empty())
}

pub(super) async fn readdir(session: &Session, request: &Request) -> Answer {
    let input: ReadIn = request.arguments().take()?;
    let mut buffer = EntryBuffer::new(session, input.size);
    let mut after = input.offset;
    loop {
        let want = buffer.likely_entries(size_of::<Dirent>());
        if want == 0 {
            return buffer.finish(true);
        }
        let entries = match session.fs().readdir(request.ino(), after, want).await {
            Ok(entries) => entries,
            // The entries read so far are right; the next request will meet the error again at its
            // place.
            Err(_) if !buffer.bytes.is_empty() => return buffer.finish(false),
            Err(error) => return Err(error.into()),
        };
        let Some(last) = entries.last() else {
            return buffer.finish(false);
        };
        after = last.cookie;
        for entry in &entries {
            if !buffer.push(dirent(entry).as_bytes(), &entry.name) {
                return buffer.finish(true);
            }
        }
    }
}

/// True if a reference was counted. "." and ".." lead nowhere new, and the kernel wants no inode
/// with them. An inode that can't be read is sent with the number zero, and the kernel looks it up
/// again by name.
fn counts(entry: &DirectoryEntry, attributes: &Attributes) -> bool {
    attributes.ino != 0 && entry.name != b"." && entry.name != b".."
}

fn dirent_plus(session: &Session, entry: &DirectoryEntry, attributes: &Attributes) -> DirentPlus {
    let inode = if counts(entry, attributes) { entry_out(session, attributes) } else { EntryOut::default() };
    DirentPlus { entry: inode, dirent: dirent(entry) }
}

pub(super) async fn readdirplus(session: &Session, request: &Request) -> Answer {
    let input: ReadIn = request.arguments().take()?;
    let mut buffer = EntryBuffer::new(session, input.size);
    let mut after = input.offset;
    loop {
        let want = buffer.likely_entries(size_of::<DirentPlus>());
        if want == 0 {
            return buffer.finish(true);
        }
        let entries = match session.fs().readdir_plus(request.ino(), after, want).await {
            Ok(entries) => entries,
            Err(_) if !buffer.bytes.is_empty() => return buffer.finish(false),
            Err(error) => return Err(error.into()),
        };
        let Some((last, _)) = entries.last() else {
            return buffer.finish(false);
        };
        after = last.cookie;
        for (index, (entry, attributes)) in entries.iter().enumerate() {
            if !buffer.push(dirent_plus(session, entry, attributes).as_bytes(), &entry.name) {
                // The kernel never sees these entries, so it will not send FORGET for them either.
                for (unsent, _) in
                    entries[index..].iter().filter(|(entry, attributes)| counts(entry, attributes))
                {
                    session.fs().forget(unsent.ino, 1);
                }
                return buffer.finish(true);
            }
        }
    }
}
