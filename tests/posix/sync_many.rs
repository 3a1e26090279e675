//! fsync2 and fbarrier: through the program, and through the C header.

use super::{Ground, errno};
use crate::skip_if;
use crate::support::{Answer, Place, c_program, no_fuse, program, run, tool};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::Command;

fn call(command: &str, files: &[PathBuf]) -> Answer {
    let mut program = program();
    program.arg(command).args(files);
    run(program)
}

fn counter(ground: &Ground, part: &str, name: &str) -> u64 {
    ground.mount.as_ref().unwrap().stats()[part][name].as_u64().unwrap()
}

/// Files with data that was never fsynced.
fn write_files(ground: &Ground) -> Vec<PathBuf> {
    let files: Vec<PathBuf> = (0..20).map(|index| ground.path(&format!("file{index}"))).collect();
    files.iter().for_each(|file| fs::write(file, vec![5; 100_000]).unwrap());
    files
}

#[test]
fn many_files_are_durable_after_one_flush() {
    skip_if!(no_fuse());
    let ground = Ground::new();
    let files = write_files(&ground);
    let before = counter(&ground, "store", "flushes_issued");
    call("sync", &files).ok();
    assert_eq!(counter(&ground, "store", "flushes_issued") - before, 1);
    assert_eq!(counter(&ground, "files", "dirty_bytes"), 0);
    // Nothing is left to do for any of them.
    call("sync", &files).ok();
    for file in &files {
        fs::File::open(file).unwrap().sync_all().unwrap();
    }
    assert_eq!(counter(&ground, "store", "flushes_issued") - before, 1);
    ground.end();
}

/// Commands on many files sync them all together first, and skip files that need nothing.
#[test]
fn commands_on_many_files_need_few_flushes() {
    skip_if!(no_fuse());
    let ground = Ground::new();
    let tree = ground.path("tree");
    let write = || {
        fs::create_dir_all(&tree).unwrap();
        (0..300)
            .for_each(|index| fs::write(tree.join(format!("{index}")), vec![b'x'; 6000 + index]).unwrap());
    };
    let tree = tree.to_str().unwrap();
    let flushes = || counter(&ground, "store", "flushes_issued");
    for words in [&["compress", "-r", "--now"][..], &["defragment", "-r"]] {
        write();
        for what_there_is in ["new", "done"] {
            let before = flushes();
            let mut command = program();
            command.args(words).arg(tree);
            run(command).ok();
            let needed = flushes() - before;
            assert!(needed <= 20, "{words:?}, {what_there_is}: {needed} flushes for 300 files");
        }
    }
    // A file that is already compressed as requested does not change.
    let changed = || fs::metadata(ground.path("tree/1")).map(|it| (it.ctime(), it.ctime_nsec())).unwrap();
    let before = changed();
    let mut again = program();
    again.args(["compress", "-r", "--now", tree]);
    run(again).ok();
    assert_eq!(changed(), before);
    ground.end();
}

/// The example from the work on eliding flushes in ext4.
#[test]
fn the_second_of_two_small_files_needs_no_flush() {
    skip_if!(no_fuse());
    let ground = Ground::new();
    let before = counter(&ground, "store", "flushes_issued");
    let mut shell = Command::new("sh");
    shell
        .arg("-c")
        .arg("cd \"$1\" && echo aaa >f1; echo aaa >f2; sync f2; sync f1")
        .arg("sh")
        .arg(ground.path(""));
    assert!(shell.status().unwrap().success());
    assert_eq!(counter(&ground, "store", "flushes_issued") - before, 1);
    assert_eq!(counter(&ground, "files", "taken_along"), 1);
    ground.end();
}

#[test]
fn a_barrier_submits_and_does_not_flush() {
    skip_if!(no_fuse());
    let ground = Ground::new();
    let files = write_files(&ground);
    let before = counter(&ground, "store", "flushes_issued");
    call("barrier", &files).ok();
    assert_eq!(counter(&ground, "files", "dirty_bytes"), 0);
    assert_eq!(counter(&ground, "files", "barriers"), 1);
    assert_eq!(counter(&ground, "store", "flushes_issued"), before);
    ground.end();
}

#[test]
fn what_can_not_take_part_is_told() {
    skip_if!(no_fuse());
    let ground = Ground::new();
    fs::write(ground.path("file"), "x").unwrap();
    let elsewhere = tempfile::NamedTempFile::new().unwrap();
    let refused = call("sync", &[elsewhere.path().to_owned()]);
    assert_eq!(refused.code, 6, "{refused:?}");
    let refused = call("sync", &[ground.path("file"), elsewhere.path().to_owned()]);
    assert_eq!(refused.code, 2, "{refused:?}");
    assert!(refused.err.contains("one mount"), "{refused:?}");
    mknodat(CWD, ground.path("fifo"), FileType::Fifo, Mode::RUSR, 0).unwrap();
    let refused = call("barrier", &[ground.path("fifo")]);
    assert_eq!(refused.code, 2, "{refused:?}");
    let refused = call("sync", &vec![ground.path("file"); 2047]);
    assert_eq!(refused.code, 2, "{refused:?}");
    assert_eq!(call("sync", &[ground.path("none")]).code, 6);
    // A directory, and the same file several times, are fine.
    call("sync", &[ground.path(""), ground.path("file"), ground.path("file")]).ok();
    ground.end();
}

const PROGRAM: &str = r#"
#include "syncline.h"
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int main(int count, char **names)
{
	int fds[8], i;

	for (i = 1; i < count; i++) {
		if ((fds[i - 1] = open(names[i], O_RDWR | O_CREAT, 0644)) < 0 || ftruncate(fds[i - 1], 8192) != 0)
			return 1;
		char *page = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fds[i - 1], 0);
		if (page == MAP_FAILED)
			return 2;
		memset(page, 'm', 8192);
	}
	if (syncline_fbarrier(fds, count - 1) != 0 || syncline_fsync2(fds, count - 1) != 0) {
		printf("%d\n", errno);
		return 0;
	}
	printf("ok\n");
	return 0;
}
"#;

#[test]
fn programs_in_c_can_call_both() {
    skip_if!(no_fuse());
    skip_if!(tool("cc", &["--version".as_ref()]).is_none().then(|| "no C compiler is installed".to_owned()));
    let place = Place::new();
    let binary = c_program(&place, PROGRAM);
    let ground = Ground::new();
    let files = [ground.path("one"), ground.path("two")];
    let output = Command::new(&binary).args(&files).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "ok\n", "{output:?}");
    assert_eq!(counter(&ground, "files", "blocks_in_log"), 4, "what was mapped has been pushed out");
    assert_eq!(fs::read(&files[1]).unwrap(), vec![b'm'; 8192]);
    // On another filesystem: ENOTTY.
    let output = Command::new(&binary).arg(place.path().join("elsewhere")).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "25\n", "{output:?}");
    assert_eq!(errno(fs::read(ground.path("elsewhere"))), Some(2));
    ground.end();
}
