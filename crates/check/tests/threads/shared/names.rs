//! Random changes of a few names, by all threads.

use super::world::{CALLER, World};
use rand::Rng;
use rand::rngs::StdRng;
use syncline_device::block_on;
use syncline_fs::types::{FileType, Ino, RenameFlags};

/// Errors possible when another thread is faster: EPERM, ENOENT, EEXIST, EXDEV, ENOTDIR, EISDIR,
/// EINVAL, ENOTEMPTY, EDQUOT.
const MET: &[i32] = &[1, 2, 17, 18, 20, 21, 22, 39, 122];

/// Two pairs of names with equal hashes under the seed used for these images, and two others.
pub const NAMES: [&str; 6] =
    ["ee18b359a6d171", "053a015f0c720a", "dd8c8813d6c380", "1315b3434d1309", "one", "two"];

pub fn some_name(random: &mut StdRng) -> &'static [u8] {
    NAMES[random.random_range(0..NAMES.len())].as_bytes()
}

/// A directory that stays, or one that a thread made in it. The reference is held until `forget`.
fn some_directory(world: &World, random: &mut StdRng) -> Ino {
    let fs = &world.mount.fs;
    let dir = world.shared[random.random_range(0..world.shared.len())];
    if random.random_range(0..4) == 0
        && let Ok(found) = block_on(fs.lookup(dir, some_name(random)))
    {
        if found.file_type == FileType::Directory {
            return found.ino;
        }
        fs.forget(found.ino, 1);
    }
    world.must(block_on(fs.lookup(dir, b"."))).ino
}

/// One random operation on names.
pub fn step(world: &World, thread: u64, random: &mut StdRng) {
    let fs = &world.mount.fs;
    let (dir, other) = (some_directory(world, random), some_directory(world, random));
    let (name, other_name) = (some_name(random), some_name(random));
    let note = |what: &str| {
        let (name, other_name) = (String::from_utf8_lossy(name), String::from_utf8_lossy(other_name));
        world.note(thread, || format!("{what} {dir}/{name} {other}/{other_name}"));
    };
    match random.random_range(0..16) {
        0..4 => {
            note("creates");
            let made = block_on(fs.mknod(CALLER, dir, name, FileType::Regular, 0o644, 0));
            if let Some(made) = world.expect(made, MET) {
                fs.forget(made.ino, 1);
            }
        }
        4 => {
            note("makes directory");
            if let Some(made) = world.expect(block_on(fs.mkdir(CALLER, dir, name, 0o755)), MET) {
                fs.forget(made.ino, 1);
            }
        }
        5 | 6 => {
            note("unlinks");
            world.expect(block_on(fs.unlink(dir, name)), MET);
        }
        7 => {
            note("removes directory");
            world.expect(block_on(fs.rmdir(dir, name)), MET);
        }
        8 | 9 => {
            note("links");
            if let Some(found) = world.expect(block_on(fs.lookup(dir, name)), MET) {
                if world.expect(block_on(fs.link(found.ino, other, other_name)), MET).is_some() {
                    fs.forget(found.ino, 1);
                }
                // The inode is usable while the lookup's reference is held.
                world.must(block_on(fs.getattr(found.ino)));
                fs.forget(found.ino, 1);
            }
        }
        10 => {
            note("lists");
            let found = world.expect(block_on(fs.readdir_plus(dir, 0, 100)), MET).unwrap_or_default();
            for (entry, attributes) in found {
                if entry.name != b"." && entry.name != b".." {
                    assert_eq!(entry.ino, attributes.ino, "an entry's inode was unreadable");
                    fs.forget(entry.ino, 1);
                }
            }
        }
        11 => {
            note("makes a file without a name");
            if let Some(made) = world.expect(block_on(fs.tmpfile(CALLER, dir, 0o644, true)), MET) {
                super::files::write(world, made.ino, random);
                if random.random() && world.expect(block_on(fs.link(made.ino, dir, name)), MET).is_some() {
                    fs.forget(made.ino, 1);
                }
                world.must(block_on(fs.getattr(made.ino)));
                fs.release_file(made.ino);
                fs.forget(made.ino, 1);
            }
        }
        12 => {
            note("makes a link");
            if let Some(made) = world.expect(block_on(fs.symlink(CALLER, dir, name, other_name)), MET) {
                let target = world.must(block_on(fs.readlink(made.ino)));
                assert_eq!(target, other_name);
                fs.forget(made.ino, 1);
            }
        }
        _ => {
            let way = random.random_range(0..5);
            let whiteout = (way == 3).then_some(CALLER);
            let flags = RenameFlags { exchange: way == 1, no_replace: way == 2, whiteout };
            note("renames");
            world.expect(block_on(fs.rename(dir, name, other, other_name, flags)), MET);
        }
    }
    fs.forget(dir, 1);
    fs.forget(other, 1);
}
