//! Compressed units that were sent whole are compressed where they arrive.

use crate::describe::{Stored, describe, require_same};
use crate::stream;
use crate::world::{ROOT_USER, World, spawn};
use bytes::Bytes;
use rand::{RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;
use syncline_device::block_on;
use syncline_fs::Allocation;
use syncline_fs::types::{Algorithm, FileType};
use syncline_stream::receive;

const BLOCK: usize = 4096;

/// The rest of a unit, which does not get smaller by itself, and a whole unit behind it.
#[test]
fn a_unit_behind_a_part_of_another_stays_compressed() {
    let source = World::new(&spawn(), 32 << 20, 16384);
    let fs = &source.fs;
    let made = block_on(fs.mknod(ROOT_USER, 1, b"file", FileType::Regular, 0o644, 0)).unwrap();
    block_on(fs.set_compression(made.ino, Some(Algorithm::Zstd))).unwrap();
    let mut data = vec![7; 32 * BLOCK];
    ChaCha8Rng::seed_from_u64(1).fill_bytes(&mut data[..20 * BLOCK]);
    let write = |first: usize, data: Vec<u8>| {
        block_on(fs.write(made.ino, (first * BLOCK) as u64, Bytes::from(data), false)).unwrap();
        block_on(fs.settle_contents(made.ino)).unwrap();
    };
    write(0, data);
    write(20, vec![8; 2 * BLOCK]);
    let (offset, length) = (22 * BLOCK as u64, 10 * BLOCK as u64);
    block_on(fs.allocate(made.ino, Allocation::PunchHole, offset, length, false)).unwrap();
    block_on(fs.create_snapshot("units")).unwrap();

    let target = World::new(&spawn(), 32 << 20, 16384);
    block_on(receive(&target.fs, &stream(&source, "units", None)[..], None)).unwrap();
    let (sent, received) = (describe(&source.snapshot("units").0), describe(&target.snapshot("units").0));
    require_same(&sent, &received, "units");
    assert_eq!(sent.inodes[&made.ino].blocks[&0], Stored::Part);
    for whole in [sent, received] {
        let blocks = &whole.inodes[&made.ino].blocks;
        assert_eq!([blocks[&20], blocks[&21]], [Stored::Packed(Algorithm::Zstd); 2]);
    }
}
