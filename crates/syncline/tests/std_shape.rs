//! The parts of `std::fs` that the library has too, and in the same way.

use std::io::{self, ErrorKind, Write};
use syncline::{
    DirBuilder, Error, File, Filesystem, FormatOptions, ImageOptions, OpenOptions, RenameFlags, XattrMode,
    device::MemoryDevice, format_device,
};

fn memory() -> Filesystem {
    Filesystem::in_memory(64 << 20).unwrap()
}

/// That handles may be shared and sent is a promise of the types.
const _: () = {
    const fn shared<T: Send + Sync>() {}
    shared::<Filesystem>();
    shared::<File>();
    shared::<Error>();
    shared::<OpenOptions>();
    shared::<ImageOptions>();
    shared::<syncline::ReadDir>();
    shared::<syncline::DirEntry>();
    shared::<syncline::WalkDir>();
};

/// Does the same to an image and to a directory of the host, and compares what went wrong.
fn same_failure<T, U>(here: syncline::Result<T>, there: io::Result<U>, what: &str) {
    let Err(here) = here else { panic!("{what}: nothing went wrong") };
    let Err(there) = there else { panic!("{what}: the host has nothing against it") };
    let kind = here.kind();
    let here = io::Error::from(here);
    assert_eq!((here.kind(), here.raw_os_error()), (there.kind(), there.raw_os_error()), "{what}");
    assert_eq!(kind, here.kind(), "{what}");
}

#[test]
fn errors_are_those_of_the_standard_library() {
    let fs = memory();
    let host = tempfile::tempdir().unwrap();
    let at = |path: &str| host.path().join(path);
    fs.create_dir("full").unwrap();
    std::fs::create_dir(at("full")).unwrap();
    for name in ["file", "full/file"] {
        fs.write(name, "x").unwrap();
        std::fs::write(at(name), "x").unwrap();
    }
    fs.write("latin", [0xe9]).unwrap();
    std::fs::write(at("latin"), [0xe9]).unwrap();
    fs.symlink("loop", "loop").unwrap();
    std::os::unix::fs::symlink("loop", at("loop")).unwrap();
    let long = "x".repeat(300);

    same_failure(fs.read("none"), std::fs::read(at("none")), "read what is not there");
    same_failure(fs.read("full"), std::fs::read(at("full")), "read a directory");
    same_failure(fs.read("file/below"), std::fs::read(at("file/below")), "below a file");
    same_failure(fs.read("loop"), std::fs::read(at("loop")), "a loop");
    same_failure(fs.read(&long), std::fs::read(at(&long)), "a long name");
    same_failure(fs.read_to_string("latin"), std::fs::read_to_string(at("latin")), "not text");
    same_failure(fs.write("full", "x"), std::fs::write(at("full"), "x"), "write a directory");
    same_failure(fs.create_dir("file"), std::fs::create_dir(at("file")), "make what exists");
    same_failure(fs.create_dir("no/where"), std::fs::create_dir(at("no/where")), "make nowhere");
    same_failure(fs.create_dir_all("file/x"), std::fs::create_dir_all(at("file/x")), "make below a file");
    same_failure(fs.remove_dir("full"), std::fs::remove_dir(at("full")), "remove what is not empty");
    same_failure(fs.remove_dir("file"), std::fs::remove_dir(at("file")), "a file as a directory");
    same_failure(fs.remove_file("full"), std::fs::remove_file(at("full")), "a directory as a file");
    same_failure(fs.rename("file", "full"), std::fs::rename(at("file"), at("full")), "over a directory");
    same_failure(fs.rename("none", "x"), std::fs::rename(at("none"), at("x")), "rename nothing");
    same_failure(fs.hard_link("file", "full"), std::fs::hard_link(at("file"), at("full")), "link over");
    same_failure(fs.read_link("file"), std::fs::read_link(at("file")), "no link");
    same_failure(fs.canonicalize("none"), std::fs::canonicalize(at("none")), "canonical nothing");
    same_failure(
        OpenOptions::new().write(true).create_new(true).open(&fs, "file"),
        std::fs::OpenOptions::new().write(true).create_new(true).open(at("file")),
        "create new",
    );
    let (read_only, host_file) = (fs.open_file("file").unwrap(), std::fs::File::open(at("file")).unwrap());
    same_failure(read_only.write_at(b"x", 0), (&host_file).write(b"x"), "write without leave");
}

#[test]
fn errors_have_kinds_that_only_an_image_can_give() {
    let fs = Filesystem::in_memory(16 << 20).unwrap();
    let other = memory();
    let file = fs.create_file("file").unwrap();
    assert_eq!(other.sync_many(&[&file]).unwrap_err().kind(), ErrorKind::CrossesDevices);
    let full = loop {
        if let Err(error) = (&file).write_all(&[7; 1 << 20]) {
            break error;
        }
    };
    assert_eq!(full.kind(), ErrorKind::StorageFull);
    let device = MemoryDevice::new(32 << 20);
    format_device(device.clone(), &FormatOptions::default()).unwrap();
    let fs = Filesystem::open_device(device, ImageOptions::read_only()).unwrap();
    assert_eq!(fs.create_dir("x").unwrap_err().kind(), ErrorKind::ReadOnlyFilesystem);
}

#[test]
fn an_image_is_made_once_and_opened_after() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    let open =
        || Filesystem::open_or_create(&path, 32 << 20, &FormatOptions::default(), ImageOptions::default());
    let fs = open().unwrap();
    fs.write("file", "kept").unwrap();
    assert_eq!(open().unwrap_err().kind(), ErrorKind::ResourceBusy);
    fs.close().unwrap();
    assert_eq!(open().unwrap().read_to_string("file").unwrap(), "kept");
    std::fs::write(&path, vec![1; 32 << 20]).unwrap();
    assert!(open().is_err());
    assert_eq!(std::fs::read(&path).unwrap(), vec![1; 32 << 20], "what is no image is left alone");
    let nowhere = folder.path().join("no/where");
    let failed =
        Filesystem::open_or_create(nowhere, 32 << 20, &FormatOptions::default(), ImageOptions::default());
    assert_eq!(failed.unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn copies_have_contents_holes_and_permissions() {
    let fs = memory();
    let from = fs.create_file("from").unwrap();
    from.write_all_at(b"start", 0).unwrap();
    from.write_all_at(b"far", 5_000_000).unwrap();
    from.set_len(9_000_001).unwrap();
    fs.set_permissions("from", 0o640).unwrap();
    fs.write("to", vec![9; 10_000_000]).unwrap();
    assert_eq!(fs.copy("from", "to").unwrap(), 9_000_001);
    assert_eq!(fs.read("to").unwrap(), fs.read("from").unwrap());
    assert_eq!(fs.metadata("to").unwrap().permissions(), 0o640);
    fs.hard_link("from", "same").unwrap();
    assert_eq!(fs.copy("from", "same").unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(fs.metadata("from").unwrap().len(), 9_000_001, "not emptied");
    fs.create_dir("dir").unwrap();
    assert_eq!(fs.copy("dir", "x").unwrap_err().kind(), ErrorKind::IsADirectory);
    assert!(!fs.exists("x"));
    assert_eq!(fs.copy("from", "dir").unwrap_err().kind(), ErrorKind::IsADirectory);
}

#[test]
fn paths_become_canonical() {
    let fs = memory();
    fs.create_dir_all("a/b/c").unwrap();
    fs.symlink("../../a/b", "a/b/up").unwrap();
    fs.symlink("/a/b/up/c", "far").unwrap();
    for (path, canonical) in [
        ("/", "/"),
        ("..", "/"),
        ("a//b/./c/", "/a/b/c"),
        ("far/..", "/a/b"),
        ("a/b/up/up/c/../../b", "/a/b"),
        ("far", "/a/b/c"),
    ] {
        assert_eq!(fs.canonicalize(path).unwrap().to_str(), Some(canonical), "{path}");
    }
}

#[test]
fn everything_below_is_walked_through() {
    let fs = memory();
    fs.create_dir_all("top/b/empty").unwrap();
    fs.create_dir_all("top/a/deep").unwrap();
    fs.symlink("/", "top/a/deep/root").unwrap();
    fs.write("top/a/deep/file", "x").unwrap();
    fs.write("top/z", "x").unwrap();
    let walk = |skip: Option<&str>| {
        let mut walk = fs.walk_dir("top").unwrap();
        let mut paths = Vec::new();
        while let Some(entry) = walk.next() {
            let path = entry.unwrap().path().into_os_string().into_string().unwrap();
            if skip == Some(&path) {
                walk.skip_directory();
            }
            paths.push(path);
        }
        for (at, path) in paths.iter().enumerate() {
            let above = path.rsplit_once('/').unwrap().0;
            assert!(
                above == "top" || paths[..at].iter().any(|other| other == above),
                "{path} came too early"
            );
        }
        paths.sort();
        paths
    };
    assert_eq!(
        walk(None),
        ["top/a", "top/a/deep", "top/a/deep/file", "top/a/deep/root", "top/b", "top/b/empty", "top/z"]
    );
    assert_eq!(walk(Some("top/a")), ["top/a", "top/b", "top/b/empty", "top/z"]);
    // An entry that goes away during the walk is no failure.
    let mut walk = fs.walk_dir("top").unwrap();
    let told = walk.next().unwrap().unwrap();
    fs.remove_dir_all("top").unwrap();
    let rest: Vec<_> = walk.collect();
    assert!(
        rest.iter().all(|entry| entry.as_ref().is_ok_and(|entry| entry.path() != told.path())),
        "{rest:?}"
    );
    assert_eq!(fs.walk_dir("top").unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn directories_are_built_opened_and_synced() {
    let fs = memory();
    DirBuilder::new().mode(0o500).recursive(true).create(&fs, "a/b").unwrap();
    assert_eq!(fs.metadata("a").unwrap().permissions(), 0o500);
    assert_eq!(DirBuilder::new().create(&fs, "a").unwrap_err().kind(), ErrorKind::AlreadyExists);
    let before = fs.statistics().store.flushes_issued;
    let directory = fs.open_file("a").unwrap();
    directory.sync_all().unwrap();
    assert_eq!(fs.statistics().store.flushes_issued - before, 1);
    assert!(directory.metadata().unwrap().is_dir());
    assert_eq!(directory.read_at(&mut [0; 1], 0).unwrap_err().kind(), ErrorKind::IsADirectory);
    assert_eq!(
        OpenOptions::new().read(true).append(true).open(&fs, "a").unwrap_err().kind(),
        ErrorKind::IsADirectory
    );
}

#[test]
fn a_file_without_a_name_gets_one_or_goes() {
    let fs = memory();
    let objects = fs.space().objects;
    let file = fs.create_unnamed("/").unwrap();
    file.write_all_at(&[7; 100_000], 0).unwrap();
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    fs.write("taken", "").unwrap();
    assert_eq!(file.link("taken").unwrap_err().kind(), ErrorKind::AlreadyExists);
    file.link("named").unwrap();
    file.link("twice").unwrap();
    assert_eq!(fs.read("named").unwrap(), vec![7; 100_000]);
    assert_eq!(fs.metadata("twice").unwrap().nlink(), 2);
    fs.rename_with("twice", "taken", RenameFlags::default()).unwrap();
    drop(fs.create_unnamed("/").unwrap());
    for _ in 0..12_000 {
        if fs.space().objects == objects + 1 {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    assert_eq!(fs.space().objects, objects + 1, "'named' alias 'taken' is left");
}

#[test]
fn open_files_have_attributes_of_their_own() {
    let fs = memory();
    let file = fs.create_file("file").unwrap();
    fs.remove_file("file").unwrap();
    let then = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000);
    file.set_times(Some(then), None).unwrap();
    file.set_owner(Some(12), Some(34)).unwrap();
    file.set_permissions(0o600).unwrap();
    let metadata = file.metadata().unwrap();
    assert_eq!((metadata.accessed(), metadata.uid(), metadata.gid()), (then, 12, 34));
    assert_eq!(metadata.mode(), 0o100600);
    file.set_xattr("user.one", b"1").unwrap();
    assert_eq!(file.xattr("user.one").unwrap().unwrap(), b"1");
    assert_eq!(file.xattrs().unwrap(), ["user.one"]);
    file.remove_xattr("user.one").unwrap();
    assert_eq!(file.xattr("user.one").unwrap(), None);
    fs.write("other", "").unwrap();
    let set = |mode| fs.set_xattr_with("other", "user.x", b"1", mode).map_err(|error| error.errno());
    assert_eq!(set(XattrMode::Replace), Err(61));
    assert_eq!(set(XattrMode::Create), Ok(()));
    assert_eq!(set(XattrMode::Create), Err(17));
}
