//! Parent pointers: they stay right through every change of names, in the inode item and in items
//! of their own.

use super::{CALLER, Mount, Setup, errno};
use crate::types::{Ino, ROOT, RenameFlags};
use std::collections::BTreeSet;
use syncline_device::block_on;
use syncline_format::{Key, Kind};
use syncline_store::Ablation;

fn paths(mount: &Mount, ino: Ino) -> Vec<String> {
    let paths = block_on(mount.fs.paths(ino)).unwrap();
    paths.into_iter().map(|path| String::from_utf8(path).unwrap()).collect()
}

/// Number of parent pointers with items of their own.
fn items(mount: &Mount, ino: Ino) -> usize {
    let range = (Key::new(ino, Kind::Parent, 0), Key::new(ino, Kind::Parent, u64::MAX));
    block_on(mount.fs.store().scan(range.0, range.1, 100_000)).unwrap().items.len()
}

fn link(mount: &Mount, ino: Ino, dir: Ino, name: &str) {
    block_on(mount.fs.link(ino, dir, name.as_bytes())).unwrap();
}

fn unlink(mount: &Mount, dir: Ino, name: &str) {
    block_on(mount.fs.unlink(dir, name.as_bytes())).unwrap();
}

#[test]
fn every_change_of_a_name_is_followed() {
    for node_bytes in [4096, 16384] {
        let mount = Mount::with(Setup { node_bytes, ..Setup::default() });
        let (one, two) = (mount.mkdir(ROOT, "one"), mount.mkdir(ROOT, "two"));
        let below = mount.mkdir(one, "below");
        let file = mount.create(below, "file");
        let symlink = block_on(mount.fs.symlink(CALLER, two, b"symlink", b"anywhere")).unwrap().ino;
        assert_eq!(paths(&mount, ROOT), ["/"]);
        assert_eq!(paths(&mount, file), ["/one/below/file"]);
        assert_eq!(paths(&mount, symlink), ["/two/symlink"]);
        link(&mount, file, two, "again");
        mount.rename((below, "file"), (below, "renamed")).unwrap();
        assert_eq!(paths(&mount, file), ["/one/below/renamed", "/two/again"]);
        // Whole directories move, with their contents.
        mount.rename((one, "below"), (two, "moved")).unwrap();
        assert_eq!(paths(&mount, below), ["/two/moved"]);
        assert_eq!(paths(&mount, file), ["/two/again", "/two/moved/renamed"]);
        let exchange = RenameFlags { exchange: true, ..RenameFlags::default() };
        mount.rename_with((two, "moved"), (ROOT, "one"), exchange).unwrap();
        assert_eq!(
            (paths(&mount, below), paths(&mount, one)),
            (vec!["/one".into()], vec!["/two/moved".into()])
        );
        // A replaced inode loses a name.
        let other = mount.create(ROOT, "other");
        mount.rename((ROOT, "other"), (below, "renamed")).unwrap();
        assert_eq!(paths(&mount, other), ["/one/renamed"]);
        assert_eq!(paths(&mount, file), ["/two/again"]);
        let mount = mount.reopen();
        assert_eq!(paths(&mount, file), ["/two/again"]);
        unlink(&mount, two, "again");
        mount.settle();
        assert_eq!(errno(block_on(mount.fs.paths(file))), 116, "it is gone");
        assert_eq!(mount.fs.counters().parents_long, 0);
    }
}

#[test]
fn the_removed_and_the_unknown_have_no_paths() {
    let mount = Mount::new();
    let (dir, file) = (mount.mkdir(ROOT, "dir"), mount.create(ROOT, "file"));
    block_on(mount.fs.open_file(file)).unwrap();
    unlink(&mount, ROOT, "file");
    block_on(mount.fs.rmdir(ROOT, b"dir")).unwrap();
    for ino in [dir, file] {
        let refused = block_on(mount.fs.paths(ino)).unwrap_err();
        assert_eq!((refused.errno(), refused.to_string().contains("removed")), (2, true));
    }
    assert_eq!(errno(block_on(mount.fs.paths(4711))), 116);
}

/// A thousand names in a hundred directories: most need items of their own. As names are removed,
/// the rest moves back.
#[test]
fn many_names_move_to_the_long_form_and_back() {
    for (node_bytes, hashes) in [(4096, None), (16384, Some(40))] {
        let mount = Mount::with(Setup { node_bytes, hashes, ..Setup::default() });
        let dirs: Vec<Ino> = (0..100).map(|index| mount.mkdir(ROOT, &format!("dir{index}"))).collect();
        let file = mount.create(ROOT, "first");
        let mut names = BTreeSet::from(["/first".to_owned()]);
        for index in 0..999 {
            let (dir, name) = (index % 100, format!("name{index}"));
            link(&mount, file, dirs[dir], &name);
            names.insert(format!("/dir{dir}/{name}"));
        }
        let most = mount.fs.limits.parent_bytes / (12 + "name100".len());
        assert!(
            (1000 - most - 10..1000 - most + 10).contains(&items(&mount, file)),
            "{}",
            items(&mount, file)
        );
        assert_eq!(paths(&mount, file), names.iter().cloned().collect::<Vec<_>>());
        let mount = mount.reopen();
        assert_eq!(paths(&mount, file), names.iter().cloned().collect::<Vec<_>>());
        // Alternates between low and high numbers, so that short and long ones are removed in turn.
        for index in (0..999).map(|index| index * 500 % 999) {
            let (dir, name) = (index % 100, format!("name{index}"));
            unlink(&mount, dirs[dir], &name);
            names.remove(&format!("/dir{dir}/{name}"));
            let inode = block_on(mount.fs.inode(file)).unwrap();
            let (short, long) = {
                let parents = &inode.state.lock().meta.parents;
                (parents.short.len(), parents.items as usize)
            };
            assert_eq!(short + long, names.len());
            assert!(long == 0 || short + 1 >= most.min(names.len()), "{short} of {} are short", names.len());
            if index % 50 == 0 || names.len() < 10 {
                assert_eq!(items(&mount, file), long);
                assert_eq!(paths(&mount, file), names.iter().cloned().collect::<Vec<_>>());
            }
        }
        let mount = mount.reopen();
        assert_eq!(paths(&mount, file), ["/first"]);
        assert_eq!(items(&mount, file), 0);
    }
}

/// Names too long for the inode item: they are created, renamed and removed as items, and are gone
/// with the inode.
#[test]
fn a_name_that_never_fits_has_an_item() {
    let mount = Mount::with(Setup { node_bytes: 4096, ..Setup::default() });
    let long = |letter: &str| letter.repeat(255);
    let file = mount.create(ROOT, &long("a"));
    assert_eq!((items(&mount, file), paths(&mount, file)), (1, vec![format!("/{}", long("a"))]));
    mount.rename((ROOT, &long("a")), (ROOT, &long("b"))).unwrap();
    assert_eq!((items(&mount, file), paths(&mount, file)), (1, vec![format!("/{}", long("b"))]));
    mount.rename((ROOT, &long("b")), (ROOT, "short")).unwrap();
    assert_eq!((items(&mount, file), paths(&mount, file)), (0, vec!["/short".to_owned()]));
    mount.rename((ROOT, "short"), (ROOT, &long("c"))).unwrap();
    let counters = mount.fs.counters();
    assert_eq!((counters.parents_short, counters.parents_long), (1, 3));
    let mount = mount.reopen();
    assert_eq!(paths(&mount, file), [format!("/{}", long("c"))]);
    unlink(&mount, ROOT, &long("c"));
    mount.settle();
    assert_eq!(items(&mount, file), 0);
}

/// Pointers written without the short form are read and changed as usual, and move back to it.
#[test]
fn items_of_the_ablation_are_everybodys() {
    let mount = Mount::new().ablated(&[Ablation::ParentShortform]);
    let dir = mount.mkdir(ROOT, "dir");
    let files: Vec<Ino> = (0..5).map(|index| mount.create(dir, &format!("file{index}"))).collect();
    link(&mount, files[0], ROOT, "again");
    mount.rename((dir, "file1"), (ROOT, "moved")).unwrap();
    assert_eq!(paths(&mount, files[0]), ["/again", "/dir/file0"]);
    assert_eq!((items(&mount, dir), items(&mount, files[0]), items(&mount, files[1])), (1, 2, 1));
    let counters = mount.fs.counters();
    assert_eq!((counters.parents_short, counters.parents_long), (0, 8));
    let mount = mount.ablated(&[]);
    assert_eq!(paths(&mount, files[0]), ["/again", "/dir/file0"]);
    unlink(&mount, ROOT, "again");
    assert_eq!((items(&mount, files[0]), paths(&mount, files[0])), (0, vec!["/dir/file0".to_owned()]));
    unlink(&mount, dir, "file4");
    mount.settle();
    assert_eq!(paths(&mount, files[1]), ["/moved"]);
}

#[test]
fn an_image_without_parent_pointers_stays_without() {
    let mount = Mount::with(Setup { parent_pointers: false, ..Setup::default() });
    let dir = mount.mkdir(ROOT, "dir");
    let file = mount.create(dir, "file");
    link(&mount, file, ROOT, &"n".repeat(255));
    mount.rename((dir, "file"), (ROOT, "moved")).unwrap();
    let refused = block_on(mount.fs.paths(file)).unwrap_err();
    assert_eq!((refused.errno(), refused.to_string().contains("--parent-pointers on")), (61, true));
    let counters = mount.fs.counters();
    assert_eq!((counters.parents_short, counters.parents_long, items(&mount, file)), (0, 0, 0));
    let inode = block_on(mount.fs.inode(file)).unwrap();
    assert!(inode.state.lock().meta.parents.short.is_empty());
}
