//! Carries out the changes that requests ask for: refuses them as POSIX says, records them, and applies them.

use super::{NAME_BYTES_MAX, Recorded, State};
use crate::action::{Action, Ino, Stored, What};
use crate::blocks::BLOCK_BYTES;
use crate::recording::now;
use crate::tree::Node;
use fuser::{Errno, FileAttr, INodeNo, RenameFlags, Request};
use std::ffi::OsStr;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::sync::Once;

/// The user knows of an error of crashlab's own.
static TOLD: Once = Once::new();

impl Recorded {
    /// Applies an action and records it, after what the program has printed before it. After an error nothing
    /// has happened.
    pub(super) fn act(&self, state: &mut State, pid: u32, action: Action, bytes: &[u8]) -> Result<(), Errno> {
        self.output.drain();
        let (time_ns, mut tree) = (now(), state.tree.clone());
        tree.apply(&action, time_ns.into(), bytes).map_err(|error| {
            // The program can't know that its own disk is not to blame.
            TOLD.call_once(|| drop(writeln!(io::stderr(), "crashlab: {error}")));
            error.errno()
        })?;
        let caller = state.callers.caller(pid, &state.tree);
        self.recorder.record_at(time_ns, caller, action, bytes);
        state.tree = tree;
        Ok(())
    }

    pub(super) fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        what: What,
        mode: u32,
    ) -> Result<FileAttr, Errno> {
        let mut state = self.state.lock();
        let (parent, name) = (parent.0, state.free_name(parent.0, name)?);
        let folder = state.tree.node(parent).ok_or(Errno::ENOENT)?;
        let inherits = folder.mode & libc::S_ISGID != 0;
        let gid = if inherits { folder.gid } else { request.gid() };
        let mode = if inherits && what == What::Directory { mode | libc::S_ISGID } else { mode };
        let ino = state.next_ino;
        state.next_ino += 1;
        let action = Action::Create { parent, name, ino, what, mode: mode & 0o7777, uid: request.uid(), gid };
        self.act(&mut state, request.pid(), action, &[])?;
        state.referred(ino)
    }

    pub(super) fn remove(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        directory: bool,
    ) -> Result<(), Errno> {
        let mut state = self.state.lock();
        let (parent, name) = (parent.0, name.as_bytes().to_vec());
        let ino = state.tree.lookup(parent, &name).ok_or(Errno::ENOENT)?;
        match (directory, state.tree.entries(ino)) {
            (true, None) => return Err(Errno::ENOTDIR),
            (true, Some(entries)) if !entries.is_empty() => return Err(Errno::ENOTEMPTY),
            (false, Some(_)) => return Err(Errno::EISDIR),
            _ => {}
        }
        self.act(&mut state, request.pid(), Action::Unlink { parent, name, ino }, &[])?;
        state.drop_unused(ino);
        Ok(())
    }

    pub(super) fn rename_to(
        &self,
        request: &Request,
        (parent, name): (INodeNo, &OsStr),
        (to, to_name): (INodeNo, &OsStr),
        flags: RenameFlags,
    ) -> Result<(), Errno> {
        let mut state = self.state.lock();
        let tree = &state.tree;
        let (name, to_name) = (name.as_bytes().to_vec(), to_name.as_bytes().to_vec());
        let ino = tree.lookup(parent.0, &name).ok_or(Errno::ENOENT)?;
        let replaced = tree.lookup(to.0, &to_name);
        let exchanged = flags.contains(RenameFlags::RENAME_EXCHANGE);
        if flags.contains(RenameFlags::RENAME_WHITEOUT) {
            return Err(Errno::EINVAL);
        }
        match replaced {
            None if exchanged => return Err(Errno::ENOENT),
            None if to_name.len() > NAME_BYTES_MAX => return Err(Errno::ENAMETOOLONG),
            Some(_) if flags.contains(RenameFlags::RENAME_NOREPLACE) => return Err(Errno::EEXIST),
            Some(other) if other == ino => return Ok(()),
            Some(other) if !exchanged => {
                let is_directory = tree.node(ino).is_some_and(Node::is_directory);
                match (is_directory, tree.entries(other)) {
                    (true, None) => return Err(Errno::ENOTDIR),
                    (false, Some(_)) => return Err(Errno::EISDIR),
                    (true, Some(entries)) if !entries.is_empty() => return Err(Errno::ENOTEMPTY),
                    _ => {}
                }
            }
            _ => {}
        }
        let action = Action::Rename { parent: parent.0, name, to: to.0, to_name, ino, replaced, exchanged };
        self.act(&mut state, request.pid(), action, &[])?;
        if let Some(other) = replaced {
            state.drop_unused(other);
        }
        Ok(())
    }

    pub(super) fn write_bytes(
        &self,
        request: &Request,
        ino: Ino,
        offset: u64,
        data: &[u8],
        mapped: bool,
    ) -> Result<u32, Errno> {
        let mut state = self.state.lock();
        let size = state.tree.contents(ino).ok_or(Errno::EBADF)?.len();
        // The kernel writes whole pages back, and the last one may reach beyond the end of the file.
        let data = match mapped {
            true => &data[..size.saturating_sub(offset).min(data.len() as u64) as usize],
            false => data,
        };
        let pid = if mapped { 0 } else { request.pid() };
        // Each page of a mapping is written back by itself.
        let pieces = if mapped { data.chunks(BLOCK_BYTES as usize) } else { data.chunks(data.len().max(1)) };
        let mut offset = offset;
        for piece in pieces {
            let len = piece.len() as u32;
            let action = Action::Write { ino, offset, len, size, mapped, stored: Stored::default() };
            self.act(&mut state, pid, action, piece)?;
            offset += u64::from(len);
        }
        Ok(data.len() as u32)
    }

    pub(super) fn allocate(
        &self,
        request: &Request,
        ino: Ino,
        offset: u64,
        len: u64,
        mode: i32,
    ) -> Result<(), Errno> {
        let mut state = self.state.lock();
        let size = state.tree.contents(ino).ok_or(Errno::EBADF)?.len();
        let end = offset.checked_add(len).ok_or(Errno::EFBIG)?;
        let keeps_size = mode & libc::FALLOC_FL_KEEP_SIZE != 0;
        let new_size = if keeps_size { size } else { size.max(end) };
        let action = match mode & !libc::FALLOC_FL_KEEP_SIZE {
            0 if new_size == size => return Ok(()),
            0 => Action::Truncate { ino, from: size, to: new_size },
            libc::FALLOC_FL_PUNCH_HOLE if keeps_size => Action::Zero { ino, offset, len, size },
            libc::FALLOC_FL_ZERO_RANGE => Action::Zero { ino, offset, len, size: new_size },
            _ => return Err(Errno::EOPNOTSUPP),
        };
        self.act(&mut state, request.pid(), action, &[])?;
        Ok(())
    }

    pub(super) fn set_xattr(
        &self,
        request: &Request,
        ino: Ino,
        name: &OsStr,
        value: Option<&[u8]>,
        flags: i32,
    ) -> Result<(), Errno> {
        let mut state = self.state.lock();
        let name = name.as_bytes().to_vec();
        let exists = state.tree.node(ino).ok_or(Errno::ENOENT)?.xattrs.contains_key(&name);
        if !exists && (value.is_none() || flags & libc::XATTR_REPLACE != 0) {
            return Err(Errno::NO_XATTR);
        }
        if exists && flags & libc::XATTR_CREATE != 0 {
            return Err(Errno::EEXIST);
        }
        let value = value.map(<[u8]>::to_vec);
        self.act(&mut state, request.pid(), Action::Xattr { ino, name, value }, &[])?;
        Ok(())
    }

    pub(super) fn sync(&self, request: &Request, ino: Ino, data_only: bool) -> Result<(), Errno> {
        self.act(&mut self.state.lock(), request.pid(), Action::Sync { ino, data_only }, &[])
    }
}
