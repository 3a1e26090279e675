//! chattr(1) and lsattr(1): the operations that flags forbid, and the persistence of flags.

use super::{Ground, errno};
use crate::skip_if;
use crate::support::{no_fuse, not_root, program, run};
use rustix::fs::{IFlags, XattrFlags, ioctl_getflags, ioctl_setflags, removexattr, setxattr};
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;

const NOT_PERMITTED: Option<i32> = Some(1);

fn set(path: &Path, flags: IFlags) -> std::io::Result<()> {
    Ok(ioctl_setflags(File::open(path)?, flags)?)
}

fn flags(path: &Path) -> IFlags {
    ioctl_getflags(File::open(path).unwrap()).unwrap()
}

#[test]
fn an_immutable_file_stays_what_it_is() {
    skip_if!(no_fuse());
    skip_if!(not_root());
    let mut ground = Ground::new();
    let path = ground.path("file");
    fs::write(&path, "contents").unwrap();
    fs::write(ground.path("other"), "other").unwrap();
    setxattr(&path, "user.x", b"value", XattrFlags::empty()).unwrap();
    let open = OpenOptions::new().write(true).open(&path).unwrap();
    set(&path, IFlags::IMMUTABLE).unwrap();
    assert_eq!(flags(&path), IFlags::IMMUTABLE);
    let append = OpenOptions::new().append(true).open(&path).and_then(|mut file| file.write_all(b"x"));
    assert_eq!(errno(append), NOT_PERMITTED);
    let write = OpenOptions::new().write(true).open(&path).and_then(|file| file.write_all_at(b"x", 100));
    assert_eq!(errno(write), NOT_PERMITTED);
    let truncate = OpenOptions::new().write(true).open(&path).and_then(|file| file.set_len(1));
    assert_eq!(errno(truncate), NOT_PERMITTED);
    assert_eq!(errno(fs::set_permissions(&path, fs::Permissions::from_mode(0o600))), NOT_PERMITTED);
    assert_eq!(errno(std::os::unix::fs::chown(&path, Some(5), None)), NOT_PERMITTED);
    let now = OpenOptions::new().write(true).open(&path);
    assert_eq!(errno(now.and_then(|file| file.set_modified(std::time::UNIX_EPOCH))), NOT_PERMITTED);
    assert_eq!(errno(fs::hard_link(&path, ground.path("link"))), NOT_PERMITTED);
    assert_eq!(errno(fs::remove_file(&path)), NOT_PERMITTED);
    assert_eq!(errno(fs::rename(&path, ground.path("moved"))), NOT_PERMITTED);
    assert_eq!(errno(fs::rename(ground.path("other"), &path)), NOT_PERMITTED);
    assert_eq!(setxattr(&path, "user.y", b"", XattrFlags::empty()), Err(rustix::io::Errno::PERM));
    assert_eq!(removexattr(&path, "user.x"), Err(rustix::io::Errno::PERM));
    assert_eq!(fs::read(&path).unwrap(), b"contents");
    assert_eq!(errno(open.write_all_at(b"x", 0)), NOT_PERMITTED, "who opened it before may not either");
    drop(open);
    ground.remount();
    assert_eq!((flags(&path), errno(fs::remove_file(&path))), (IFlags::IMMUTABLE, NOT_PERMITTED));
    set(&path, IFlags::empty()).unwrap();
    fs::write(&path, "changed").unwrap();
    fs::remove_file(&path).unwrap();
    ground.end();
}

#[test]
fn an_append_only_file_only_grows() {
    skip_if!(no_fuse());
    skip_if!(not_root());
    let mut ground = Ground::new();
    let path = ground.path("log");
    fs::write(&path, "one").unwrap();
    set(&path, IFlags::APPEND).unwrap();
    for more in [" two", " three"] {
        OpenOptions::new().append(true).open(&path).unwrap().write_all(more.as_bytes()).unwrap();
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        assert_eq!(errno(file.write_all_at(b"x", 0)), NOT_PERMITTED);
        assert_eq!(errno(file.set_len(0)), NOT_PERMITTED);
        assert_eq!(errno(fs::write(&path, "")), NOT_PERMITTED);
        assert_eq!(errno(fs::remove_file(&path)), NOT_PERMITTED);
        assert_eq!(errno(fs::set_permissions(&path, fs::Permissions::from_mode(0o600))), NOT_PERMITTED);
        file.set_times(fs::FileTimes::new().set_modified(std::time::UNIX_EPOCH)).unwrap_err();
        drop(file);
        ground.remount();
    }
    assert_eq!(fs::read(&path).unwrap(), b"one two three");
    set(&path, IFlags::empty()).unwrap();
    fs::remove_file(&path).unwrap();
    ground.end();
}

#[test]
fn directories_have_them_too() {
    skip_if!(no_fuse());
    skip_if!(not_root());
    let ground = Ground::new();
    let dir = ground.path("dir");
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("file"), "x").unwrap();
    fs::write(ground.path("outside"), "x").unwrap();
    set(&dir, IFlags::IMMUTABLE).unwrap();
    assert_eq!(errno(fs::write(dir.join("new"), "x")), NOT_PERMITTED);
    assert_eq!(errno(fs::create_dir(dir.join("new"))), NOT_PERMITTED);
    assert_eq!(errno(fs::rename(ground.path("outside"), dir.join("new"))), NOT_PERMITTED);
    assert_eq!(errno(fs::remove_file(dir.join("file"))), NOT_PERMITTED);
    assert_eq!(errno(fs::remove_dir(&dir)), NOT_PERMITTED);
    // Its files are not affected.
    fs::write(dir.join("file"), "changed").unwrap();
    set(&dir, IFlags::APPEND).unwrap();
    fs::write(dir.join("new"), "x").unwrap();
    fs::rename(ground.path("outside"), dir.join("moved here")).unwrap();
    assert_eq!(errno(fs::remove_file(dir.join("new"))), NOT_PERMITTED);
    assert_eq!(errno(fs::rename(dir.join("new"), ground.path("away"))), NOT_PERMITTED);
    assert_eq!(errno(fs::rename(dir.join("new"), dir.join("file"))), NOT_PERMITTED);
    set(&dir, IFlags::empty()).unwrap();
    fs::remove_dir_all(&dir).unwrap();
    ground.end();
}

#[test]
fn the_harmless_ones_stay_and_are_handed_down() {
    skip_if!(no_fuse());
    let mut ground = Ground::new();
    let both = IFlags::NODUMP | IFlags::NOATIME;
    fs::create_dir(ground.path("dir")).unwrap();
    set(&ground.path("dir"), both).unwrap();
    fs::write(ground.path("dir/file"), "x").unwrap();
    fs::create_dir(ground.path("dir/below")).unwrap();
    assert_eq!(errno(set(&ground.path("dir"), IFlags::NOCOW)), Some(95));
    let then = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1000);
    let times = fs::FileTimes::new().set_accessed(then);
    File::options().write(true).open(ground.path("dir/file")).unwrap().set_times(times).unwrap();
    for _ in 0..2 {
        for name in ["dir", "dir/file", "dir/below"] {
            assert_eq!(flags(&ground.path(name)), both, "{name}");
        }
        assert_eq!(fs::read(ground.path("dir/file")).unwrap(), b"x");
        assert_eq!(fs::metadata(ground.path("dir/file")).unwrap().atime(), 1000);
        ground.remount();
    }
    let listed = crate::support::tool("lsattr", &["-d".as_ref(), ground.path("dir").as_os_str()]);
    if let Some(listed) = listed {
        assert!(
            listed.split(' ').next().is_some_and(|flags| flags.contains('d') && flags.contains('A')),
            "{listed}"
        );
    }
    ground.end();
}

/// Text with similar blocks.
fn text(len: usize) -> Vec<u8> {
    let lines = (0..).map(|line| format!("line {line} says what the line before it said\n"));
    lines.flat_map(String::into_bytes).take(len).collect()
}

#[test]
fn a_compressed_tree_takes_less_room_and_reads_the_same() {
    const COMPRESSED: IFlags = IFlags::COMPRESSED;
    skip_if!(no_fuse());
    skip_if!(not_root());
    let mut ground = Ground::new();
    let (plain, tree) = (ground.path("plain"), ground.path("tree"));
    let contents = text(3_000_000);
    fs::write(&plain, &contents).unwrap();
    fs::create_dir(&tree).unwrap();
    assert_eq!(flags(&tree), IFlags::empty());
    set(&tree, COMPRESSED).unwrap();
    let (below, file) = (tree.join("below"), tree.join("below/file"));
    fs::create_dir(&below).unwrap();
    fs::write(&file, &contents).unwrap();
    assert_eq!([flags(&tree), flags(&below), flags(&file)], [COMPRESSED; 3], "handed down");
    // Setting another flag leaves it alone.
    set(&file, COMPRESSED | IFlags::NODUMP).unwrap();
    assert_eq!(flags(&file), COMPRESSED | IFlags::NODUMP);
    ground.remount();
    let blocks = |path: &Path| fs::metadata(path).unwrap().blocks();
    assert_eq!(blocks(&plain), contents.len().div_ceil(4096) as u64 * 8);
    assert!(blocks(&file) < blocks(&plain) / 3, "{} of {}", blocks(&file), blocks(&plain));
    assert_eq!(flags(&file), COMPRESSED | IFlags::NODUMP);
    assert!(fs::read(&file).unwrap() == contents);
    // In the middle of a unit, across two units, and a truncation.
    let mut expected = contents;
    let open = OpenOptions::new().write(true).open(&file).unwrap();
    for at in [100_000, 131_000, 1_000_000] {
        open.write_all_at(&[7; 3000], at).unwrap();
        expected[at as usize..at as usize + 3000].fill(7);
        open.sync_all().unwrap();
    }
    open.set_len(2_000_001).unwrap();
    expected.truncate(2_000_001);
    fs::copy(&file, ground.path("copy")).unwrap();
    set(&file, IFlags::empty()).unwrap();
    open.write_all_at(&expected[500_000..700_000], 500_000).unwrap();
    drop(open);
    ground.remount();
    assert!(fs::read(&file).unwrap() == expected && fs::read(ground.path("copy")).unwrap() == expected);
    assert_eq!((flags(&file), flags(&ground.path("copy"))), (IFlags::empty(), IFlags::empty()));
    ground.end();
}

#[test]
fn compress_sets_the_attribute_and_writes_anew_what_is_there() {
    skip_if!(no_fuse());
    let mut ground = Ground::new();
    let (dir, file) = (ground.path("dir"), ground.path("dir/file"));
    let contents = text(1_000_000);
    fs::create_dir(&dir).unwrap();
    fs::write(&file, &contents).unwrap();
    fs::write(ground.path("dir/small"), "in its inode item").unwrap();
    let call = |arguments: &[&str]| {
        let mut program = program();
        program.arg("compress").args(arguments).arg(&dir);
        run(program)
    };
    let modified = fs::metadata(&file).unwrap().modified().unwrap();
    let answer = call(&["-r", "--now", "--json", "--algorithm", "lz4"]).ok().out;
    let report: serde_json::Value = serde_json::from_str(&answer).unwrap();
    assert_eq!((&report["files"], &report["directories"]), (&2.into(), &1.into()));
    assert!(report["after_bytes"].as_u64().unwrap() < report["before_bytes"].as_u64().unwrap() / 2);
    assert!(fs::metadata(&file).unwrap().blocks() < 1000);
    assert_eq!(fs::metadata(&file).unwrap().modified().unwrap(), modified);
    let shown = call(&["-r", "--show"]).ok().out;
    assert_eq!(shown.lines().filter(|line| line.starts_with("lz4 ")).count(), 3, "{shown}");
    ground.remount();
    assert!(fs::read(&file).unwrap() == contents);
    call(&["-r", "--now", "--algorithm", "none"]).ok();
    assert!(call(&["-r", "--show"]).ok().out.lines().all(|line| line.starts_with("none ")));
    assert_eq!(fs::metadata(&file).unwrap().blocks(), 245 * 8);
    assert!(fs::read(&file).unwrap() == contents);
    let mut program = program();
    program.arg("compress").arg(ground.path("missing"));
    run(program).fails(6, &["missing"]);
    ground.end();
}

#[test]
fn compress_says_what_stays_as_it_is_because_it_is_shared() {
    skip_if!(no_fuse());
    let ground = Ground::new();
    let (dir, copy) = (ground.path("dir"), ground.path("dir/copy"));
    fs::create_dir(&dir).unwrap();
    fs::write(ground.path("dir/file"), text(1 << 20)).unwrap();
    let call = |arguments: &[&str]| {
        let mut program = program();
        program.args(arguments);
        run(program).ok().out
    };
    let (dir, copy) = (dir.to_str().unwrap(), copy.to_str().unwrap());
    call(&["clone", &format!("{dir}/file"), copy]);
    let said = call(&["compress", "-r", "--now", dir]);
    assert!(said.contains("2.00 MiB are shared between files, and stay as they are"), "{said}");
    fs::remove_file(copy).unwrap();
    fs::write(ground.path("dir/own"), text(1 << 20)).unwrap();
    let said = call(&["compress", "-r", "--now", dir]);
    assert!(!said.contains("shared"), "{said}");
    ground.end();
}
