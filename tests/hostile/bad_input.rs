//! Every command on things it can't use: a table of commands, exit codes, and words that the single
//! line of output must contain, among them the next step. A refused command leaves everything
//! unchanged.
//!
//! The place where the commands run has: `image`, unmounted; `used`, mounted at `mount`; `short`,
//! truncated; `text` and `junk`, which are not images; `ext4`, an image of another filesystem;
//! `empty` and `full`, directories. Nothing is called `missing`.

use super::disk::Disk;
use crate::skip_if;
use crate::support::{Answer, Mount, Place, Tmpfs, as_nobody, no_fuse, not_root, run, syncline};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// `exit code | command | words that must be in the output, in any order`
const REFUSED: &str = "
    5  | info missing                              | missing; No such file; check the path
    8  | check missing                             | missing; No such file; check the path
    5  | inspect missing                           | missing; No such file; check the path
    5  | resize missing 1GiB                       | missing; No such file; check the path
    5  | trim missing                              | missing; No such file; check the path
    5  | label missing                             | missing; No such file; check the path
    5  | uuid missing                              | missing; No such file; check the path
    5  | path missing 1                            | missing; No such file; check the path
    5  | quota list missing                        | missing; No such file; check the path
    5  | snapshot list missing                     | missing; No such file; check the path
    5  | snapshot create missing name              | missing; No such file; check the path
    5  | snapshot prune missing --prefix a --keep last=1 | missing; No such file; check the path
    5  | send missing name                         | missing; No such file; check the path
    5  | receive missing                           | missing; No such file; check the path
    1  | receive image -i missing                  | missing; No such file
    5  | snapshot rollback missing name            | missing; No such file; check the path
    5  | mount missing empty                       | missing; No such file; --create
    6  | umount missing                            | missing; No such file; mount point
    6  | scrub missing                             | missing; No such file; check the path
    6  | sync missing                              | missing; No such file; check the path
    6  | barrier missing                           | missing; No such file; check the path
    6  | du missing                                | missing; No such file; check the path
    6  | clone missing new                         | missing; No such file; check the path
    6  | defragment missing                        | missing; No such file; check the path
    6  | durability show missing                   | missing; No such file; check the path
    6  | compress missing                          | missing; No such file; check the path
    6  | quota set missing --bytes 1MiB            | missing; No such file; check the path
    6  | quota show missing                        | missing; No such file; check the path
    6  | quota remove missing                      | missing; No such file; check the path
    6  | stats missing                             | missing; No such file; check the path
    6  | top missing --once                        | missing; No such file; check the path
    6  | sync --all missing                        | missing; No such file; check the path
    6  | metrics empty missing                     | missing; No such file; check the path
    6  | explain missing                           | missing; No such file; check the path
    5  | mkfs missing                              | missing does not exist; no size was given; --size
    1  | mkfs missing/image --size 16MiB           | missing/image; No such file; create the folder
    5  | info text/image                           | text/image; Not a directory; check the path

    6  | info empty                                | empty is not on a mounted Syncline filesystem; syncline status
    8  | check empty                               | empty; neither a regular file nor a block device; name an image
    8  | check --repair empty                      | empty; neither a regular file nor a block device; name an image
    5  | mkfs empty                                | empty; neither a regular file nor a block device; name an image
    5  | inspect empty                             | empty; neither a regular file nor a block device; name an image
    5  | mount empty full                          | neither a regular file nor a block device; name an image
    6  | resize empty 1GiB                         | empty is not on a mounted Syncline filesystem; syncline status
    6  | trim empty                                | empty is not on a mounted Syncline filesystem; syncline status
    6  | label empty                               | empty is not on a mounted Syncline filesystem; syncline status
    6  | snapshot create empty name                | empty is not on a mounted Syncline filesystem; syncline status
    5  | snapshot rollback empty name              | empty; neither a regular file nor a block device; name an image
    6  | du empty                                  | empty is not on a mounted Syncline filesystem; syncline status
    6  | quota set empty --bytes 1MiB              | empty is not on a mounted Syncline filesystem; syncline status
    6  | scrub empty                               | empty is not on a mounted Syncline filesystem; syncline status
    6  | sync --all empty                          | empty is not on a mounted Syncline filesystem; syncline status
    6  | scrub image                               | image is not on a mounted Syncline filesystem; syncline check
    6  | clone text new                            | text is not on a mounted Syncline filesystem; syncline status
    6  | clone full new                            | full is not on a mounted Syncline filesystem; syncline status
    2  | defragment full                           | full is a directory; add -r
    6  | umount empty                              | no Syncline filesystem is mounted; syncline status

    5  | info short                                | short; truncated; full length
    8  | check short                               | short; truncated; full length
    8  | check --repair short                      | short; truncated; full length
    5  | resize short 1GiB                         | short; truncated; full length
    5  | snapshot list short                       | short; truncated; full length
    5  | label short                               | short; truncated; full length
    5  | mount short empty                         | short; truncated; full length; truncate -s
    5  | info text                                 | text; smaller than the smallest filesystem; no Syncline image
    5  | mount text empty                          | text; smaller than the smallest filesystem; no Syncline image
    5  | info junk                                 | junk; not a Syncline image; mkfs
    8  | check junk                                | junk; not a Syncline image; restore it from a backup
    8  | check --repair junk                       | junk; not a Syncline image; restore it from a backup
    5  | mount junk empty                          | junk; not a Syncline image; mkfs
    5  | info ext4                                 | ext4; not a Syncline image: it holds an ext2, ext3 or ext4; name another image
    5  | mount ext4 empty                          | ext4; not a Syncline image: it holds an ext2, ext3 or ext4; name another image
    5  | resize ext4 1GiB                          | ext4; not a Syncline image: it holds an ext2, ext3 or ext4; name another image
    5  | trim junk                                 | junk; not a Syncline image; mkfs
    5  | mount stream empty                        | stream; it holds a stream of 'syncline send'; receive IMAGE -i FILE
    5  | receive stream                            | stream; it holds a stream of 'syncline send'; receive IMAGE -i FILE

    1  | mkfs junk                                 | junk holds data of an unknown kind; --force
    1  | mkfs text --size 16MiB                    | text holds data of an unknown kind; --force
    1  | mkfs image                                | image holds a Syncline filesystem; --force
    1  | mkfs stream --size 16MiB                  | stream holds a stream of 'syncline send'; --force
    2  | mkfs missing --size 8EiB                  | at most 256 TiB; smaller --size
    2  | resize image 8EiB                         | cannot make image longer; smaller size
    2  | mkfs zero                                 | cannot make an image of zero; --size
    10 | resize image 15MiB                        | image; too few; the smallest size that will do is 16.00 MiB; name that size
    1  | snapshot delete image none                | there is no snapshot; snapshot list
    1  | send image none                           | there is no snapshot; snapshot list
    11 | receive image -i text                     | no stream; syncline send
    11 | receive image -i zero                     | no byte of a stream; sender
    11 | receive image --resume -i zero            | no byte of a stream; sender
    1  | receive image --token                     | no part of a stream is saved; without --resume
    1  | receive image --abandon                   | no part of a stream is saved; nothing to abandon
    1  | snapshot rollback image none              | image; there is no snapshot; snapshot list
    1  | snapshot mount image none empty           | there is no snapshot; snapshot list
    1  | path image 999                            | there is no inode 999
    5  | cp missing:file new                       | missing; No such file; check the path
    1  | cp image:none new                         | image:/none; no such file
    1  | cp image: new                             | image:/; directory; add -r
    2  | cp image new                              | image: no path in an image; IMAGE:PATH
    2  | cp text image:                            | nothing is copied into an image; mount it
    6  | cp -r image:a image:b text                | text is not a directory; name a directory
    1  | cp -a image: text                         | text is no directory; another place
    6  | mount image missing                       | missing; does not exist; mkdir
    6  | mount image full                          | full; not empty
    6  | mount image text                          | text; not a directory
    2  | mount image empty -o atomic_writes        | atomic_writes; no such option any more; leave it out
    2  | mount image empty -o nonsense             | nonsense; unknown option; --help
    2  | mount image empty -o commit=0             | commit=0; seconds, 1 at least
    2  | mount image empty -o noatim               | noatim; unknown option; did you mean noatime?
    2  | inspect image                             | no command came on standard input; -c
";

/// Commands while `used` is mounted at `mount`.
const REFUSED_MOUNTED: &str = "
    3  | info used                                 | used is in use; unmount; or name; /mount
    8  | check used                                | used is in use; unmount
    8  | check --repair used                       | used is in use; unmount
    3  | mkfs used                                 | used is in use; mounted at; unmount
    3  | mkfs used --force                         | used is in use; unmount
    3  | mount used empty                          | used is in use; unmount
    3  | mount image mount                         | mount; already mounted; umount
    3  | label used new                            | used is in use; unmount
    3  | uuid used random                          | used is in use; unmount
    3  | resize used 128MiB                        | used is in use; unmount
    3  | trim used                                 | used is in use; unmount
    3  | snapshot create used name                 | used is in use; unmount
    3  | receive used -i text                      | used is in use; unmount
    11 | receive mount -i text                     | no stream; syncline send
    1  | receive mount --token                     | no part of a stream is saved; without --resume
    1  | send mount none                           | there is no snapshot; snapshot list
    3  | cp -a used: new                           | used is in use; IMAGE@SNAPSHOT:PATH
    1  | cp used@kept:none new                     | used@kept:/none; no such file
    8  | check mount                               | mount is a mounted filesystem; /used); syncline scrub
    8  | check --repair mount                      | mount is a mounted filesystem; /used); syncline scrub
    3  | inspect mount                             | mount is a mounted filesystem; /used); syncline umount
    3  | resize mount 16MiB                        | mount; can't be made smaller; unmount
    2  | resize mount 512TiB                       | mount; at most 256 TiB
    3  | uuid mount random                         | mount; UUID; unmount
    3  | snapshot rollback mount kept              | mount is a mounted filesystem; /used); syncline umount
    1  | snapshot create mount kept                | there is a snapshot; choose another name
    1  | snapshot create mount a/b                 | can't be the name of a snapshot
    1  | snapshot delete mount none                | there is no snapshot; snapshot list
    1  | path mount 999                            | there is no inode 999
    1  | quota show mount                          | no quota; quota list
    1  | quota remove mount                        | no quota; quota list
    6  | scrub mount/missing                       | mount/missing; No such file; check the path
    6  | du mount/missing                          | mount/missing; No such file; check the path
    6  | compress mount/missing                    | mount/missing; No such file; check the path
    6  | clone mount/missing mount/new             | mount/missing; No such file; check the path
    2  | clone mount/file text                     | text exists already; another name
    2  | clone mount/file new                      | another filesystem; cp -a
    2  | clone mount mount/new                     | lies inside; outside
    2  | sync mount/file text                      | one mount
    2  | defragment mount                          | is a directory; add -r
    2  | top mount                                 | needs a terminal; --once
    3  | umount mount                              | in use; fuser
    6  | umount used                               | used; the image is mounted at; /mount'
";

/// Commands under the names that mkfs(8), fsck(8) and mount(8) call, with the exit codes that they
/// expect.
const REFUSED_HELPERS: &str = "
    32 | mount.syncline missing empty              | No such file; --create
    32 | mount.fuse.syncline junk empty            | not a Syncline image; mkfs
    32 | mount.syncline used empty                 | in use; unmount
    32 | mount.syncline image full                 | not empty
    1  | mount.syncline image empty -o nonsense    | nonsense; unknown option
    1  | mount.syncline image                      | mount.syncline IMAGE DIRECTORY
    8  | fsck.syncline missing                     | No such file; check the path
    8  | fsck.syncline junk                        | not a Syncline image; restore it from a backup
    8  | fsck.syncline -y -f used                  | in use; unmount
    8  | fsck.fuse.syncline -n used                | in use; unmount
    1  | mkfs.syncline junk                        | junk holds data of an unknown kind; --force
    1  | mkfs.syncline used                        | used is in use; unmount
    1  | mkfs.syncline -L data image               | image holds a Syncline filesystem; --force
";

/// Commands run by the user nobody, on files that belong to root.
const REFUSED_TO_NOBODY: &str = "
    9  | info image                                | image; Permission denied; root
    8  | check image                               | image; Permission denied; root
    9  | mount image empty                         | image; Permission denied; root
    9  | mount closed/image empty                  | closed/image; Permission denied; root
    9  | resize image 128MiB                       | image; Permission denied; root
    9  | label image new                           | image; Permission denied; root
    9  | snapshot create image name                | image; Permission denied; root
    9  | mkfs new --size 16MiB                     | new; Permission denied
    9  | mkfs image --force                        | image; Permission denied; root
    9  | stats mount                               | mount; Permission denied; root
    9  | quota set mount --bytes 1MiB              | mount; Permission denied; root
    9  | snapshot create mount name                | mount; Permission denied; root
";

/// Commands in a place with room for 24 MiB and an image of 16 MiB.
const REFUSED_WHEN_FULL: &str = "
    10 | mkfs new --size 64MiB                     | new; No space left; smaller --size
    10 | mkfs zero --size 64MiB                    | zero; No space left; smaller --size
    10 | mount new ../empty --create 64MiB         | new; No space left; smaller --size
    10 | resize image 64MiB                        | image; No space left; smaller size; nothing has changed
";

/// The lines of a table.
fn cases(table: &str) -> impl Iterator<Item = (i32, Vec<&str>, Vec<&str>)> {
    table.lines().filter(|line| !line.trim().is_empty()).map(|line| {
        let mut parts = line.split('|').map(str::trim);
        let mut part = || parts.next().expect("three columns");
        let (code, command, words) = (part(), part(), part());
        let words = words.split(';').map(str::trim).collect();
        (code.parse().expect("an exit code"), command.split_whitespace().collect(), words)
    })
}

/// A command of a table, to run in this place; the first word may be another name of the program.
fn call(there: &Path, words: &[&str], program: &Path) -> Command {
    let mut command = if words[0].contains('.') {
        let mut helper = Command::new(there.join("names").join(words[0]));
        helper.args(&words[1..]);
        helper
    } else {
        let mut command = Command::new(program);
        command.args(words);
        command
    };
    command.current_dir(there);
    command
}

/// All files of a folder with their contents, and the names of its directories, without the
/// contents of mounts.
fn contents(folder: &Path) -> BTreeMap<PathBuf, Option<Vec<u8>>> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    // Images opened for writing change even if the command fails; they are checked at the end.
    let image = |path: &Path| path.ends_with("image") || path.ends_with("used");
    let read = |path: &Path| (path.is_file() && !image(path)).then(|| fs::read(path).unwrap());
    entries.map(|path| (path.clone(), read(&path))).collect()
}

/// Asserts that the image is the same filesystem, and clean.
fn is_as_it_was(image: &Path, uuid: &str) {
    syncline([OsStr::new("check"), image.as_ref()]).ok();
    assert_eq!(uuid_of(image), uuid);
}

fn uuid_of(image: &Path) -> String {
    syncline([OsStr::new("uuid"), image.as_ref()]).ok().out
}

/// Runs all commands of a table and asserts that nothing has changed.
fn all_are_refused(there: &Path, table: &str, run_it: impl Fn(&[&str]) -> Answer) {
    let before = contents(there);
    for (code, words, says) in cases(table) {
        eprintln!("{}", words.join(" "));
        run_it(&words).fails(code, &says);
        let after = contents(there);
        assert!(before.keys().eq(after.keys()), "{words:?} left something behind: {:?}", after.keys());
        assert!(before == after, "{words:?} changed a file");
    }
}

fn program() -> PathBuf {
    env!("CARGO_BIN_EXE_syncline").into()
}

/// The place that the tables describe, with nothing mounted.
fn place() -> Place {
    let place = Place::with_image("32MiB");
    let path = |name: &str| place.path().join(name);
    fs::copy(place.image(), path("used")).unwrap();
    fs::write(path("short"), &fs::read(place.image()).unwrap()[..20 << 20]).unwrap();
    fs::write(path("text"), "hello\n").unwrap();
    fs::write(path("zero"), "").unwrap();
    fs::write(path("stream"), [&b"SYNCSEND"[..], &[0; 100]].concat()).unwrap();
    fs::write(path("junk"), [0xa5, 0x17, 0x3c].repeat(6 << 20)).unwrap();
    let mut ext4 = vec![0; 20 << 20];
    ext4[1080..1082].copy_from_slice(&[0x53, 0xef]);
    fs::write(path("ext4"), ext4).unwrap();
    place.directory("empty");
    fs::write(place.directory("full").join("file"), "here").unwrap();
    let names = place.directory("names");
    for name in
        ["mount.syncline", "mount.fuse.syncline", "fsck.syncline", "fsck.fuse.syncline", "mkfs.syncline"]
    {
        std::os::unix::fs::symlink(program(), names.join(name)).unwrap();
    }
    place
}

fn mount_used(place: &Place) -> Mount {
    let mount = Mount::new(&place.path().join("used"), &place.directory("mount"), &[]);
    fs::write(mount.path.join("file"), "kept").unwrap();
    mount
}

#[test]
fn what_can_not_be_used_is_refused_and_left_as_it_is() {
    let place = place();
    let uuid = uuid_of(&place.image());
    all_are_refused(place.path(), REFUSED, |words| run(call(place.path(), words, &program())));
    is_as_it_was(&place.image(), &uuid);
}

#[test]
fn what_is_mounted_is_refused_and_goes_on() {
    skip_if!(no_fuse());
    let place = place();
    let uuid = uuid_of(&place.image());
    let mount = mount_used(&place);
    let path = |name: &str| place.path().join(name).into_os_string();
    syncline(["snapshot".into(), "create".into(), path("mount"), "kept".into()]).ok();
    // A program is using it.
    let open = fs::File::open(mount.path.join("file")).unwrap();
    for table in [REFUSED_MOUNTED, REFUSED_HELPERS] {
        all_are_refused(place.path(), table, |words| run(call(place.path(), words, &program())));
    }
    assert_eq!(fs::read(mount.path.join("file")).unwrap(), b"kept");
    drop(open);
    mount.unmount().ok();
    for image in ["image", "used"] {
        // One image is a copy of the other.
        is_as_it_was(&place.path().join(image), &uuid);
    }
}

/// The source of its mount is /dev/fuse, which each of our daemons has open as well.
#[test]
fn a_refusal_does_not_name_the_mount_of_another_fuse_filesystem() {
    skip_if!(not_root());
    skip_if!(no_fuse());
    let (place, other) = (place(), Place::new());
    let mount = mount_used(&place);
    let _disk = Disk::new(&other, 1 << 20, Duration::ZERO);
    let answer = run(call(place.path(), &["info", "used"], &program()));
    answer.fails(3, &["used is in use", mount.path.to_str().unwrap()]);
    mount.unmount().ok();
}

#[test]
fn ordinary_users_are_told_who_may() {
    skip_if!(not_root());
    skip_if!(no_fuse());
    let place = place();
    // Other users may not be able to enter the build folder.
    let copy = place.copy_of_program("names/syncline");
    for (name, mode) in [("", 0o755), ("image", 0o600), ("names/syncline", 0o755)] {
        fs::set_permissions(place.path().join(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    fs::set_permissions(place.directory("closed"), fs::Permissions::from_mode(0o700)).unwrap();
    let mount = mount_used(&place);
    fs::set_permissions(&mount.path, fs::Permissions::from_mode(0o700)).unwrap();
    all_are_refused(place.path(), REFUSED_TO_NOBODY, |words| {
        run(as_nobody(call(place.path(), words, &copy)))
    });
    mount.unmount().ok();
    place.check_clean();
}

#[test]
fn a_full_place_keeps_what_it_had() {
    skip_if!(not_root());
    let place = place();
    let Some(tmpfs) = Tmpfs::new(place.directory("small"), "24m") else {
        return eprintln!("skipped: no tmpfs can be mounted here");
    };
    let image = tmpfs.path.join("image");
    syncline([OsStr::new("mkfs"), image.as_ref(), "--size".as_ref(), "16MiB".as_ref()]).ok();
    let uuid = uuid_of(&image);
    fs::write(tmpfs.path.join("zero"), "").unwrap();
    all_are_refused(&tmpfs.path, REFUSED_WHEN_FULL, |words| run(call(&tmpfs.path, words, &program())));
    is_as_it_was(&image, &uuid);
}
