//! READDIR and READDIRPLUS: as many entries as the kernel has room for.

use super::tree::Entry;
use super::{Answer, Errno, Session, entry_out};
use syncline_fuse::abi::{Attr, DIRENT_ALIGN, Dirent, DirentPlus, EntryOut, ReadIn};
use syncline_fuse::{Reply, Request};
use zerocopy::IntoBytes;

pub fn readdir(session: &Session, request: &Request) -> Answer {
    list(session, request, size_of::<Dirent>(), |entry, bytes| {
        let attr = session.fs().tree.attr(entry.ino)?;
        bytes.extend_from_slice(dirent(entry, &attr).as_bytes());
        Ok(())
    })
}

pub fn readdirplus(session: &Session, request: &Request) -> Answer {
    list(session, request, size_of::<DirentPlus>(), |entry, bytes| {
        // "." and ".." lead nowhere new, and the kernel wants no inode with them.
        let (attr, inode) = if matches!(&*entry.name, b"." | b"..") {
            (session.fs().tree.attr(entry.ino)?, EntryOut::default())
        } else {
            let attr = session.fs().tree.tell(entry.ino)?;
            (attr, entry_out(session, attr))
        };
        let dirent = dirent(entry, &attr);
        bytes.extend_from_slice(DirentPlus { entry: inode, dirent }.as_bytes());
        Ok(())
    })
}

fn dirent(entry: &Entry, attr: &Attr) -> Dirent {
    let (name_len, file_type) = (entry.name.len() as u32, attr.mode >> 12);
    Dirent { ino: entry.ino, offset: entry.cookie, name_len, file_type }
}

/// The entries for which there is room, each preceded by the `fixed_bytes` that `begin` adds.
fn list(
    session: &Session,
    request: &Request,
    fixed_bytes: usize,
    begin: impl Fn(&Entry, &mut Vec<u8>) -> Result<(), Errno>,
) -> Answer {
    let input: ReadIn = request.arguments().take()?;
    let room = input.size.min(session.negotiated().transfer_bytes_max) as usize;
    let count = room / (fixed_bytes + DIRENT_ALIGN);
    let entries = session.fs().tree.list(request.ino(), input.offset, count)?;
    let mut bytes = Vec::with_capacity(room.min(64 << 10));
    for entry in &entries {
        let end = bytes.len() + (fixed_bytes + entry.name.len()).next_multiple_of(DIRENT_ALIGN);
        if end > room {
            break;
        }
        begin(entry, &mut bytes)?;
        bytes.extend_from_slice(&entry.name);
        bytes.resize(end, 0);
    }
    // An empty answer means "end of directory", so if not even one entry fits, the answer must be
    // an error.
    if bytes.is_empty() && (count == 0 || !entries.is_empty()) {
        return Err(Errno(libc::EINVAL));
    }
    Ok(Reply::empty().with_data(bytes))
}
