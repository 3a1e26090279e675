//! Mount options, and the names under which mount(8) and fsck(8) call the program.

use super::{Ground, errno};
use crate::skip_if;
use crate::support::{ALONE, Mount, Place, no_fuse, not_root, run, syncline, tool};
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

/// The program under another name.
fn named(place: &Place, name: &str) -> Command {
    let path = place.path().join(name);
    if !path.exists() {
        symlink(env!("CARGO_BIN_EXE_syncline"), &path).unwrap();
    }
    Command::new(path)
}

fn bytes_of(path: &Path) -> u64 {
    let mut hasher = DefaultHasher::new();
    let mut contents = Vec::new();
    File::open(path).unwrap().read_to_end(&mut contents).unwrap();
    contents.hash(&mut hasher);
    hasher.finish()
}

#[test]
fn a_read_only_mount_writes_nothing() {
    skip_if!(no_fuse());
    for crashed in [false, true] {
        let place = Place::with_image("32MiB");
        let mut mount = place.mount("mount");
        fs::write(mount.path.join("file"), "contents").unwrap();
        File::open(mount.path.join("file")).unwrap().sync_all().unwrap();
        if crashed {
            // The log is only replayed into memory.
            mount.kill();
            drop(mount);
        } else {
            mount.unmount().ok();
        }
        let before = bytes_of(&place.image());
        // A crashed image is not an error, but is reported.
        let checked = syncline(["check".as_ref(), place.image().as_os_str()]).ok();
        assert_eq!(checked.out.contains("it was not unmounted"), crashed, "{checked:?}");
        let mount = Mount::new(&place.image(), &place.directory("read only"), &["-o", "ro"]);
        let path = mount.path.join("file");
        assert_eq!(fs::read(&path).unwrap(), b"contents");
        assert_eq!(errno(fs::write(&path, "other")), Some(30));
        assert_eq!(errno(fs::remove_file(&path)), Some(30));
        assert_eq!(errno(fs::write(mount.path.join("new"), "")), Some(30));
        assert_eq!(errno(fs::set_permissions(&path, fs::Permissions::from_mode(0o600))), Some(30));
        File::open(&path).unwrap().sync_all().unwrap();
        syncline(["snapshot".as_ref(), "create".as_ref(), mount.path.as_os_str(), "name".as_ref()])
            .fails(9, &["Read-only file system", "mount it for writing"]);
        mount.unmount().ok();
        assert!(bytes_of(&place.image()) == before, "crashed: {crashed}");
    }
}

#[test]
fn synchronous_mounts_survive_a_crash_without_an_fsync() {
    skip_if!(no_fuse());
    for (option, data) in [("sync", true), ("dirsync", false)] {
        let place = Place::with_image("32MiB");
        let mut mount = Mount::new(&place.image(), &place.directory("mount"), &["-o", option]);
        let path = |name: &str| mount.path.join(name);
        fs::create_dir(path("dir")).unwrap();
        fs::write(path("dir/file"), "contents").unwrap();
        if data {
            let file = File::options().write(true).open(path("dir/file")).unwrap();
            file.write_all_at(&[7; 10_000], 8).unwrap();
            fs::set_permissions(path("dir/file"), fs::Permissions::from_mode(0o640)).unwrap();
        }
        fs::write(path("dir/gone"), "x").unwrap();
        fs::remove_file(path("dir/gone")).unwrap();
        fs::rename(path("dir"), path("moved")).unwrap();
        mount.kill();
        drop(mount);
        let mount = place.mount("again");
        let found = fs::read(mount.path.join("moved/file")).unwrap();
        assert!(!mount.path.join("moved/gone").exists() && !mount.path.join("dir").exists(), "{option}");
        if data {
            assert_eq!(found, [&b"contents"[..], &[7; 10_000]].concat());
            assert_eq!(fs::metadata(mount.path.join("moved/file")).unwrap().mode() & 0o7777, 0o640);
        }
        mount.unmount().ok();
        place.check_clean();
    }
}

/// As on the kernel's filesystems, whose images may be copied then.
#[test]
fn a_mount_that_becomes_read_only_has_nothing_left_to_write() {
    skip_if!(no_fuse());
    skip_if!(not_root());
    let place = Place::with_image("32MiB");
    let mut mount = place.mount("mount");
    fs::write(mount.path.join("file"), "contents").unwrap();
    let mut remount = named(&place, "mount.syncline");
    remount.arg(place.image()).arg(&mount.path).args(["-o", "remount,ro"]);
    assert_eq!(run(remount).ok().err, "");
    mount.kill();
    drop(mount);
    let mount = Mount::new(&place.image(), &place.directory("again"), &[]);
    assert_eq!(fs::read(mount.path.join("file")).unwrap(), b"contents");
    mount.unmount().ok();
}

#[test]
fn access_times_follow_the_option() {
    skip_if!(no_fuse());
    for (option, moves) in [("noatime", false), ("relatime", false), ("strictatime", true)] {
        let mut ground = Ground::with(&["-o", option]);
        let path = ground.path("file");
        fs::write(&path, "x").unwrap();
        // Later than the last change, and only a moment ago: only strict access times are updated.
        let now = std::time::SystemTime::now() + std::time::Duration::from_secs(5);
        let times = fs::FileTimes::new().set_accessed(now);
        File::options().write(true).open(&path).unwrap().set_times(times).unwrap();
        let before = fs::metadata(&path).unwrap().accessed().unwrap();
        let mount = ground.mount.take().unwrap();
        let directory = mount.path.clone();
        mount.unmount().ok();
        ground.mount = Some(Mount::new(&ground.place.image(), &directory, &["-o", option]));
        fs::read(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().accessed().unwrap() != before, moves, "{option}");
        ground.end();
    }
}

#[test]
fn reading_a_directory_leaves_its_access_time_with_nodiratime() {
    skip_if!(no_fuse());
    for (options, moves) in [("strictatime", true), ("strictatime,nodiratime", false)] {
        let ground = Ground::with(&["-o", options]);
        fs::create_dir(ground.path("directory")).unwrap();
        fs::write(ground.path("directory/file"), "x").unwrap();
        let accessed = || fs::metadata(ground.path("directory")).unwrap().atime_nsec();
        let before = accessed();
        assert_eq!(fs::read_dir(ground.path("directory")).unwrap().count(), 1);
        assert_eq!(accessed() != before, moves, "{options}");
        ground.end();
    }
}

#[test]
fn mount_calls_the_program_by_another_name() {
    skip_if!(no_fuse());
    skip_if!(not_root());
    let place = Place::with_image("32MiB");
    let directory = place.directory("mount");
    let mut mount = named(&place, "mount.syncline");
    let log = place.path().join("log");
    let options = format!("rw,nodev,nosuid,noexec,x-systemd.automount,log={}", log.display());
    mount.arg(place.image()).arg(&directory).args(["-n", "-o", &options]);
    assert_eq!(run(mount).code, 0);
    assert!(log.exists());
    let flags = fs::read_to_string("/proc/self/mounts").unwrap();
    let line = flags.lines().find(|line| line.contains(&*directory.to_string_lossy())).unwrap().to_owned();
    assert!(["nosuid", "nodev", "noexec"].iter().all(|flag| line.contains(flag)), "{line}");
    fs::write(directory.join("file"), "x").unwrap();
    for (options, refused) in
        [("remount,ro,user_id=0,group_id=0,default_permissions", true), ("remount,rw", false)]
    {
        let mut remount = named(&place, "mount.fuse.syncline");
        remount.arg(place.image()).arg(&directory).args(["-o", options]);
        let answer = run(remount).ok();
        assert_eq!(answer.err, "", "there is nothing to tell");
        let written = fs::write(directory.join("file"), "y");
        assert_eq!(errno(written), refused.then_some(30), "{options}");
        // The daemon still could write; the mount counts.
        let stats = syncline(["stats".as_ref(), directory.as_os_str()]).ok();
        let status = syncline(["status"]).ok();
        let head = format!("{}: ", directory.display());
        let lines = status.out.lines().skip_while(|line| !line.starts_with(&head));
        let state = lines.take(3).collect::<String>();
        for told in [&stats.out, &state] {
            assert_eq!(told.contains("read-only (remounted read-only)"), refused, "{options}: {told}");
            assert_eq!(told.contains("read-write"), !refused, "{options}: {told}");
        }
        let json = syncline(["stats".as_ref(), directory.as_os_str(), "--json".as_ref()]).ok().out;
        assert_eq!(json.contains("\"remounted read-only\""), refused, "{options}: {json}");
    }
    // A remount accepts options that the mount has already.
    for options in ["relatime", "diratime", "compress=no", "transport=auto"] {
        let mut remount = named(&place, "mount.syncline");
        remount.arg(place.image()).arg(&directory).args(["-o", &format!("remount,rw,{options}")]);
        assert_eq!(run(remount).ok().err, "", "{options}");
    }
    // A remount reports the options that it can't change, also through mount(8).
    for options in ["compress", "memory=64MiB", "log=/tmp/other"] {
        let mut remount = named(&place, "mount.fuse.syncline");
        let words = format!("remount,rw,noatime,user_id=0,group_id=0,allow_other,{options}");
        remount.arg(place.image()).arg(&directory).args(["-o", &words]);
        let answer = run(remount).ok();
        assert!(answer.err.contains(&format!("stay as they were: {options}; ")), "{answer:?}");
    }
    // A mount that answers before data is durable does not claim to be synchronous.
    for option in ["sync", "dirsync", "durability=strict"] {
        let mut remount = named(&place, "mount.syncline");
        remount.arg(place.image()).arg(&directory).args(["-o", &format!("remount,rw,{option}")]);
        run(remount).fails(32, &["can't become", &format!("unmount it, and mount it with -o {option}")]);
    }
    Mount::of(&directory).unmount().ok();
    let synchronous = Mount::new(&place.image(), &directory, &["-o", "sync"]);
    for option in ["sync", "dirsync"] {
        let mut remount = named(&place, "mount.syncline");
        remount.arg(place.image()).arg(&directory).args(["-o", &format!("remount,rw,{option}")]);
        assert_eq!(run(remount).code, 0, "{option}");
    }
    synchronous.unmount().ok();
    // A mount that was opened read-only can't be made writable.
    let read_only = Mount::new(&place.image(), &directory, &["-o", "ro"]);
    let mut remount = named(&place, "mount.syncline");
    remount.arg(place.image()).arg(&directory).args(["-o", "remount,rw"]);
    run(remount).fails(32, &["opened read-only", "unmount it, and mount it with -o rw"]);
    let table = fs::read_to_string("/proc/self/mounts").unwrap();
    let line = table.lines().find(|line| line.contains(&*directory.to_string_lossy())).unwrap();
    assert!(line.contains(" ro,"), "{line}");
    read_only.unmount().ok();
    for (words, code) in
        [(&["-f"][..], 0), (&["-o", "nonsense"][..], 1), (&["-o", "nonsense", "-s", "-f"][..], 0)]
    {
        let mut mount = named(&place, "mount.syncline");
        mount.arg(place.image()).arg(&directory).args(words);
        assert_eq!(run(mount).code, code, "{words:?}");
    }
    for (options, code) in [("rw", 32), ("rw,nofail", 0)] {
        let mut none = named(&place, "mount.syncline");
        none.arg(place.path().join("none")).arg(&directory).args(["-o", options]);
        assert_eq!(run(none).code, code, "{options}");
    }
    let mut check = named(&place, "fsck.syncline");
    check.arg("-f").arg("-n").arg(place.image());
    assert_eq!(run(check).code, 0);
    let mut make = named(&place, "mkfs.syncline");
    make.arg(place.image());
    assert_eq!(run(make).code, 1, "what is there is not overwritten");
}

/// mount(8) and umount(8) look for their helpers in a single place, which a separate namespace can
/// hide.
const HELPERS: &str = r#"
    set -e
    cd "$1"
    mount --make-rprivate /
    mkdir upper work mnt
    mount -t tmpfs none work && mkdir work/u work/w
    mount -t overlay none -o "lowerdir=$(readlink -f /sbin),upperdir=work/u,workdir=work/w" "$(readlink -f /sbin)" || exit 77
    # An installed one may be a symbolic link that leads out of here: it is not to be written through.
    cp --remove-destination program /sbin/mount.syncline
    for name in mount.fuse.syncline mount.fuseblk.syncline umount.fuse.syncline umount.fuseblk.syncline; do ln -sf mount.syncline /sbin/$name; done
"#;

/// Runs a script where the helpers are found, in a directory with an image of 32 MiB.
fn run_with_helpers(script: &str) {
    skip_if!(no_fuse());
    skip_if!(not_root());
    skip_if!(tool("unshare", &["--version".as_ref()]).is_none().then_some("unshare is not installed"));
    let place = Place::with_image("32MiB");
    place.copy_of_program("program");
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", &format!("{ALONE}{HELPERS}{script}"), "sh"]).arg(place.path());
    let answer = run(command);
    skip_if!((answer.code == 77).then_some("nothing can be put over /sbin here"));
    answer.ok();
}

/// As with the kernel's filesystems: the next program to open the image finds it clean and unused.
#[test]
fn umount_returns_when_all_is_written() {
    run_with_helpers(
        r#"
        for round in 1 2 3; do
            mount -t syncline "$1/image" "$1/mnt"
            dd if=/dev/zero of=mnt/file$round bs=64k count=64 status=none
            daemon=$(./program stats --json mnt | grep -o '"pid": *[0-9]*' | grep -o '[0-9]*')
            # The ways differ in how umount(8) looks for the helper.
            if [ $round = 1 ]; then umount mnt; else umount "$1/mnt"; fi
            # It has ended, even if its parent has not reaped it yet.
            if [ -e /proc/$daemon/stat ] && ! grep -q ') Z' /proc/$daemon/stat; then echo "the daemon is still there" >&2; exit 1; fi
            ./program info image | grep -q clean
        done
        if grep -q "$1/mnt" /run/mount/utab; then exit 1; fi
        # While a file is open, umount(8) says so.
        mount -t syncline "$1/image" "$1/mnt"
        exec 3>mnt/open
        code=0; umount mnt 2>said || code=$?
        test $code = 32 && grep -q "in use" said
        # A lazy unmount ends at once, also while files are open.
        umount -l mnt
        exec 3>&-
    "#,
    );
}

/// A line in mount(8)'s table tells umount(8) about the helper. Other programs use the same table.
#[test]
fn the_table_of_mount_keeps_what_others_look_for() {
    run_with_helpers(
        r#"
        mount -t tmpfs none /run/mount
        line() { grep "TARGET=$PWD/mnt " /run/mount/utab || true; }
        mount -t syncline image mnt -o _netdev
        line | grep _netdev | grep -q x-syncline || { echo "options are missing: $(line)" >&2; exit 1; }
        umount "$PWD/mnt"
        test -z "$(line)"
        # A name like that is a tag for mount(8).
        mv image LABEL=image
        ./program mount LABEL=image mnt
        line | grep -q "SRC=$PWD/LABEL=image " || { echo "no line for LABEL=image" >&2; exit 1; }
        ./program umount mnt
        test -z "$(line)"
        # Whoever has something there in another mount namespace has a line in the same table.
        mkfifo go mounted
        timeout 60 unshare --mount sh -c '
            echo >mounted; read word <go; mount -t tmpfs -o x-theirs none mnt; echo >mounted; read word <go
        ' >other 2>&1 &
        # A namespace that begins later has a copy of the mount, and the daemon would go on for it.
        read word <mounted
        ./program mount LABEL=image mnt
        echo >go; read word <mounted
        line | grep -q x-theirs
        # (umount(8) would take the last line, whosesoever it is.)
        daemon=$(./program stats --json mnt | grep -o '"pid": *[0-9]*' | grep -o '[0-9]*')
        kill $daemon
        while [ -e /proc/$daemon/stat ] && ! grep -q ') Z' /proc/$daemon/stat; do sleep 0.05; done
        echo >go; wait
        line | grep -q x-theirs || { echo "the line of others is gone: $(line)" >&2; exit 1; }
    "#,
    );
}

#[test]
fn mount_and_fstab_know_the_type() {
    run_with_helpers(
        r#"
        mount -t syncline "$1/image" "$1/mnt" -o nodev,noatime
        echo kept >mnt/file
        ln -s file mnt/link
        # What the kernel tells of the mount (user_id=0 and the like) is handed on with this.
        mount -o remount,ro "$1/mnt"
        if touch mnt/new 2>/dev/null; then exit 1; fi
        mount -o remount,rw "$1/mnt"
        touch mnt/new
        umount mnt
        line() { printf '%s/image %s/mnt syncline %s 0 0\n' "$PWD" "$PWD" "$1" >fstab; }
        line rw,nosuid,noauto,nofail,x-systemd.requires=local-fs.target,nodiratime,lazytime,nosymfollow,iversion
        mount --fstab fstab "$1/mnt"
        test "$(cat mnt/file)" = kept
        if cat mnt/link 2>/dev/null; then exit 1; fi
        umount mnt
        line ro
        mount --fstab fstab "$1/mnt"
        test "$(cat mnt/link)" = kept
        umount mnt
        # A disk that is not there today, as with the kernel's filesystems; without the word it is missed.
        printf '%s/none %s/mnt syncline nofail 0 0\n' "$PWD" "$PWD" >fstab
        mount --fstab fstab --all
        printf '%s/none %s/mnt syncline defaults 0 0\n' "$PWD" "$PWD" >fstab
        if mount --fstab fstab --all 2>/dev/null; then exit 1; fi
    "#,
    );
}

#[test]
fn the_example_of_a_systemd_unit_is_one() {
    skip_if!(
        tool("systemd-analyze", &["--version".as_ref()]).is_none().then_some("systemd is not installed")
    );
    let unit = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/srv-data.mount");
    let mut verify = Command::new("systemd-analyze");
    verify.args(["verify", unit]);
    let answer = run(verify);
    assert!(!answer.err.contains("srv-data.mount:"), "{answer:?}");
}
