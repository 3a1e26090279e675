//! Snapshots as tar archives, beside GNU tar: written, unpacked by it, and packed by it and
//! unpacked again; hostile and damaged ones.

use crate::support::{Answer, Mount, Place, no_fuse, not_root, syncline};
use crate::{Ground, skip_if};
use rustix::fs::{CWD, FileType, Mode, XattrFlags, getxattr, mknodat, setxattr};
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, lchown, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};
use walkdir::WalkDir;

fn call(words: &[&dyn AsRef<OsStr>]) -> Answer {
    syncline(words.iter().map(|word| word.as_ref()))
}

fn tar(words: &[&dyn AsRef<OsStr>]) {
    let status = Command::new("tar").args(words.iter().map(|word| word.as_ref())).status().unwrap();
    assert!(status.success());
}

/// What an archive keeps of a file: mode, names, owner, device, size, time, contents, an attribute.
type Seen = ([i64; 8], Vec<u8>, Option<Vec<u8>>);

fn seen(root: &Path) -> BTreeMap<PathBuf, Seen> {
    let see = |path: &Path| {
        let about = path.symlink_metadata().unwrap();
        let only_file = |number: u64| if about.is_dir() { 0 } else { number as i64 };
        let numbers = [
            about.mode().into(),
            only_file(about.nlink()),
            about.uid().into(),
            about.gid().into(),
            about.rdev() as i64,
            only_file(about.len()),
            about.mtime(),
            about.mtime_nsec(),
        ];
        let contents = match about.file_type() {
            kind if kind.is_file() => fs::read(path).unwrap(),
            kind if kind.is_symlink() => fs::read_link(path).unwrap().into_os_string().into_encoded_bytes(),
            _ => Vec::new(),
        };
        let mut value = [0; 64];
        let attribute = match about.is_symlink() {
            true => None,
            false => getxattr(path, "user.note", &mut value).ok().map(|len| value[..len].to_vec()),
        };
        (numbers, contents, attribute)
    };
    let entries = WalkDir::new(root).into_iter().map(|entry| entry.unwrap());
    let entries = entries.filter(|entry| entry.depth() == 0 || entry.file_name() != "socket");
    entries.map(|entry| (entry.path().strip_prefix(root).unwrap().to_owned(), see(entry.path()))).collect()
}

/// A tree with everything that an archive can hold, and a socket.
fn fill(root: &Path) {
    let path = |name: &str| root.join(name);
    fs::create_dir(path("dir")).unwrap();
    fs::write(path("dir/small"), "small").unwrap();
    setxattr(path("dir/small"), "user.note", b"\0a\nb=c", XattrFlags::empty()).unwrap();
    setxattr(path("dir"), "user.note", b"of a directory", XattrFlags::empty()).unwrap();
    fs::hard_link(path("dir/small"), path("linked")).unwrap();
    symlink("dir/small", path("symlink")).unwrap();
    symlink("x".repeat(300), path("long-target")).unwrap();
    symlink("first", path("symlink-with-two-names")).unwrap();
    fs::hard_link(path("symlink-with-two-names"), path("its-second-name")).unwrap();
    fs::create_dir_all(path(&format!("{0}/{0}", "d".repeat(90)))).unwrap();
    fs::write(path(&format!("{0}/{0}/{1}", "d".repeat(90), "n".repeat(250))), "deep").unwrap();
    fs::write(root.join(OsString::from_vec(b"not \xff text\n".to_vec())), "bytes").unwrap();
    fs::write(path("été"), "summer").unwrap();
    let text: Vec<u8> = (0..3_000_001u32).map(|index| (index / 1000 + 1) as u8 | 1).collect();
    fs::write(path("large"), &text).unwrap();
    lchown(path("large"), Some(3_000_000), Some(4_000_000_000)).unwrap();
    fs::set_permissions(path("large"), fs::Permissions::from_mode(0o4711)).unwrap();
    let holes = fs::File::create(path("holes")).unwrap();
    holes.write_all_at(b"in the middle", 5_000_000).unwrap();
    holes.set_len(20_000_000).unwrap();
    fs::write(path("empty"), "").unwrap();
    mknodat(CWD, path("fifo"), FileType::Fifo, Mode::from_raw_mode(0o620), 0).unwrap();
    let device = rustix::fs::makedev(259, 70_000);
    mknodat(CWD, path("device"), FileType::BlockDevice, Mode::from_raw_mode(0o600), device).unwrap();
    drop(UnixListener::bind(path("socket")).unwrap());
    let old = SystemTime::UNIX_EPOCH - Duration::from_millis(1500);
    fs::File::open(path("empty")).unwrap().set_modified(old).unwrap();
    let closed = path("closed");
    fs::create_dir(&closed).unwrap();
    fs::write(closed.join("inside"), "inside").unwrap();
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o500)).unwrap();
}

#[test]
fn an_archive_is_unpacked_by_tar_and_by_syncline() {
    skip_if!(no_fuse().or(not_root().map(str::to_owned)));
    let ground = Ground::new();
    fill(&ground.path(""));
    let (archive, host, image) = (
        ground.place.path().join("a.tar"),
        ground.place.directory("host"),
        ground.place.path().join("b.img"),
    );
    call(&[&"snapshot", &"create", &ground.path(""), &"s"]).ok();
    let said = call(&[&"archive", &"tar", &ground.path(""), &"s", &"-o", &archive]).ok();
    assert!(said.err.contains("1 socket is left out"), "{}", said.err);
    call(&[&"archive", &"tar", &ground.path(""), &"s", &"-o", &archive]).fails(2, &["is there already"]);
    let sent = seen(&ground.path(""));
    // A file that was written whole has a name that is durable: its folder is synced too.
    let synced = || {
        let stats = call(&[&"stats", &ground.path(""), &"--json"]).ok().out;
        let stats: serde_json::Value = serde_json::from_str(&stats).unwrap();
        stats["requests"]["FSyncDir"].as_u64().unwrap_or_default()
    };
    let before = synced();
    call(&[&"archive", &"tar", &ground.path(""), &"s", &"-o", &ground.path("archive")]).ok();
    assert_eq!(synced(), before + 1);
    fs::remove_file(ground.path("archive")).unwrap();
    tar(&[&"-x", &"-p", &"--xattrs", &"--same-owner", &"-C", &host, &"-f", &archive]);
    assert!(sent.len() >= 20, "{}", sent.len());
    assert_eq!(seen(&host), sent);

    call(&[&"mkfs", &image, &"--size", &"64MiB"]).ok();
    assert!(call(&[&"archive", &"untar", &image, &"-i", &archive]).ok().out.starts_with("unpacked "));
    call(&[&"check", &image]).ok();
    let mount = Mount::new(&image, &ground.place.directory("b"), &[]);
    assert_eq!(seen(&mount.path), sent);
    assert!(mount.path.join("holes").metadata().unwrap().blocks() < 100, "holes are holes again");
    mount.unmount().ok();
    ground.end();
}

#[test]
fn what_tar_packs_is_unpacked() {
    skip_if!(no_fuse().or(not_root().map(str::to_owned)));
    let place = Place::with_image("128MiB");
    let host = place.directory("host");
    fill(&host);
    // Of the older formats, what they can hold.
    for (format, left_out) in [("pax", ""), ("gnu", "user.note"), ("ustar", "all")] {
        let archive = place.path().join(format);
        let format_word = format!("--format={format}");
        let mut words: Vec<&dyn AsRef<OsStr>> = vec![&"-c", &format_word, &"--exclude=socket"];
        match format {
            "pax" => words.push(&"--xattrs"),
            "gnu" => {}
            _ => words.extend([&"--exclude=d*d" as &dyn AsRef<OsStr>, &"--exclude=l*", &"--exclude=empty"]),
        }
        words.extend([&"-C" as &dyn AsRef<OsStr>, &host, &"-f", &archive, &"."]);
        tar(&words);
        let to = format!("/{format}/below");
        call(&[&"archive", &"untar", &place.image(), &"-i", &archive, &"--to", &to]).ok();
        let mount = place.mount(&format!("mount-{format}"));
        let mut sent = seen(&host);
        let unpacked = seen(&mount.path.join(&to[1..]));
        if left_out == "all" {
            sent.retain(|path, _| unpacked.contains_key(path));
            assert!(sent.len() > 8);
        }
        for ((path, sent), (_, unpacked)) in sent.iter().zip(&unpacked) {
            assert_eq!(
                (sent.0[0], sent.0[2..6].to_vec(), &sent.1),
                (unpacked.0[0], unpacked.0[2..6].to_vec(), &unpacked.1),
                "{path:?}"
            );
            assert_eq!(sent.0[6], unpacked.0[6], "{path:?}");
            assert!(!left_out.is_empty() || sent == unpacked, "{path:?}");
        }
        assert_eq!(sent.len(), unpacked.len());
        mount.unmount().ok();
    }
    let sparse = place.path().join("sparse");
    for format in ["--format=pax", "--format=gnu"] {
        tar(&[&"-c", &format, &"--sparse", &"-C", &host, &"-f", &sparse, &"holes"]);
        let untar = call(&[&"archive", &"untar", &place.image(), &"-i", &sparse, &"--to", &"/sparse"]);
        untar.fails(1, &["not supported", "without --sparse"]);
    }
    place.check_clean();
}

/// An archive of these entries: type, name, target of a link, contents.
fn archive_of(place: &Place, entries: &[(u8, &str, &str, &str)]) -> PathBuf {
    let path = place.path().join("hostile.tar");
    let mut builder = tar::Builder::new(fs::File::create(&path).unwrap());
    for &(kind, name, target, contents) in entries {
        let mut header = tar::Header::new_gnu();
        header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
        header.as_old_mut().linkname[..target.len()].copy_from_slice(target.as_bytes());
        header.set_entry_type(tar::EntryType::new(kind));
        header.set_size(contents.len() as u64);
        header.set_mode(0o644);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        header.set_cksum();
        builder.append(&header, contents.as_bytes()).unwrap();
    }
    builder.finish().unwrap();
    path
}

#[test]
fn nothing_of_an_archive_leads_out_or_replaces_what_is_there() {
    let place = Place::with_image("64MiB");
    let untar = |entries: &[(u8, &str, &str, &str)], to: &str| {
        call(&[&"archive", &"untar", &place.image(), &"-i", &archive_of(&place, entries), &"--to", &to])
    };
    let first = (b'0', "safe", "", "safe");
    untar(&[first, (b'0', "../out", "", "x")], "/one").fails(4, &["../out", "leads out", "do not trust"]);
    untar(&[(b'1', "link", "../../out", "")], "/two").fails(4, &["leads out"]);
    untar(&[(b'0', "a/../../out", "", "x")], "/three").fails(4, &["leads out"]);
    // Whoever follows links below the directory that is unpacked into writes elsewhere.
    let through = [(b'2', "link", "/one", ""), (b'0', "link/out", "", "x")];
    untar(&through, "/four").fails(1, &["link/out", "not a directory"]);
    untar(&[first, first], "/five").fails(1, &["safe", "exists"]);
    untar(&[(b'0', "/absolute", "", "x"), (b'5', "./dir/", "", ""), (b'5', "dir", "", "")], "/six").ok();
    untar(&[(b'M', "of another volume", "", "")], "/seven").fails(1, &["type 'M'", "not supported"]);
    untar(&[(b'0', "x", "", "")], "..").fails(4, &["leads out"]);
    let listed = |path: &str| {
        let inside = format!("{}:{path}", place.image().display());
        call(&[&"ls", &inside]).ok().out.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(listed("/one"), ["safe"], "what came before stays");
    assert_eq!(listed("/six"), ["absolute", "dir"]);
    assert_eq!(listed("/"), ["five", "four", "one", "seven", "six", "three", "two"]);
    place.check_clean();
}

#[test]
fn a_damaged_archive_is_refused_with_a_next_step() {
    let place = Place::with_image("64MiB");
    let whole =
        fs::read(archive_of(&place, &[(b'0', "a", "", &"x".repeat(3000)), (b'0', "b", "", "b")])).unwrap();
    let damaged = place.path().join("damaged.tar");
    let untar = |bytes: &[u8], to: &str| {
        fs::write(&damaged, bytes).unwrap();
        call(&[&"archive", &"untar", &place.image(), &"-i", &damaged, &"--to", &to])
    };
    untar(&whole[..2000], "/short").fails(4, &["the archive", "fetch or make it again"]);
    let mut changed = whole.clone();
    changed[100] ^= 1;
    untar(&changed, "/changed").fails(4, &["the archive", "checksum"]);
    untar(&whole[..700], "/shorter").fails(4, &["the archive"]);
    untar(b"no archive at all, but long enough to be taken for one", "/text").fails(4, &["the archive"]);
    untar(b"", "/empty").fails(4, &["ends early"]);
    call(&[&"archive", &"untar", &place.image(), &"-i", &place.path().join("none")])
        .fails(1, &["No such file"]);
    place.check_clean();
}
