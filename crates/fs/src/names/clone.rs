//! Copies of whole files: one transaction makes the inode with its name, its attributes and the blocks that it
//! shares.

use crate::FsError;
use crate::attributes::flags::{flags_of_copy, require_growable};
use crate::data::{WholeFile, hold_writebacks, lease_settled, reserve};
use crate::filesystem::Filesystem;
use crate::inode::change::InodeChanges;
use crate::inode::{Inode, InodeState, LinkTarget, Meta, Parents};
use crate::names::directory::{check_name, require_alive};
use crate::types::{Attributes, FileType, Ino};
use syncline_store::Transaction;

impl Filesystem {
    /// Gives a copy of a file, a symbolic link or a special file this name. The copy shares all blocks and has
    /// the owner, permissions, times, extended attributes and chattr(1) flags of the original. (Without such flags
    /// it gets those that the directory passes on.) After a crash it is there as a whole or not at all. `None` for
    /// a file that takes several transactions: it has long extended attributes, a long target or very many extents.
    ///
    /// The caller has checked the permissions.
    pub async fn clone_file(
        &self,
        file: Ino,
        (parent, name): (Ino, &[u8]),
    ) -> Result<Option<Attributes>, FsError> {
        check_name(name)?;
        let (file, dir) = (self.inode(file).await?, self.directory(parent).await?);
        if file.file_type == FileType::Directory {
            return Err(FsError::IsDirectory);
        }
        self.store.writable()?;
        self.prepare_compression(file.file_type).await?;
        // While the leases are waited for, no room may be promised.
        drop(self.admit_growth().await?);
        let files = [&file];
        let regular = file.file_type == FileType::Regular;
        let _writeback = hold_writebacks(&files[..usize::from(regular)]).await;
        let _leases = lease_settled(self, &[&file, &dir]).await?;
        self.require_present(&file)?;
        require_alive(&dir)?;
        require_growable(&dir)?;
        if !is_short(&file)? {
            return Ok(None);
        }
        let search = self.search(parent, name).await?;
        if search.entry.is_some() {
            return Err(FsError::Exists);
        }
        let offset = search.free()?;
        self.admit_inode(&dir).await?;
        let Some(contents) = WholeFile::of(self, &file).await? else { return Ok(None) };
        let _names = reserve(self, contents.names()).await?;
        let held = match self.quota_of(&dir) {
            0 => None,
            number => Some(self.hold_units(number, contents.units()).await?),
        };
        let Some(contents) = contents.share(self, &file).await? else { return Ok(None) };
        let ino = self.store.new_object()?;

        // Nothing waits from here to the commit.
        let now = self.now();
        let (attr, meta) = self.copied(&file, &dir);
        let attr = Attributes { ino, nlink: 1, blocks: contents.units(), ctime: now, btime: now, ..attr };
        let mut state = InodeState { data: contents.state(&attr), ..InodeState::new(attr, meta) };
        let mut transaction = Transaction::new();
        contents.put(&mut transaction, ino);
        let mut changes = InodeChanges::new();
        changes.spend(held);
        changes.count(self.inherit_quota(&mut state));
        changes.of(&dir).add_entry(now);
        let attributes = self.commit_new(state, (parent, name, offset), changes, transaction)?;
        drop(contents);
        if regular {
            self.counters.reflinked_bytes.add(attributes.size);
        }
        Ok(Some(attributes))
    }

    /// The attributes that a copy in `dir` takes from the original and from the directory. The caller sets the
    /// number, names, blocks and creation times of the copy.
    fn copied(&self, file: &Inode, dir: &Inode) -> (Attributes, Meta) {
        let (passed_on, quota) = {
            let state = dir.state.lock();
            (self.flags_of_new(state.meta.flags, file.file_type), state.meta.quota)
        };
        let state = file.state.lock();
        let flags = flags_of_copy(state.meta.flags, passed_on);
        (state.attr, Meta { flags, quota, parents: Parents::default(), ..state.meta.clone() })
    }
}

/// True if the inode item has everything but the extents: no extended attribute and no target has items of its own.
fn is_short(file: &Inode) -> Result<bool, FsError> {
    let InodeState { attr, meta, .. } = &*file.state.lock();
    if attr.nlink == 0 {
        return Err(FsError::NotFound);
    }
    Ok(meta.xattr_items == 0 && !matches!(meta.target.as_deref(), Some(LinkTarget::Chunks(_))))
}
