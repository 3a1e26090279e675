//! `syncline check --repair` through the binary: exit codes, output, and everything it leaves
//! alone.

use crate::skip_if;
use crate::support::{Answer, Mount, Place, edit, no_fuse, program, run};
use std::fs;
use std::path::Path;
use syncline_format::superblock::{Pointer, Superblock};
use syncline_format::{BLOCK_BYTES, Geometry};

const BLOCK: u64 = BLOCK_BYTES as u64;
const BLOCKS: u64 = (64 << 20) / BLOCK;

fn check(place: &Place, arguments: &[&str]) -> Answer {
    let mut command = program();
    command.arg("check").arg(place.image()).args(arguments);
    run(command)
}

/// An image with a few files, unmounted.
fn filled() -> Place {
    let place = Place::with_image("64MiB");
    let mount = place.mount("mount");
    fs::write(mount.path.join("large"), vec![5; 1_000_000]).unwrap();
    fs::write(mount.path.join("small"), "small").unwrap();
    mount.unmount().ok();
    place
}

fn newest(image: &Path) -> Superblock {
    let bytes = fs::read(image).unwrap();
    let at = |slot| Geometry::superblock_copies_for(BLOCKS, slot)[0] as usize * BLOCK_BYTES;
    let decoded =
        [0, 1].into_iter().filter_map(|slot| Superblock::decode(&bytes[at(slot)..][..BLOCK_BYTES]).ok());
    decoded.max_by_key(|superblock| superblock.generation).unwrap()
}

fn flip(image: &Path, block: u64) {
    edit(image, block * BLOCK + 500, 1, |bytes| bytes[0] ^= 1);
}

#[test]
fn a_clean_image_is_left_as_it_is() {
    skip_if!(no_fuse());
    let place = filled();
    let before = fs::read(place.image()).unwrap();
    let answer = check(&place, &["--repair"]).ok();
    assert!(answer.out.contains(": clean ("), "{answer:?}");
    assert!(fs::read(place.image()).unwrap() == before);
}

/// Any copy of the root node, of the root page and of the table of snapshots: the mount goes on and
/// mends it, and so does a repair.
#[test]
fn a_damaged_copy_of_metadata_is_mended() {
    skip_if!(no_fuse());
    let place = filled();
    let mut snapshot = program();
    snapshot.arg("snapshot").arg("create").arg(place.image()).arg("kept");
    run(snapshot).ok();
    let superblock = newest(&place.image());
    let pointers = [superblock.tree.node, superblock.space.page, superblock.snapshots];
    let before = fs::read(place.image()).unwrap();
    for copy in pointers.into_iter().flat_map(Pointer::places) {
        flip(&place.image(), copy);
        let found = check(&place, &[]);
        assert_eq!(found.code, 4, "{found:?}");
        let named = format!("SL0048 copy-damaged, block {copy}: ");
        assert_eq!(found.out.matches("SL00").count(), 1, "{found:?}");
        assert!(found.out.contains(&named), "{found:?}");
        let planned = check(&place, &["--repair", "--dry-run"]);
        assert!(planned.out.contains(&named) && planned.out.contains("nothing was written"), "{planned:?}");
        let done = check(&place, &["-p"]);
        assert_eq!(done.code, 1, "{done:?}");
        assert!(done.out.contains("→ the bytes of the other copy"), "{done:?}");
        assert!(fs::read(place.image()).unwrap() == before, "block {copy}");
    }
    for pointer in pointers {
        flip(&place.image(), pointer.addr);
    }
    let mount = Mount::new(&place.image(), &place.path().join("mount"), &[]);
    assert_eq!(fs::read(mount.path.join("small")).unwrap(), b"small");
    mount.unmount().ok();
    check(&place, &[]).ok();
}

/// With so few files the tree is a single leaf: everything is lost with it, and the output must not
/// suggest that a mount could show anything.
#[test]
fn a_lost_tree_is_given_up_only_when_asked_and_json_tells_all() {
    skip_if!(no_fuse());
    let place = filled();
    newest(&place.image()).tree.node.places().for_each(|copy| flip(&place.image(), copy));
    let before = fs::read(place.image()).unwrap();
    let hint = "mount it with -o ro";
    let found = check(&place, &[]);
    assert!(found.out.contains("no mount can show anything") && !found.out.contains(hint), "{found:?}");
    fs::create_dir(place.path().join("empty")).unwrap();
    for (options, word) in [(&[][..], "no mount can show anything"), (&["-o", "ro"], "the possible repairs")]
    {
        let mut command = program();
        command.arg("mount").arg(place.image()).arg(place.path().join("empty")).args(options);
        let refused = run(command);
        assert_eq!(refused.code, 4, "{refused:?}");
        assert!(refused.err.contains(word) && !refused.err.contains("-o ro"), "{refused:?}");
    }
    let preened = check(&place, &["-p"]);
    assert_eq!(preened.code, 4, "{preened:?}");
    assert!(preened.out.contains("refused") && preened.out.contains("--repair --dry-run"), "{preened:?}");
    assert!(fs::read(place.image()).unwrap() == before, "a refusal wrote");
    let refused = check(&place, &["--repair"]);
    assert_eq!(refused.code, 4, "{refused:?}");
    assert!(refused.out.contains("give up 3 of 3 objects"), "{refused:?}");
    assert!(refused.out.contains("--accept-loss") && !refused.out.contains(hint), "{refused:?}");
    assert!(fs::read(place.image()).unwrap() == before, "a refusal wrote");
    let done = check(&place, &["--repair", "--accept-loss", "--json"]);
    assert_eq!(done.code, 1, "{done:?}");
    let report: serde_json::Value = serde_json::from_str(&done.out).unwrap();
    assert_eq!(report["rebuilt"], true);
    let ids: Vec<_> =
        report["changes"].as_array().unwrap().iter().map(|change| change["id"].clone()).collect();
    assert!(ids.contains(&"SL0004".into()) && ids.contains(&"SL0017".into()), "{report}");
    assert_eq!(report["after"]["findings"].as_array().unwrap().len(), 0);
    let mount = Mount::new(&place.image(), &place.path().join("mount"), &[]);
    assert_eq!(fs::read_dir(&mount.path).unwrap().count(), 0);
    mount.unmount().ok();
}

/// A snapshot may still have the files that the current state lost: the output names it, it can be
/// mounted, and rolled back to.
#[test]
fn a_snapshot_is_named_where_the_present_is_lost() {
    skip_if!(no_fuse());
    let place = filled();
    let snapshot = |action: &str| {
        let mut command = program();
        run({
            command.arg("snapshot").arg(action).arg(place.image()).arg("kept");
            command
        })
    };
    snapshot("create").ok();
    let directory = place.path().join("mount");
    let mount = Mount::new(&place.image(), &directory, &[]);
    fs::write(mount.path.join("later"), "later").unwrap();
    mount.unmount().ok();
    newest(&place.image()).tree.node.places().for_each(|copy| flip(&place.image(), copy));
    for options in [&[][..], &["-o", "ro"]] {
        let mut command = program();
        command.arg("mount").arg(place.image()).arg(&directory).args(options);
        run(command).fails(4, &["mount --snapshot kept", "snapshot rollback"]);
    }
    assert!(check(&place, &[]).out.contains("mount --snapshot kept"));
    let shown = Mount::new(&place.image(), &directory, &["--snapshot", "kept"]);
    assert_eq!(fs::read(shown.path.join("small")).unwrap(), b"small");
    shown.unmount().ok();
    snapshot("rollback").ok();
    check(&place, &[]).ok();
    let mount = Mount::new(&place.image(), &directory, &[]);
    assert_eq!(fs::read(mount.path.join("small")).unwrap(), b"small");
    assert!(!mount.path.join("later").exists());
    mount.unmount().ok();
}

/// Another filesystem is named, without advice to make a Syncline image of it.
#[test]
fn another_filesystem_is_named() {
    let place = Place::new();
    let mut bytes = vec![0; 16 << 20];
    bytes[1080..1082].copy_from_slice(&[0x53, 0xef]);
    fs::write(place.image(), bytes).unwrap();
    for arguments in [&[][..], &["--repair"]] {
        let answer = check(&place, arguments);
        assert_eq!(answer.code, 8, "{answer:?}");
        assert!(answer.err.contains("it holds an ext2, ext3 or ext4 filesystem"), "{answer:?}");
        assert!(!answer.err.contains("mkfs"), "{answer:?}");
    }
}

#[test]
fn a_damaged_snapshot_is_to_be_deleted() {
    skip_if!(no_fuse());
    let place = filled();
    let mut command = program();
    command.args(["snapshot", "create"]).arg(place.image()).arg("then");
    run(command).ok();
    let mount = Mount::new(&place.image(), &place.path().join("mount"), &[]);
    fs::write(mount.path.join("large"), vec![6; 1_000_000]).unwrap();
    mount.unmount().ok();
    let image = fs::read(place.image()).unwrap();
    let block = image.chunks(BLOCK_BYTES).position(|block| block.iter().all(|&byte| byte == 5)).unwrap();
    flip(&place.image(), block as u64);
    let answer = check(&place, &["--repair"]);
    assert_eq!(answer.code, 4, "{answer:?}");
    assert!(answer.out.contains("SL0042") && answer.out.contains("syncline snapshot delete"), "{answer:?}");
    assert!(!answer.out.contains("make the image again"), "{answer:?}");
    let mut command = program();
    command.args(["snapshot", "delete"]).arg(place.image()).arg("then");
    run(command).ok();
    check(&place, &[]).ok();
}

#[test]
fn damaged_data_is_left_and_named() {
    skip_if!(no_fuse());
    let place = filled();
    let image = fs::read(place.image()).unwrap();
    let block = image.chunks(BLOCK_BYTES).position(|block| block.iter().all(|&byte| byte == 5)).unwrap();
    flip(&place.image(), block as u64);
    let before = fs::read(place.image()).unwrap();
    let answer = check(&place, &["--repair"]);
    assert_eq!(answer.code, 4, "{answer:?}");
    assert!(answer.out.contains("SL0023") && answer.out.contains("restore these files"), "{answer:?}");
    assert!(fs::read(place.image()).unwrap() == before);
}

#[test]
fn without_a_superblock_the_next_step_is_a_backup() {
    skip_if!(no_fuse());
    let place = filled();
    for slot in 0..2 {
        for block in Geometry::superblock_copies_for(BLOCKS, slot) {
            flip(&place.image(), block);
        }
    }
    let answer = check(&place, &["--repair"]);
    assert_eq!(answer.code, 4, "{answer:?}");
    assert!(answer.out.contains("restore the image from a backup"), "{answer:?}");
}

#[test]
fn a_mounted_image_is_refused() {
    skip_if!(no_fuse());
    let place = filled();
    let mount = Mount::new(&place.image(), &place.path().join("mount"), &[]);
    check(&place, &["--repair"]).fails(8, &["in use"]);
    mount.unmount().ok();
}

#[test]
fn a_dry_run_belongs_to_a_repair() {
    let place = Place::new();
    assert_eq!(check(&place, &["--dry-run"]).code, 16);
}
