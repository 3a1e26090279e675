//! Several threads use the same few names. Invariants: no operation meets damage or a vanished
//! inode (EIO, ESTALE), and in the end sizes, link counts and the number of objects match the
//! remaining names.

use super::{Mount, Setup};
use crate::FsError;
use crate::types::{FileType, Ino, ROOT, RenameFlags};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use syncline_device::block_on;

const THREADS: u64 = 4;
const STEPS: usize = 3000;

/// One random operation on a random name in one of the directories.
fn step(mount: &Mount, dirs: &[Ino], random: &mut StdRng) -> Result<(), FsError> {
    let fs = &mount.fs;
    let mut place = || (dirs[random.random_range(0..dirs.len())], format!("n{}", random.random_range(0..4)));
    let ((dir, name), (other, other_name)) = (place(), place());
    match random.random_range(0..8) {
        0 | 1 => mount.try_create(dir, &name).map(|made| fs.forget(made.ino, 1)),
        2 => {
            block_on(fs.mkdir(super::CALLER, dir, name.as_bytes(), 0o755)).map(|made| fs.forget(made.ino, 1))
        }
        3 => block_on(fs.unlink(dir, name.as_bytes())),
        4 => block_on(fs.rmdir(dir, name.as_bytes())),
        5 => {
            let ino = block_on(fs.lookup(dir, name.as_bytes()))?.ino;
            // The reference of the look-up keeps the inode usable.
            let linked = block_on(fs.link(ino, other, other_name.as_bytes())).map(|_| fs.forget(ino, 1));
            let seen = block_on(fs.getattr(ino)).map(drop);
            fs.forget(ino, 1);
            seen.and(linked)
        }
        6 => {
            let listing = block_on(fs.readdir_plus(dir, 0, 100))?;
            for (entry, attributes) in listing.into_iter().skip(2) {
                assert_eq!(entry.ino, attributes.ino, "an entry's inode was unreadable");
                fs.forget(entry.ino, 1);
            }
            Ok(())
        }
        _ => {
            let flags = RenameFlags { exchange: random.random(), ..RenameFlags::default() };
            mount.rename_with((dir, &name), (other, &other_name), flags)
        }
    }
}

/// Counts the names of every inode below `dir`.
fn count(mount: &Mount, dir: Ino, names: &mut BTreeMap<Ino, u32>) {
    let found = mount.names(dir);
    let attributes = mount.getattr(dir);
    assert_eq!(attributes.size, found.len() as u64);
    let mut subdirectories = 0;
    for name in found {
        let entry = mount.lookup(dir, &name).unwrap();
        *names.entry(entry.ino).or_insert(0) += 1;
        if entry.file_type == FileType::Directory {
            subdirectories += 1;
            assert_eq!(mount.lookup(entry.ino, "..").unwrap().ino, dir);
            count(mount, entry.ino, names);
        }
    }
    assert_eq!(attributes.nlink, 2 + subdirectories);
}

fn race(setup: Setup) {
    let mount = Mount::with(setup);
    let dirs = [ROOT, mount.mkdir(ROOT, "a"), mount.mkdir(ROOT, "b")];
    std::thread::scope(|scope| {
        for seed in 0..THREADS {
            let (mount, dirs) = (&mount, &dirs);
            scope.spawn(move || {
                let mut random = StdRng::seed_from_u64(seed);
                for _ in 0..STEPS {
                    if let Err(error) = step(mount, dirs, &mut random) {
                        assert!([1, 2, 17, 20, 21, 22, 39].contains(&error.errno()), "{error:?}");
                    }
                }
            });
        }
    });
    mount.settle();
    let mount = mount.reopen();
    let mut names = BTreeMap::new();
    count(&mount, ROOT, &mut names);
    for (&ino, &count) in &names {
        let attributes = mount.getattr(ino);
        assert!(attributes.file_type == FileType::Directory || attributes.nlink == count, "inode {ino}");
    }
    assert_eq!(mount.fs.statfs().objects, 1 + names.len() as u64);
}

#[test]
fn threads_at_the_same_names_leave_a_sound_tree() {
    race(Setup::default());
}

#[test]
fn with_collisions_and_hardly_a_cache_too() {
    race(Setup { hashes: Some(1), cached_inodes_max: 1, node_bytes: 4096, ..Setup::default() });
}

/// A look-up of a name that is being created gets the inode of its creator, not another one with
/// the same number.
#[test]
fn an_inode_is_in_memory_once_however_soon_it_is_found() {
    let mount = Mount::new();
    let made = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..20_000 {
                // The name exists already unless the other thread was faster.
                if let Ok(file) = mount.try_create(ROOT, "name") {
                    mount.fs.forget(file.ino, 1);
                }
            }
            made.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        scope.spawn(|| {
            while !made.load(std::sync::atomic::Ordering::Relaxed) {
                let _ = block_on(mount.fs.unlink(ROOT, b"name"));
            }
        });
    });
    let _ = block_on(mount.fs.unlink(ROOT, b"name"));
    mount.settle();
    assert_eq!(mount.fs.statfs().objects, 1, "an inode without names was not removed");
}
