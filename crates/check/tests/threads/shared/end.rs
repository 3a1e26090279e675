//! The state when all threads have ended, and after everything is removed.

use super::directories::list;
use super::judge::{require_written, values_of};
use super::mount::{Mount, make, require_clean};
use super::world::World;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use syncline_device::block_on;
use syncline_fs::Filesystem;
use syncline_fs::types::{FileType, Ino, ROOT};

/// Longest time that an unused inode without names may remain: far longer than its removal takes on
/// the slowest machine.
const REMOVAL_MAX: Duration = Duration::from_secs(30);

/// All bytes of a file.
pub fn contents_of(fs: &Filesystem, ino: Ino) -> Result<Vec<u8>, String> {
    let size = block_on(fs.getattr(ino)).map_err(|error| format!("inode {ino}: {error:?}"))?.size;
    let read =
        block_on(fs.read(ino, 0, size as usize + 1)).map_err(|error| format!("file {ino}: {error:?}"))?;
    let found = read.concat();
    if found.len() as u64 == size {
        Ok(found)
    } else {
        Err(format!("{} of {size} bytes of {ino}", found.len()))
    }
}

/// Fails unless directories have the size of their entries and are the parents of their
/// subdirectories, and files have the link counts of their names and contents that were written to
/// them. Returns the number of objects with names.
pub fn require_sound_names(world: &World, mount: &Mount) -> Result<u64, String> {
    let mut names = BTreeMap::new();
    count(&mount.fs, ROOT, &mut names)?;
    for (&ino, &(count, file_type)) in &names {
        let attributes =
            block_on(mount.fs.getattr(ino)).map_err(|error| format!("inode {ino}: {error:?}"))?;
        if file_type != FileType::Directory && attributes.nlink != count {
            return Err(format!("inode {ino} has {count} names, not {}", attributes.nlink));
        }
        // Files with an owner are compared with the owner's knowledge.
        if file_type == FileType::Regular && !world.owned.iter().any(|file| file.ino == ino) {
            require_written(ino, 0, &contents_of(&mount.fs, ino)?)?;
        }
    }
    Ok(1 + names.len() as u64)
}

/// Counts the names of every inode below `dir`.
fn count(fs: &Filesystem, dir: Ino, names: &mut BTreeMap<Ino, (u32, FileType)>) -> Result<(), String> {
    let told = |error| format!("directory {dir}: {error:?}");
    let found = block_on(fs.readdir(dir, 0, 1000)).map_err(told)?;
    let found: Vec<_> = found.into_iter().filter(|entry| entry.name != b"." && entry.name != b"..").collect();
    let mut subdirectories = 0;
    for entry in &found {
        names.entry(entry.ino).or_insert((0, entry.file_type)).0 += 1;
        if entry.file_type == FileType::Directory {
            subdirectories += 1;
            let above = block_on(fs.readdir(entry.ino, 0, 2)).map_err(told)?;
            if above.iter().find(|entry| entry.name == b"..").map(|entry| entry.ino) != Some(dir) {
                return Err(format!("directory {} is in {dir}, and says {above:?}", entry.ino));
            }
            count(fs, entry.ino, names)?;
        }
    }
    let attributes = block_on(fs.getattr(dir)).map_err(told)?;
    if (attributes.size, attributes.nlink) != (found.len() as u64, 2 + subdirectories) {
        return Err(format!("directory {dir} has {found:?}, and says {attributes:?}"));
    }
    Ok(())
}

/// Judges everything before and after closing, removes it, and judges the rest.
pub fn judge(world: World) {
    let moment = format!("seed {}, in the end", world.setup.seed);
    world.mount.require_sizes_logged(&moment);
    let require = |mount: &Mount| -> Result<u64, String> {
        for file in &world.owned {
            let values = values_of(file.ino, 0, &contents_of(&mount.fs, file.ino)?)?;
            file.require_survived(file.history.returned(), &values)?;
        }
        for directory in &world.directories {
            let found = list(&mount.fs, directory.ino)?;
            directory.require_listed(directory.history.returned(), &found)?;
        }
        require_sound_names(&world, mount)
    };
    let objects = world.judged(require(&world.mount));
    require_removed(&world.mount.fs, objects, &moment);
    let figures = quotas(&world.mount.fs);
    let (device, spawn) = world.mount.close();
    require_clean(device.clone(), &spawn, &moment);
    let mount = Mount::open(world.setup, device, spawn);
    let objects = world.judged(require(&mount));
    assert_eq!(mount.fs.statfs().objects, objects, "{moment}: objects without names");
    assert_eq!(quotas(&mount.fs), figures, "{moment}: quotas");
    remove(&mount.fs, ROOT);
    for snapshot in block_on(mount.fs.snapshots()).expect("a sound device") {
        block_on(mount.fs.delete_snapshot(&snapshot.snapshot.name)).expect("it is not in use");
    }
    let (device, spawn) = mount.close();
    let report = require_clean(device.clone(), &spawn, &moment);
    assert!(
        Mount::open(world.setup, device, spawn.clone()).fs.quotas().is_empty(),
        "{moment}: quotas of nothing"
    );
    let empty = make(world.setup, &spawn);
    let empty = require_clean(Mount::open(world.setup, empty, spawn.clone()).close().0, &spawn, &moment);
    assert_eq!(
        (report.inodes, report.blocks_used),
        (1, empty.blocks_used),
        "{moment}: not all room is free again"
    );
}

/// Fails unless unused inodes without names disappear before the unmount.
fn require_removed(fs: &Filesystem, objects: u64, moment: &str) {
    let begun = Instant::now();
    while fs.statfs().objects != objects {
        assert!(
            begun.elapsed() < REMOVAL_MAX,
            "{moment}: {} objects, {objects} of them have names",
            fs.statfs().objects
        );
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The quotas' usage, without inodes waiting for removal.
fn quotas(fs: &Filesystem) -> Vec<(Ino, u64)> {
    fs.quotas().iter().map(|quota| (quota.root, quota.used_inodes)).collect()
}

/// Removes everything in a directory.
fn remove(fs: &Filesystem, dir: Ino) {
    for entry in block_on(fs.readdir(dir, 0, 1000)).expect("a sound directory") {
        if entry.name == b"." || entry.name == b".." {
            continue;
        }
        if entry.file_type == FileType::Directory {
            remove(fs, entry.ino);
            block_on(fs.rmdir(dir, &entry.name)).expect("an empty directory");
        } else {
            block_on(fs.unlink(dir, &entry.name)).expect("a name");
        }
    }
}
