//! A refused mount leaves the image unchanged, byte for byte: also an image that a crash left with
//! a log to replay, and also if the refusal comes late, from the kernel.

use crate::skip_if;
use crate::support::{
    ALONE, Answer, Mount, Place, as_nobody, eventually, no_fuse, not_root, program, run, syncline, tool,
};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Data from before the crash, which must be there afterwards.
const SYNCED: &str = "synced before the daemon was killed";

/// An image whose daemon was killed: acknowledged changes are only in its log.
fn crashed() -> Place {
    let place = Place::with_image("32MiB");
    let mut mount = place.mount("mount");
    fs::create_dir(mount.path.join("dir")).unwrap();
    fs::write(mount.path.join("dir/file"), SYNCED).unwrap();
    fs::File::open(mount.path.join("dir/file")).unwrap().sync_all().unwrap();
    fs::write(mount.path.join("not synced"), "perhaps").unwrap();
    mount.kill();
    drop(mount);
    fs::create_dir(place.path().join("full")).unwrap();
    fs::write(place.path().join("full/file"), "here").unwrap();
    fs::write(place.path().join("text"), "hello\n").unwrap();
    place
}

/// Asserts that each mount is refused and that the image does not change.
struct Watched {
    place: Place,
    before: Vec<u8>,
    refused: u32,
}

impl Watched {
    fn new(place: Place) -> Self {
        let before = fs::read(place.image()).unwrap();
        Self { place, before, refused: 0 }
    }

    #[track_caller]
    fn refuses(&mut self, what: &str, answer: &Answer) {
        assert_ne!(answer.code, 0, "{what}: mounted");
        assert!(!answer.err.contains("panicked"), "{what}: {answer:?}");
        // By the time the caller is told, a daemon that is about to end has released the image.
        assert!(fs::read(self.place.image()).unwrap() == self.before, "{what} changed the image: {answer:?}");
        let info = syncline([OsStr::new("info"), self.place.image().as_ref()]).ok();
        assert!(info.out.contains("not unmounted"), "{what}: {info:?}");
        self.refused += 1;
    }

    /// Runs `mount` with the image and these words.
    #[track_caller]
    fn mount(&mut self, words: &[&str]) {
        let arguments = [OsString::from("mount"), self.place.image().into()];
        let mut command = program();
        command.args(arguments).args(words).current_dir(self.place.path());
        let answer = run(command);
        self.refuses(&words.join(" "), &answer);
    }

    /// Runs `mount` in a separate mount namespace, after these shell commands.
    #[track_caller]
    fn mount_where(&mut self, before: &str, words: &str) {
        let mut command = Command::new("unshare");
        let script = format!("{ALONE}{before} && exec \"$PROGRAM\" mount \"$IMAGE\" {words}");
        command.args(["--mount", "--propagation", "private", "sh", "-c", &script]);
        command.env("PROGRAM", env!("CARGO_BIN_EXE_syncline")).env("IMAGE", self.place.image());
        command.current_dir(self.place.path());
        let answer = run(command);
        assert!(answer.err.contains("syncline: "), "the script does not do what it is to do: {answer:?}");
        self.refuses(before, &answer);
    }

    /// Asserts that everything acknowledged is there in the end.
    fn end(self) {
        let mount = Mount::new(&self.place.image(), &self.place.directory("at last"), &[]);
        assert_eq!(fs::read_to_string(mount.path.join("dir/file")).unwrap(), SYNCED);
        mount.unmount().ok();
        self.place.check_clean();
    }
}

#[test]
fn of_a_crashed_image_nothing_changes() {
    skip_if!(no_fuse());
    let mut watched = Watched::new(crashed());
    for words in [
        "missing",
        "full",
        "text",
        "text/below",
        "image",
        "empty -o nonsense",
        "empty -o commit=soon",
        "empty -o memory=1",
        "empty -o direct_io=perhaps",
        "empty -o transport=pigeon",
        "empty -o snapshot=none",
        "empty --snapshot none",
        "empty --snapshot a/b",
        "empty --log missing/log",
        "empty --log full",
        "missing --foreground",
        "full --foreground",
        "full -o ro",
        "full -o accept-damaged-log",
        "full --create 32MiB",
    ] {
        let _ = fs::create_dir(watched.place.path().join("empty"));
        watched.mount(&words.split(' ').collect::<Vec<_>>());
    }
    let other = Place::with_image("16MiB");
    let mounted = other.mount("mount");
    watched.mount(&[mounted.path.to_str().unwrap()]);
    mounted.unmount().ok();
    assert_eq!(watched.refused, 21);
    watched.end();
}

/// Refusals by the kernel or its helper only, with everything of ours in order.
#[test]
fn refusals_of_the_kernel_come_before_the_first_write() {
    skip_if!(no_fuse());
    skip_if!(not_root());
    let mut watched = Watched::new(crashed());
    watched.place.directory("empty");
    watched.mount_where("mount --bind /dev/null /dev/fuse", "empty");
    watched.mount_where("mount --bind /dev/null /dev/fuse", "empty --foreground");
    watched.mount_where("mount --bind /dev/full /dev/fuse", "empty");
    watched.mount_where("mount -t tmpfs none /dev && touch /dev/null", "empty");
    // Too few descriptors for the serving threads.
    for descriptors in [8, 12] {
        watched.mount_where(&format!("ulimit -n {descriptors}"), "empty --foreground -o transport=classic");
    }
    if tool("setpriv", &["--version".as_ref()]).is_some() {
        // Root without the right to mount, and without a helper that has it.
        let without = "exec setpriv --bounding-set=-sys_admin \"$PROGRAM\" mount \"$IMAGE\" empty; exit";
        watched.mount_where(without, "");
    }
    watched.end();
}

/// An ordinary user may own the image but not the mount point.
#[test]
fn refusals_of_the_helper_come_before_the_first_write() {
    skip_if!(no_fuse());
    skip_if!(not_root());
    skip_if!(tool("fusermount3", &["--version".as_ref()]).is_none().then_some("there is no fusermount3"));
    let mut watched = Watched::new(crashed());
    let copy = watched.place.copy_of_program("syncline");
    watched.place.directory("of root");
    for (name, mode) in [("", 0o755), ("image", 0o666), ("syncline", 0o755), ("of root", 0o755)] {
        fs::set_permissions(watched.place.path().join(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    for options in ["noatime", "allow_other", "ro"] {
        let mut command = Command::new(&copy);
        command.args(["mount", "image", "of root", "-o", options]).current_dir(watched.place.path());
        let answer = run(as_nobody(command));
        watched.refuses(&format!("as nobody, {options}"), &answer);
    }
    watched.end();
}

/// The program that uses the image is not disturbed by others that ask for it.
#[test]
fn an_image_in_use_is_not_changed_by_who_wants_it() {
    skip_if!(no_fuse());
    let mut watched = Watched::new(crashed());
    watched.place.directory("empty");
    // A lock for reading holds the image: a check of a damaged copy could do the same.
    let holder = fs::File::open(watched.place.image()).unwrap();
    rustix::fs::flock(&holder, rustix::fs::FlockOperation::LockShared).unwrap();
    let ro = watched.place.directory("read only");
    let reader = Mount::new(&watched.place.image(), &ro, &["-o", "ro"]);
    watched.mount(&["empty"]);
    assert_eq!(fs::read_to_string(ro.join("dir/file")).unwrap(), SYNCED);
    reader.unmount().ok();
    watched.end();
}

/// The image that `--create` makes is removed if the mount fails.
#[test]
fn an_image_that_was_made_for_a_refused_mount_goes_again() {
    skip_if!(no_fuse());
    let place = crashed();
    let new = place.path().join("new");
    let create = |directory: &str| {
        let mut command = program();
        command.args(["mount", "new", directory, "--create", "16MiB"]).current_dir(place.path());
        run(command)
    };
    for directory in ["missing", "full", "text"] {
        assert_ne!(create(directory).code, 0);
        assert!(!new.exists(), "{directory}");
    }
    if not_root().is_none() {
        place.directory("empty");
        let mut command = Command::new("unshare");
        let script = "mount --bind /dev/null /dev/fuse && exec \"$PROGRAM\" mount new empty --create 16MiB";
        let script = &format!("{ALONE}{script}");
        command.args(["--mount", "--propagation", "private", "sh", "-c", script]).current_dir(place.path());
        command.env("PROGRAM", env!("CARGO_BIN_EXE_syncline"));
        assert_ne!(run(command).code, 0);
        assert!(!new.exists(), "the kernel refused");
    }
    // If the mount succeeds, the image stays.
    let mount = Mount::new(&new, &place.directory("fine"), &["--create", "16MiB"]);
    mount.unmount().ok();
    assert!(new.exists());
}

/// As in a container without devices: the message names the missing device, and nothing is made
/// there.
#[test]
fn an_empty_dev_is_told() {
    skip_if!(no_fuse());
    skip_if!(not_root());
    let place = crashed();
    place.directory("bare");
    for words in ["", "--foreground"] {
        let script = format!(
            "{ALONE}mount -t tmpfs none /dev && {{ \"$PROGRAM\" mount image bare {words}; code=$?; }} \
             && test -z \"$(ls -A /dev)\" && exit $code || exit 99"
        );
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c", &script]);
        command.env("PROGRAM", env!("CARGO_BIN_EXE_syncline")).current_dir(place.path());
        run(command).fails(7, &["/dev/null", "No such file", "/dev/fuse"]);
    }
}

/// Ended by a signal while requests are served: the order of steps at the start does not matter at
/// the end.
#[test]
fn a_mount_that_ends_at_once_is_clean() {
    skip_if!(no_fuse());
    let place = crashed();
    let directory = place.directory("brief");
    let mut command = program();
    command.arg("mount").arg(place.image()).arg(&directory).arg("--foreground");
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    eventually("the mount", || is_mounted(&directory));
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(child.wait().unwrap().success());
    let mount = place.mount("again");
    assert_eq!(fs::read_to_string(mount.path.join("dir/file")).unwrap(), SYNCED);
    mount.unmount().ok();
    place.check_clean();
}

fn is_mounted(directory: &Path) -> bool {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    mounts.lines().any(|line| line.split(' ').nth(1) == directory.to_str())
}

/// Of many that create an image and mount it at once, one succeeds; a failed mount removes nothing
/// that belongs to another.
#[test]
fn an_image_that_is_made_and_mounted_by_many_is_that_of_one() {
    skip_if!(no_fuse());
    for round in 0..4 {
        let place = Place::new();
        let directories: Vec<_> = (0..24).map(|at| place.directory(&format!("mount {at}"))).collect();
        let codes: Vec<i32> = std::thread::scope(|scope| {
            let mounts = directories.iter().map(|directory| {
                let mut command = program();
                command.arg("mount").arg(place.image()).arg(directory).args(["--create", "16MiB"]);
                scope.spawn(|| run(command).code)
            });
            let mounts: Vec<_> = mounts.collect();
            mounts.into_iter().map(|mount| mount.join().unwrap()).collect()
        });
        let mounted = directories.iter().zip(&codes).filter(|(_, code)| **code == 0);
        let mounted: Vec<Mount> = mounted.map(|(directory, _)| Mount::of(directory)).collect();
        assert!(mounted.len() == 1 && place.image().exists(), "round {round}: {codes:?}");
        for mount in mounted {
            mount.unmount().ok();
        }
    }
}

/// The image is never unlocked between creation and mount: a program examining it then would
/// prevent the mount.
#[test]
fn an_image_that_is_made_is_held_until_it_is_mounted() {
    skip_if!(no_fuse());
    let place = Place::new();
    let directory = place.directory("mount");
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            // The image is locked before it gets its length.
            let len = || fs::metadata(place.image()).map_or(0, |metadata| metadata.len());
            eventually("the image", || len() == 16 << 20);
            let image = fs::File::options().write(true).open(place.image()).unwrap();
            rustix::fs::fcntl_lock(&image, rustix::fs::FlockOperation::LockExclusive).unwrap();
            let early = !ended.load(Ordering::SeqCst);
            // Longer than any wait for it.
            std::thread::sleep(Duration::from_secs(if early { 3 } else { 0 }));
            early
        });
        let mut command = program();
        command.arg("mount").arg(place.image()).arg(&directory).args(["--create", "16MiB"]);
        let code = run(command).code;
        ended.store(true, Ordering::SeqCst);
        if code == 0 {
            Mount::of(&directory).unmount().ok();
        }
        assert_eq!((code, waiting.join().unwrap()), (0, false));
    });
}
