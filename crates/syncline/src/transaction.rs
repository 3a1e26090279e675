//! Transactions: changes of any files that come together, or not at all.

use crate::error::{Error, Result, about};
use crate::file::{File, owned};
use crate::filesystem::{Filesystem, Shared};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use syncline_device::drive;
use syncline_fs::types::XattrMode;
use syncline_fs::{Action, FsError, NotCommitted, STEPS_MAX, Step, TRANSACTION_BYTES_MAX};

/// Changes of any files and directories of one filesystem, collected until
/// [`commit`](Self::commit) makes all of them, or none.
///
/// ```
/// # let fs = syncline::Filesystem::in_memory(32 << 20)?;
/// fs.write("/balance", "100")?;
/// let mut transaction = fs.transaction();
/// transaction
///     .create_dir("/invoices")
///     .write("/invoices/1", "30 for paper")
///     .write("/balance", "70")
///     .set_xattr("/balance", "user.invoice", b"1");
/// assert!(!fs.exists("/invoices"), "nothing happens before the commit");
/// transaction.commit()?; // one flush
/// assert_eq!(fs.read_to_string("/balance")?, "70");
///
/// let mut transaction = fs.transaction();
/// transaction.write("/balance", "0").remove_file("/invoices/2");
/// let error = transaction.commit().unwrap_err();
/// assert_eq!(error.to_string(), "remove /invoices/2: no such file or directory");
/// assert_eq!(fs.read_to_string("/balance")?, "70", "nothing has changed");
/// # std::io::Result::Ok(())
/// ```
///
/// Nothing is looked at before the commit. Then each change is checked against the state that the
/// changes before it leave: a file that the transaction makes can be written, renamed and removed in
/// it. Dropping a transaction forgets it. It has no reads.
///
/// # What is promised
///
/// - **After a crash** all of it is there or nothing. When `commit` has returned, all of it survives
///   any crash, with everything that was changed before it. If everything that it touches is of
///   class `ordered`, it has its place in history instead, and a flush begins within the class's
///   seconds.
/// - **Other threads** see all of it or nothing: each call of the library comes wholly before a
///   commit or wholly after it. Two calls may have a commit between them; a program that needs
///   several calls to belong together holds a lock of its own around them and around the commit. A
///   read of at most 4 MiB is one call, and so is [`Filesystem::read`] of any size; listing a
///   directory is several. Open files show the new contents after the commit. They see it before it is durable.
/// - **Conflicts** are found at the commit. There is no snapshot that a transaction works on: if
///   another thread has removed, renamed or made the file of a change, the commit fails and names that
///   change, or applies it to the file that has the name now.
/// - **If it is refused**, nothing has changed, and the error names the change and its path.
/// - **If the device fails** while it is made durable, the error is [`Error::NotDurable`]: it is
///   visible as a whole, and a later sync tries again. If a tree node can't be read in the midst of
///   it, the error is [`Error::Broken`]: the image is read-only from then on and this process may see
///   a part, but the device has nothing of it, and the image opens again as it was before.
///
/// # Cost and limits
///
/// One flush, and one write for a few small files; data of larger ones is written beside it. All
/// of it is in memory until then, and other calls wait while it is applied, which takes memory but
/// no device. A commit waits for a checkpoint that is under way.
///
/// At most 64 MiB of data, counted in the blocks of 4 KiB that each write touches and with the values of attributes, and 16,384
/// changes ([`write`](Self::write) is up to three, and one more for each 4 MiB); more is EFBIG before any
/// effect. Room and quotas count as if nothing that the transaction removes were given back, so on a
/// full image a transaction that only removes may find no room (ENOSPC) where a removal by itself does. Hard links, exchanging names,
/// owners, times, flags and access control lists can't be changed in a transaction, and nothing can be
/// made in a directory whose default access control list has more than 127 entries.
#[must_use = "nothing happens before the commit"]
pub struct Transaction {
    shared: Arc<Shared>,
    steps: Vec<Step>,
    bytes: u64,
}

/// Most bytes of one step.
const STEP_BYTES_MAX: usize = 4 << 20;

impl Filesystem {
    /// Begins a transaction: changes that are made together by its
    /// [`commit`](Transaction::commit), or not at all.
    pub fn transaction(&self) -> Transaction {
        Transaction { shared: self.shared.clone(), steps: Vec::new(), bytes: 0 }
    }
}

impl Transaction {
    /// Most bytes of data that a transaction may have.
    pub const BYTES_MAX: u64 = TRANSACTION_BYTES_MAX;
    /// Most changes that a transaction may have.
    pub const CHANGES_MAX: usize = STEPS_MAX;

    fn add(&mut self, path: impl AsRef<Path>, action: Action) -> &mut Self {
        // Changes that are too many anyway are not kept in memory; the commit refuses the transaction.
        if self.steps.len() <= STEPS_MAX {
            self.steps.push(Step { path: bytes_of(path.as_ref()), action });
        }
        self
    }

    fn add_data(&mut self, path: &Path, mut data: &[u8], mut offset: u64) -> &mut Self {
        while !data.is_empty() {
            let (piece, rest) = data.split_at(data.len().min(STEP_BYTES_MAX));
            self.bytes = self.bytes.saturating_add(piece.len() as u64);
            if self.bytes > TRANSACTION_BYTES_MAX {
                return self;
            }
            self.add(path, Action::Write { offset, data: owned(piece) });
            offset = offset.saturating_add(piece.len() as u64);
            data = rest;
        }
        self
    }

    /// Replaces the contents of a file. A file that does not exist is made, with permission bits
    /// 0o644.
    pub fn write(&mut self, path: impl AsRef<Path>, contents: impl AsRef<[u8]>) -> &mut Self {
        let path = path.as_ref();
        self.add(path, Action::Create { permissions: 0o644, exclusive: false });
        self.add(path, Action::SetLen { size: 0 });
        self.add_data(path, contents.as_ref(), 0)
    }

    /// Writes `data` at `offset` of a file that exists.
    pub fn write_at(&mut self, path: impl AsRef<Path>, data: &[u8], offset: u64) -> &mut Self {
        self.add_data(path.as_ref(), data, offset)
    }

    /// Makes an empty file with these permission bits; EEXIST if there is one.
    pub fn create_new(&mut self, path: impl AsRef<Path>, permissions: u16) -> &mut Self {
        self.add(path, Action::Create { permissions, exclusive: true })
    }

    /// Gives its name to a file that [`Filesystem::create_unnamed`] made, in place of a file that has
    /// that name. The data written to it does not count towards the limits: the commit writes the data
    /// to the device before it holds off others. The file must stay open until then.
    ///
    /// ```
    /// # let fs = syncline::Filesystem::in_memory(32 << 20)?;
    /// # fs.write("/table", "old")?;
    /// let table = fs.create_unnamed("/")?;
    /// table.write_all_at(b"of any size", 0)?;
    /// let mut transaction = fs.transaction();
    /// transaction.link(&table, "/table")?.write("/index", "where what is");
    /// transaction.commit()?;
    /// assert_eq!(fs.read("/table")?, b"of any size");
    /// # std::io::Result::Ok(())
    /// ```
    pub fn link(&mut self, file: &File, path: impl AsRef<Path>) -> Result<&mut Self> {
        let ino = file.inode_in(&self.shared)?;
        Ok(self.add(path, Action::Link { ino, exclusive: false }))
    }

    /// Like [`link`](Self::link), but EEXIST if something has the name.
    pub fn link_new(&mut self, file: &File, path: impl AsRef<Path>) -> Result<&mut Self> {
        let ino = file.inode_in(&self.shared)?;
        Ok(self.add(path, Action::Link { ino, exclusive: true }))
    }

    /// Makes a directory, with permission bits 0o755.
    pub fn create_dir(&mut self, path: impl AsRef<Path>) -> &mut Self {
        self.create_dir_with(path, 0o755)
    }

    /// Makes a directory with these permission bits.
    pub fn create_dir_with(&mut self, path: impl AsRef<Path>, permissions: u16) -> &mut Self {
        self.add(path, Action::Mkdir { permissions })
    }

    /// Makes a symbolic link at `link` that leads to `target`.
    pub fn symlink(&mut self, target: impl AsRef<Path>, link: impl AsRef<Path>) -> &mut Self {
        self.add(link, Action::Symlink { target: bytes_of(target.as_ref()) })
    }

    /// Renames, replacing a file at `to`.
    pub fn rename(&mut self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> &mut Self {
        self.add(from, Action::Rename { to: bytes_of(to.as_ref()) })
    }

    /// Removes a name of anything but a directory.
    pub fn remove_file(&mut self, path: impl AsRef<Path>) -> &mut Self {
        self.add(path, Action::RemoveFile)
    }

    /// Removes an empty directory.
    pub fn remove_dir(&mut self, path: impl AsRef<Path>) -> &mut Self {
        self.add(path, Action::RemoveDir)
    }

    /// Sets the size of a file.
    pub fn set_len(&mut self, path: impl AsRef<Path>, size: u64) -> &mut Self {
        self.add(path, Action::SetLen { size })
    }

    /// Changes permission bits.
    pub fn set_permissions(&mut self, path: impl AsRef<Path>, permissions: u16) -> &mut Self {
        self.add(path, Action::SetPermissions { permissions })
    }

    /// Sets an extended attribute.
    pub fn set_xattr(&mut self, path: impl AsRef<Path>, name: impl AsRef<OsStr>, value: &[u8]) -> &mut Self {
        self.set_xattr_with(path, name, value, XattrMode::Set)
    }

    /// Sets an extended attribute only if it is not set, or only if it is.
    pub fn set_xattr_with(
        &mut self,
        path: impl AsRef<Path>,
        name: impl AsRef<OsStr>,
        value: &[u8],
        mode: XattrMode,
    ) -> &mut Self {
        self.bytes = self.bytes.saturating_add(value.len() as u64);
        if self.bytes > TRANSACTION_BYTES_MAX {
            return self;
        }
        let (name, value) = (name.as_ref().as_bytes().to_vec(), value.to_vec());
        self.add(path, Action::SetXattr { name, value, mode })
    }

    /// Removes an extended attribute; ENODATA if it is not set.
    pub fn remove_xattr(&mut self, path: impl AsRef<Path>, name: impl AsRef<OsStr>) -> &mut Self {
        self.add(path, Action::RemoveXattr { name: name.as_ref().as_bytes().to_vec() })
    }

    /// Number of bytes of data so far.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// True if there is nothing to commit.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty() && self.bytes == 0
    }

    /// Makes all changes, durably, or none.
    pub fn commit(self) -> Result<()> {
        if self.bytes > TRANSACTION_BYTES_MAX {
            return Err(FsError::TransactionTooLarge.into());
        }
        let committed = drive(self.shared.engine.transact(self.shared.caller, &self.steps));
        committed.map_err(|error| match error {
            NotCommitted::Refused { step, error } => self.named(step, error),
            NotCommitted::Unchanged(error) => error.into(),
            NotCommitted::NotDurable(error) => Error::NotDurable(Box::new(error.into())),
            NotCommitted::Broken { step, error } => Error::Broken(Box::new(self.named(step, error))),
        })
    }

    /// An error with the change that it is about.
    fn named(&self, step: usize, error: FsError) -> Error {
        let Step { path, action } = &self.steps[step];
        about(operation(action), &PathBuf::from(OsStr::from_bytes(path)))(error.into())
    }
}

impl std::fmt::Debug for Transaction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Transaction")
            .field("changes", &self.steps.len())
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}

fn bytes_of(path: &Path) -> Vec<u8> {
    path.as_os_str().as_bytes().to_vec()
}

/// The verb of an error.
fn operation(action: &Action) -> &'static str {
    match action {
        Action::Create { .. } | Action::Mkdir { .. } => "make",
        Action::Link { .. } | Action::Symlink { .. } => "link",
        Action::Write { .. } => "write",
        Action::SetLen { .. } | Action::SetPermissions { .. } => "change",
        Action::SetXattr { .. } => "set an attribute of",
        Action::RemoveXattr { .. } => "remove an attribute of",
        Action::Rename { .. } => "rename",
        Action::RemoveFile | Action::RemoveDir => "remove",
    }
}
