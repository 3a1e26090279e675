//! Root's mounts have a block device, so that sync(2) reaches them, umount(8) waits for them, and
//! their device number stays.

use crate::skip_if;
use crate::support::{
    LIMIT, Loop, Mount, Place, c_program, missing_of, no_fuse, no_mounts, program, run, stop, syncline, tool,
    wait, wait_for_end,
};
use rustix::fs::syncfs;
use rustix::process::{Signal, kill_process};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;

const WITH: [&str; 2] = ["-o", "fuseblk=always"];

/// Type and source of the mount at a directory.
fn shown(directory: &Path) -> (String, PathBuf) {
    let table = fs::read_to_string("/proc/self/mounts").unwrap();
    let line =
        table.lines().rfind(|line| line.split(' ').nth(1) == directory.to_str()).expect("it is mounted");
    let mut words = line.split(' ');
    let source = words.next().unwrap().into();
    (words.nth(1).unwrap().to_owned(), source)
}

/// The loop device's directory in /sys.
fn about(device: &Path) -> PathBuf {
    Path::new("/sys/block").join(device.file_name().unwrap())
}

#[test]
fn an_image_file_is_shown_as_a_loop_device_and_found_by_its_name() {
    skip_if!(no_mounts());
    let place = Place::with_image("32MiB");
    let mount = Mount::new(&place.image(), &place.directory("mount"), &WITH);
    let (kind, source) = shown(&mount.path);
    assert_eq!(kind, "fuseblk.syncline");
    let behind = fs::read_to_string(about(&source).join("loop/backing_file")).unwrap();
    assert_eq!(Path::new(behind.trim_end()), place.image().canonicalize().unwrap());
    let (image, directory) = (place.image(), mount.path.display().to_string());
    let (image, directory) = (image.to_str().unwrap(), &*directory);
    assert!(syncline(["status"]).ok().out.contains(&format!("{directory}: {image}")));
    for (mounted, words) in [(&mount.path, "sync(2) reaches it"), (&mount.path, image)] {
        let told = syncline([OsStr::new("info"), mounted.as_ref()]).ok().out;
        assert!(told.contains(words), "{told}");
    }
    // All others are refused, and told where it is.
    syncline(["umount", image]).fails(6, &[directory]);
    let other = place.directory("other");
    for words in [&["check"][..], &["check", "--repair"], &["mkfs", "--force"], &["mount"]] {
        let mut command = program();
        command.args(words).arg(image).args((words == ["mount"]).then_some(&other));
        run(command).fails(if words[0] == "check" { 8 } else { 3 }, &["in use", directory]);
    }
    mount.unmount().ok();
    assert!(!about(&source).exists(), "the loop device is gone");
}

/// The kernel waits, so nobody else has to.
#[test]
fn the_image_is_clean_and_free_when_umount_returns() {
    skip_if!(no_mounts());
    let place = Place::with_image("32MiB");
    let directory = place.directory("mount");
    for transport in ["available", "classic"] {
        let options = format!("fuseblk=always,transport={transport}");
        let mount = Mount::new(&place.image(), &directory, &["-o", &options]);
        fs::write(directory.join("file"), vec![7; 1 << 20]).unwrap();
        let daemon = mount.pid();
        // It can't answer after the unmount.
        tool("umount", &[OsStr::new("-i"), directory.as_ref()]).unwrap();
        let info = syncline([OsStr::new("info"), place.image().as_ref()]).ok().out;
        assert!(info.contains("clean: it was unmounted"), "{info}");
        place.check_clean();
        wait_for_end(daemon);
    }
}

/// Programs for backups tell files by their device's number.
#[test]
fn a_mount_has_the_same_device_number_each_time() {
    skip_if!(no_mounts());
    skip_if!(missing_of(&["tar"]));
    let (place, other) = (Place::with_image("32MiB"), Place::with_image("32MiB"));
    let directory = place.directory("mount");
    let list = place.path().join("list");
    let archive = || {
        let words = ["--create", "--verbose", "--file=/dev/null", "--listed-incremental"].map(OsStr::new);
        let mut tar = Command::new("tar");
        tar.args(words).arg(&list).arg("-C").arg(&directory).arg(".");
        run(tar).ok().out
    };
    let mount = Mount::new(&place.image(), &directory, &WITH);
    for name in ["one", "two", "three"] {
        fs::write(directory.join(name), name).unwrap();
    }
    let number = fs::metadata(&directory).unwrap().dev();
    assert!(archive().contains("./two"));
    mount.unmount().ok();
    // Another mount must not take it, and changes nothing.
    let beside = Mount::new(&other.image(), &other.directory("mount"), &WITH);
    let mount = Mount::new(&place.image(), &directory, &WITH);
    assert_eq!(fs::metadata(&directory).unwrap().dev(), number);
    assert_ne!(fs::metadata(&beside.path).unwrap().dev(), number);
    // By the clock that tar compares with.
    std::thread::sleep(std::time::Duration::from_millis(1100));
    fs::write(directory.join("two"), "changed").unwrap();
    let archived = archive();
    assert!(archived.contains("./two") && !archived.contains("./one"), "{archived}");
    mount.unmount().ok();
    beside.unmount().ok();
}

#[test]
fn a_disk_is_the_source_of_its_mount_and_is_left_to_it() {
    skip_if!(no_mounts());
    let place = Place::with_image("32MiB");
    let Some(disk) = Loop::new(&place.image()) else {
        eprintln!("skipped: no loop device");
        return;
    };
    let mount = Mount::new(&disk.device, &place.directory("mount"), &WITH);
    assert_eq!(shown(&mount.path), ("fuseblk.syncline".into(), disk.device.clone()));
    assert_eq!(fs::metadata(&mount.path).unwrap().dev(), fs::metadata(&disk.device).unwrap().rdev());
    fs::write(mount.path.join("file"), "contents").unwrap();
    let (other, directory) = (place.directory("other"), mount.path.to_str().unwrap().to_owned());
    for image in [&disk.device, &place.image()] {
        for words in [&["check"][..], &["check", "--repair"], &["mkfs", "--force"], &["mount"]] {
            let mut command = program();
            command.args(words).arg(image).args((words == ["mount"]).then_some(&other));
            run(command).fails(if words[0] == "check" { 8 } else { 3 }, &["in use", &directory]);
        }
    }
    // Nobody else either.
    assert!(tool("mkfs.ext4", &[OsStr::new("-F"), disk.device.as_ref()]).is_none());
    tool("umount", &[OsStr::new("-i"), mount.path.as_ref()]).unwrap();
    syncline([OsStr::new("check"), disk.device.as_ref()]).ok();
    drop(mount);
    // Of many at once, one has it.
    let mounts: Vec<PathBuf> = (0..6).map(|number| place.directory(&number.to_string())).collect();
    let codes: Vec<i32> = std::thread::scope(|scope| {
        let started: Vec<_> = mounts
            .iter()
            .map(|directory| {
                let arguments = ["mount", "-o", "fuseblk=always,transport=available"].map(OsStr::new);
                let arguments: Vec<_> =
                    arguments.into_iter().chain([disk.device.as_ref(), directory.as_ref()]).collect();
                scope.spawn(move || syncline(arguments).code)
            })
            .collect();
        started.into_iter().map(|started| started.join().unwrap()).collect()
    });
    let mounted: Vec<&PathBuf> =
        codes.iter().zip(&mounts).filter(|(code, _)| **code == 0).map(|(_, directory)| directory).collect();
    assert_eq!(mounted.len(), 1, "{codes:?}");
    assert!(codes.iter().all(|code| matches!(code, 0 | 3)), "{codes:?}");
    let mount = Mount::of(mounted[0]);
    assert_eq!(fs::read(mount.path.join("file")).unwrap(), b"contents");
    mount.unmount().ok();
}

/// The dead mount keeps nobody from the image, and no device is left behind.
#[test]
fn a_killed_daemon_leaves_an_image_that_can_be_mounted_and_no_device() {
    skip_if!(no_mounts());
    let place = Place::with_image("32MiB");
    let mut mount = Mount::new(&place.image(), &place.directory("mount"), &WITH);
    fs::write(mount.path.join("file"), "synced").unwrap();
    let file = File::open(mount.path.join("file")).unwrap();
    file.sync_all().unwrap();
    let (_, source) = shown(&mount.path);
    mount.kill();
    let again = Mount::new(&place.image(), &place.directory("again"), &WITH);
    assert_eq!(fs::read(again.path.join("file")).unwrap(), b"synced");
    assert_ne!(shown(&again.path).1, source, "the dead mount has that one");
    again.unmount().ok();
    tool("umount", &[OsStr::new("-l"), mount.path.as_ref()]).unwrap();
    drop(file);
    // The last one that had the mount open is closed when that has ended.
    assert!(!about(&source).join("loop/backing_file").exists());
    place.check_clean();
}

/// umount(8) waits for the daemon, but not for one that was killed, whether umount(8) or a signal
/// to the daemon unmounts.
#[test]
fn nobody_waits_for_a_daemon_that_is_killed_while_it_ends() {
    skip_if!(no_mounts());
    let place = Place::with_image("32MiB");
    for by_signal in [false, true] {
        let mount = Mount::new(&place.image(), &place.directory(&format!("{by_signal}")), &WITH);
        let daemon = mount.pid();
        // Stopped behind its last answer, so it does not answer the kernel's question.
        let held = by_signal.then(|| File::open(&mount.path).unwrap());
        if by_signal {
            kill_process(daemon, Signal::TERM).unwrap();
        }
        kill_process(daemon, Signal::STOP).unwrap();
        // Closing it may wait for the daemon, if that has stopped by then.
        let closing = std::thread::spawn(move || drop(held));
        let mut umount = Command::new("umount");
        umount.arg("-i").arg(&mount.path).stderr(Stdio::null());
        let mut umount = umount.spawn().unwrap();
        kill_process(daemon, Signal::KILL).unwrap();
        wait_for_end(daemon);
        let ended = wait(&mut umount, LIMIT);
        assert!(ended.is_some(), "umount hangs");
        closing.join().unwrap();
    }
}

/// A daemon that does not answer keeps sync waiting, as a disk does. One that was killed does not.
#[test]
fn a_sync_that_waits_for_a_daemon_ends_with_it() {
    skip_if!(no_mounts());
    let place = Place::with_image("32MiB");
    for transport in ["available", "classic"] {
        let options = format!("fuseblk=always,transport={transport}");
        let mut mount = Mount::new(&place.image(), &place.directory(transport), &["-o", &options]);
        fs::write(mount.path.join("file"), "contents").unwrap();
        let directory = File::open(&mount.path).unwrap();
        // Connections are named after the device: major, and 20 bits of minor.
        let number = directory.metadata().unwrap().dev();
        let number = u64::from(rustix::fs::major(number)) << 20 | u64::from(rustix::fs::minor(number));
        let waiting = PathBuf::from(format!("/sys/fs/fuse/connections/{number}/waiting"));
        let (ended, end) = mpsc::channel();
        stop(mount.pid());
        let of_mount = directory.try_clone().unwrap();
        std::thread::spawn(move || ended.send(syncfs(of_mount)).unwrap());
        let mut of_machine = Command::new("sync").spawn().unwrap();
        if waiting.exists() {
            crate::support::eventually("both wait", || {
                fs::read_to_string(&waiting).unwrap().trim().parse::<u64>().unwrap() >= 2
            });
        }
        assert!(end.try_recv().is_err() && of_machine.try_wait().unwrap().is_none());
        mount.kill();
        assert!(end.recv_timeout(LIMIT).unwrap().is_err(), "nothing was synced");
        assert!(wait(&mut of_machine, LIMIT).is_some(), "sync hangs");
        // The dead mount keeps nobody either.
        let mut after = Command::new("sync").spawn().unwrap();
        assert!(wait(&mut after, LIMIT).is_some(), "sync hangs");
        drop(directory);
        tool("umount", &[OsStr::new("-l"), mount.path.as_ref()]).unwrap();
    }
}

/// The last process of a mount namespace ends its mounts. If that is the daemon, nobody answers.
#[test]
fn a_daemon_that_is_killed_with_its_namespace_ends() {
    skip_if!(no_mounts());
    let place = Place::with_image("32MiB");
    let directory = place.directory("mount");
    let _starting = crate::support::starting_a_namespace();
    let mut alone = Command::new("unshare");
    alone.args(["--mount", "sh", "-c"]).arg(format!("{}exec \"$@\"", crate::support::ALONE)).arg("sh");
    alone.arg(env!("CARGO_BIN_EXE_syncline")).arg("mount").arg(place.image()).arg(&directory);
    alone.args(["--foreground", "-o", "fuseblk=auto,transport=available"]);
    let mut daemon = alone.stderr(Stdio::piped()).spawn().unwrap();
    let mut told = String::new();
    BufReader::new(daemon.stderr.take().unwrap()).read_line(&mut told).unwrap();
    assert!(told.contains("sync(2) does not reach this mount") && told.contains("namespace"), "{told}");
    daemon.kill().unwrap();
    assert!(wait(&mut daemon, LIMIT).is_some(), "it hangs");
    syncline([OsStr::new("info"), place.image().as_ref()]).ok();
}

#[test]
fn a_mount_that_sync_does_not_reach_is_told_of() {
    skip_if!(no_fuse());
    let place = Place::with_image("32MiB");
    let directory = place.directory("mount");
    let arguments = ["mount", "-o", "fuseblk=never,transport=available"].map(OsStr::new);
    let answer = syncline(arguments.into_iter().chain([place.image().as_ref(), directory.as_ref()])).ok();
    assert_eq!(answer.err, "", "nobody has asked for more");
    assert_eq!(shown(&directory).0, "fuse.syncline");
    for command in ["status", "info"] {
        let told = syncline(
            [command].into_iter().map(OsStr::new).chain((command == "info").then_some(directory.as_ref())),
        );
        assert!(told.ok().out.contains("sync(2) does not reach it (-o fuseblk=never)"), "{command}");
    }
    Mount::of(&directory).unmount().ok();
    // There is nothing to sync where nothing is written.
    let mut reading = program();
    reading.args(["mount", "-o", "ro,fuseblk=never,transport=available"]).arg(place.image()).arg(&directory);
    assert_eq!(run(reading).ok().err, "");
    Mount::of(&directory).unmount().ok();
}

/// Programs that have files open do not keep the daemon from ending at a second signal, and lose
/// nothing that they had stored to mappings before.
#[test]
fn a_second_signal_takes_over_what_was_stored_to_mappings() {
    skip_if!(no_mounts());
    skip_if!(missing_of(&["cc"]));
    let place = Place::with_image("32MiB");
    let store = c_program(
        &place,
        r#"
        #include <fcntl.h>
        #include <stdio.h>
        #include <sys/mman.h>
        #include <unistd.h>
        int main(int argc, char **argv) {
            int fd = open(argv[argc - 1], O_RDWR | O_CREAT, 0644);
            if (fd < 0 || ftruncate(fd, 65536) || fsync(fd)) return 1;
            char *page = mmap(0, 65536, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
            if (page == MAP_FAILED) return 2;
            page[5000] = 'm';
            puts("stored");
            fflush(stdout);
            pause();
            return 0;
        }
        "#,
    );
    for fuseblk in ["never", "always"] {
        let options = format!("fuseblk={fuseblk}");
        let mount = Mount::new(&place.image(), &place.directory(fuseblk), &["-o", &options]);
        let daemon = mount.pid();
        let mut program = Command::new(&store);
        program.arg(mount.path.join(fuseblk)).stdout(Stdio::piped());
        let mut program = program.spawn().unwrap();
        BufReader::new(program.stdout.take().unwrap()).read_line(&mut String::new()).unwrap();
        kill_process(daemon, Signal::TERM).unwrap();
        crate::support::eventually("it is detached", || {
            !fs::read_to_string("/proc/self/mounts").unwrap().contains(mount.path.to_str().unwrap())
        });
        kill_process(daemon, Signal::TERM).unwrap();
        wait_for_end(daemon);
        program.kill().unwrap();
        program.wait().unwrap();
        drop(mount);
        let mount = Mount::new(&place.image(), &place.directory(&format!("again-{fuseblk}")), &[]);
        assert_eq!(fs::read(mount.path.join(fuseblk)).unwrap()[5000], b'm', "{fuseblk}");
        mount.unmount().ok();
    }
}
