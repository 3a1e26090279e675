//! An open image: its files that connections use, and its journals in memory.

use crate::failure::{Failure, Result, code};
use crate::file::{Core, Kind, SharedFile, commit_together};
use crate::options::{Journal, Options};
use crate::volatile::Volatile;
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use syncline::device::block_on;
use syncline::{Durability, File, Filesystem, OpenOptions};
use syncline_format::items::extent::Algorithm;

/// SQLite names the rollback journal of `a.db` `a.db-journal`.
const JOURNAL: &str = "-journal";
/// SQLite names the write-ahead log of `a.db` `a.db-wal`.
pub(crate) const WAL: &str = "-wal";

pub(crate) struct Image {
    key: String,
    core: Arc<Core>,
    read_only: bool,
    files: Mutex<HashMap<String, Used>>,
    volatile: Mutex<HashMap<String, Arc<Volatile>>>,
    /// Names that no file has. SQLite asks for journals at the beginning of each transaction.
    absent: Mutex<HashSet<String>>,
}

struct Used {
    file: Arc<SharedFile>,
    users: usize,
    /// Where the journal of a database lies: the connection that opens it first decides.
    journal: Journal,
}

impl Image {
    pub(crate) fn new(key: &str, core: Core, read_only: bool) -> Self {
        Self {
            key: key.to_owned(),
            core: Arc::new(core),
            read_only,
            files: Mutex::default(),
            volatile: Mutex::default(),
            absent: Mutex::default(),
        }
    }

    /// The image's part of the full name of each of its files.
    pub(crate) fn key(&self) -> &str {
        &self.key
    }

    pub(crate) fn fs(&self) -> &Filesystem {
        &self.core.fs
    }

    pub(crate) fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Opens a file, or counts another user of it.
    pub(crate) fn open(
        &self,
        path: &str,
        kind: Kind,
        create: bool,
        new: bool,
        options: &Options,
    ) -> Result<Arc<SharedFile>> {
        let mut files = self.files.lock();
        if let Some(used) = files.get_mut(path) {
            used.users += 1;
            return Ok(used.file.clone());
        }
        let cannot = |error: syncline::Error| Failure::of(code::CANTOPEN)(error);
        if kind == Kind::Database && !new {
            self.require_one_name(path)?;
        }
        // `exists` takes this lock too, so it answers before the file is made or after, not in between.
        let mut absent = self.absent.lock();
        let mut how = OpenOptions::new();
        how.read(true).write(!self.read_only);
        let file = if new {
            how.create_new(true).open(&self.core.fs, path)
        } else {
            how.create(create && !self.read_only).open(&self.core.fs, path)
        };
        let file = file.map_err(cannot)?;
        absent.remove(path);
        drop(absent);
        let file = Arc::new(SharedFile::new(&self.core, path, kind, file, options.changes_bytes_max())?);
        files.insert(path.to_owned(), Used { file: file.clone(), users: 1, journal: options.journal });
        Ok(file)
    }

    /// Refuses a database under a name of which its journals know nothing.
    fn require_one_name(&self, path: &str) -> Result<()> {
        let metadata = match self.core.fs.metadata(path) {
            Ok(metadata) => metadata,
            // Whoever opens it makes it, or says that it is missing.
            Err(error) if error.is_not_found() => return Ok(()),
            Err(error) => return Err(Failure::of(code::CANTOPEN)(error)),
        };
        let real = self.core.fs.canonicalize(path).map_err(Failure::of(code::CANTOPEN))?;
        if real.as_os_str() != path {
            let text = format!("{path} is a symbolic link: open {} instead", real.display());
            return Err(Failure::cannot_open(text));
        }
        if metadata.is_file() && metadata.nlink() > 1 {
            let text =
                format!("{path} has more than one name: its journals would belong to one of them only");
            return Err(Failure::cannot_open(text));
        }
        Ok(())
    }

    /// Ends a use of a file, and forgets what was not committed.
    pub(crate) fn close(&self, file: &Arc<SharedFile>) {
        let mut files = self.files.lock();
        let path = file.path();
        let Some(used) = files.get_mut(path) else { return };
        used.users -= 1;
        if used.users > 0 {
            return;
        }
        files.remove(path);
        self.volatile.lock().remove(&format!("{path}{JOURNAL}"));
        file.refuse();
    }

    /// True if SQLite's journal of this name is to lie in memory.
    pub(crate) fn keeps_journal_in_memory(&self, path: &str) -> bool {
        let database = path.strip_suffix(JOURNAL).unwrap_or(path);
        self.files.lock().get(database).is_none_or(|used| used.journal == Journal::Memory)
    }

    /// Opens a journal in memory.
    pub(crate) fn open_volatile(&self, path: &str) -> Arc<Volatile> {
        let mut volatile = self.volatile.lock();
        volatile.entry(path.to_owned()).or_insert_with(|| Arc::new(Volatile::new(&self.core.fs))).clone()
    }

    /// A journal in memory, if there is one of this name.
    pub(crate) fn volatile(&self, path: &str) -> Option<Arc<Volatile>> {
        self.volatile.lock().get(path).cloned()
    }

    /// True for a file with contents: one without is no journal.
    pub(crate) fn exists(&self, path: &str) -> Result<bool> {
        if let Some(volatile) = self.volatile.lock().get(path) {
            return Ok(volatile.size()? > 0);
        }
        if let Some(used) = self.files.lock().get(path) {
            return Ok(used.file.size() > 0);
        }
        let mut absent = self.absent.lock();
        if absent.contains(path) {
            return Ok(false);
        }
        match self.core.fs.metadata(path) {
            Ok(metadata) => Ok(!metadata.is_file() || !metadata.is_empty()),
            Err(error) if error.is_not_found() => {
                // Super-journals have a new name each.
                if path.ends_with(JOURNAL) || path.ends_with(WAL) {
                    absent.insert(path.to_owned());
                }
                Ok(false)
            }
            Err(error) => Err(Failure::of(code::IOERR_ACCESS)(error)),
        }
    }

    /// Removes a file; a write-ahead log stays, empty. Removing a super-journal commits what waits for that.
    pub(crate) fn remove(&self, path: &str, durably: bool) -> Result<()> {
        let is_volatile = self.volatile.lock().contains_key(path);
        if is_volatile {
            self.commit_held(path)?;
            self.volatile.lock().remove(path);
            return Ok(());
        }
        self.before_log_ends(path)?;
        // The name of a log stays: to make it again, the image would need room. A link may be to another file.
        let is_log = |file: &syncline::Metadata| path.ends_with(WAL) && file.is_file() && file.nlink() == 1;
        let removed = match self.core.fs.symlink_metadata(path) {
            Ok(metadata) if is_log(&metadata) => {
                OpenOptions::new().write(true).open(&self.core.fs, path).and_then(|log| log.set_len(0))
            }
            _ => self.core.fs.remove_file(path),
        };
        removed.map_err(|error| match error.is_not_found() {
            true => Failure::new(code::IOERR_DELETE_NOENT, error.to_string()),
            false => Failure::of(code::IOERR_DELETE)(error),
        })?;
        // The end of a program is as a power cut to what is not durable. A journal that came back would undo a
        // commit.
        if durably || path.ends_with(JOURNAL) {
            let root = self.core.fs.open_file("/").map_err(Failure::of(code::IOERR_DELETE))?;
            root.sync_all().map_err(Failure::of(code::IOERR_DELETE))?;
        }
        Ok(())
    }

    fn commit_held(&self, super_journal: &str) -> Result<()> {
        let mut files = self.files();
        // All locks are taken in this order.
        files.sort_by(|a, b| a.path().cmp(b.path()));
        commit_together(&self.core, &files, super_journal)
    }

    fn files(&self) -> Vec<Arc<SharedFile>> {
        self.files.lock().values().map(|used| used.file.clone()).collect()
    }

    /// Makes the rollback journal of a database durable, if it lies in the image. With `synchronous=OFF`
    /// SQLite does not, and a crash must not leave half of it beside a commit.
    pub(crate) fn before_commit(&self, database: &str) -> Result<()> {
        self.sync_file(&format!("{database}{JOURNAL}"))
    }

    /// Makes the database durable before its write-ahead log is overwritten or cut. With `synchronous=OFF` SQLite
    /// does not sync the pages that checkpoints brought into it, and the log no longer has them.
    pub(crate) fn before_log_ends(&self, log: &str) -> Result<()> {
        log.strip_suffix(WAL).map_or(Ok(()), |database| self.sync_file(database))
    }

    /// Makes the write-ahead log of a database durable, before a checkpoint's first write to the database. With
    /// `synchronous=OFF` SQLite does not, and a crash could leave pages in the database that are newer than the log.
    pub(crate) fn before_checkpoint(&self, database: &str) -> Result<()> {
        self.sync_file(&format!("{database}{WAL}"))
    }

    fn sync_file(&self, path: &str) -> Result<()> {
        self.opened(path).map_or(Ok(()), |file| file.sync())
    }

    /// A file that connections have open.
    pub(crate) fn opened(&self, path: &str) -> Option<Arc<SharedFile>> {
        self.files.lock().get(path).map(|used| used.file.clone())
    }
}

/// Gives a copy the durability class and the compression of its original.
pub(crate) fn hand_down(fs: &Filesystem, original: &File, copy: &File) -> Result<()> {
    let number = |file: &File| file.metadata().map(|metadata| metadata.ino());
    let failed = |error| Failure::of(code::IOERR_WRITE)(error);
    let (from, to) = (number(original).map_err(failed)?, number(copy).map_err(failed)?);
    let engine = fs.engine();
    let handed = block_on(async {
        let class = engine.durability(from).await?.0;
        if class != engine.durability(to).await?.0 {
            engine.set_durability(to, class).await?;
        }
        let compression = engine.file_flags(from).await?.compression;
        if compression != engine.file_flags(to).await?.compression {
            engine.set_compression(to, compression).await?;
        }
        Ok(())
    });
    handed.map_err(|error: syncline::cause::FsError| failed(error.into()))
}

/// A file's durability class and compression, as pragmas name them.
pub(crate) fn durability(file: &File, fs: &Filesystem) -> Result<String> {
    let class = ask(file, |ino| block_on(fs.engine().durability(ino)))?.1;
    Ok(match class {
        Durability::Ordered(_) => "ordered".into(),
        Durability::Strict => "strict".into(),
        _ => "fsync".into(),
    })
}

pub(crate) fn set_durability(file: &File, fs: &Filesystem, word: &str) -> Result<()> {
    let class = match word {
        "fsync" => Durability::Fsync,
        "ordered" => Durability::Ordered(Durability::WITHIN_DEFAULT),
        "strict" => Durability::Strict,
        other => {
            return Err(Failure::new(code::ERROR, format!("'{other}': a class is fsync, ordered or strict")));
        }
    };
    ask(file, |ino| block_on(fs.engine().set_durability(ino, Some(class))))
}

pub(crate) fn compression(file: &File, fs: &Filesystem) -> Result<String> {
    let flags = ask(file, |ino| block_on(fs.engine().file_flags(ino)))?;
    Ok(match flags.compression {
        None => "none".into(),
        Some(Algorithm::Lz4) => "lz4".into(),
        Some(Algorithm::Zstd) => "zstd".into(),
    })
}

pub(crate) fn set_compression(file: &File, fs: &Filesystem, word: &str) -> Result<()> {
    let algorithm = match word {
        "none" => None,
        "lz4" => Some(Algorithm::Lz4),
        "zstd" => Some(Algorithm::Zstd),
        other => {
            return Err(Failure::new(code::ERROR, format!("'{other}': compression is none, lz4 or zstd")));
        }
    };
    ask(file, |ino| block_on(fs.engine().set_compression(ino, algorithm)))
}

fn ask<T>(
    file: &File,
    work: impl FnOnce(u64) -> std::result::Result<T, syncline::cause::FsError>,
) -> Result<T> {
    let metadata = file.metadata().map_err(Failure::of(code::ERROR))?;
    work(metadata.ino()).map_err(|error| Failure::of(code::ERROR)(error.into()))
}
