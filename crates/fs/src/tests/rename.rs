//! Renames of all kinds.

use super::{CALLER, Mount, Setup, errno};
use crate::types::{FileType, ROOT, RenameFlags};
use futures_lite::future::poll_once;
use syncline_device::block_on;

const EXCHANGE: RenameFlags = RenameFlags { no_replace: false, exchange: true, whiteout: None };
const NO_REPLACE: RenameFlags = RenameFlags { no_replace: true, exchange: false, whiteout: None };
const WHITEOUT: RenameFlags = RenameFlags { no_replace: false, exchange: false, whiteout: Some(CALLER) };

#[test]
fn a_file_moves_and_replaces() {
    let mount = Mount::new();
    let (a, b) = (mount.mkdir(ROOT, "a"), mount.mkdir(ROOT, "b"));
    let file = mount.create(a, "file");
    let old = mount.create(b, "old");
    let now = mount.tick();
    mount.rename((a, "file"), (b, "moved")).unwrap();
    assert_eq!((mount.getattr(file).ctime, mount.getattr(a).mtime, mount.getattr(b).mtime), (now, now, now));
    assert_eq!((mount.getattr(a).size, mount.getattr(b).size), (0, 2));
    assert_eq!(errno(mount.rename_with((b, "moved"), (b, "old"), NO_REPLACE)), 17);
    mount.rename((b, "moved"), (b, "old")).unwrap();
    assert_eq!(mount.lookup(b, "old").unwrap().ino, file);
    assert_eq!(mount.getattr(old).nlink, 0);
    assert_eq!(mount.getattr(b).size, 1);
    let mount = mount.reopen();
    assert_eq!(mount.names(b), ["old"]);
    assert_eq!(mount.lookup(b, "old").unwrap().ino, file);
    assert_eq!(errno(block_on(mount.fs.getattr(old))), 116);
}

#[test]
fn a_whiteout_takes_the_place_of_what_went() {
    let mount = Mount::new();
    let (a, b) = (mount.mkdir(ROOT, "a"), mount.mkdir(ROOT, "b"));
    let file = mount.create(a, "file");
    let dir = mount.mkdir(a, "dir");
    mount.create(b, "old");
    mount.rename_with((a, "file"), (b, "old"), WHITEOUT).unwrap();
    mount.rename_with((a, "dir"), (a, "moved"), WHITEOUT).unwrap();
    let exchange = RenameFlags { exchange: true, ..WHITEOUT };
    assert_eq!(errno(mount.rename_with((a, "moved"), (b, "old"), exchange)), 22);
    let no_replace = RenameFlags { no_replace: true, ..WHITEOUT };
    assert_eq!(errno(mount.rename_with((a, "moved"), (b, "old"), no_replace)), 17);
    // Two names of the same inode stay unchanged.
    block_on(mount.fs.link(file, a, b"second")).unwrap();
    mount.rename_with((a, "second"), (b, "old"), WHITEOUT).unwrap();
    mount.sync();
    let mount = mount.crash();
    assert_eq!(mount.names(a), ["dir", "file", "moved", "second"]);
    assert_eq!((mount.lookup(b, "old").unwrap().ino, mount.lookup(a, "second").unwrap().ino), (file, file));
    assert_eq!((mount.lookup(a, "moved").unwrap().ino, mount.getattr(a).nlink), (dir, 3));
    for name in ["dir", "file"] {
        let whiteout = mount.lookup(a, name).unwrap();
        assert_eq!((whiteout.file_type, whiteout.rdev), (FileType::CharDevice, 0));
        assert_eq!((whiteout.permissions, whiteout.nlink, whiteout.uid), (0, 1, CALLER.uid));
        assert_eq!(block_on(mount.fs.paths(whiteout.ino)).unwrap(), [format!("/a/{name}").into_bytes()]);
    }
    assert_eq!(mount.getattr(a).size, 4);
    mount.settle();
    assert_eq!(mount.fs.statfs().objects, 7);
}

#[test]
fn names_of_one_inode_and_of_itself_change_nothing() {
    let mount = Mount::new();
    let file = mount.create(ROOT, "one");
    block_on(mount.fs.link(file, ROOT, b"two")).unwrap();
    mount.rename((ROOT, "one"), (ROOT, "two")).unwrap();
    mount.rename((ROOT, "one"), (ROOT, "one")).unwrap();
    assert_eq!(mount.names(ROOT), ["one", "two"]);
    assert_eq!(mount.getattr(file).nlink, 2);
    assert_eq!(errno(mount.rename_with((ROOT, "one"), (ROOT, "one"), NO_REPLACE)), 17);
}

#[test]
fn directories_move_with_their_parent_entry() {
    let mount = Mount::new();
    let (a, b) = (mount.mkdir(ROOT, "a"), mount.mkdir(ROOT, "b"));
    let dir = mount.mkdir(a, "dir");
    mount.rename((a, "dir"), (b, "dir")).unwrap();
    assert_eq!((mount.getattr(a).nlink, mount.getattr(b).nlink), (2, 3));
    let mount = mount.reopen();
    assert_eq!(mount.lookup(dir, "..").unwrap().ino, b);
    assert_eq!(mount.lookup(dir, ".").unwrap().ino, dir);
    assert_eq!((mount.getattr(a).nlink, mount.getattr(b).nlink), (2, 3));
}

#[test]
fn a_directory_replaces_only_an_empty_one() {
    let mount = Mount::new();
    let (a, b) = (mount.mkdir(ROOT, "a"), mount.mkdir(ROOT, "b"));
    let file = mount.create(ROOT, "file");
    let below = mount.create(b, "below");
    assert_eq!(errno(mount.rename((ROOT, "a"), (ROOT, "b"))), 39);
    assert_eq!(errno(mount.rename((ROOT, "a"), (ROOT, "file"))), 20);
    assert_eq!(errno(mount.rename((ROOT, "file"), (ROOT, "a"))), 21);
    mount.rename((b, "below"), (ROOT, "file")).unwrap();
    assert_eq!(mount.lookup(ROOT, "file").unwrap().ino, below);
    assert_eq!(mount.getattr(file).nlink, 0);
    mount.rename((ROOT, "a"), (ROOT, "b")).unwrap();
    assert_eq!(mount.lookup(ROOT, "b").unwrap().ino, a);
    assert_eq!(mount.getattr(ROOT).nlink, 3);
    assert_eq!(mount.getattr(b).nlink, 0);
}

#[test]
fn no_directory_moves_below_itself() {
    let mount = Mount::new();
    let a = mount.mkdir(ROOT, "a");
    let b = mount.mkdir(a, "b");
    let c = mount.mkdir(b, "c");
    let file = mount.create(ROOT, "file");
    assert_eq!(errno(mount.rename((ROOT, "a"), (c, "a"))), 22);
    assert_eq!(errno(mount.rename((ROOT, "a"), (a, "a"))), 22);
    assert_eq!(errno(mount.rename_with((ROOT, "file"), (a, "b"), NO_REPLACE)), 17);
    assert_eq!(errno(mount.rename_with((b, "c"), (ROOT, "a"), EXCHANGE)), 22);
    // A directory that contains the source is not empty.
    assert_eq!(errno(mount.rename((b, "c"), (ROOT, "a"))), 39);
    assert_eq!(mount.getattr(file).nlink, 1);
    mount.rename((b, "c"), (ROOT, "c")).unwrap();
    assert_eq!(mount.lookup(c, "..").unwrap().ino, ROOT);
}

#[test]
fn an_exchange_swaps_what_the_names_mean() {
    let mount = Mount::new();
    let (a, b) = (mount.mkdir(ROOT, "a"), mount.mkdir(ROOT, "b"));
    let file = mount.create(a, "x");
    let dir = mount.mkdir(b, "y");
    assert_eq!(errno(mount.rename_with((a, "x"), (b, "missing"), EXCHANGE)), 2);
    mount.rename_with((a, "x"), (b, "y"), EXCHANGE).unwrap();
    assert_eq!((mount.lookup(a, "x").unwrap().ino, mount.lookup(b, "y").unwrap().ino), (dir, file));
    assert_eq!(mount.lookup(a, "x").unwrap().file_type, FileType::Directory);
    assert_eq!((mount.getattr(a).nlink, mount.getattr(b).nlink), (3, 2));
    assert_eq!(mount.lookup(dir, "..").unwrap().ino, a);
    let mount = mount.reopen();
    assert_eq!((mount.lookup(a, "x").unwrap().ino, mount.lookup(b, "y").unwrap().ino), (dir, file));
    assert_eq!((mount.getattr(a).size, mount.getattr(b).size), (1, 1));
}

#[test]
fn colliding_names_are_renamed_rightly() {
    let mount = Mount::with(Setup { hashes: Some(2), ..Setup::default() });
    let inos: Vec<_> = (0..10).map(|index| mount.create(ROOT, &format!("n{index}"))).collect();
    for index in 0..10 {
        mount.rename((ROOT, &format!("n{index}")), (ROOT, &format!("m{}", 9 - index))).unwrap();
    }
    for (index, &ino) in inos.iter().enumerate() {
        assert_eq!(mount.lookup(ROOT, &format!("m{}", 9 - index)).unwrap().ino, ino);
    }
    assert_eq!(mount.names(ROOT).len(), 10);
}

#[test]
fn renames_that_cross_end_and_keep_the_tree_a_tree() {
    let mount = Mount::new();
    let dirs: Vec<_> = (0..4).map(|index| mount.mkdir(ROOT, &format!("d{index}"))).collect();
    std::thread::scope(|scope| {
        for thread in 0..4usize {
            let (mount, dirs) = (&mount, &dirs);
            scope.spawn(move || {
                for step in 0..200usize {
                    // Pushes each directory below another, from wherever it is.
                    let (moved, below) = (step % 4, (step + thread + 1) % 4);
                    let name = format!("d{moved}");
                    for &from in [ROOT].iter().chain(dirs) {
                        let _ = mount.rename((from, &name), (dirs[below], &name));
                        let _ = mount.rename((from, &name), (ROOT, &name));
                    }
                }
            });
        }
    });
    for &dir in &dirs {
        let (mut at, mut steps) = (dir, 0);
        while at != ROOT {
            at = mount.lookup(at, "..").unwrap().ino;
            steps += 1;
            assert!(steps <= 4, "a cycle");
        }
    }
    let found: usize = [ROOT].iter().chain(&dirs).map(|&dir| mount.names(dir).len()).sum();
    assert_eq!(found, 4);
}

/// P1 and P3: the holder of an inode's `writeback` lock may have taken data that no transaction
/// names yet, while nothing looks dirty. (A file that was written and then given its old mtime
/// looks clean in every other way.)
#[test]
fn renames_and_fsyncs_wait_for_data_that_is_being_submitted() {
    let mount = Mount::new();
    let file = mount.create(ROOT, "temporary");
    let inode = block_on(mount.fs.inode(file)).unwrap();
    let writeback = inode.state.lock().data.writeback();
    let taken = block_on(writeback.lock_arc());
    let flags = RenameFlags::default();
    let mut rename = Box::pin(mount.fs.rename(ROOT, b"temporary", ROOT, b"target", flags));
    let mut fsync = Box::pin(mount.fs.fsync(file, false));
    assert!(block_on(poll_once(&mut rename)).is_none());
    assert!(block_on(poll_once(&mut fsync)).is_none());
    drop(taken);
    block_on(rename).unwrap();
    block_on(fsync).unwrap();
    assert_eq!(mount.names(ROOT), ["target"]);
}
