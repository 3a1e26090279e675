//! The greatest files: their last block is named in no call as a whole.

use crate::stream;
use crate::world::{ROOT_USER, World, spawn};
use bytes::Bytes;
use syncline_device::block_on;
use syncline_format::items::inode::SIZE_MAX;
use syncline_format::{Key, Kind};
use syncline_fs::Allocation;
use syncline_fs::types::{FileType, Ino, ROOT};
use syncline_stream::receive;

const BLOCK: u64 = 4096;
const LAST_BLOCK: u64 = SIZE_MAX / BLOCK * BLOCK;

fn file(world: &World, name: &[u8]) -> Ino {
    block_on(world.fs.mknod(ROOT_USER, ROOT, name, FileType::Regular, 0o644, 0)).unwrap().ino
}

fn write_end(world: &World, ino: Ino, number: u8) {
    block_on(world.fs.write(ino, SIZE_MAX - 1, Bytes::from(vec![number]), false)).unwrap();
}

#[test]
fn files_of_the_greatest_size_are_received() {
    let spawn = spawn();
    let source = World::new(&spawn, 64 << 20, 16384);
    let (written, aside, copy) = (file(&source, b"written"), file(&source, b"aside"), file(&source, b"copy"));
    write_end(&source, written, 1);
    block_on(source.fs.create_snapshot("old")).unwrap();
    write_end(&source, written, 2);
    let keep_size = Allocation::Preallocate { keep_size: true };
    block_on(source.fs.allocate(aside, keep_size, LAST_BLOCK, SIZE_MAX - LAST_BLOCK, false)).unwrap();
    write_end(&source, copy, 3);
    let from = (written, LAST_BLOCK);
    block_on(source.fs.copy_range(from, (copy, LAST_BLOCK), SIZE_MAX - LAST_BLOCK, false)).unwrap();
    block_on(source.fs.create_snapshot("new")).unwrap();
    for from in [None, Some("old")] {
        let target = World::new(&spawn, 64 << 20, 16384);
        if let Some(from) = from {
            block_on(receive(&target.fs, &stream(&source, from, None)[..], None)).unwrap();
        }
        block_on(receive(&target.fs, &stream(&source, "new", from)[..], None)).unwrap();
        let fs = target.snapshot("new").0;
        for ino in [written, copy] {
            assert_eq!(block_on(fs.getattr(ino)).unwrap().size, SIZE_MAX);
            let end = block_on(fs.read(ino, SIZE_MAX - 2, 10)).unwrap().concat();
            assert_eq!(end, [0, 2], "{from:?}");
        }
        let reserved = Key::new(aside, Kind::Preallocation, 0);
        let to = Key::new(aside, Kind::Preallocation, u64::MAX);
        assert_eq!(block_on(fs.store().scan(reserved, to, 9)).unwrap().items.len(), 1, "{from:?}");
    }
}
