//! `crashlab` on real filesystems: needs root, FUSE, loop devices and the programs that make filesystems.
//! Syncline's own tests have it on Syncline.

use super::programs::{Program, why_not};
use crashlab::real::{FILESYSTEMS, Filesystem};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The filesystem with this name, unless it can't be used here.
fn usable(name: &str) -> Option<&'static Filesystem> {
    let filesystem = Filesystem::named(name).unwrap();
    match filesystem.check() {
        Ok(()) => Some(filesystem),
        Err(reason) => {
            eprintln!("skipped: {reason}");
            None
        }
    }
}

/// A folder for a program's temporary files. What is still mounted or attached there is cleaned up when it
/// is dropped.
pub struct Temporary(TempDir);

impl Temporary {
    pub fn new() -> Self {
        Self(tempfile::Builder::new().prefix("it's here ").tempdir().unwrap())
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Mounts in the folder, the newest first.
    fn mounts(&self) -> Vec<PathBuf> {
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let path = |line: &str| line.split(' ').nth(4).map(|path| PathBuf::from(path.replace("\\040", " ")));
        let paths = table.lines().rev().filter_map(path);
        paths.filter(|path| path.starts_with(self.0.path())).collect()
    }

    /// Loop devices on files in the folder.
    fn devices(&self) -> Vec<PathBuf> {
        let devices = fs::read_dir("/sys/block").unwrap().flatten();
        let is_own = |device: &fs::DirEntry| {
            let backing = fs::read_to_string(device.path().join("loop/backing_file")).unwrap_or_default();
            Path::new(backing.trim()).starts_with(self.0.path())
        };
        devices.filter(is_own).map(|device| Path::new("/dev").join(device.file_name())).collect()
    }

    fn is_clean(&self) {
        assert_eq!((self.mounts(), self.devices()), (Vec::new(), Vec::new()));
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let run = |program: &str, option: &str, path: &Path| {
            let _ = Command::new(program).arg(option).arg(path).status();
        };
        let mounts = self.mounts();
        mounts.iter().for_each(|path| run("umount", "-l", path));
        self.devices().iter().for_each(|device| run("losetup", "-d", device));
    }
}

#[test]
fn trees_of_real_filesystems_are_within_their_models() {
    for Filesystem { name, .. } in FILESYSTEMS.iter().filter(|filesystem| filesystem.name != "syncline") {
        let Some(_) = usable(name) else { continue };
        let temporary = Temporary::new();
        let mut command = Command::new(env!("CARGO_BIN_EXE_crashlab"));
        command.args(["validate", name, "--programs", "6", "--seconds", "3600", "--seed", "1"]);
        let output = command.env("TMPDIR", temporary.0.path()).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let line = String::from_utf8(output.stdout).unwrap();
        let numbers: Vec<u64> = line.split('|').filter_map(|word| word.trim().parse().ok()).collect();
        let [programs, states, trees, out_of_order, ..] = numbers[..] else { panic!("{line}") };
        assert!(programs > 0 && states > trees && trees > programs, "{line}");
        // A comparison that only saw what a kill leaves would say nothing, except where nothing else can be.
        assert!(out_of_order > 0 || *name == "ext4-journal", "{line}");
        temporary.is_clean();
    }
}

/// The planted bug is found on this filesystem, and the state that is named fails again.
fn is_found_on(name: &str, program: &str) {
    if let Some(reason) = why_not() {
        eprintln!("skipped: {reason}");
        return;
    }
    let Some(_) = usable(name) else { return };
    let temporary = Temporary::new();
    let program = Program::record("planted", program);
    let check = program.check();
    let explore = |options: &[&str]| {
        let mut command = program.crashlab(&["explore", "--check", &check]);
        command.args(options).env("TMPDIR", temporary.0.path()).output().unwrap()
    };
    let output = explore(&["--on", name, "--seconds", "3600", "--report", "r.json"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let json = program.json("r.json");
    assert_eq!(json["on"], name, "{json:#}");
    // The model has the same state.
    assert!(json["first"]["models"].as_array().unwrap().contains(&name.into()), "{json:#}");
    temporary.is_clean();
    let again = explore(&["--state", json["seen"]["state"].as_str().unwrap()]);
    assert_eq!(again.status.code(), Some(1), "{again:?}");
    temporary.is_clean();
}

#[test]
fn no_fsync_is_found_on_ext4() {
    is_found_on("ext4", "no-fsync");
}

#[test]
fn no_fsync_is_found_on_xfs() {
    is_found_on("xfs", "no-fsync");
}

#[test]
fn no_fsync_is_found_on_btrfs() {
    is_found_on("btrfs", "no-fsync");
}

#[test]
fn rename_before_data_is_found_on_ext4() {
    is_found_on("ext4", "rename-before-data");
}

#[test]
fn rename_before_data_is_found_on_xfs() {
    is_found_on("xfs", "rename-before-data");
}

#[test]
fn fsync_of_the_wrong_file_is_found_on_ext4() {
    is_found_on("ext4", "wrong-file");
}

#[test]
fn fsync_of_the_wrong_file_is_found_on_xfs() {
    is_found_on("xfs", "wrong-file");
}

#[test]
fn fsync_of_the_wrong_file_is_found_on_btrfs() {
    is_found_on("btrfs", "wrong-file");
}

/// Starts a validation that has a filesystem mounted.
fn start(temporary: &Temporary, filesystem: &str) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_crashlab"));
    command
        .args(["validate", filesystem, "--programs", "1000", "--seconds", "3600"])
        .env("TMPDIR", temporary.0.path());
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let disk = format!("-{} ", child.id());
    let has_its_disk = || fs::read_to_string("/proc/self/mountinfo").unwrap().contains(&disk);
    while !has_its_disk() || temporary.mounts().len() < 2 {
        assert!(child.try_wait().unwrap().is_none(), "it ended before it had mounted anything");
        std::thread::sleep(Duration::from_millis(2));
    }
    child
}

#[test]
fn an_interrupt_leaves_nothing_mounted() {
    let Some(_) = usable("ext4") else { return };
    let temporary = Temporary::new();
    for signal in ["-INT", "-HUP"] {
        let mut child = start(&temporary, "ext4");
        let killed = Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap();
        assert!(killed.success());
        assert_eq!(child.wait().unwrap().code(), Some(130));
        temporary.is_clean();
    }
}

/// Kills one, and waits until it has ended, though one of its threads may wait for its own disk.
fn kill(mut child: Child) {
    child.kill().unwrap();
    wait_until("the process has ended", || child.try_wait().unwrap().is_some());
}

fn wait_until(what: &str, mut happens: impl FnMut() -> bool) {
    let started = Instant::now();
    while !happens() {
        assert!(started.elapsed() < Duration::from_secs(60), "{what}: not within a minute");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_killed_one_leaves_nothing_mounted() {
    for name in ["ext4", "xfs", "btrfs"] {
        let Some(_) = usable(name) else { return };
        let temporary = Temporary::new();
        for pause in 0..5 {
            let child = start(&temporary, name);
            std::thread::sleep(Duration::from_millis(7 * pause));
            // The kernel keeps what it is told of the root of a mount.
            temporary.mounts().iter().for_each(|path| drop(fs::metadata(path)));
            kill(child);
            wait_until("nothing is left", || temporary.mounts().is_empty() && temporary.devices().is_empty());
        }
    }
}

#[test]
fn the_next_run_removes_what_one_leaves_that_was_killed_with_its_guard() {
    let Some(_) = usable("btrfs") else { return };
    let temporary = Temporary::new();
    let leaves_a_mount = || {
        let child = start(&temporary, "ext4");
        let pgrep =
            Command::new("pgrep").args(["-f", &format!("crashlab guard {}$", child.id())]).output().unwrap();
        let guard = String::from_utf8(pgrep.stdout).unwrap();
        let killed = Command::new("kill").args(["-KILL", guard.trim()]).status().unwrap();
        assert!(killed.success(), "{guard}");
        kill(child);
        !temporary.mounts().is_empty()
    };
    // One that is killed between two mounts leaves none.
    assert!((0..100).any(|_| leaves_a_mount()));
    // mkfs.btrfs fails for any disk while such mounts are there.
    let mut command = Command::new(env!("CARGO_BIN_EXE_crashlab"));
    command.args(["validate", "btrfs", "--programs", "1", "--seconds", "3600"]);
    let output = command.env("TMPDIR", temporary.0.path()).output().unwrap();
    assert!(String::from_utf8_lossy(&output.stdout).contains("\n| btrfs | 1 |"), "{output:?}");
    temporary.is_clean();
}

#[test]
fn without_root_the_error_says_what_is_missing() {
    if !rustix::process::geteuid().is_root() || usable("ext4").is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    // The program may lie where only root can read.
    let program = folder.path().join("crashlab");
    fs::copy(env!("CARGO_BIN_EXE_crashlab"), &program).unwrap();
    let mut command = Command::new("setpriv");
    command
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .arg(&program)
        .args(["validate", "xfs"]);
    let output = command.output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(said.contains("only root may mount it"), "{said}");
}
