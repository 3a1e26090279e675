//! Atomic writes of one file on a mount: F2FS's ioctls, what the page cache shows, who may do what
//! meanwhile, and what ends them without being asked.

use crate::support::{Mount, Place, c_program, no_fuse};
use crate::{Ground, skip_if};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

const ON: [&str; 2] = ["-o", "atomic_writes"];
const START: &str = "ioctl 1";
const COMMIT: &str = "ioctl 2";
const ABORT: &str = "ioctl 5";

/// A process that has a file open and does what it is told.
struct Program {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Program {
    fn new(program: &Path, file: &Path, how: &str) -> Self {
        let mut command = Command::new(program);
        command.arg(file).arg(how).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Self { child, input, output: BufReader::new(output) }
    }

    /// The answer to a line.
    fn ask(&mut self, line: &str) -> i64 {
        writeln!(self.input, "{line}").unwrap();
        let mut answer = String::new();
        self.output.read_line(&mut answer).unwrap();
        answer.trim().parse().unwrap_or_else(|_| panic!("{line}: {answer:?}"))
    }

    #[track_caller]
    fn tell(&mut self, lines: &[&str]) {
        for line in lines {
            let answer = self.ask(line);
            assert!(answer >= 0, "{line}: {answer}");
        }
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A mount, a file of ten blocks there that is full of ones, and the program.
fn ground(options: &[&str]) -> (Ground, PathBuf, PathBuf) {
    let ground = Ground::with(options);
    let program = c_program(&ground.place, include_str!("atomic.c"));
    let file = ground.path("database");
    fs::write(&file, [1; 40_960]).unwrap();
    fs::File::open(&file).unwrap().sync_all().unwrap();
    (ground, file, program)
}

fn counters(ground: &Ground) -> (u64, u64) {
    let stats = ground.mount.as_ref().unwrap().stats();
    (stats["files"]["atomic_commits"].as_u64().unwrap(), stats["files"]["atomic_aborts"].as_u64().unwrap())
}

fn flushes(ground: &Ground) -> u64 {
    ground.mount.as_ref().unwrap().stats()["store"]["flushes_issued"].as_u64().unwrap()
}

#[test]
fn without_the_option_the_interface_is_not_there() {
    skip_if!(no_fuse());
    let (ground, file, program) = ground(&[]);
    let mut one = Program::new(&program, &file, "w");
    for line in [START, COMMIT, ABORT, "features"] {
        assert_eq!(one.ask(line), -25, "{line}");
    }
    drop(one);
    ground.end();
}

#[test]
fn a_commit_takes_one_flush_and_a_killed_daemon_leaves_all_or_nothing() {
    skip_if!(no_fuse());
    let (mut ground, file, program) = ground(&ON);
    let mut one = Program::new(&program, &file, "w");
    assert_eq!(one.ask("features"), 4);
    // The volatile ones of old are gone, as on F2FS.
    assert_eq!((one.ask("ioctl 3"), one.ask("ioctl 4")), (-25, -25));
    one.tell(&[START, "write 0 8192 2", "write 36864 40960 2"]);
    let before = flushes(&ground);
    one.tell(&[COMMIT]);
    assert_eq!(flushes(&ground) - before, 1);
    one.tell(&[START, "write 4096 80000 3"]);
    assert_eq!((one.ask("size"), one.ask("same 4096 80000")), (84_096, 3));
    let mut other = Program::new(&program, &file, "w");
    assert_eq!(other.ask("fsync"), 0);
    let mut mount = ground.mount.take().unwrap();
    mount.kill();
    drop((one, other, mount));
    let mount = Mount::new(&ground.place.image(), &ground.place.directory("again"), &[]);
    let found = fs::read(mount.path.join("database")).unwrap();
    let expected: Vec<u8> = [(8192, 2), (28_672, 1), (40_960, 2)]
        .iter()
        .flat_map(|(len, byte)| std::iter::repeat_n(*byte, *len))
        .collect();
    assert!(found == expected);
    mount.unmount().ok();
    ground.place.check_clean();
}

#[test]
fn an_abort_takes_back_what_others_have_seen_in_the_page_cache() {
    skip_if!(no_fuse());
    let (ground, file, program) = ground(&ON);
    let (mut one, mut other) = (Program::new(&program, &file, "w"), Program::new(&program, &file, "r"));
    other.tell(&["same 0 40960"]);
    let mtime = one.ask("mtime");
    for round in 0..20 {
        one.tell(&[START, "write 4096 4096 2", "write 100 50 3", "write 40960 90000 4"]);
        assert_eq!((other.ask("same 4096 4096"), other.ask("same 100 50")), (2, 3), "round {round}");
        assert_eq!((other.ask("size"), other.ask("same 40960 90000")), (130_960, 4));
        assert!(other.ask("mtime") > mtime);
        one.tell(&[ABORT]);
        assert_eq!((other.ask("same 0 40960"), other.ask("same 40960 1")), (1, 257), "round {round}");
        assert_eq!((one.ask("size"), other.ask("size"), other.ask("mtime")), (40_960, 40_960, mtime));
    }
    assert_eq!(counters(&ground), (0, 20));
    drop((one, other));
    ground.end();
}

#[test]
fn what_others_may_do_meanwhile() {
    skip_if!(no_fuse());
    let (ground, file, program) = ground(&ON);
    let (mut one, mut other) = (Program::new(&program, &file, "w"), Program::new(&program, &file, "w"));
    let mut reader = Program::new(&program, &file, "r");
    assert_eq!(reader.ask(START), -9, "not open for writing");
    one.tell(&[START, START, "write 0 4096 2"]);
    for (line, answer) in [
        (START, -16),
        (COMMIT, -16),
        ("write 0 1 9", -16),
        ("truncate 5", -16),
        ("punch 0 4096", -16),
        (ABORT, 0),
        ("fsync", 0),
    ] {
        assert_eq!(other.ask(line), answer, "{line}");
    }
    assert_eq!((one.ask("truncate 5"), one.ask("punch 0 4096")), (-16, -16));
    // The image has the old state, and so has a copy.
    let copy = ground.path("copy");
    fs::copy(&file, &copy).unwrap();
    assert!(fs::read(&copy).unwrap() == [1; 40_960]);
    fs::rename(&file, ground.path("renamed")).unwrap();
    one.tell(&[COMMIT]);
    assert_eq!((other.ask("same 0 4096"), other.ask("write 0 4096 5")), (2, 4096));
    assert_eq!((one.ask(COMMIT), one.ask(ABORT)), (0, 0));
    assert_eq!(one.ask("same 0 4096"), 5);
    // Past the page cache.
    let mut direct = Program::new(&program, &ground.path("renamed"), "d");
    direct.tell(&[START, "write 8192 8192 6"]);
    assert_eq!((other.ask("same 8192 8192"), direct.ask("same 8192 8192")), (6, 6));
    direct.tell(&[ABORT]);
    assert_eq!((other.ask("same 8192 8192"), direct.ask("same 8192 8192")), (1, 1));
    drop((one, other, reader, direct));
    ground.end();
}

#[test]
fn the_end_of_its_program_takes_it_back_before_its_locks_go() {
    skip_if!(no_fuse());
    let (ground, file, program) = ground(&ON);
    for round in 0..20 {
        let mut one = Program::new(&program, &file, "w");
        one.tell(&["lock", START, "write 0 40960 2", "write 40960 4096 2"]);
        let mut other = Program::new(&program, &file, "w");
        assert_eq!(other.ask("same 0 40960"), 2);
        // Waits for the lock, and finds the file as it was.
        writeln!(other.input, "lock\nsame 0 40960\nsize").unwrap();
        one.kill();
        let mut answers = String::new();
        for _ in 0..3 {
            other.output.read_line(&mut answers).unwrap();
        }
        assert_eq!(answers, "0\n1\n40960\n", "round {round}");
    }
    assert_eq!(counters(&ground), (0, 20));
    ground.end();
}

#[test]
fn which_closes_end_it() {
    skip_if!(no_fuse());
    let (ground, file, program) = ground(&ON);
    let mut other = Program::new(&program, &file, "r");
    let mut one = Program::new(&program, &file, "w");
    one.tell(&[START, "write 0 4096 2", "fork"]);
    assert_eq!(other.ask("same 0 4096"), 2, "a child's end does not");
    one.tell(&["dup", "close-spare"]);
    assert_eq!(other.ask("same 0 4096"), 1, "a descriptor of the same open file does");
    // What is still to be written would be a part of it only, so the program has to learn that.
    assert_eq!((one.ask("write 0 4096 3"), one.ask(COMMIT)), (-5, -5));
    one.tell(&[ABORT, "write 0 4096 3"]);
    assert_eq!(other.ask("same 0 4096"), 3);
    one.tell(&[START, "write 0 4096 4", "close"]);
    assert_eq!(other.ask("same 0 4096"), 3);
    drop((one, other));
    ground.end();
}

#[test]
fn stores_through_a_mapping_are_part_of_it() {
    skip_if!(no_fuse());
    let (ground, file, program) = ground(&ON);
    let (mut one, mut other) = (Program::new(&program, &file, "w"), Program::new(&program, &file, "w"));
    other.tell(&["map 40960", "mapped 0"]);
    one.tell(&[START, "write 0 4096 2"]);
    assert_eq!(other.ask("mapped 0"), 2, "a mapping shows the page cache");
    other.tell(&["store 100 1 7"]);
    assert_eq!(other.ask("msync 4096"), -16, "it is not durable, and says so");
    one.tell(&[ABORT]);
    assert_eq!((other.ask("mapped 0"), other.ask("mapped 100")), (1, 1));
    assert_eq!(other.ask("msync 4096"), 0);
    one.tell(&[START, "write 0 50 2"]);
    other.tell(&["store 100 1 7"]);
    other.ask("msync 4096");
    one.tell(&[COMMIT]);
    assert_eq!((other.ask("mapped 0"), other.ask("mapped 100"), other.ask("msync 4096")), (2, 7, 0));
    drop((one, other));
    ground.end();
}

/// With 2 MiB of dirty data, half a megabyte of an atomic write stays in memory.
#[test]
fn what_does_not_fit_into_memory_goes_to_the_device() {
    skip_if!(no_fuse());
    let (mut ground, file, program) = ground(&["-o", "atomic_writes,dirty=2MiB"]);
    let (mut one, mut other) = (Program::new(&program, &file, "w"), Program::new(&program, &file, "r"));
    let mib = 1 << 20;
    let fill = |one: &mut Program, byte: u32| {
        one.tell(&[START]);
        (0..20).for_each(|at| assert_eq!(one.ask(&format!("write {} {mib} {byte}", at * mib)), mib));
        // Parts of blocks that are on the device.
        assert_eq!(one.ask(&format!("write {} 100 7", 3 * mib + 50)), 100);
    };
    fill(&mut one, 2);
    let spilled = |ground: &Ground| {
        let stats = ground.mount.as_ref().unwrap().stats();
        stats["files"]["atomic_spilled_bytes"].as_u64().unwrap()
    };
    assert!(spilled(&ground) > 15 * mib as u64);
    // Whoever reads past the page cache has it from the device.
    let mut direct = Program::new(&program, &file, "d");
    assert_eq!(direct.ask(&format!("same {} {mib}", 5 * mib)), 2);
    assert_eq!(other.ask(&format!("same {} 100", 3 * mib + 50)), 7);
    one.tell(&[ABORT]);
    assert_eq!((other.ask("same 0 40960"), other.ask("size")), (1, 40_960));
    fill(&mut one, 3);
    let before = flushes(&ground);
    one.tell(&[COMMIT]);
    assert_eq!(flushes(&ground) - before, 1);
    assert_eq!((other.ask("size"), other.ask(&format!("same {} {mib}", 19 * mib))), (20 * mib, 3));
    fill(&mut one, 4);
    let mut mount = ground.mount.take().unwrap();
    mount.kill();
    drop((one, other, direct, mount));
    let mount = Mount::new(&ground.place.image(), &ground.place.directory("again"), &[]);
    let found = fs::read(mount.path.join("database")).unwrap();
    let is_3 = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 3);
    let at = 3 * mib as usize + 50;
    assert!(found.len() == 20 * mib as usize && is_3(&found[..at]) && is_3(&found[at + 100..]));
    mount.unmount().ok();
    ground.place.check_clean();
}

#[test]
fn what_does_not_fit_is_refused_at_the_write() {
    skip_if!(no_fuse());
    // Others have most of the memory.
    let (ground, file, program) = ground(&["-o", "atomic_writes,dirty=2MiB"]);
    let second = ground.path("second");
    fs::write(&second, [1; 40_960]).unwrap();
    let (mut one, mut other) = (Program::new(&program, &file, "w"), Program::new(&program, &second, "w"));
    one.tell(&[START, "write 0 900000 2"]);
    other.tell(&[START]);
    assert_eq!(other.ask("write 0 299008 2"), -27);
    one.tell(&[COMMIT]);
    assert_eq!((one.ask("size"), one.ask("same 0 900000")), (900_000, 2));
    other.tell(&["write 0 299008 2", COMMIT]);
    drop((one, other));
    ground.end();
    let (ground, file, program) = ground_of("16MiB");
    let mut one = Program::new(&program, &file, "w");
    one.tell(&[START]);
    // Whole blocks: of others the kernel writes the first by itself, and the answer is a short one.
    let refused = (0..64).map(|at| one.ask(&format!("write {} 999424 2", at * 999_424)));
    assert_eq!(refused.filter(|answer| *answer < 0).take(1).collect::<Vec<_>>(), [-28]);
    one.tell(&[COMMIT]);
    drop(one);
    ground.end();
}

/// A mount of a small image.
fn ground_of(size: &str) -> (Ground, PathBuf, PathBuf) {
    let place = Place::with_image(size);
    let mount = Mount::new(&place.image(), &place.directory("mount"), &ON);
    let ground = Ground { place, mount: Some(mount) };
    let program = c_program(&ground.place, include_str!("atomic.c"));
    let file = ground.path("database");
    fs::write(&file, [1; 40_960]).unwrap();
    (ground, file, program)
}
