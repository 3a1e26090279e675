//! `syncline-lab bench`, as a user runs it, at a tiny size. `cargo test --workspace` builds the program
//! `syncline` that it measures.

#[path = "../../../tests/support/mod.rs"]
mod support;

use serde_json::Value;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use support::{Answer, Place, as_nobody, no_fuse, not_root, run, tool};

/// The program under test.
fn program() -> Command {
    Command::new(env!("CARGO_BIN_EXE_syncline-lab"))
}

/// K5 with the built-in load, on a small image in `place`.
fn tiny(place: &Place, options: &[&str]) -> Command {
    let mut command = program();
    command.args(["bench", "k5", "--quick", "--built-in", "--seconds", "0.3", "--size", "64MiB", "--dir"]);
    command.arg(place.directory("work")).args(options);
    command
}

/// True if the measurement has left nothing of its own behind.
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
        // The figures of the tables: at most one flush for an fsync, and each byte written about once.
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
    assert!(page.contains("class=\"chart\"") && page.contains("64 KiB sequential write + fsync, 8 jobs"));
    for reference in ["src=", "href=", "url(", "<script"] {
        assert!(!page.contains(reference), "{reference}");
    }
}

#[test]
fn a_mount_and_the_library_are_measured_on_two_disks() {
    skip_if!(no_fuse());
    skip_if!(not_root());
    let place = Place::new();
    let (lower, directory) = (place.path().join("lower"), place.directory("directory"));
    fs::write(&lower, vec![0; 4096]).unwrap();
    let mut disk = Disk::serve(&lower, &directory, "1us");
    if disk.path.is_none() {
        return println!("skipped: this kernel has no FUSE passthrough");
    }
    disk.end();
    let words = ["append", "--flush", "none,20ms", "--also", "library", "--seconds", "0.4"];
    let (answer, json) = beside(&place, &words);
    assert!(answer.out.contains("| | plain loop device | 20ms a flush |"), "{answer:?}");
    let [plain, slow] = [0, 1].map(|index| &json["workloads"][index]);
    assert_eq!((&plain["disk"], &slow["disk"]), (&"plain loop device".into(), &"20ms a flush".into()));
    for (index, name) in ["syncline", "library"].into_iter().enumerate() {
        let contestant = &slow["contestants"][index];
        assert_eq!(contestant["name"], name);
        // Each record waits for one flush, so no machine makes more of them.
        let rate = contestant["value"]["median"].as_f64().unwrap();
        assert!(rate > 0.0 && rate <= 51.0, "{contestant}");
        let flushes = contestant["flushes_per_operation"].as_f64().unwrap();
        assert!((0.95..1.5).contains(&flushes), "{contestant}");
        let plain = plain["contestants"][index]["flushes_per_operation"].as_f64().unwrap();
        assert!((0.95..1.1).contains(&plain), "{plain}");
    }
}

#[test]
fn another_program_is_measured_beside_it() {
    skip_if!(no_fuse());
    let place = Place::new();
    let [other, called, json] = ["other", "called", "figures.json"].map(|name| place.path().join(name));
    let script = format!(
        "#!/bin/sh\necho \"$1\" >> {}\nexec {} \"$@\"\n",
        called.display(),
        support::syncline_path().display()
    );
    support::executable(&other, script.as_bytes());
    let option = format!("program={}", other.display());
    run(tiny(&place, &["--also", &option, "--json", json.to_str().unwrap()])).ok();
    assert!(is_tidy(&place));
    let called = fs::read_to_string(called).unwrap();
    let commands: Vec<_> = called.lines().collect();
    // Once in the rehearsal, then for each number of jobs.
    assert_eq!(commands, ["mkfs", "mount", "umount"].repeat(commands.len() / 3));
    assert!(commands.len() >= 9, "{called}");
    let json: Value = serde_json::from_slice(&fs::read(json).unwrap()).unwrap();
    let second = &json["workloads"][0]["contestants"][1];
    assert_eq!(second["name"], format!("syncline +{option}"));
    assert!(second["value"]["median"].as_f64().unwrap() > 0.0, "{second}");
}

/// Measures a small image with built-in loads, beside another contestant in a process of its own;
/// returns the messages and the figures.
fn beside(place: &Place, words: &[&str]) -> (Answer, Value) {
    let json = place.path().join("figures.json");
    let mut command = program();
    command.arg("bench").args(words).args(["--quick", "--built-in", "--size", "64MiB", "--dir"]);
    command.arg(place.directory("work")).arg("--json").arg(&json);
    let answer = run(command).ok();
    assert!(is_tidy(place), "its process and its mount are gone as well");
    (answer, serde_json::from_slice(&fs::read(json).unwrap()).unwrap())
}

#[test]
fn the_null_filesystem_is_measured_beside_it() {
    skip_if!(no_fuse());
    let place = Place::new();
    let (answer, json) = beside(&place, &["k4", "--runs", "2", "--peers", "null", "--transport", "classic"]);
    assert!(answer.out.contains("×null"), "{answer:?}");
    for (workload, phase) in json["workloads"].as_array().unwrap().iter().zip(["create", "remove"]) {
        assert_eq!((&workload["phase"], &workload["compared_with"]), (&phase.into(), &"null".into()));
        let [syncline, null] = [0, 1].map(|index| &workload["contestants"][index]);
        assert_eq!((&null["name"], &null["ratio"]), (&"null".into(), &1.0.into()));
        assert!(syncline["ratio"].as_f64().unwrap() > 0.0, "{syncline}");
        // Both did all of the work; one of them wrote nothing.
        assert_eq!(null["runs"][0]["sample"]["operations"], syncline["runs"][0]["sample"]["operations"]);
        assert_eq!(null["writes_per_operation"], 0.0);
    }
}

#[test]
fn the_floor_of_a_sync_is_a_write_and_a_flush() {
    skip_if!(no_fuse());
    let place = Place::new();
    let words = ["overwrite", "--runs", "3", "--seconds", "0.3", "--peers", "null-flush/classic"];
    let (answer, json) = beside(&place, &words);
    assert!(answer.out.contains("95 %"), "{answer:?}");
    let alone = &json["workloads"][0];
    let [syncline, floor] = [0, 1].map(|index| &alone["contestants"][index]);
    assert_eq!(floor["name"], "null-flush/classic");
    let [low, high] = ["low", "high"].map(|end| syncline["ratio_interval"][end].as_f64().unwrap());
    assert!(low > 0.0 && low <= high, "{syncline}");
    for round in 0..3 {
        let place = |contestant: &Value| contestant["runs"][round]["place"].as_u64().unwrap();
        assert_eq!(place(syncline) + place(floor), 1, "one of them came first: {alone}");
    }
    if json["conditions"]["counted_by_daemon"] == false {
        let each = |what: &str| floor[what].as_f64().unwrap();
        assert!((0.9..1.1).contains(&each("flushes_per_operation")), "{floor}");
        assert!((0.9..1.1).contains(&each("bytes_per_byte")), "{floor}");
    }
}

#[test]
fn the_null_filesystem_knows_names_and_sizes() {
    skip_if!(no_fuse());
    let place = Place::new();
    let root = place.directory("null");
    let mut server = NullServer::start(&root);
    let refused = |result: std::io::Result<()>| result.unwrap_err().kind();

    let directory = root.join("directory");
    fs::create_dir(&directory).unwrap();
    for number in 0..3000 {
        File::create_new(directory.join(format!("file-{number}"))).unwrap();
    }
    let names = || fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().file_name());
    assert_eq!(names().count(), 3000);
    assert_eq!(names().collect::<BTreeSet<_>>().len(), 3000);
    let first = directory.join("file-0");
    assert_eq!(refused(File::create_new(&first).map(drop)), ErrorKind::AlreadyExists);
    assert_eq!(refused(fs::create_dir(&directory)), ErrorKind::AlreadyExists);
    assert_eq!(refused(fs::remove_dir(&directory)), ErrorKind::DirectoryNotEmpty);
    assert_eq!(refused(fs::remove_file(directory.join("none"))), ErrorKind::NotFound);

    let mut file = File::options().write(true).open(&first).unwrap();
    file.write_all(&[7; 100_000]).unwrap();
    file.sync_all().unwrap();
    assert_eq!(fs::metadata(&first).unwrap().len(), 100_000);
    file.set_len(10).unwrap();
    fs::set_permissions(&first, fs::Permissions::from_mode(0o640)).unwrap();
    let metadata = fs::metadata(&first).unwrap();
    assert_eq!((metadata.len(), metadata.permissions().mode() & 0o7777), (10, 0o640));

    // Removed during the listing, as k4 does it.
    for name in names() {
        fs::remove_file(directory.join(name)).unwrap();
    }
    assert_eq!(refused(fs::remove_file(&first)), ErrorKind::NotFound);
    // A file without a name is unchanged.
    assert_eq!(file.metadata().unwrap().len(), 10);
    drop(file);
    fs::remove_dir(&directory).unwrap();
    assert_eq!(fs::read_dir(&root).unwrap().count(), 0);
    server.end();
}

/// The null filesystem, as `bench` mounts it.
struct NullServer(Child);

impl NullServer {
    fn start(directory: &Path) -> Self {
        let mut command = program();
        command.arg("bench-null").arg(directory).args(["--transport", "classic"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut server = Self(command.spawn().unwrap());
        let mut line = String::new();
        let output = server.0.stdout.take().expect("it was asked for");
        BufReader::new(output).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        server
    }

    /// Closes its input: it unmounts and exits cleanly.
    fn end(&mut self) {
        drop(self.0.stdin.take());
        let code = support::wait(&mut self.0, Duration::from_secs(60)).expect("it ends");
        assert_eq!(code, 0);
    }
}

impl Drop for NullServer {
    fn drop(&mut self) {
        // A failed test must leave no mount: the server unmounts when its input ends.
        drop(self.0.stdin.take());
        let _ = self.0.wait();
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
    let place = Place::new();
    run(tiny(&place, &["--also", "program=/no/such/program"])).fails(1, &["/no/such/program"]);
    assert!(is_tidy(&place));
    let mut command = program();
    command.args(["bench", "k5", "--report", "/no/such/folder/page.html"]);
    run(command).fails(1, &["/no/such/folder"]);
}

#[test]
fn peers_are_for_root() {
    skip_if!(not_root());
    let place = Place::new();
    // Others may not be able to enter the build folder.
    let [lab, syncline] = ["syncline-lab", "syncline"].map(|name| place.path().join(name));
    for (copy, program) in
        [(&lab, env!("CARGO_BIN_EXE_syncline-lab").into()), (&syncline, support::syncline_path())]
    {
        support::executable(copy, &fs::read(program).unwrap());
    }
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let work = place.directory("work");
    fs::set_permissions(&work, fs::Permissions::from_mode(0o777)).unwrap();
    let mut command = Command::new(lab);
    command.args(["bench", "k5", "--peers", "ext4", "--size", "64MiB", "--dir"]).arg(work);
    let answer = run(as_nobody(command));
    skip_if!(answer.err.contains("e2fsprogs").then_some("mkfs.ext4 is not installed"));
    answer.fails(9, &["root"]);
    assert!(is_tidy(&place));
}

#[test]
fn a_bench_of_nothing_that_there_is_names_what_there_is() {
    let mut command = program();
    command.args(["bench", "nothing"]);
    let answer = run(command);
    assert!(answer.code == 2 && answer.err.contains("git, read, micro and all"), "{answer:?}");
}

#[test]
fn a_bench_without_its_peers_leaves_no_report() {
    let place = Place::new();
    let mut command = program();
    command.args(["bench", "micro", "--peers", "btrfs", "--report", "bench.html"]);
    command.current_dir(place.path()).env("PATH", place.path());
    skip_if!(
        ["/sbin", "/usr/sbin"]
            .iter()
            .any(|folder| Path::new(folder).join("mkfs.btrfs").exists())
            .then_some("mkfs.btrfs is found without a search path")
    );
    run(command).fails(1, &["mkfs.btrfs", "btrfs-progs"]);
    assert!(!place.path().join("bench.html").exists());
}

#[test]
fn an_interrupt_leaves_nothing_behind() {
    skip_if!(no_fuse());
    let place = Place::new();
    let mut command = tiny(&place, &["--runs", "50"]);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    std::thread::sleep(Duration::from_secs(2));
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let code = support::wait(&mut child, Duration::from_secs(60)).expect("it ends");
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

/// A disk whose flushes take a chosen time; its process ends when this is dropped.
struct Disk {
    server: Child,
    /// Its file, unless the kernel can't serve it.
    path: Option<String>,
}

impl Disk {
    fn serve(backing: &Path, directory: &Path, flush: &str) -> Self {
        let mut server = program();
        server.arg("disk").arg(backing).arg(directory).args(["--flush", flush]);
        server.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut server = server.spawn().unwrap();
        let mut path = String::new();
        BufReader::new(server.stdout.take().unwrap()).read_line(&mut path).unwrap();
        if path.is_empty() {
            let said = std::io::read_to_string(server.stderr.take().unwrap()).unwrap();
            assert!(said.contains("Linux 6.9"), "{said}");
        }
        let path = Some(path.trim().to_owned()).filter(|path| !path.is_empty());
        Self { server, path }
    }

    /// Ends its process, and returns once its mount is gone.
    fn end(&mut self) {
        drop(self.server.stdin.take());
        self.server.wait().unwrap();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.end();
    }
}

#[test]
fn a_disk_takes_its_time_for_each_flush() {
    skip_if!(no_fuse());
    skip_if!(not_root());
    let place = Place::new();
    let (backing, directory) = (place.path().join("backing"), place.directory("below"));
    fs::write(&backing, vec![0; 1 << 20]).unwrap();
    let mut disk = Disk::serve(&backing, &directory, "20ms");
    let Some(path) = disk.path.take() else {
        return println!("skipped: this kernel has no FUSE passthrough");
    };
    let mut file = File::options().write(true).open(path).unwrap();
    let began = std::time::Instant::now();
    for _ in 0..5 {
        file.write_all(b"contents").unwrap();
        file.sync_data().unwrap();
    }
    assert!(began.elapsed() >= Duration::from_millis(100), "{:?}", began.elapsed());
    drop(file);
    disk.end();
    assert!(fs::read(&backing).unwrap().starts_with(b"contentscontents"));
    assert!(fs::read_dir(&directory).unwrap().next().is_none(), "it is unmounted");
}
