//! The examples do what they say.

use crate::skip_if;
use crate::support::{LIMIT, Place, edit, no_fuse, program, run, tool, wait};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples").join(name)
}

/// A script of the examples that finds the program under test, and otherwise only what is installed
/// in the system.
fn script(name: &str) -> Command {
    let mut command = Command::new(example(name));
    let program = Path::new(env!("CARGO_BIN_EXE_syncline")).parent().unwrap();
    command.env("PATH", format!("{}:/usr/bin:/bin", program.display()));
    command
}

fn is_clean(image: &Path) -> bool {
    let mut command = program();
    command.arg("check").arg(image);
    run(command).ok().out.contains("clean")
}

/// A job with a cache for CI, in its place.
fn job(place: &Place, line: &str) -> Command {
    let mut command = script("ci/cache");
    command.arg(place.image()).arg("32MiB").arg(place.path().join("cache"));
    command.args(["sh", "-c", line]).current_dir(place.path());
    command
}

#[test]
fn a_cache_for_ci_keeps_what_a_job_left_and_starts_anew_when_damaged() {
    skip_if!(no_fuse());
    let place = Place::new();
    let directory = place.path().join("cache");
    let cache = |line: &str| run(job(&place, line));
    let answer = cache("yes rotten | head -c 1000000 > cache/state; echo warm > cache/small; exit 3");
    assert_eq!(answer.code, 3, "the job's exit code: {answer:?}");
    assert!(is_clean(&place.image()) && fs::read_dir(&directory).unwrap().count() == 0, "unmounted");
    assert_eq!(cache("cat cache/small").ok().out, "warm\n");
    let bytes = fs::read(place.image()).unwrap();
    let at = bytes.windows(21).position(|bytes| bytes == b"rotten\nrotten\nrotten\n").expect("its data");
    edit(&place.image(), at as u64, 6, |bytes| bytes.copy_from_slice(b"Rotten"));
    let answer = cache("ls cache").ok();
    assert!(answer.err.contains("begins anew") && !answer.out.contains("state"), "{answer:?}");
    let mut command = script("ci/cache");
    command.arg("only");
    assert_eq!(run(command).code, 2);
}

#[test]
fn a_cache_for_ci_that_is_in_use_or_can_not_be_checked_is_left_alone() {
    skip_if!(no_fuse());
    let place = Place::new();
    let cache = |line: &str| run(job(&place, line));
    cache("echo warm > cache/state").ok();
    let inode = || fs::metadata(place.image()).unwrap().ino();
    let before = inode();

    // Somebody looks at it elsewhere.
    let mount = place.mount("elsewhere");
    let answer = cache("ls cache");
    assert!(answer.code == 8 && answer.err.contains("is left as it is"), "{answer:?}");
    assert_eq!(fs::read_to_string(mount.path.join("state")).unwrap(), "warm\n");
    mount.unmount().ok();
    assert_eq!(inode(), before);

    // Another job has it; and goes on after its script was killed.
    let mut other =
        job(&place, "touch ready; while [ -e ready ]; do sleep 0.1; done; touch ended").spawn().unwrap();
    crate::support::eventually("the other job begins", || place.path().join("ready").exists());
    let answer = cache("ls cache");
    assert!(answer.code == 75 && answer.err.contains("in use by another job"), "{answer:?}");
    other.kill().unwrap();
    other.wait().unwrap();
    assert_eq!(cache("ls cache").code, 75);
    fs::remove_file(place.path().join("ready")).unwrap();
    crate::support::eventually("the other job ends", || place.path().join("ended").exists());
    // The killed job left the cache mounted. The next job goes on with that cache, and makes no new one.
    crate::support::eventually("its lock ends", || cache("cat cache/state").out == "warm\n");
    assert_eq!(inode(), before);

    // Both copies of both superblocks: not an image, as far as anybody can tell.
    for block in [16u64, 32, 8192 - 16, 8192 - 8] {
        edit(&place.image(), block * 4096, 4096, |bytes| bytes.fill(0xee));
    }
    let answer = cache("ls cache");
    assert!(answer.code == 8 && answer.err.contains("remove it to begin anew"), "{answer:?}");
    assert_eq!(inode(), before);
}

#[test]
fn the_entry_point_of_a_container_mounts_runs_and_unmounts() {
    skip_if!(no_fuse());
    let place = Place::new();
    let directory = place.path().join("data");
    let entry = |line: &str| {
        let mut command = script("docker/entrypoint");
        command
            .env("SYNCLINE_IMAGE", place.image())
            .env("SYNCLINE_SIZE", "32MiB")
            .env("SYNCLINE_DIR", &directory);
        command.args(["sh", "-c", line]);
        command
    };
    assert_eq!(run(entry("pwd; echo kept > file; exit 5")).code, 5);
    assert!(is_clean(&place.image()));
    assert_eq!(run(entry("cat file")).ok().out, "kept\n");
    // A signal reaches the program, and the image is left clean.
    let mut child = entry("trap 'echo told > signal; exit 7' TERM; touch ready; while :; do sleep 0.1; done")
        .spawn()
        .unwrap();
    let started = Instant::now();
    while !directory.join("ready").exists() {
        assert!(started.elapsed() < LIMIT, "it does not start");
        std::thread::sleep(Duration::from_millis(50));
    }
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert_eq!(wait(&mut child, LIMIT), Some(7));
    assert!(is_clean(&place.image()));
    assert_eq!(run(entry("cat signal")).ok().out, "told\n");
}

#[test]
fn a_volume_for_postgresql_is_made_and_kept() {
    skip_if!(no_fuse());
    let place = Place::new();
    let directory = place.path().join("volume");
    let mut command = script("postgresql/volume");
    command.arg(place.image()).arg("64MiB").arg(&directory);
    let answer = run(command).ok();
    let mount = crate::support::Mount::of(&directory);
    let settings = fs::read_to_string(directory.join("data.conf")).unwrap();
    assert!(settings.contains("wal_recycle = off") && !settings.contains("full_page_writes"), "{settings}");
    assert!(directory.join("data").is_dir() || answer.err.contains("initdb"), "{answer:?}");
    mount.unmount().ok();
    assert!(is_clean(&place.image()));
}

#[test]
fn file_knows_an_image_by_its_label_even_without_its_first_superblock() {
    if tool("file", &["--version".as_ref()]).is_none() {
        eprintln!("skipped: file is not installed");
        return;
    }
    let place = Place::new();
    let uuid = "6ba7b810-9dad-11d1-80b4-00c04fd430c8";
    let mut command = program();
    command.arg("mkfs").arg(place.image()).args(["--size", "16MiB", "-L", "backups", "--uuid", uuid]);
    run(command).ok();
    let told = || {
        let mut command = Command::new("file");
        command.arg("-b").arg("-m").arg(example("magic")).arg(place.image());
        run(command).ok().out
    };
    let text = told();
    for words in ["Syncline filesystem", "label \"backups\"", uuid] {
        assert!(text.contains(words), "{words}: {text}");
    }
    edit(&place.image(), 65536, 4096, |block| block.fill(0));
    let text = told();
    assert!(text.contains("first superblock lost") && text.contains("label \"backups\""), "{text}");
    edit(&place.image(), 131072, 4096, |block| block.fill(0));
    assert!(!told().contains("Syncline"));
}

#[test]
fn systemd_takes_the_units() {
    if tool("systemd-analyze", &["--version".as_ref()]).is_none() {
        eprintln!("skipped: systemd-analyze is not installed");
        return;
    }
    let place = Place::new();
    const UNITS: [&str; 7] = [
        "systemd/syncline@.service",
        "systemd/syncline-metrics@.service",
        "systemd/syncline-snapshot@.service",
        "systemd/syncline-snapshot@.timer",
        "failover/syncline-failover@.service",
        "failover/syncline-watch@.service",
        "failover/syncline-takeover@.service",
    ];
    for unit in UNITS {
        let text = fs::read_to_string(example(unit)).unwrap();
        let name = unit.split_once('/').unwrap().1;
        let here = text.replace("/usr/bin/syncline", env!("CARGO_BIN_EXE_syncline"));
        // The script checks whether the manual is installed.
        let here: String = here
            .lines()
            .filter(|line| !line.starts_with("Documentation=man:"))
            .map(|line| format!("{line}\n"))
            .collect();
        fs::write(place.path().join(name.replace('@', "@data")), &here).unwrap();
        fs::write(place.path().join(name), here).unwrap();
    }
    for unit in UNITS {
        let name = unit.split_once('/').unwrap().1.replace('@', "@data");
        let mut command = Command::new("systemd-analyze");
        command.args(["verify", "--man=no"]).arg(place.path().join(name));
        let answer = run(command);
        let about_ours = answer.err.lines().any(|line| line.contains("syncline"));
        assert!(answer.code == 0 && !about_ours, "{answer:?}");
    }
    // Every option that the units use exists.
    for unit in UNITS {
        let text = fs::read_to_string(example(unit)).unwrap();
        let lines = text.lines().filter(|line| line.starts_with("Exec"));
        for line in lines.filter_map(|line| line.split_once("/usr/bin/syncline ").map(|(_, words)| words)) {
            let is_name = |word: &&str| word.bytes().all(|byte| byte.is_ascii_lowercase());
            let command: Vec<&str> = line.split(' ').take_while(is_name).collect();
            let mut help = program();
            help.args(&command).arg("--help");
            let help = run(help).ok().out;
            for option in line.split(' ').filter(|word| word.starts_with("--")) {
                assert!(help.contains(option), "{option} is no option of {command:?}");
            }
        }
    }
}
