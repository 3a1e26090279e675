//! `syncline cp`: copies equal their originals in the image, and existing files are treated as by
//! cp(1).

use crate::skip_if;
use crate::support::{Answer, Place, edit, is_root, program, run};
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};
use syncline::{Filesystem, ImageOptions};

/// A file of 20 MiB with 8 KiB of data at both ends.
const SPARSE: u64 = 20 << 20;

/// An image with a tree of everything but device nodes, and a snapshot `before` of it.
fn ground() -> (Place, PathBuf) {
    let place = Place::with_image("64MiB");
    let fs = Filesystem::open(place.image(), ImageOptions::default()).unwrap();
    fs.create_dir_all("/tree/below/empty").unwrap();
    fs.write("/tree/file", "first").unwrap();
    fs.set_permissions("/tree/file", 0o4640).unwrap();
    fs.set_xattr("/tree/file", "user.colour", b"blue").unwrap();
    fs.hard_link("/tree/file", "/tree/below/name").unwrap();
    fs.symlink("../file", "/tree/below/link").unwrap();
    let sparse = fs.create_file("/tree/sparse").unwrap();
    sparse.write_all_at(&[7; 8192], 0).unwrap();
    sparse.write_all_at(&[8; 8192], SPARSE - 8192).unwrap();
    drop(sparse);
    let times = |seconds| UNIX_EPOCH + Duration::new(seconds, 123_456_789);
    fs.set_permissions("/tree/below/empty", 0o555).unwrap();
    for path in ["/tree/file", "/tree/below/empty", "/tree/below", "/tree"] {
        fs.set_times(path, Some(times(1_000_000)), Some(times(2_000_000))).unwrap();
    }
    fs.create_snapshot("before").unwrap();
    fs.write("/tree/file", "second").unwrap();
    fs.close().unwrap();
    let to = place.directory("to");
    (place, to)
}

fn cp(place: &Place, options: &[&str], sources: &[&str], to: &Path) -> Answer {
    let mut command = program();
    command.arg("cp").args(options);
    for source in sources {
        command.arg(format!("{}{source}", place.image().display()));
    }
    command.arg(to);
    run(command)
}

#[test]
fn an_archive_is_the_tree_with_all_its_attributes() {
    let (place, to) = ground();
    cp(&place, &["-a"], &["@before:tree"], &to.join("copy")).ok();
    let copy = to.join("copy");
    assert_eq!(fs::read(copy.join("file")).unwrap(), b"first");
    let file = fs::metadata(copy.join("file")).unwrap();
    assert_eq!(file.mode() & 0o7777, 0o4640);
    assert_eq!((file.mtime(), file.mtime_nsec()), (2_000_000, 123_456_789));
    assert_eq!((file.nlink(), file.ino()), (2, fs::metadata(copy.join("below/name")).unwrap().ino()));
    let mut room = [0; 16];
    match rustix::fs::getxattr(copy.join("file"), "user.colour", &mut room[..]) {
        Ok(len) => assert_eq!(&room[..len], b"blue"),
        // The host's filesystem has none.
        Err(error) => assert_eq!(error, rustix::io::Errno::OPNOTSUPP),
    }
    assert_eq!(fs::read_link(copy.join("below/link")).unwrap(), Path::new("../file"));
    for (directory, mode) in [("", 0o755), ("below", 0o755), ("below/empty", 0o555)] {
        let told = fs::metadata(copy.join(directory)).unwrap();
        assert_eq!((told.mode() & 0o7777, told.mtime()), (mode, 2_000_000), "{directory}");
    }
    let sparse = fs::read(copy.join("sparse")).unwrap();
    assert_eq!(sparse.len() as u64, SPARSE);
    assert!(sparse[..8192] == [7; 8192] && sparse[sparse.len() - 8192..] == [8; 8192]);
    assert!(sparse[8192..sparse.len() - 8192].iter().all(|byte| *byte == 0));
    assert!(fs::metadata(copy.join("sparse")).unwrap().blocks() < 2048, "holes became data");
    place.check_clean();
}

#[test]
fn names_go_where_cp_puts_them() {
    let (place, to) = ground();
    cp(&place, &[], &[":tree/file"], &to).ok();
    let file = fs::metadata(to.join("file")).unwrap();
    assert_eq!((fs::read(to.join("file")).unwrap(), file.mode() & 0o7777), (b"second".to_vec(), 0o640));
    assert!(file.mtime() > 2_000_000, "a plain copy is new");
    // A link is followed inside of the image, and copied with -r.
    cp(&place, &[], &[":tree/below/link"], &to.join("followed")).ok();
    assert_eq!(fs::read(to.join("followed")).unwrap(), b"second");
    cp(&place, &["-r"], &[":tree/below/link"], &to).ok();
    assert!(fs::symlink_metadata(to.join("link")).unwrap().is_symlink());
    cp(&place, &["-r"], &[":tree", "@before:tree/file"], &to).ok();
    assert_eq!(fs::read(to.join("tree/file")).unwrap(), b"second");
    assert_eq!(fs::read(to.join("file")).unwrap(), b"first", "the second source overwrote the copy");
    assert_eq!(fs::metadata(to.join("tree/file")).unwrap().nlink(), 1, "hard links are for -a");
    // Everything, into a directory that is there, and into one that is not.
    for name in ["all", "anew"] {
        cp(&place, &["-R"], &[":"], &to.join(name)).ok();
        assert_eq!(fs::read(to.join(name).join("tree/file")).unwrap(), b"second");
    }
    cp(&place, &["-r"], &[":tree"], &to).ok();
}

#[test]
fn nothing_takes_the_place_of_another_kind() {
    let (place, to) = ground();
    fs::create_dir(to.join("file")).unwrap();
    cp(&place, &[], &[":tree/file"], &to).fails(1, &["file is a directory", "another place"]);
    fs::write(to.join("tree"), "mine").unwrap();
    cp(&place, &["-a"], &[":tree"], &to).fails(1, &["tree is no directory", "another place"]);
    assert_eq!(fs::read(to.join("tree")).unwrap(), b"mine");
    fs::remove_file(to.join("tree")).unwrap();
    // A link below the destination is replaced, so that nothing is written elsewhere.
    let outside = place.path().join("outside");
    fs::write(&outside, "mine").unwrap();
    fs::create_dir(to.join("tree")).unwrap();
    symlink(&outside, to.join("tree/file")).unwrap();
    symlink(place.directory("elsewhere"), to.join("tree/below")).unwrap();
    let answer = cp(&place, &["-r"], &[":tree"], &to);
    answer.fails(1, &["tree/below is no directory"]);
    assert_eq!(fs::read(&outside).unwrap(), b"mine");
    assert_eq!(fs::read_dir(place.path().join("elsewhere")).unwrap().count(), 0);
    assert_eq!(fs::read(to.join("tree/file")).unwrap(), b"second");
    assert!(to.join("tree/sparse").exists(), "the rest was copied");
    // A link that is named itself means its file.
    symlink(&outside, to.join("named")).unwrap();
    cp(&place, &[], &[":tree/file"], &to.join("named")).ok();
    assert_eq!(fs::read(&outside).unwrap(), b"second");
    cp(&place, &[], &[":tree/file"], &place.image()).fails(2, &["the image that is copied from"]);
    cp(&place, &[], &[":tree/file"], Path::new("/dev/null")).fails(1, &["/dev/null", "syncline cat"]);
    assert!(fs::metadata("/dev/null").unwrap().file_type().is_char_device());
    place.check_clean();
}

#[test]
fn what_can_be_read_of_a_damaged_image_is_copied() {
    let place = Place::with_image("32MiB");
    let fs = Filesystem::open(place.image(), ImageOptions::default()).unwrap();
    let rotten = "a pattern that is nowhere else ".repeat(500);
    fs.create_dir("/tree").unwrap();
    for (name, contents) in [("a", "whole".repeat(3000)), ("b", rotten.clone()), ("c", "whole".repeat(3000))]
    {
        fs.write(format!("/tree/{name}"), contents).unwrap();
    }
    fs.close().unwrap();
    let image = fs::read(place.image()).unwrap();
    let at = image.windows(40).position(|part| part == &rotten.as_bytes()[..40]).unwrap();
    edit(&place.image(), at as u64, 4096, |block| block[17] ^= 1);
    let to = place.path().join("to");
    let answer = cp(&place, &["-a"], &[":tree"], &to);
    answer.fails(4, &[":/tree/b", "b is incomplete"]);
    for name in ["a", "c"] {
        assert_eq!(fs::read_to_string(to.join(name)).unwrap(), "whole".repeat(3000));
    }
}

#[test]
fn a_user_keeps_what_only_root_may_give() {
    if !is_root() {
        return;
    }
    let (place, to) = ground();
    let fs = Filesystem::open(place.image(), ImageOptions::default()).unwrap();
    fs.set_owner("/tree/file", Some(1), Some(1)).unwrap();
    fs.set_permissions("/tree/file", 0o4755).unwrap();
    fs.close().unwrap();
    for path in [place.path(), &to, &place.image()] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
    }
    let mut command = program();
    command.args(["cp", "-a"]).arg(format!("{}:tree/file", place.image().display())).arg(&to);
    let answer = run(crate::support::as_nobody(command));
    assert_eq!((answer.code, answer.err.contains("left out")), (0, true), "{answer:?}");
    let file = fs::metadata(to.join("file")).unwrap();
    assert_eq!((file.uid(), file.mode() & 0o7777), (65534, 0o755), "setuid went to another owner");
    cp(&place, &["-a"], &[":tree/file"], &to.join("roots")).ok();
    let file = fs::metadata(to.join("roots")).unwrap();
    assert_eq!((file.uid(), file.mode() & 0o7777), (1, 0o4755));
}

#[test]
fn no_copy_is_overwritten_by_another() {
    let place = Place::with_image("32MiB");
    let fs = Filesystem::open(place.image(), ImageOptions::default()).unwrap();
    for (name, contents) in [("a", "one"), ("b", "two")] {
        fs.create_dir(name).unwrap();
        fs.write(format!("{name}/x"), contents).unwrap();
    }
    fs.hard_link("a/x", "a/y").unwrap();
    fs.close().unwrap();
    let to = place.directory("to");
    for options in [&["-a"][..], &["-r"], &[]] {
        let answer = cp(&place, options, &[":a/x", ":b/x", ":a/y"], &to);
        answer.fails(1, &["to/x is a copy that was made just now"]);
        for name in ["x", "y"] {
            assert_eq!(fs::read_to_string(to.join(name)).unwrap(), "one", "{options:?}: {name}");
        }
        let links = fs::metadata(to.join("x")).unwrap().nlink();
        assert_eq!(links, if options == ["-a"] { 2 } else { 1 }, "{options:?}");
    }
    // Two names of one file there get contents of their own.
    for name in ["x", "y"] {
        fs::remove_file(to.join(name)).unwrap();
    }
    fs::write(to.join("x"), "there").unwrap();
    fs::hard_link(to.join("x"), to.join("z")).unwrap();
    let fs = Filesystem::open(place.image(), ImageOptions::default()).unwrap();
    fs.write("b/z", "three").unwrap();
    fs.close().unwrap();
    cp(&place, &[], &[":a/x", ":b/z"], &to).ok();
    assert_eq!(fs::read_to_string(to.join("x")).unwrap(), "one");
    assert_eq!(fs::read_to_string(to.join("z")).unwrap(), "three");
    // Once more over the same tree, hard links and all.
    for _ in 0..2 {
        cp(&place, &["-a"], &[":a"], &to).ok();
        assert_eq!(fs::metadata(to.join("a/y")).unwrap().nlink(), 2);
    }
}

#[test]
fn another_name_of_a_copy_that_failed_is_not_linked_to_what_was_in_its_way() {
    let (place, to) = ground();
    // Nobody can write to a program that runs.
    let busy = to.join("file");
    crate::support::executable(&busy, &fs::read("/bin/sleep").unwrap());
    let mut running = std::process::Command::new(&busy).arg("60").spawn().unwrap();
    let answer = cp(&place, &["-a"], &[":tree/file", ":tree/below/name"], &to);
    running.kill().unwrap();
    running.wait().unwrap();
    answer.fails(1, &["to/file", "busy"]);
    assert_eq!(fs::read(to.join("name")).unwrap(), b"second");
}

/// The copy of a file that its owner may not write to.
#[test]
fn attributes_are_given_before_the_permissions_forbid_it() {
    skip_if!(crate::support::not_root());
    let (place, to) = ground();
    let fs = Filesystem::open(place.image(), ImageOptions::default()).unwrap();
    fs.set_owner("/tree/file", Some(crate::support::NOBODY), Some(crate::support::NOBODY)).unwrap();
    fs.set_permissions("/tree/file", 0o444).unwrap();
    fs.close().unwrap();
    for path in [place.path(), &to, &place.image()] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
    }
    let mut command = program();
    command.args(["cp", "-a"]).arg(format!("{}:tree/file", place.image().display())).arg(&to);
    let answer = run(crate::support::as_nobody(command)).ok();
    let mut room = [0; 16];
    match rustix::fs::getxattr(to.join("file"), "user.colour", &mut room[..]) {
        Ok(len) => assert_eq!((&room[..len], answer.err.as_str()), (&b"blue"[..], "")),
        // The host's filesystem has none.
        Err(error) => assert_eq!(error, rustix::io::Errno::OPNOTSUPP, "{answer:?}"),
    }
    assert_eq!(fs::metadata(to.join("file")).unwrap().mode() & 0o7777, 0o444);
}

#[test]
fn nobody_gets_rights_from_the_directory_that_an_archive_is_copied_to() {
    let (place, to) = ground();
    let entry = |tag: u16, bits: u16, id: u32| {
        [&tag.to_le_bytes()[..], &bits.to_le_bytes(), &id.to_le_bytes()].concat()
    };
    let none = u32::MAX;
    let entries = [(1, 7, none), (2, 7, 1234), (4, 5, none), (16, 7, none), (32, 5, none)];
    let list = entries.map(|(tag, bits, id)| entry(tag, bits, id)).concat();
    let list = [&2u32.to_le_bytes()[..], &list].concat();
    let default = "system.posix_acl_default";
    if rustix::fs::setxattr(&to, default, &list, rustix::fs::XattrFlags::empty()).is_err() {
        return eprintln!("skipped: the host's filesystem has no access control lists");
    }
    cp(&place, &["-a"], &[":tree"], &to).ok();
    for (name, list) in
        [("tree/file", "system.posix_acl_access"), ("tree", "system.posix_acl_access"), ("tree", default)]
    {
        let given = rustix::fs::getxattr(to.join(name), list, &mut [0; 256][..]);
        assert_eq!(given, Err(rustix::io::Errno::NODATA), "{name}: {list}");
    }
    assert_eq!(fs::metadata(to.join("tree/file")).unwrap().mode() & 0o7777, 0o4640);
}

#[test]
fn a_destination_is_no_image_and_a_dot_is_what_is_in_a_directory() {
    let (place, to) = ground();
    let inside = PathBuf::from(format!("{}:new", place.image().display()));
    cp(&place, &[], &[":tree/file"], &inside).fails(2, &["nothing is copied into an image"]);
    assert!(!inside.exists());
    cp(&place, &["-r"], &[":tree/."], &to).ok();
    assert_eq!(fs::read(to.join("file")).unwrap(), b"second");
    cp(&place, &["-r"], &[":tree"], &to).ok();
    assert!(to.join("tree/file").exists());
}

/// In a sound image no directory has two names; here the way through them would double with each.
#[test]
fn a_directory_with_several_names_is_entered_once() {
    const DEPTH: usize = 40;
    let place = Place::with_image("32MiB");
    let fs = Filesystem::open(place.image(), ImageOptions::default()).unwrap();
    let (mut path, mut changes) = (PathBuf::from("/"), Vec::new());
    for _ in 0..DEPTH {
        for name in ["a", "b"] {
            fs.create_dir(path.join(name)).unwrap();
        }
        let ino = |path: &Path| fs.metadata(path).unwrap().ino();
        changes.push((ino(&path), ino(&path.join("a"))));
        path.push("a");
    }
    fs.close().unwrap();
    redirect(&place.image(), &changes);
    let to = place.directory("to");
    let answer = cp(&place, &["-r"], &[":"], &to);
    assert_eq!(answer.code, 4, "{answer:?}");
    assert_eq!(answer.err.matches("a directory has several names").count(), DEPTH, "{answer:?}");
    assert_eq!(walkdir::WalkDir::new(&to).min_depth(1).into_iter().count(), DEPTH);
}

/// An entry that can't be looked at hides nothing else, neither from a listing nor from a copy.
#[test]
fn an_entry_that_leads_nowhere_is_told_and_the_others_are_listed() {
    let place = Place::with_image("32MiB");
    let fs = Filesystem::open(place.image(), ImageOptions::default()).unwrap();
    for name in ["a", "b", "c"] {
        fs.write(name, name).unwrap();
    }
    let root = fs.metadata("/").unwrap().ino();
    fs.close().unwrap();
    redirect(&place.image(), &[(root, 1 << 40)]);
    let ls = |options: &[&str]| {
        let mut command = program();
        command.arg("ls").args(options).arg(place.image());
        run(command)
    };
    assert_eq!(ls(&[]).ok().out, "a\nb\nc\n");
    let answer = ls(&["-l"]);
    let names: Vec<&str> = answer.out.lines().map(|line| line.rsplit(' ').next().unwrap()).collect();
    assert_eq!((&names[..], answer.code), (&["a", "c"][..], 4), "{answer:?}");
    answer.fails(4, &["/b: ", "syncline check"]);
    let to = place.directory("to");
    cp(&place, &["-a"], &[":"], &to).fails(4, &[":/b: "]);
    assert_eq!(fs::read(to.join("c")).unwrap(), b"c");
}

/// Makes the name `b` of each directory one of the other inode.
fn redirect(image: &Path, changes: &[(u64, u64)]) {
    use std::sync::Arc;
    use syncline_device::{Background, FileDevice, OpenOptions, WorkerOptions, block_on};
    use syncline_format::items::dirent::Dirent;
    use syncline_format::{Key, Kind};
    use syncline_store::{Store, StoreOptions, Transaction};
    let device = FileDevice::open(image, OpenOptions::default()).unwrap();
    let background = Arc::new(Background::start(WorkerOptions::default()).unwrap());
    let (store, _) = block_on(Store::open(device, StoreOptions::default(), background)).unwrap();
    let mut transaction = Transaction::new();
    for (directory, ino) in changes {
        let key = |offset| Key::new(*directory, Kind::Dirent, offset);
        let entries = block_on(store.scan(key(0), key(u64::MAX), 10)).unwrap().items;
        for (key, value) in entries {
            let entry = Dirent::decode(&value).unwrap();
            if entry.name == b"b" {
                transaction.put(key, Dirent { ino: *ino, ..entry }.encode());
            }
        }
    }
    store.commit(transaction).unwrap();
    block_on(store.close()).unwrap();
}

/// The state that a power cut leaves of six synced changes of files, the first of them changed twice.
fn cut_off() -> Place {
    let (from, place) = (Place::with_image("32MiB"), Place::new());
    let fs = Filesystem::open(from.image(), ImageOptions::default()).unwrap();
    for (name, contents) in [("f1", "old"), ("f2", "2"), ("f3", "3"), ("f4", "4"), ("f5", "5"), ("f1", "new")]
    {
        let file = fs.create_file(name).unwrap();
        file.write_all_at(contents.as_bytes(), 0).unwrap();
        file.sync_all().unwrap();
    }
    fs::copy(from.image(), place.image()).unwrap();
    place
}

/// The blocks of the batches in an image's log.
fn batches(image: &Path) -> Vec<u64> {
    let mut command = program();
    command.arg("inspect").arg(image).args(["--json", "-c", "log"]);
    let log: serde_json::Value = serde_json::from_str(&run(command).ok().out).unwrap();
    log["list"].as_array().unwrap().iter().map(|batch| batch["block"].as_u64().unwrap()).collect()
}

#[test]
fn what_a_damaged_log_has_lost_is_told_by_cp_ls_and_cat() {
    let place = cut_off();
    let look = |words: &[&str], path: &str| {
        let mut command = program();
        command.args(words).arg(format!("{}:{path}", place.image().display()));
        run(command)
    };
    let to = place.directory("to");
    cp(&place, &["-a"], &[":"], &to.join("whole")).ok();
    assert_eq!(fs::read(to.join("whole/f1")).unwrap(), b"new");
    assert_eq!(look(&["ls"], "").ok().err, "", "nothing is missing");

    let blocks = batches(&place.image());
    let rotten = blocks[blocks.len() - 2] * 4096;
    edit(&place.image(), rotten + 100, 1, |bytes| bytes[0] ^= 1);
    let answers = [cp(&place, &["-a"], &[":"], &to.join("rotten")), look(&["ls"], ""), look(&["cat"], "f1")];
    for answer in &answers {
        assert_eq!(answer.code, 4, "{answer:?}");
        assert!(answer.err.contains("the log is damaged: batch"), "{answer:?}");
    }
    assert_eq!(fs::read(to.join("rotten/f4")).unwrap(), b"4", "what can be read is copied");
    assert_eq!(answers[2].out, "old");
}

#[test]
fn a_superblock_that_is_lost_is_told_by_cp_ls_and_cat() {
    let (place, to) = ground();
    // Both copies of one slot: the newer of the two superblocks, perhaps.
    let blocks = fs::metadata(place.image()).unwrap().len() / 4096;
    for copy in syncline_format::Geometry::superblock_copies_for(blocks, 0) {
        edit(&place.image(), copy * 4096, 4096, |bytes| bytes.fill(0xff));
    }
    for answer in [cp(&place, &["-a"], &[":tree"], &to), cp(&place, &[], &[":tree/file"], &to)] {
        assert_eq!(answer.code, 4, "{answer:?}");
        assert!(answer.err.contains("nothing is left of superblock"), "{answer:?}");
    }
    assert!(to.join("tree/file").exists());
}
