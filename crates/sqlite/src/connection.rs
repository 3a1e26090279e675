//! What SQLite has open: a database, its write-ahead log, or a journal.

use crate::failure::{Failure, Result, code};
use crate::ffi::fork;
use crate::file::{Kind, SharedFile};
use crate::image::{self, WAL};
use crate::locks::Level;
use crate::names;
use crate::options::Options;
use crate::registry::{self, Use};
use crate::shared_memory::{Held, LOCKS, Region};
use crate::volatile::Volatile;
use std::sync::Arc;
use syncline::File;

/// The kinds of files that SQLite opens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    Database,
    Log,
    Journal,
    SuperJournal,
}

/// How SQLite asks for a file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct How {
    pub(crate) role: Role,
    pub(crate) write: bool,
    pub(crate) create: bool,
    pub(crate) new: bool,
    pub(crate) delete_on_close: bool,
}

/// An open file, of one connection.
pub(crate) struct Connection {
    image: Use,
    opened: Opened,
    pub(crate) read_only: bool,
    delete_on_close: Option<String>,
}

enum Opened {
    File(Locked),
    Journal(Arc<Volatile>),
    SuperJournal(Arc<Volatile>),
}

/// A file, and the locks that this connection has on it.
struct Locked {
    file: Arc<SharedFile>,
    level: Level,
    /// Of the memory of a write-ahead log, if the connection uses it.
    shared: Option<Held>,
    /// The database, if this is its write-ahead log.
    database: Option<Arc<SharedFile>>,
}

/// Finds the image of a file and the file's path in it; None for a file of the host. `parameter` returns
/// the values in a database's URI.
pub(crate) fn place(
    name: &str,
    options: &Options,
    parameter: impl Fn(&str) -> Option<String>,
) -> Result<Option<(Use, String)>> {
    if let Some(image) = parameter("image") {
        fork::require_parent()?;
        if image.is_empty() {
            return Err(Failure::cannot_open("'image=' is empty: say where the image is"));
        }
        let key = registry::key_of(&image, options.snapshot.as_deref());
        let path = names::within(name, &key).map(str::to_owned);
        let path = path.ok_or_else(|| Failure::cannot_open(format!("{name} is no file of {key}")))?;
        return Ok(Some((registry::open(&key, &image, options)?, path)));
    }
    place_of(name)
}

/// Finds the image of a file by its full name.
pub(crate) fn place_of(name: &str) -> Result<Option<(Use, String)>> {
    if fork::is_child() {
        // A thread of the parent may have held a lock of the registry.
        return names::through_a_file(name).map_or(Ok(None), |_| fork::require_parent().map(|()| None));
    }
    if let Some(found) = registry::find(name) {
        return Ok(Some(found));
    }
    match names::through_a_file(name) {
        Some((image, path)) => {
            let image = image.display().to_string();
            let key = registry::key_of(&image, None);
            Ok(Some((registry::open(&key, &image, &Options::default())?, path.to_owned())))
        }
        None => Ok(None),
    }
}

/// The full name of a database; None for one of the host.
pub(crate) fn full_name(name: &str, parameter: impl Fn(&str) -> Option<String>) -> Option<String> {
    if fork::is_child() {
        return parameter("image").map(|image| names::full(&image, name));
    }
    if let Some(image) = parameter("image") {
        let key = registry::key_of(&image, parameter("snapshot").as_deref());
        // SQLite may have made it whole before.
        return Some(match names::within(name, &key) {
            Some(path) => names::full(&key, path),
            None => names::full(&key, name),
        });
    }
    let absolute = match name.starts_with('/') {
        true => name.to_owned(),
        false => std::env::current_dir().ok()?.join(name).display().to_string(),
    };
    if let Some((image, path)) = registry::find(&absolute) {
        return Some(names::full(image.key(), &path));
    }
    let (image, path) = names::through_a_file(&absolute)?;
    Some(names::full(&registry::key_of(&image.display().to_string(), None), path))
}

impl Connection {
    /// Opens a file; the options are those of a database.
    pub(crate) fn open(image: Use, path: &str, how: How, options: &Options) -> Result<Self> {
        let keeps_in_memory = match how.role {
            Role::SuperJournal => true,
            // One that a crash or another program left in the image is a journal to be rolled back.
            Role::Journal => how.create && image.keeps_journal_in_memory(path),
            // No frames are the log that a read-only image lacks.
            Role::Log => image.is_read_only() && !image.exists(path)?,
            Role::Database => false,
        };
        let volatile = match keeps_in_memory {
            true => Some(image.open_volatile(path)),
            false => image.volatile(path),
        };
        let read_only = !how.write || image.is_read_only();
        let delete_on_close = how.delete_on_close.then(|| path.to_owned());
        if let Some(volatile) = volatile {
            let opened = match how.role {
                Role::SuperJournal => Opened::SuperJournal(volatile),
                _ => Opened::Journal(volatile),
            };
            return Ok(Self { image, opened, read_only, delete_on_close });
        }
        if how.role == Role::Database {
            names::require_room_for_journals(path)?;
        }
        let kind = if how.role == Role::Database { Kind::Database } else { Kind::Log };
        let file = image.open(path, kind, how.create, how.new, options)?;
        let database = match how.role {
            Role::Log => path.strip_suffix(WAL).and_then(|database| image.opened(database)),
            _ => None,
        };
        if let Some(database) = &database {
            let handed = match read_only {
                true => Ok(()),
                false => image::hand_down(image.fs(), &database.file(), &file.file()),
            };
            handed.inspect_err(|_| image.close(&file))?;
            database.log_opened();
        }
        let locked = Locked { file, level: Level::None, shared: None, database };
        Ok(Self { image, opened: Opened::File(locked), read_only, delete_on_close })
    }

    /// Ends the use of the file.
    pub(crate) fn close(self) -> Result<()> {
        let Self { image, opened, delete_on_close, .. } = self;
        if let Opened::File(mut locked) = opened {
            locked.unlock(Level::None);
            locked.leave();
            locked.database.inspect(|database| database.log_closed());
            image.close(&locked.file);
        }
        delete_on_close.map_or(Ok(()), |path| image.remove(&path, false))
    }

    /// Reads, and returns the number of bytes: less than asked for at the end of the file.
    pub(crate) fn read(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        match &self.opened {
            Opened::File(locked) => locked.file.read(buffer, offset),
            Opened::Journal(volatile) | Opened::SuperJournal(volatile) => volatile.read(buffer, offset),
        }
    }

    pub(crate) fn write(&self, data: &[u8], offset: u64) -> Result<()> {
        match &self.opened {
            Opened::File(locked) => {
                let begins_log = locked.file.is_log() && offset == 0;
                if begins_log {
                    self.image.before_log_ends(locked.file.path())?;
                }
                self.before_checkpoint_writes(locked)?;
                let written = locked.file.write(data, offset);
                // Not before: a checkpoint that makes the log durable meanwhile would miss this write.
                locked.database.iter().for_each(|database| database.note_log_written());
                written?;
                // The zeros that end a journal are the commit. A journal that came back would undo others.
                let ends_journal = begins_log && data.iter().all(|byte| *byte == 0);
                if ends_journal { locked.file.sync() } else { Ok(()) }
            }
            Opened::Journal(volatile) => volatile.write(data, offset),
            Opened::SuperJournal(volatile) => {
                // The names of the journals, each with a NUL behind it.
                let names = data.split(|byte| *byte == 0).filter(|name| !name.is_empty());
                for name in names {
                    self.require_one_image(std::str::from_utf8(name).unwrap_or_default())?;
                }
                volatile.write(data, offset)
            }
        }
    }

    pub(crate) fn set_size(&self, size: u64) -> Result<()> {
        match &self.opened {
            Opened::File(locked) if locked.file.is_log() => {
                self.image.before_log_ends(locked.file.path())?;
                locked.file.set_size(size)?;
                locked.file.sync()
            }
            Opened::File(locked) => {
                self.before_checkpoint_writes(locked)?;
                locked.file.set_size(size)
            }
            Opened::Journal(volatile) | Opened::SuperJournal(volatile) => volatile.set_size(size),
        }
    }

    /// Makes the log durable before a checkpoint writes to the database.
    fn before_checkpoint_writes(&self, locked: &Locked) -> Result<()> {
        if locked.file.has_log() && locked.file.take_log_written() {
            let synced = self.image.before_checkpoint(locked.file.path());
            return synced.inspect_err(|_| locked.file.note_log_written());
        }
        Ok(())
    }

    pub(crate) fn size(&self) -> Result<u64> {
        match &self.opened {
            Opened::File(locked) => Ok(locked.file.size()),
            Opened::Journal(volatile) | Opened::SuperJournal(volatile) => volatile.size(),
        }
    }

    pub(crate) fn sync(&self) -> Result<()> {
        match &self.opened {
            Opened::File(locked) => locked.file.sync(),
            Opened::Journal(_) | Opened::SuperJournal(_) => Ok(()),
        }
    }

    /// Refuses a transaction of which a journal lies outside of the image: nothing could make it come whole.
    fn require_one_image<'a>(&self, journal: &'a str) -> Result<&'a str> {
        match names::within(journal, self.image.key()) {
            Some(path) => Ok(path),
            None => Err(Failure::new(
                code::ERROR,
                "one transaction can't change databases of two images, or of an image and the host: it could not be atomic",
            )),
        }
    }

    /// All changes of a transaction are written.
    pub(crate) fn complete(&self, super_journal: Option<&str>) -> Result<()> {
        let Opened::File(locked) = &self.opened else { return Ok(()) };
        let path = super_journal.map(|name| self.require_one_image(name)).transpose();
        // SQLite asks the other VFS for the super-journal, and may find no reason to undo the changes.
        let path = path.inspect_err(|_| locked.file.refuse())?;
        let journaled = self.image.before_commit(locked.file.path());
        journaled.inspect_err(|_| locked.file.refuse())?;
        locked.file.complete(path)
    }

    /// Raises the lock; false if others are in the way.
    pub(crate) fn lock(&mut self, wanted: Level) -> bool {
        let Opened::File(locked) = &mut self.opened else { return true };
        locked.level = locked.file.locks.lock().raise(locked.level, wanted);
        locked.level >= wanted
    }

    pub(crate) fn unlock(&mut self, to: Level) {
        if let Opened::File(locked) = &mut self.opened {
            locked.unlock(to);
        }
    }

    pub(crate) fn is_reserved(&self) -> bool {
        matches!(&self.opened, Opened::File(locked) if locked.file.locks.lock().is_reserved())
    }

    pub(crate) fn level(&self) -> Level {
        match &self.opened {
            Opened::File(locked) => locked.level,
            Opened::Journal(_) | Opened::SuperJournal(_) => Level::None,
        }
    }

    /// A region of the memory of a write-ahead log.
    pub(crate) fn region(&mut self, index: usize, bytes: usize, make: bool) -> Option<Region> {
        let Opened::File(locked) = &mut self.opened else { return None };
        let mut memory = locked.file.shared_memory.lock();
        locked.shared.get_or_insert_with(|| {
            memory.join();
            Held::default()
        });
        memory.region(index, bytes, make).cloned()
    }

    /// Takes locks of a write-ahead log, or gives them back; false if others hold them.
    pub(crate) fn lock_log(&mut self, first: usize, count: usize, lock: bool, exclusive: bool) -> bool {
        let Opened::File(Locked { file, shared: Some(held), .. }) = &mut self.opened else { return false };
        let range = first..(first + count).min(LOCKS);
        let mut memory = file.shared_memory.lock();
        match lock {
            true => memory.lock(range, exclusive, held),
            false => {
                memory.unlock(range, held);
                true
            }
        }
    }

    pub(crate) fn leave_log(&mut self) {
        if let Opened::File(locked) = &mut self.opened {
            locked.leave();
        }
    }

    /// Answers a pragma of this extension; None for all others.
    pub(crate) fn pragma(&self, name: &str, value: Option<&str>) -> Option<Result<String>> {
        let Opened::File(locked) = &self.opened else { return None };
        let fs = self.image.fs();
        let change = |set: fn(&File, &syncline::Filesystem, &str) -> Result<()>| match value {
            Some(value) => {
                locked.file.set(|file| set(file, fs, value))?;
                match fs.open_file(format!("{}{WAL}", locked.file.path())) {
                    Ok(log) => set(&log, fs, value),
                    Err(_) => Ok(()),
                }
            }
            None => Ok(()),
        };
        match name {
            "syncline_durability" => {
                Some(change(image::set_durability).and_then(|()| image::durability(&locked.file.file(), fs)))
            }
            "syncline_compression" => Some(
                change(image::set_compression).and_then(|()| image::compression(&locked.file.file(), fs)),
            ),
            _ => None,
        }
    }

    /// Makes a snapshot of the image: what is committed, of all its files, at one moment.
    pub(crate) fn make_snapshot(&self, name: &str) -> Result<()> {
        self.image.fs().create_snapshot(name).map_err(Failure::of(code::ERROR))
    }

    pub(crate) fn delete_snapshot(&self, name: &str) -> Result<()> {
        self.image.fs().delete_snapshot(name).map_err(Failure::of(code::ERROR))
    }

    /// The snapshots of the image, as JSON.
    pub(crate) fn snapshots(&self) -> Result<String> {
        let snapshots = self.image.fs().snapshots().map_err(Failure::of(code::ERROR))?;
        let seconds = |time: std::time::SystemTime| {
            time.duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_secs())
        };
        let list: Vec<_> = snapshots
            .iter()
            .map(|snapshot| {
                serde_json::json!({
                    "name": snapshot.name,
                    "created": seconds(snapshot.created),
                    "used_bytes": snapshot.used_bytes,
                    "exclusive_bytes": snapshot.exclusive_bytes,
                })
            })
            .collect();
        Ok(serde_json::Value::from(list).to_string())
    }

    /// Makes everything in the image durable.
    pub(crate) fn sync_image(&self) -> Result<()> {
        self.image.fs().sync().map_err(Failure::of(code::ERROR))
    }
}

impl Locked {
    fn unlock(&mut self, to: Level) {
        self.level = self.file.locks.lock().lower(self.level, to);
    }

    fn leave(&mut self) {
        if let Some(held) = self.shared.take() {
            self.file.shared_memory.lock().leave(held);
        }
    }
}
