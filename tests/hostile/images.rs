//! Images that are damaged, truncated or of another kind.

use crate::skip_if;
use crate::support::{Answer, Mount, Place, edit, no_fuse, program, run, wait_for_log};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use syncline_format::superblock::Superblock;
use syncline_format::{BLOCK_BYTES, Geometry, crc};

const BLOCK: u64 = BLOCK_BYTES as u64;
const BLOCKS: u64 = (64 << 20) / BLOCK;

fn with_image(command: &str, image: &Path) -> Answer {
    let mut program = program();
    program.arg(command).arg(image);
    run(program)
}

/// Tries to mount; the mount point must stay free.
fn mount(place: &Place) -> Answer {
    let directory = place.path().join("mount");
    let _ = fs::create_dir(&directory);
    let mut program = program();
    program.arg("mount").arg(place.image()).arg(&directory);
    run(program)
}

/// Asserts that all commands that open an image give the same error.
fn all_refuse(place: &Place, code: i32, words: &[&str]) {
    with_image("info", &place.image()).fails(code, words);
    with_image("check", &place.image()).fails(8, words);
    mount(place).fails(code, words);
}

fn copies() -> impl Iterator<Item = u64> {
    (0..2).flat_map(|slot| Geometry::superblock_copies_for(BLOCKS, slot)).map(|block| block * BLOCK)
}

/// The newest superblock.
fn newest(image: &Path) -> Superblock {
    let bytes = fs::read(image).unwrap();
    let decoded = copies().filter_map(|at| Superblock::decode(&bytes[at as usize..][..BLOCK_BYTES]).ok());
    decoded.max_by_key(|superblock| superblock.generation).unwrap()
}

#[test]
fn a_truncated_image_is_called_so() {
    let place = Place::with_image("64MiB");
    fs::File::options().write(true).open(place.image()).unwrap().set_len(40 << 20).unwrap();
    all_refuse(&place, 5, &["truncated", "restore"]);
    fs::File::options().write(true).open(place.image()).unwrap().set_len(1 << 20).unwrap();
    all_refuse(&place, 5, &["truncated", "backup"]);
    fs::File::options().write(true).open(place.image()).unwrap().set_len(4096).unwrap();
    all_refuse(&place, 5, &["truncated"]);
}

#[test]
fn what_restores_the_length_of_an_image_is_named() {
    let place = Place::with_image("64MiB");
    let image = fs::File::options().write(true).open(place.image()).unwrap();
    image.set_len((64 << 20) - 8192).unwrap();
    let answer = with_image("info", &place.image()).fails(5, &["truncate -s 67108864"]);
    assert!(answer.err.contains("syncline check"), "{answer:?}");
    image.set_len(67_108_864).unwrap();
    with_image("info", &place.image()).ok();
}

#[test]
fn who_reads_only_is_not_told_to_read_only() {
    skip_if!(no_fuse());
    let place = Place::with_image("64MiB");
    for copy in newest(&place.image()).tree.node.places() {
        edit(&place.image(), copy * BLOCK + 500, 1, |bytes| bytes[0] ^= 1);
    }
    // So small a tree is lost completely, so a read-only mount would not help either.
    mount(&place).fails(4, &["no mount can show anything", "syncline check --repair --dry-run"]);
    let mut program = program();
    program.arg("mount").arg(place.image()).arg(place.path().join("mount")).args(["-o", "ro"]);
    let answer = run(program).fails(4, &["syncline check --repair --dry-run"]);
    assert!(!answer.err.contains("-o ro"), "{answer:?}");
}

#[test]
fn a_foreign_image_is_not_taken_for_ours_and_not_overwritten() {
    let place = Place::new();
    fs::write(place.image(), vec![0; 32 << 20]).unwrap();
    // The magic number that mke2fs writes.
    edit(&place.image(), 1080, 2, |magic| magic.copy_from_slice(&[0x53, 0xef]));
    all_refuse(&place, 5, &["not a Syncline image"]);
    with_image("mkfs", &place.image()).fails(1, &["ext4", "--force"]);
    let mut command = program();
    command.arg("mkfs").arg(place.image()).arg("--force");
    run(command).ok();
    place.check_clean();
    with_image("mkfs", &place.image()).fails(1, &["a Syncline filesystem", "--force"]);
    fs::write(place.image(), vec![7; 32 << 20]).unwrap();
    with_image("mkfs", &place.image()).fails(1, &["unknown kind", "--force"]);
}

#[test]
fn a_newer_format_is_named() {
    let place = Place::with_image("64MiB");
    for copy in copies() {
        edit(&place.image(), copy, BLOCK_BYTES, |block| {
            block[12..16].copy_from_slice(&9u32.to_le_bytes());
            let checksum = crc(&block[12..]);
            block[8..12].copy_from_slice(&checksum.to_le_bytes());
        });
    }
    all_refuse(&place, 5, &["format version 9", "newer syncline"]);
}

#[test]
fn a_copy_of_a_superblock_may_rot() {
    let place = Place::with_image("64MiB");
    for copy in copies() {
        edit(&place.image(), copy + 200, 1, |byte| byte[0] ^= 1);
        let answer = with_image("check", &place.image());
        assert_eq!(answer.code, 4, "{answer:?}");
        assert!(answer.out.contains("SL0001 superblock-damaged"), "{answer:?}");
        with_image("info", &place.image()).ok();
        // Nothing is given up, so it may also be mended when nobody watches.
        let mut mend = program();
        mend.args(["check", "-p"]).arg(place.image());
        let mended = run(mend);
        assert_eq!(mended.code, 1, "{mended:?}");
        place.check_clean();
    }
}

/// Which of the two was newer is no longer known.
#[test]
fn a_superblock_lost_with_both_its_copies_is_gone_on_without_only_when_asked() {
    skip_if!(no_fuse());
    for slot in 0..2 {
        let place = Place::with_image("64MiB");
        let first = place.mount("mount");
        fs::write(first.path.join("file"), "kept").unwrap();
        fs::File::open(first.path.join("file")).unwrap().sync_all().unwrap();
        first.unmount().ok();
        for copy in Geometry::superblock_copies_for(BLOCKS, slot) {
            edit(&place.image(), copy * BLOCK + 100, 1, |byte| byte[0] ^= 0x10);
        }
        mount(&place).fails(4, &["nothing is left of superblock", "-o ro", "accept-damaged-log"]);
        assert!(with_image("info", &place.image()).out.contains("a mount for writing is refused"));
        for (index, how) in ["ro", "accept-damaged-log"].into_iter().enumerate() {
            let again = Mount::new(&place.image(), &place.directory(&index.to_string()), &["-o", how]);
            assert_eq!(fs::read(again.path.join("file")).unwrap(), b"kept");
            again.unmount().ok();
        }
        // The mount has rewritten both slots.
        place.check_clean();
    }
}

/// After 'dd bs=1M count=1' it is still a filesystem, and mkfs recognises it.
#[test]
fn an_image_whose_start_is_zeros_is_not_made_anew_unasked() {
    let place = Place::with_image("64MiB");
    edit(&place.image(), 0, 1 << 20, |bytes| bytes.fill(0));
    let before = fs::read(place.image()).unwrap();
    with_image("mkfs", &place.image())
        .fails(1, &["holds a Syncline filesystem whose start is gone", "--force"]);
    assert!(fs::read(place.image()).unwrap() == before);
}

#[test]
fn all_superblocks_lost_is_the_end_and_said_so() {
    let place = Place::with_image("64MiB");
    for copy in copies() {
        edit(&place.image(), copy + 100, 1, |byte| byte[0] ^= 0x10);
    }
    with_image("info", &place.image()).fails(5, &["every superblock is damaged", "backup"]);
    mount(&place).fails(5, &["every superblock is damaged", "backup"]);
    let answer = with_image("check", &place.image());
    assert_eq!(answer.code, 4, "{answer:?}");
    assert_eq!(answer.out.matches("SL0001").count(), 4, "{answer:?}");
}

#[test]
fn a_rotten_node_is_named_by_its_block() {
    let place = Place::with_image("64MiB");
    let root = newest(&place.image()).tree.node;
    for copy in root.places() {
        edit(&place.image(), copy * BLOCK + 300, 1, |byte| byte[0] ^= 4);
    }
    let root = root.addr;
    mount(&place).fails(4, &["block", &root.to_string(), "syncline check"]);
    let answer = with_image("check", &place.image());
    assert_eq!(answer.code, 4, "{answer:?}");
    assert!(answer.out.contains(&format!("SL0004 node-damaged, block {root}")), "{answer:?}");
}

#[test]
fn a_rotten_space_map_is_named() {
    let place = Place::with_image("64MiB");
    let page = newest(&place.image()).space.page;
    for copy in page.places() {
        edit(&place.image(), copy * BLOCK + 300, 1, |byte| byte[0] ^= 4);
    }
    let page = page.addr;
    mount(&place).fails(4, &["block", &page.to_string()]);
    let answer = with_image("check", &place.image());
    assert_eq!(answer.code, 4, "{answer:?}");
    assert!(answer.out.contains("SL0005 space-map-damaged"), "{answer:?}");
}

#[test]
fn rotten_data_is_an_error_for_its_reader_and_for_nobody_else() {
    skip_if!(no_fuse());
    let place = Place::with_image("64MiB");
    let mount = place.mount("mount");
    let pattern: Vec<u8> = (0..100_000u32).flat_map(|word| word.to_le_bytes()).collect();
    fs::write(mount.path.join("rotten"), &pattern).unwrap();
    fs::write(mount.path.join("sound"), "sound").unwrap();
    mount.unmount().ok();
    let image = fs::read(place.image()).unwrap();
    let at = image.windows(64).position(|window| window == &pattern[8192..8256]).unwrap();
    edit(&place.image(), at as u64, 1, |byte| byte[0] ^= 1);
    let log = place.path().join("log");
    let mount = Mount::new(&place.image(), &place.directory("again"), &["--log", log.to_str().unwrap()]);
    let error = fs::read(mount.path.join("rotten")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(5), "{error}");
    assert_eq!(fs::read(mount.path.join("sound")).unwrap(), b"sound");
    let number = fs::metadata(mount.path.join("rotten")).unwrap().ino();
    let line = format!("inode {number}, block {}: data: checksum mismatch", at as u64 / BLOCK);
    for words in [line, format!("'syncline path DIR {number}'"), "'syncline scrub DIR'".into()] {
        wait_for_log(&log, &words);
    }
    assert!(mount.stats()["store"]["checksum_errors"].as_u64().unwrap() > 0);
    mount.unmount().ok();
    let answer = with_image("check", &place.image());
    assert_eq!(answer.code, 4, "{answer:?}");
    assert!(answer.out.contains("SL0023 data-damaged") && answer.out.contains(" (/rotten), "), "{answer:?}");
}

#[test]
fn an_image_in_use_is_left_alone() {
    skip_if!(no_fuse());
    let place = Place::with_image("64MiB");
    let mount = place.mount("first");
    fs::write(mount.path.join("file"), "x").unwrap();
    let mut second = program();
    second.arg("mount").arg(place.image()).arg(place.directory("second"));
    run(second).fails(3, &["in use", "unmount it first"]);
    with_image("info", &place.image()).fails(3, &["in use"]);
    with_image("check", &place.image()).fails(8, &["in use"]);
    let mut mkfs = program();
    mkfs.arg("mkfs").arg(place.image()).arg("--force");
    run(mkfs).fails(3, &["in use"]);
    assert_eq!(fs::read(mount.path.join("file")).unwrap(), b"x");
    mount.unmount().ok();
    place.check_clean();
}

#[test]
fn several_may_read_one_image() {
    skip_if!(no_fuse());
    let place = Place::with_image("64MiB");
    let mount = place.mount("write");
    fs::write(mount.path.join("file"), "x").unwrap();
    mount.unmount().ok();
    let readers =
        ["one", "two"].map(|name| Mount::new(&place.image(), &place.directory(name), &["-o", "ro"]));
    for reader in &readers {
        assert_eq!(fs::read(reader.path.join("file")).unwrap(), b"x");
        assert_eq!(fs::write(reader.path.join("file"), "y").unwrap_err().raw_os_error(), Some(30));
    }
    place.check_clean();
    for reader in readers {
        reader.unmount().ok();
    }
}
