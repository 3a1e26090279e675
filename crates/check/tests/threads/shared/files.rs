//! Random operations on files that all threads write.

use super::judge::{Class, read, require_written};
use super::names::some_name;
use super::records::{Value, contents};
use super::world::{CALLER, World};
use rand::Rng;
use rand::rngs::StdRng;
use syncline_device::block_on;
use syncline_fs::Allocation;
use syncline_fs::types::{Algorithm, FileType, Ino, SetAttributes, SetTime, XattrMode};

/// EDQUOT, possible in a tree with a small quota.
const MET: &[i32] = &[122];
/// Most bytes in a file that all threads write.
const BYTES_MAX: u64 = 128 << 10;

/// Looks up a name and opens it if it is a file.
fn open(world: &World, random: &mut StdRng) -> Option<Ino> {
    let fs = &world.mount.fs;
    let dir = world.shared[random.random_range(0..world.shared.len())];
    let found = world.expect(block_on(fs.lookup(dir, some_name(random))), &[2])?;
    if found.file_type == FileType::Regular {
        world.must(block_on(fs.open_file(found.ino)));
        return Some(found.ino);
    }
    fs.forget(found.ino, 1);
    None
}

fn close(world: &World, ino: Ino) {
    world.mount.fs.release_file(ino);
    world.mount.fs.forget(ino, 1);
}

/// Some operations on a file, perhaps together with another.
pub fn step(world: &World, thread: u64, random: &mut StdRng) {
    let Some(ino) = open(world, random) else { return };
    for _ in 0..random.random_range(1..4) {
        operate(world, thread, ino, random);
    }
    close(world, ino);
}

/// Writes some units.
pub fn write(world: &World, ino: Ino, random: &mut StdRng) {
    let fs = &world.mount.fs;
    let class = Class::of(ino);
    let range = some_range(random, class);
    let value = Value { ino, write: world.next_write() };
    let bytes = contents(value, range.0, range.1).into();
    if matches!(class, Class::Shifted | Class::Anything) && random.random_range(0..4) == 0 {
        world.expect(block_on(fs.append(ino, bytes, false)), MET);
    } else {
        world.expect(block_on(fs.write(ino, range.0, bytes, false)), MET);
    }
}

/// Offset and length in units: small and near the start, or anything.
fn some_range(random: &mut StdRng, class: Class) -> (u64, u64) {
    let unit = class.unit();
    if unit < 4096 && random.random_range(0..3) == 0 {
        return (0, random.random_range(1..=(2048 / unit)) * unit);
    }
    let start = random.random_range(0..BYTES_MAX / 2 / unit) * unit;
    let most = if random.random_range(0..8) == 0 { BYTES_MAX / 2 } else { 12 << 10 };
    (start, random.random_range(1..=most / unit) * unit)
}

fn operate(world: &World, thread: u64, ino: Ino, random: &mut StdRng) {
    let fs = &world.mount.fs;
    let class = Class::of(ino);
    let (offset, len) = some_range(random, class);
    let note = |what: &str| world.note(thread, || format!("{what} {offset}+{len} of {ino}, {class:?}"));
    match random.random_range(0..24) {
        0..6 => {
            note("writes");
            write(world, ino, random);
        }
        6..9 => {
            note("reads");
            let (offset, len) = if random.random() { (0, BYTES_MAX * 2) } else { (offset, len) };
            let found = read(world, ino, offset, len);
            world.judged(require_written(ino, offset, &found));
        }
        9 | 10 => {
            note("truncates");
            let odd = if class == Class::Ragged { random.random_range(0..40) } else { 0 };
            let size = if random.random_range(0..4) == 0 { 0 } else { offset + odd };
            let set = SetAttributes { size: Some(size), ..SetAttributes::default() };
            world.expect(block_on(fs.setattr(CALLER, ino, set)), MET);
        }
        11 | 12 => {
            note("syncs");
            world.must(block_on(fs.fsync(ino, random.random())));
        }
        13 | 14 => {
            let keep_size = random.random();
            let what = match random.random_range(0..4) {
                0 => Allocation::Preallocate { keep_size },
                1 => Allocation::PunchHole,
                2 => Allocation::UnshareRange { keep_size },
                _ => Allocation::ZeroRange { keep_size },
            };
            note(&format!("{what:?}"));
            world.expect(block_on(fs.allocate(ino, what, offset, len, false)), MET);
        }
        15 if class == Class::Shifted => {
            let what = if random.random() { Allocation::CollapseRange } else { Allocation::InsertRange };
            note(&format!("{what:?}"));
            let size = world.must(block_on(fs.getattr(ino))).size;
            if what == Allocation::CollapseRange || size < BYTES_MAX {
                world.expect(block_on(fs.allocate(ino, what, offset, 4096, false)), &[22, 122]);
            }
        }
        15 | 16 => {
            note("looks at");
            let met = &[6];
            world.expect(block_on(fs.seek_data(ino, offset)), met);
            world.expect(block_on(fs.seek_hole(ino, offset)), met);
            world.must(block_on(fs.usage(ino)));
            world.must(block_on(fs.fragments(ino)));
        }
        17 => {
            note("defragments");
            world.must(block_on(fs.defragment(ino, 0, random.random())));
        }
        18 => {
            note("compresses");
            let algorithm = [None, Some(Algorithm::Lz4), Some(Algorithm::Zstd)][random.random_range(0..3)];
            world.must(block_on(fs.set_compression(ino, algorithm)));
            world.expect(block_on(fs.rewrite(ino, 0)), MET);
        }
        19 | 20 => attributes(world, thread, ino, random),
        _ => with_another(world, thread, ino, random),
    }
}

/// Attributes of a file, small and large.
pub fn attributes(world: &World, thread: u64, ino: Ino, random: &mut StdRng) {
    let fs = &world.mount.fs;
    world.note(thread, || format!("changes attributes of {ino}"));
    let name = [&b"user.one"[..], b"user.two"][random.random_range(0..2)];
    match random.random_range(0..4) {
        0 => {
            let len = [10, 300, 5000][random.random_range(0..3)];
            let value = vec![random.random::<u8>(); len];
            world.expect(block_on(fs.setxattr(ino, name, &value, XattrMode::Set)), &[122]);
        }
        1 => {
            world.expect(block_on(fs.removexattr(ino, name)), &[61]);
        }
        2 => {
            // A value is read whole: all its bytes are the same.
            if let Some(value) = world.expect(block_on(fs.getxattr(ino, name)), &[61]) {
                assert!(value.iter().all(|&byte| byte == value[0]), "a torn attribute of {ino}");
            }
        }
        _ => {
            let permissions = Some(random.random_range(0..0o1000));
            let set = SetAttributes { permissions, mtime: Some(SetTime::Now), ..SetAttributes::default() };
            world.must(block_on(fs.setattr(CALLER, ino, set)));
        }
    }
}

/// Copies to a file, shares blocks with it, or syncs both.
fn with_another(world: &World, thread: u64, ino: Ino, random: &mut StdRng) {
    let fs = &world.mount.fs;
    let class = Class::of(ino);
    let (offset, len) = some_range(random, class);
    if class == Class::Anything && random.random() {
        let source = world.owned[random.random_range(0..world.owned.len())].ino;
        copy(world, thread, (source, some_range(random, class).0), (ino, offset), len);
        return;
    }
    let Some(other) = open(world, random) else { return };
    let copied = match (Class::of(other), class) {
        (Class::Shared, Class::Shared) => Some(offset),
        (Class::Shifted, Class::Shifted) => Some(some_range(random, class).0),
        (Class::Sectors | Class::Shared | Class::Shifted | Class::Anything, Class::Anything) => {
            Some(some_range(random, class).0)
        }
        _ => None,
    };
    match copied {
        Some(from) if other != ino => {
            copy(world, thread, (other, from), (ino, offset), len);
        }
        _ => {
            world.note(thread, || format!("syncs {ino} and {other}"));
            if random.random() {
                world.must(block_on(fs.sync_many(&[ino, other], 0)));
            } else {
                world.must(block_on(fs.barrier(&[ino, other])));
            }
        }
    }
    close(world, other);
}

fn copy(world: &World, thread: u64, from: (Ino, u64), to: (Ino, u64), len: u64) {
    world.note(thread, || format!("copies {len} bytes from {from:?} to {to:?}"));
    world.expect(block_on(world.mount.fs.copy_range(from, to, len, false)), MET);
}
