//! Directories in which one thread creates, removes and renames files while others read them.

use super::ledger::History;
use super::world::{CALLER, World};
use rand::Rng;
use rand::rngs::StdRng;
use std::collections::BTreeMap;
use syncline_device::block_on;
use syncline_fs::Filesystem;
use syncline_fs::types::{FileType, Ino, RenameFlags};

/// Names with their inodes: 0 for one that is being created.
pub type Names = BTreeMap<String, Ino>;

pub struct OwnedDirectory {
    pub ino: Ino,
    pub history: History<Names>,
}

impl OwnedDirectory {
    pub fn new(ino: Ino) -> Self {
        Self { ino, history: History::beginning_with(Names::new()) }
    }

    /// Fails unless the listing is the state after one of the changes from `least` on.
    pub fn require_listed(&self, least: usize, found: &Names) -> Result<(), String> {
        let states = self.history.since(least);
        let matches = |state: &Names| {
            let same = |((one, ino), (other, found)): ((&String, &Ino), (&String, &Ino))| {
                one == other && (ino == found || *ino == 0)
            };
            state.len() == found.len() && state.iter().zip(found).all(same)
        };
        if states.iter().any(matches) {
            return Ok(());
        }
        Err(format!("directory {} has {found:?}, of {states:?} after change {least}", self.ino))
    }
}

/// The names in a directory.
pub fn list(fs: &Filesystem, dir: Ino) -> Result<Names, String> {
    let entries =
        block_on(fs.readdir(dir, 0, 1000)).map_err(|error| format!("directory {dir}: {error:?}"))?;
    let names =
        entries.into_iter().map(|entry| (String::from_utf8_lossy(&entry.name).into_owned(), entry.ino));
    Ok(names.filter(|(name, _)| name != "." && name != "..").collect())
}

/// One random change of a thread's own directory.
pub fn step(world: &World, thread: u64, random: &mut StdRng) {
    let directory = &world.directories[thread as usize];
    let (fs, dir, history) = (&world.mount.fs, directory.ino, &directory.history);
    let mut name = || format!("own{}", random.random_range(0..4));
    let (name, other) = (name(), name());
    let mut names = history.present();
    match (names.get(&name).copied(), names.get(&other).copied()) {
        (None, _) => {
            world.note(thread, || format!("creates {name} in its directory"));
            history.begin(names.clone().into_iter().chain([(name.clone(), 0)]).collect());
            let made =
                world.must(block_on(fs.mknod(CALLER, dir, name.as_bytes(), FileType::Regular, 0o644, 0)));
            names.insert(name, made.ino);
            history.end(Some(names));
            fs.forget(made.ino, 1);
        }
        (Some(_), _) if random.random_range(0..3) == 0 => {
            names.remove(&name);
            world.note(thread, || format!("removes {name} in its directory"));
            history.begin(names);
            world.must(block_on(fs.unlink(dir, name.as_bytes())));
            history.end(None);
        }
        (Some(ino), Some(there)) if ino != there && random.random() => {
            names.extend([(name.clone(), there), (other.clone(), ino)]);
            world.note(thread, || format!("exchanges {name} and {other} in its directory"));
            history.begin(names);
            let flags = RenameFlags { exchange: true, ..RenameFlags::default() };
            world.must(block_on(fs.rename(dir, name.as_bytes(), dir, other.as_bytes(), flags)));
            history.end(None);
        }
        (Some(ino), there) if there.is_none() && random.random() => {
            names.insert(other.clone(), ino);
            world.note(thread, || format!("links {name} to {other} in its directory"));
            history.begin(names);
            world.must(block_on(fs.link(ino, dir, other.as_bytes())));
            history.end(None);
            fs.forget(ino, 1);
        }
        (Some(ino), there) => {
            // If both are names of one inode, both stay.
            if there != Some(ino) {
                names.remove(&name);
                names.insert(other.clone(), ino);
            }
            world.note(thread, || format!("renames {name} to {other} in its directory"));
            history.begin(names);
            let flags = RenameFlags::default();
            world.must(block_on(fs.rename(dir, name.as_bytes(), dir, other.as_bytes(), flags)));
            history.end(None);
        }
    }
}
