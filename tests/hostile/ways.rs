//! One image that can be reached in several ways: by its file, by loop devices over it, by one of
//! the kernel's filesystems on such a device. Its writer is alone (promise P7), and others are told
//! who that is; unrelated uses exclude no one.

use crate::skip_if;
use crate::support::{
    ALONE, Answer, Loop, Mount, NOBODY, Place, as_nobody, no_fuse, not_root, program, run, syncline, tool,
};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use syncline_nbdlab::Pace;

fn call(words: &[&str], paths: &[&Path]) -> Answer {
    let mut command = program();
    command.arg(words[0]).args(paths).args(&words[1..]);
    run(command)
}

/// Asserts that each of these commands is refused and says who has the image. They run at once,
/// because each waits a second for the image.
fn all_are_refused(commands: &[(i32, &[&str])], paths: &[&Path], who: &[&str]) {
    std::thread::scope(|scope| {
        for (code, words) in commands {
            scope.spawn(move || call(words, paths).fails(*code, &[&["in use"], who].concat()));
        }
    });
}

fn write_synced(path: &Path) {
    fs::write(path, "acknowledged").unwrap();
    fs::File::open(path).unwrap().sync_all().unwrap();
}

#[test]
fn a_mount_is_met_on_every_way_to_its_image() {
    skip_if!(not_root());
    skip_if!(no_fuse());
    let place = Place::with_image("32MiB");
    let (Some(first), Some(second)) = (Loop::new(&place.image()), Loop::new(&place.image())) else {
        return eprintln!("skipped: there are no loop devices here");
    };
    // One existing, one that is added while the image is mounted, and one over a loop device.
    let other = place.directory("other");
    for (round, way) in [first.device.clone(), place.image()].into_iter().enumerate() {
        let mount = Mount::new(&way, &place.directory(&format!("mount {round}")), &[]);
        write_synced(&mount.path.join(format!("file {round}")));
        let pid = format!("process {}", mount.pid().as_raw_nonzero());
        let who = [&*pid, "(syncline)", mount.path.to_str().unwrap()];
        let late = Loop::new(&place.image()).unwrap();
        let nested = Loop::new(&late.device).unwrap();
        let ways: [PathBuf; 5] = [
            place.image(),
            first.device.clone(),
            second.device.clone(),
            late.device.clone(),
            nested.device.clone(),
        ];
        for taken in ways.iter().filter(|&taken| *taken != way) {
            call(&["mkfs", "--force"], &[taken]).fails(3, &[&["in use"], &who[..]].concat());
        }
        let commands: [(i32, &[&str]); 9] = [
            (3, &["mkfs", "--force"]),
            (8, &["check"]),
            (8, &["check", "--repair"]),
            (3, &["info"]),
            (3, &["label", "new"]),
            (3, &["resize", "max"]),
            (3, &["trim"]),
            (3, &["path", "1"]),
            (3, &["inspect", "-c", "super"]),
        ];
        all_are_refused(&commands, &[&place.image()], &who);
        let commands: [(i32, &[&str]); 2] = [(3, &["mount"]), (3, &["mount", "-o", "ro"])];
        all_are_refused(&commands, &[&place.image(), &other], &who);
        // The kernel is excluded as well if the loop device already existed.
        let ext4 = tool("mount", &[OsStr::new("-text4"), second.device.as_ref(), other.as_ref()]);
        assert_eq!(ext4, None);
        mount.unmount().ok();
    }
    let mount = place.mount("at last");
    for round in 0..2 {
        assert_eq!(fs::read(mount.path.join(format!("file {round}"))).unwrap(), b"acknowledged");
    }
    mount.unmount().ok();
    place.check_clean();
    syncline([OsStr::new("check"), first.device.as_ref()]).ok();
}

/// The commands that work on a mount say so, with its directory; the others don't.
#[test]
fn who_is_refused_hears_what_works_instead() {
    skip_if!(no_fuse());
    let place = Place::with_image("32MiB");
    let mount = place.mount("mount");
    let directory = mount.path.to_str().unwrap();
    let name_it = format!("name {directory} instead");
    let commands: [(i32, &[&str]); 7] = [
        (3, &["info"]),
        (3, &["label"]),
        (3, &["label", "new"]),
        (3, &["uuid"]),
        (3, &["resize", "64MiB"]),
        (3, &["trim"]),
        (3, &["path", "1"]),
    ];
    all_are_refused(&commands, &[&place.image()], &[directory, &name_it]);
    syncline(["snapshot".as_ref(), "create".as_ref(), place.image().as_os_str(), "name".as_ref()])
        .fails(3, &["in use by process", &name_it]);
    let answer =
        call(&["resize", "min"], &[&place.image()]).fails(3, &["in use by process", directory, "unmount it"]);
    assert!(!answer.err.contains(&name_it), "{answer:?}");
    mount.unmount().ok();
}

#[test]
fn a_filesystem_of_the_kernel_is_met_below_its_loop_device() {
    skip_if!(not_root());
    skip_if!(tool("mkfs.ext4", &[OsStr::new("-V")]).is_none().then_some("there is no mkfs.ext4"));
    let place = Place::new();
    fs::File::create(place.image()).unwrap().set_len(32 << 20).unwrap();
    let (Some(first), Some(second)) = (Loop::new(&place.image()), Loop::new(&place.image())) else {
        return eprintln!("skipped: there are no loop devices here");
    };
    tool("mkfs.ext4", &[OsStr::new("-q"), first.device.as_ref()]).unwrap();
    let mounted = place.directory("mounted");
    tool("mount", &[OsStr::new("-text4"), first.device.as_ref(), mounted.as_ref()]).unwrap();
    fs::write(mounted.join("file"), "kept").unwrap();
    let who = ["in use by the ext4 filesystem of", first.device.to_str().unwrap(), mounted.to_str().unwrap()];
    for way in [place.image(), first.device.clone(), second.device.clone()] {
        call(&["mkfs", "--force"], &[&way]).fails(3, &who);
    }
    tool("umount", &[mounted.as_ref()]).unwrap();
    tool("mount", &[OsStr::new("-text4"), first.device.as_ref(), mounted.as_ref()]).unwrap();
    assert_eq!(fs::read(mounted.join("file")).unwrap(), b"kept");
    tool("umount", &[mounted.as_ref()]).unwrap();
    call(&["mkfs", "--force"], &[&place.image()]).ok();
}

/// A mounted snapshot can't be deleted by another path.
#[test]
fn a_mounted_snapshot_is_met_on_every_way() {
    skip_if!(not_root());
    skip_if!(no_fuse());
    let place = Place::with_image("32MiB");
    let Some(device) = Loop::new(&place.image()) else {
        return eprintln!("skipped: there are no loop devices here");
    };
    call(&["label", "some"], &[&place.image()]).ok();
    syncline(["snapshot".as_ref(), "create".as_ref(), place.image().as_os_str(), "kept".as_ref()]).ok();
    let snapshot = Mount::new(&device.device, &place.directory("snapshot"), &["--snapshot", "kept"]);
    let mount = place.mount("mount");
    let delete =
        || syncline(["snapshot".as_ref(), "delete".as_ref(), mount.path.as_os_str(), "kept".as_ref()]);
    delete().fails(3, &["kept", "in use"]);
    snapshot.unmount().ok();
    delete().ok();
    mount.unmount().ok();
    place.check_clean();
}

/// A mount that can't write says so; it blames neither a failing device nor a missing snapshot.
#[test]
fn a_snapshot_is_not_deleted_where_nothing_can_be_written() {
    skip_if!(no_fuse());
    let place = Place::with_image("32MiB");
    syncline(["snapshot".as_ref(), "create".as_ref(), place.image().as_os_str(), "kept".as_ref()]).ok();
    let directory = place.directory("mount");
    for how in [["-o", "ro"], ["--snapshot", "kept"]] {
        let mount = Mount::new(&place.image(), &directory, &how);
        let words = ["snapshot".as_ref(), "delete".as_ref(), mount.path.as_os_str(), "kept".as_ref()];
        syncline(words).fails(9, &["Read-only"]);
        mount.unmount().ok();
    }
}

/// Nor can a new image be made over one with a snapshot mounted by another path.
#[test]
fn no_image_is_made_over_a_snapshot_that_is_mounted_by_another_way() {
    skip_if!(not_root());
    skip_if!(no_fuse());
    let place = Place::with_image("32MiB");
    syncline(["snapshot".as_ref(), "create".as_ref(), place.image().as_os_str(), "kept".as_ref()]).ok();
    let Some(device) = Loop::new(&place.image()) else {
        return eprintln!("skipped: there are no loop devices here");
    };
    for (index, (from, over)) in
        [(&place.image(), &device.device), (&device.device, &place.image())].into_iter().enumerate()
    {
        let directory = place.directory(&index.to_string());
        let snapshot = Mount::new(from, &directory, &["--snapshot", "kept"]);
        call(&["mkfs", "--force"], &[over]).fails(3, &["snapshot"]);
        snapshot.unmount().ok();
    }
    place.check_clean();
}

/// A holder that uses a device node of another name, or a filesystem that was unmounted while one
/// of its files is open, is recognised at once, and not taken for leftovers of a killed process.
#[test]
fn users_that_no_name_tells_of_are_not_waited_for() {
    skip_if!(not_root());
    skip_if!(no_fuse());
    let place = Place::with_image("32MiB");
    let Some(device) = Loop::new(&place.image()) else {
        return eprintln!("skipped: there are no loop devices here");
    };
    let (node, number) =
        (place.directory("nodes").join("node"), fs::metadata(&device.device).unwrap().rdev());
    let (major, minor) = (rustix::fs::major(number).to_string(), rustix::fs::minor(number).to_string());
    tool("mknod", &[node.as_os_str(), OsStr::new("b"), major.as_ref(), minor.as_ref()]).unwrap();
    if fs::File::open(&node).is_err() {
        return eprintln!("skipped: no device can be opened where temporary files are");
    }
    let pace = Pace::start();
    let mount = Mount::new(&node, &place.directory("mount"), &[]);
    call(&["check"], &[&device.device]).fails(8, &["in use"]);
    mount.unmount().ok();
    skip_if!(tool("mkfs.ext4", &[OsStr::new("-V")]).is_none().then_some("there is no mkfs.ext4"));
    tool("mkfs.ext4", &[OsStr::new("-q"), device.device.as_os_str()]).unwrap();
    let directory = place.directory("ext4");
    tool("mount", &[device.device.as_os_str(), directory.as_os_str()]).unwrap();
    let open = fs::File::create(directory.join("open"));
    tool("umount", &[OsStr::new("-l"), directory.as_os_str()]).unwrap();
    call(&["mkfs", "--force"], &[&device.device]).fails(3, &["in use"]);
    drop(open.unwrap());
    // Both are told within seconds.
    pace.assert_within(Duration::from_secs(40));
}

/// Two loop devices over two parts of one file, such as partitions in a disk image, are two
/// devices.
#[test]
fn parts_of_one_file_are_mounted_beside_each_other() {
    skip_if!(not_root());
    skip_if!(no_fuse());
    let place = Place::new();
    fs::File::create(place.image()).unwrap().set_len(64 << 20).unwrap();
    let half = 32 << 20;
    let size = format!("--sizelimit={half}");
    let lower = Loop::with(&place.image(), &[&size]);
    let upper = Loop::with(&place.image(), &["--offset", &half.to_string()]);
    let (Some(lower), Some(upper)) = (lower, upper) else {
        return eprintln!("skipped: there are no loop devices here");
    };
    for part in [&lower, &upper] {
        call(&["mkfs"], &[&part.device]).ok();
    }
    let first = Mount::new(&lower.device, &place.directory("first"), &[]);
    let second = Mount::new(&upper.device, &place.directory("second"), &[]);
    let overlapping = Loop::with(&place.image(), &["--offset", &(half / 2).to_string()]).unwrap();
    for way in [&place.image(), &overlapping.device] {
        call(&["mkfs", "--force"], &[way]).fails(3, &["in use by process"]);
    }
    first.unmount().ok();
    call(&["check"], &[&lower.device]).ok();
    call(&["check"], &[&upper.device]).fails(8, &["in use by process"]);
    second.unmount().ok();
}

/// Nor do their snapshots collide, although they have the same numbers.
#[test]
fn snapshots_of_two_parts_of_one_file_are_two() {
    skip_if!(not_root());
    skip_if!(no_fuse());
    let place = Place::new();
    fs::File::create(place.image()).unwrap().set_len(64 << 20).unwrap();
    let half = 32 << 20;
    let lower = Loop::with(&place.image(), &[&format!("--sizelimit={half}")]);
    let upper = Loop::with(&place.image(), &["--offset", &half.to_string()]);
    let (Some(lower), Some(upper)) = (lower, upper) else {
        return eprintln!("skipped: there are no loop devices here");
    };
    for part in [&lower, &upper] {
        call(&["mkfs"], &[&part.device]).ok();
        let words = ["snapshot".as_ref(), "create".as_ref(), part.device.as_os_str(), "kept".as_ref()];
        syncline(words).ok();
    }
    let shown = Mount::new(&lower.device, &place.directory("lower"), &["--snapshot", "kept"]);
    let delete = |part: &Loop| {
        syncline(["snapshot".as_ref(), "delete".as_ref(), part.device.as_os_str(), "kept".as_ref()])
    };
    delete(&lower).fails(3, &["in use"]);
    delete(&upper).ok();
    shown.unmount().ok();
    delete(&lower).ok();
}

/// A user may have only the loop device: its file may belong to another user, or have no name any
/// more.
#[test]
fn a_file_that_cannot_be_opened_keeps_its_loop_device_usable() {
    skip_if!(not_root());
    skip_if!(no_fuse());
    let place = Place::with_image("32MiB");
    let Some(device) = Loop::new(&place.image()) else {
        return eprintln!("skipped: there are no loop devices here");
    };
    std::os::unix::fs::chown(&device.device, Some(NOBODY), None).unwrap();
    let label = |new: &str| {
        let mut command = program();
        command.arg("label").arg(&device.device).arg(new);
        run(as_nobody(command))
    };
    // The folder can't be entered, and the image belongs to root.
    let named = label("by nobody");
    std::os::unix::fs::chown(&device.device, Some(0), None).unwrap();
    named.ok();
    fs::remove_file(place.image()).unwrap();
    call(&["label", "without a name"], &[&device.device]).ok();
    let mount = Mount::new(&device.device, &place.directory("mount"), &[]);
    write_synced(&mount.path.join("file"));
    mount.unmount().ok();
    call(&["check"], &[&device.device]).ok();
}

/// A daemon started in a separate mount namespace outlives the shell that started it.
#[test]
fn a_daemon_in_another_mount_namespace_is_named_with_what_ends_it() {
    skip_if!(not_root());
    skip_if!(no_fuse());
    skip_if!(
        tool("unshare", &["-m".as_ref(), "true".as_ref()]).is_none().then_some("unshare is refused here")
    );
    let place = Place::with_image("32MiB");
    let directory = place.directory("mount");
    let mut shell = Command::new("unshare");
    let script = format!("{ALONE} exec \"$0\" mount \"$1\" \"$2\"");
    shell
        .args(["-m", "sh", "-c", &script])
        .arg(env!("CARGO_BIN_EXE_syncline"))
        .args([&place.image(), &directory]);
    run(shell).ok();
    let answer = call(&["check"], &[&place.image()]);
    let answer =
        answer.fails(8, &["in use by process", "in another mount namespace", directory.to_str().unwrap()]);
    let pid =
        answer.err.split("'kill ").nth(1).and_then(|rest| rest.split('\'').next()).expect("it says how");
    tool("kill", &[OsStr::new(pid)]).unwrap();
    crate::support::eventually("it ends, and leaves a clean image", || {
        call(&["check"], &[&place.image()]).code == 0
    });
}
