//! `syncline run`, which mounts for as long as a command runs; `status`, which shows all mounts;
//! `ls` and `cat`, which need no mount.

use crate::skip_if;
use crate::support::{LIMIT, Place, eventually, no_fuse, program, run, syncline, wait};
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsStr;
use std::fs;
use std::process::Stdio;

#[test]
fn a_command_runs_in_a_mount_that_ends_with_it() {
    skip_if!(no_fuse());
    let place = Place::new();
    let image = place.path().join("new.img");
    let mut command = program();
    command.arg("run").arg(&image).args(["--create", "32MiB", "--", "sh", "-c"]);
    command.arg("echo kept >file && pwd && exit 7");
    let answer = run(command);
    assert_eq!(answer.code, 7, "{answer:?}");
    let directory = answer.out.trim();
    assert!(!directory.is_empty() && !fs::exists(directory).unwrap(), "it is still there: {directory}");
    let mut command = program();
    command.arg("run").arg(&image).args(["--", "cat", "file"]);
    assert_eq!(run(command).ok().out, "kept\n");
    let mut command = program();
    command.arg("run").arg(&image).args(["--", "/nowhere/none"]);
    run(command).fails(127, &["cannot run /nowhere/none", "No such file", "after '--'"]);
    let mut command = program();
    command.arg("run").arg(place.path().join("none.img")).args(["--", "true"]);
    run(command).fails(5, &["none.img", "--create"]);
    let mut command = program();
    command.arg("check").arg(&image);
    run(command).ok();
}

#[test]
fn a_signal_reaches_the_command_and_the_image_is_left_clean() {
    skip_if!(no_fuse());
    let place = Place::with_image("32MiB");
    let mut command = program();
    command.arg("run").arg(place.image()).args(["--", "sh", "-c", "echo whole >file; exec sleep 1000"]);
    let mut child = command.spawn().unwrap();
    let image = place.image();
    let directory = || {
        let told: serde_json::Value = serde_json::from_str(&syncline(["status", "--json"]).ok().out).unwrap();
        let mounts = told.as_array().unwrap();
        let ours = mounts.iter().find(|mount| mount["image"].as_str() == image.to_str())?;
        Some(ours["mount"].as_str().unwrap().to_owned())
    };
    let mut found = None;
    eventually("the command runs", || {
        found = directory();
        found.as_ref().is_some_and(|directory| {
            fs::read(format!("{directory}/file")).is_ok_and(|text| text == b"whole\n")
        })
    });
    kill_process(Pid::from_raw(child.id() as i32).unwrap(), Signal::TERM).unwrap();
    assert_eq!(wait(&mut child, LIMIT), Some(128 + 15));
    assert!(!fs::exists(found.unwrap()).unwrap());
    let mut command = program();
    command.arg("cat").arg(format!("{}:file", image.display()));
    assert_eq!(run(command).ok().out, "whole\n");
    place.check_clean();
}

/// A full filesystem has room that is only for removing files: `df` does not count it, so `stats` says so.
#[test]
fn what_is_reserved_is_not_called_free_for_files() {
    skip_if!(no_fuse());
    let place = Place::with_image("32MiB");
    let mount = place.mount("mount");
    let space = || {
        let answer = syncline([OsStr::new("stats"), mount.path.as_os_str()]).ok();
        answer.out.lines().find(|line| line.starts_with("space")).unwrap().to_owned()
    };
    assert!(!space().contains("reserved"), "{}", space());
    let mut file = fs::File::create(mount.path.join("file")).unwrap();
    while std::io::Write::write_all(&mut file, &[1; 65_536]).is_ok() {}
    assert!(space().contains(" of it for files; the rest is reserved"), "{}", space());
    drop(file);
    mount.unmount().ok();
}

#[test]
fn all_mounts_are_shown() {
    skip_if!(no_fuse());
    let place = Place::with_image("32MiB");
    let mount = place.mount("mount");
    fs::write(mount.path.join("file"), vec![1; 1 << 20]).unwrap();
    let answer = syncline(["status"]).ok();
    let head = format!("{}: {}", mount.path.display(), place.image().display());
    let mut lines = answer.out.lines().skip_while(|line| *line != head).skip(1);
    for words in ["% used", "read-write", "fsyncs/s; errors: none"] {
        let line = lines.next().unwrap_or_default();
        assert!(line.starts_with("    ") && line.contains(words), "{words}: {answer:?}");
    }
    let answer = syncline(["status", "--json"]).ok();
    let told: serde_json::Value = serde_json::from_str(&answer.out).unwrap();
    let of = |told: &serde_json::Value| told["mount"].as_str() == mount.path.to_str();
    let mounts = told.as_array().unwrap();
    let this = mounts.iter().find(|told| of(told)).unwrap();
    assert_eq!(this["image"].as_str(), place.image().to_str());
    assert!(this["errors"].is_null() && this["pid"].as_u64().is_some(), "{this}");
    mount.unmount().ok();
}

#[test]
fn nothing_is_remounted_where_nothing_is_mounted() {
    let place = Place::with_image("32MiB");
    let directory = place.directory("mount");
    let mut command = program();
    command.args(["mount", "-o", "remount,ro"]).arg(place.image()).arg(&directory);
    run(command).fails(6, &["mount", "not on a mounted Syncline filesystem"]);
}

#[test]
fn who_reads_no_further_ends_a_command_quietly() {
    for arguments in [&["completions", "bash"][..], &["help", "mount"]] {
        let mut child =
            program().args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{arguments:?}: {output:?}");
    }
}

#[test]
fn an_image_is_looked_into_without_mounting_it() {
    skip_if!(no_fuse());
    let place = Place::with_image("32MiB");
    let mount = place.mount("mount");
    fs::create_dir(mount.path.join("directory")).unwrap();
    fs::write(mount.path.join("directory/file"), "as on monday").unwrap();
    std::os::unix::fs::symlink("file", mount.path.join("directory/link")).unwrap();
    let large: Vec<u8> = (0..3_000_001).map(|at: u32| (at / 7) as u8).collect();
    fs::write(mount.path.join("large"), &large).unwrap();
    let mut command = program();
    command.args(["snapshot", "create"]).arg(&mount.path).arg("monday");
    run(command).ok();
    fs::write(mount.path.join("directory/file"), "newer").unwrap();
    let ask = |words: &[&str], place: String| {
        let mut command = program();
        command.args(words).arg(place);
        run(command)
    };
    let image = place.image().display().to_string();
    // A snapshot can be read even while the image is in use.
    assert_eq!(ask(&["cat"], format!("{image}@monday:directory/file")).ok().out, "as on monday");
    ask(&["cat"], format!("{image}:directory/file")).fails(3, &["in use"]);
    mount.unmount().ok();
    assert_eq!(ask(&["cat"], format!("{image}:/directory/file")).ok().out, "newer");
    assert_eq!(ask(&["ls"], image.clone()).ok().out, "directory\nlarge\n");
    let long = ask(&["ls", "-l"], format!("{image}:directory")).ok().out;
    let lines: Vec<&str> = long.lines().collect();
    assert!(lines[0].starts_with("-rw") && lines[0].ends_with(" file"), "{long}");
    assert!(lines[1].starts_with("lrwxrwxrwx") && lines[1].ends_with(" link -> file"), "{long}");
    let mut command = program();
    command.arg("cat").arg(format!("{image}:large"));
    assert!(command.output().unwrap().stdout == large);
    ask(&["cat"], format!("{image}:none")).fails(1, &["none", "no such file"]);
    ask(&["cat"], format!("{image}:directory")).fails(1, &["directory", "'syncline ls'"]);
    ask(&["cat"], image.clone()).fails(2, &["IMAGE:PATH"]);
    ask(&["ls"], format!("{image}@tuesday")).fails(1, &["tuesday"]);
    place.check_clean();
}

/// The daemon goes on with the file that it has open, so nothing else would tell before the unmount.
#[test]
fn an_image_file_that_went_or_was_cut_off_is_told_of() {
    skip_if!(no_fuse());
    let place = Place::with_image("32MiB");
    let mount = place.mount("mount");
    let stats = || syncline(["stats".as_ref(), mount.path.as_os_str()]).ok().out;
    let metric = || {
        let words = ["stats".as_ref(), mount.path.as_os_str(), "--prometheus".as_ref()];
        let text = syncline(words).ok().out;
        text.lines().any(|line| line.starts_with("syncline_image_changed{") && line.ends_with(" 1"))
    };
    assert!(mount.stats()["image_changed"].is_null() && !metric(), "{}", stats());
    let moved = place.path().join("moved");
    fs::rename(place.image(), &moved).unwrap();
    assert!(stats().contains("its image file: it was deleted, moved or replaced"), "{}", stats());
    assert!(metric() && syncline(["status"]).ok().out.contains("deleted, moved or replaced"));
    fs::rename(&moved, place.image()).unwrap();
    let image = fs::File::options().write(true).open(place.image()).unwrap();
    let len_bytes = image.metadata().unwrap().len();
    image.set_len(len_bytes - 8192).unwrap();
    let told = stats();
    assert!(told.contains(&format!("it was cut off at {} bytes", len_bytes - 8192)), "{told}");
    assert!(
        told.contains(&format!("'truncate -s {len_bytes} ")) && told.contains("syncline scrub"),
        "{told}"
    );
    image.set_len(len_bytes).unwrap();
    assert!(mount.stats()["image_changed"].is_null() && !metric(), "{}", stats());
    mount.unmount().ok();
}
