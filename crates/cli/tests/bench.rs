//! `syncline bench`, as a user runs it, in a tiny size.

#[path = "../../../tests/support/mod.rs"]
mod support;

use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use support::{Place, as_nobody, no_fuse, not_root, program, run, tool};

/// K5 with the built-in load, on a small image in `place`.
fn tiny(place: &Place, options: &[&str]) -> Command {
    let mut command = program();
    command.args(["bench", "k5", "--quick", "--built-in", "--seconds", "0.3", "--size", "64MiB", "--dir"]);
    command.arg(place.directory("work")).args(options);
    command
}

/// True when the measurement has left nothing of its own behind.
fn is_tidy(place: &Place) -> bool {
    let work = place.path().join("work");
    let files = fs::read_dir(&work).expect("it is ours").count();
    let loops = tool("losetup", &["--list".as_ref(), "--output".as_ref(), "BACK-FILE".as_ref()]);
    let mounts = fs::read_to_string("/proc/self/mounts").expect("it is always there");
    let name = work.to_string_lossy().into_owned();
    files == 0 && !loops.unwrap_or_default().contains(&name) && !mounts.contains(&name)
}

#[test]
fn k5_is_measured_and_reported() {
    skip_if!(no_fuse());
    let place = Place::new();
    let (json, html) = (place.path().join("figures.json"), place.path().join("page.html"));
    let mut command = tiny(&place, &["--runs", "2", "--also", "node-size=4KiB"]);
    command.arg("--json").arg(&json).arg("--report").arg(&html);
    let answer = run(command).ok();
    assert!(is_tidy(&place), "image, loop device and mount are gone");
    for word in ["K5: 64 KiB sequential write + fsync, 1 job", "64 jobs", "flushes", "×syncline"] {
        assert!(answer.out.contains(word), "{word}: {answer:?}");
    }

    let json: Value = serde_json::from_slice(&fs::read(json).unwrap()).unwrap();
    let workloads = json["workloads"].as_array().unwrap();
    let variants: Vec<_> = workloads.iter().map(|workload| workload["variant"].as_str().unwrap()).collect();
    assert_eq!(variants, ["1 job", "8 jobs", "64 jobs"]);
    for workload in workloads {
        let syncline = &workload["contestants"][0];
        assert_eq!(syncline["name"], "syncline");
        assert_eq!(workload["contestants"][1]["name"], "syncline +node-size=4KiB");
        let runs = syncline["runs"].as_array().unwrap();
        assert_eq!(runs.len(), 2);
        let [least, middle, most] =
            ["min", "median", "max"].map(|of| syncline["value"][of].as_f64().unwrap());
        assert!(least > 0.0 && least <= middle && middle <= most, "{syncline}");
        // What the tables are about: one flush for an fsync at most, and each byte written about once.
        let number = |name: &str| syncline[name].as_f64().unwrap();
        assert!((0.01..1.1).contains(&number("flushes_per_operation")), "{syncline}");
        assert!((0.95..1.5).contains(&number("bytes_per_byte")), "{syncline}");
        assert!(number("p99_us") >= number("p50_us") && number("p50_us") > 0.0, "{syncline}");
        for run in runs {
            assert!(run["sample"]["operations"].as_u64().unwrap() > 0, "{run}");
            assert!(run["counts"]["flushes"].as_u64() >= run["daemon_counts"]["flushes"].as_u64(), "{run}");
        }
    }
    let page = fs::read_to_string(html).unwrap();
    assert!(page.contains("<svg") && page.contains("64 KiB sequential write + fsync, 8 jobs"));
    for reference in ["src=", "href=", "url(", "<script"] {
        assert!(!page.contains(reference), "{reference}");
    }
}

#[test]
fn what_cannot_be_measured_is_told_at_once() {
    skip_if!(no_fuse());
    for (options, told) in [
        (["--ablate", "no-such-mechanism"], "ablate=no-such-mechanism"),
        (["--also", "no_such_option"], "no_such_option"),
        (["--also", "node-size=3KiB"], "--node-size is 4KiB"),
    ] {
        let place = Place::new();
        run(tiny(&place, &options)).fails(2, &[told]);
        assert!(is_tidy(&place));
    }
    let mut command = program();
    command.args(["bench", "k5", "--report", "/no/such/folder/page.html"]);
    run(command).fails(1, &["/no/such/folder"]);
}

#[test]
fn peers_are_for_root() {
    skip_if!(not_root());
    let place = Place::new();
    // Where the build folder lies, others may not be able to enter.
    let copy = place.path().join("syncline");
    fs::copy(env!("CARGO_BIN_EXE_syncline"), &copy).unwrap();
    for path in [place.path(), &copy] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let work = place.directory("work");
    fs::set_permissions(&work, fs::Permissions::from_mode(0o777)).unwrap();
    let mut command = Command::new(copy);
    command.args(["bench", "k5", "--peers", "ext4", "--size", "64MiB", "--dir"]).arg(work);
    let answer = run(as_nobody(command));
    skip_if!(answer.err.contains("e2fsprogs").then_some("mkfs.ext4 is not installed"));
    answer.fails(9, &["root"]);
    assert!(is_tidy(&place));
}

#[test]
fn an_interrupt_leaves_nothing_behind() {
    skip_if!(no_fuse());
    let place = Place::new();
    let mut command = tiny(&place, &["--runs", "50"]);
    let mut child =
        command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null()).spawn().unwrap();
    std::thread::sleep(std::time::Duration::from_secs(2));
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let code = support::wait(&mut child, std::time::Duration::from_secs(60)).expect("it ends");
    assert_eq!(code, 1);
    assert!(is_tidy(&place));
}

#[test]
fn parts_of_the_engine_are_measured_without_a_mount() {
    let mut command = program();
    command.args(["bench", "micro"]);
    let answer = run(command).ok();
    for word in ["store: transaction", "log: seal", "tree: merge", "tree: lookup", "checksum: 64 KiB"] {
        assert!(answer.out.contains(word), "{word}: {answer:?}");
    }
}
