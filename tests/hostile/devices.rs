//! Devices that fail, fill up or vanish.

use crate::skip_if;
use crate::support::{Loop, Mount, Place, Tmpfs, no_fuse, not_root, program, run, syncline, tool};
use std::ffi::OsStr;
use std::fs;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

#[test]
fn a_full_host_is_said_before_anything_is_left_behind() {
    skip_if!(not_root());
    let place = Place::new();
    let Some(tmpfs) = Tmpfs::new(place.directory("small"), "24m") else {
        return eprintln!("skipped: no tmpfs can be mounted here");
    };
    let image = tmpfs.path.join("image");
    let mut command = program();
    command.arg("mkfs").arg(&image).args(["--size", "64MiB"]);
    run(command).fails(10, &["No space left", "smaller --size"]);
    assert!(!image.exists(), "half an image helps nobody");
    let mut command = program();
    command.arg("mkfs").arg(&image).args(["--size", "16MiB"]);
    run(command).ok();
}

/// A mount of one of the kernel's filesystems; unmounted when dropped.
struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        tool("umount", &[OsStr::new("-l"), self.0.as_ref()]);
    }
}

/// Bytes allocated to a file.
fn allocated(path: &Path) -> u64 {
    fs::metadata(path).unwrap().blocks() * 512
}

#[test]
fn a_sparse_file_that_finds_no_room_stays_sparse() {
    skip_if!(not_root());
    let place = Place::new();
    let backing = place.path().join("backing");
    fs::File::create(&backing).unwrap().set_len(80 << 20).unwrap();
    let made = tool("mkfs.ext4", &[OsStr::new("-q"), OsStr::new("-F"), backing.as_ref()]);
    let Some(device) = made.and_then(|_| Loop::new(&backing)) else {
        return eprintln!("skipped: there is no ext4 or no loop device here");
    };
    let host = Mounted(place.directory("host"));
    tool("mount", &[device.device.as_ref(), host.0.as_ref()]).expect("it was just made");
    let disk = host.0.join("disk");
    fs::File::create(&disk).unwrap().set_len(200 << 20).unwrap();
    // Existing data between holes must stay.
    let mut file = fs::File::options().write(true).open(&disk).unwrap();
    file.seek(SeekFrom::Start(8 << 20)).unwrap();
    file.write_all(&[7; 1 << 20]).unwrap();
    file.sync_all().unwrap();
    let before = allocated(&disk);
    let mut command = program();
    command.arg("mkfs").arg(&disk);
    run(command).fails(10, &["cannot make an image of", "No space left", "smaller --size"]);
    // The host may need one more block for its own metadata.
    assert!(
        allocated(&disk) <= before + 4096,
        "what was taken is given back: {} of {before}",
        allocated(&disk)
    );
    assert_eq!(fs::metadata(&disk).unwrap().len(), 200 << 20);
    assert_eq!(fs::read(&disk).unwrap().iter().filter(|byte| **byte == 7).count(), 1 << 20);
}

/// The host has promised blocks to a sparse image, and lacks them when a crash is to be recovered
/// from.
#[test]
fn a_mount_on_a_full_host_says_that_there_is_no_room() {
    skip_if!(not_root());
    skip_if!(no_fuse());
    let place = Place::new();
    let Some(tmpfs) = Tmpfs::new(place.directory("small"), "40m") else {
        return eprintln!("skipped: no tmpfs can be mounted here");
    };
    let (image, sparse) = (tmpfs.path.join("image"), tmpfs.path.join("sparse"));
    let mut command = program();
    command.arg("mkfs").arg(&image).args(["--size", "32MiB"]);
    run(command).ok();
    let mut copy = Command::new("cp");
    copy.arg("--sparse=always").arg(&image).arg(&sparse);
    run(copy).ok();
    fs::remove_file(&image).unwrap();
    let directory = place.directory("mount");
    let mut mount = Mount::new(&sparse, &directory, &[]);
    for number in 0..40 {
        let path = mount.path.join(format!("synced {number}"));
        fs::write(&path, vec![number; 10_000]).unwrap();
        fs::File::open(&path).unwrap().sync_all().unwrap();
    }
    mount.kill();
    drop(mount);
    let _ = fs::write(tmpfs.path.join("ballast"), vec![1; 64 << 20]);
    // Switching the ring on would print a further line.
    let leave = ["-o", "transport=available"].map(OsStr::new);
    syncline([OsStr::new("mount"), sparse.as_ref(), directory.as_ref()].into_iter().chain(leave))
        .fails(10, &["No space left", "free space where the image lies"]);
    tool("umount", &[OsStr::new("-l"), directory.as_ref()]);
    fs::remove_file(tmpfs.path.join("ballast")).unwrap();
    let mount = Mount::new(&sparse, &directory, &[]);
    assert_eq!(fs::read(mount.path.join("synced 39")).unwrap(), [39; 10_000]);
    mount.unmount().ok();
}

#[test]
fn a_full_image_is_an_orderly_error() {
    skip_if!(no_fuse());
    let place = Place::with_image("32MiB");
    let mount = place.mount("mount");
    fs::write(mount.path.join("kept"), "kept").unwrap();
    let error = fill(&mount.path.join("big")).expect_err("32 MiB are soon full");
    assert_eq!(error.raw_os_error(), Some(28), "{error}");
    assert_eq!(fs::read(mount.path.join("kept")).unwrap(), b"kept");
    fs::remove_file(mount.path.join("big")).unwrap();
    fs::write(mount.path.join("after"), vec![1; 1 << 20]).unwrap();
    fs::File::open(mount.path.join("after")).unwrap().sync_all().unwrap();
    mount.unmount().ok();
    place.check_clean();
}

/// Writes until it fails, at most 64 MiB.
fn fill(path: &Path) -> std::io::Result<()> {
    let mut file = fs::File::create(path)?;
    for _ in 0..1024 {
        file.write_all(&[7; 64 << 10])?;
    }
    file.sync_all()
}

/// A block device over a file that can't grow: from some point on every write fails, as on a dying
/// disk.
#[test]
fn a_device_that_fails_gives_errors_and_no_hang() {
    skip_if!(not_root());
    skip_if!(no_fuse());
    let place = Place::new();
    let Some(tmpfs) = Tmpfs::new(place.directory("small"), "24m") else {
        return eprintln!("skipped: no tmpfs can be mounted here");
    };
    let backing = tmpfs.path.join("backing");
    fs::File::create(&backing).unwrap().set_len(128 << 20).unwrap();
    let Some(device) = Loop::new(&backing) else {
        return eprintln!("skipped: there are no loop devices here");
    };
    syncline([OsStr::new("mkfs"), device.device.as_ref()]).ok();
    let mount = Mount::new(&device.device, &place.directory("mount"), &[]);
    let path = mount.path.join("before");
    fs::write(&path, "acknowledged").unwrap();
    fs::File::open(&path).unwrap().sync_all().unwrap();

    let error = fill(&mount.path.join("big")).expect_err("the device holds less than that");
    assert!(matches!(error.raw_os_error(), Some(5 | 30)), "{error}");
    let error = fs::File::open(mount.path.join("big")).and_then(|file| file.sync_all()).unwrap_err();
    assert!(matches!(error.raw_os_error(), Some(5 | 30)), "it is still not durable: {error}");
    assert_eq!(fs::read(&path).unwrap(), b"acknowledged");
    let answer = mount.unmount();
    if answer.code != 0 {
        assert!(answer.err.starts_with("syncline: ") && answer.err.contains("mount it again"), "{answer:?}");
    }

    // On a working device nothing acknowledged is missing.
    let whole = place.path().join("whole");
    fs::copy(&backing, &whole).unwrap();
    let mount = Mount::new(&whole, &place.directory("again"), &[]);
    assert_eq!(fs::read(mount.path.join("before")).unwrap(), b"acknowledged");
    mount.unmount().ok();
    syncline([OsStr::new("check"), whole.as_ref()]).ok();
}

#[test]
fn an_image_that_is_cut_off_under_a_mount_gives_errors_and_no_hang() {
    skip_if!(no_fuse());
    let place = Place::with_image("64MiB");
    let mount = place.mount("mount");
    fs::write(mount.path.join("file"), vec![5; 8 << 20]).unwrap();
    mount.unmount().ok();
    // A new mount, so that nothing of the file is cached.
    let mount = place.mount("again");
    fs::File::options().write(true).open(place.image()).unwrap().set_len(1 << 20).unwrap();
    let error = fs::read(mount.path.join("file")).expect_err("there is nothing to read");
    assert_eq!(error.raw_os_error(), Some(5), "{error}");
    let answer = mount.unmount();
    assert!(answer.code == 0 || answer.err.starts_with("syncline: "), "{answer:?}");
    let mut command = program();
    command.arg("check").arg(place.image());
    assert_ne!(run(command).code, 0, "the damage is found");
}

/// Like a disk that loses its end: the data there is gone, and writes there fail.
#[test]
fn a_loop_device_whose_file_is_cut_off_gives_errors_and_no_hang() {
    skip_if!(not_root());
    skip_if!(no_fuse());
    let place = Place::new();
    let backing = place.path().join("backing");
    fs::File::create(&backing).unwrap().set_len(64 << 20).unwrap();
    let Some(device) = Loop::new(&backing) else {
        return eprintln!("skipped: there are no loop devices here");
    };
    syncline([OsStr::new("mkfs"), device.device.as_ref()]).ok();
    let mount = Mount::new(&device.device, &place.directory("mount"), &[]);
    let path = mount.path.join("file");
    fs::write(&path, vec![5; 8 << 20]).unwrap();
    fs::File::open(&path).unwrap().sync_all().unwrap();
    fs::File::options().write(true).open(&backing).unwrap().set_len(2 << 20).unwrap();

    let error = fill(&mount.path.join("big")).expect_err("there is nowhere to write to");
    assert!(matches!(error.raw_os_error(), Some(5 | 28 | 30)), "{error}");
    let answer = mount.unmount();
    assert!(answer.code == 0 || answer.err.starts_with("syncline: "), "{answer:?}");
    let mut command = program();
    command.arg("check").arg(&device.device);
    let answer = run(command);
    assert_ne!(answer.code, 0, "the damage is found: {answer:?}");
    assert!(!answer.err.contains("panicked"), "{answer:?}");
}

/// Nothing is overwritten, and no new file left behind.
#[test]
fn a_sparse_image_of_a_size_that_is_refused_changes_nothing() {
    let place = Place::with_image("32MiB");
    let before = fs::read(place.image()).unwrap();
    let new = place.path().join("new");
    for (image, force) in [(&place.image(), Some("--force")), (&new, None)] {
        let mut command = program();
        command.arg("mkfs").arg(image).args(["--sparse", "--size", "257TiB"]).args(force);
        run(command).fails(2, &["at most 256 TiB", "choose a smaller --size"]);
    }
    assert!(fs::read(place.image()).unwrap() == before && !new.exists());
}

/// The length of an existing file is the size of its image.
#[test]
fn a_file_whose_length_is_no_size_of_an_image_is_not_emptied() {
    skip_if!(not_root());
    let place = Place::new();
    // Most filesystems have no files of such lengths.
    let Some(tmpfs) = Tmpfs::new(place.directory("long"), "24m") else {
        return eprintln!("skipped: no tmpfs can be mounted here");
    };
    let file = tmpfs.path.join("file");
    for (length, said) in
        [(1 << 20, ["at least 16 MiB", "larger --size"]), (257 << 40, ["at most 256 TiB", "smaller --size"])]
    {
        fs::write(&file, "contents").unwrap();
        fs::File::options().write(true).open(&file).unwrap().set_len(length).unwrap();
        for options in [&["--force"][..], &["--force", "--sparse"]] {
            let mut command = program();
            command.arg("mkfs").arg(&file).args(options);
            run(command).fails(2, &said);
        }
        let mut start = [0; 8];
        fs::File::open(&file).unwrap().read_exact(&mut start).unwrap();
        assert_eq!(&start, b"contents");
    }
}

#[test]
fn a_fifo_is_no_place_for_an_image() {
    let place = Place::new();
    let fifo = place.path().join("fifo");
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::RWXU).unwrap();
    let mut command = program();
    command.arg("mkfs").arg(&fifo).args(["--size", "16MiB"]);
    run(command).fails(5, &["neither a regular file nor a block device"]);
}

/// A sparse image promises more room than its host has. When the host is full, every fsync says so,
/// and data acknowledged before stays.
#[test]
fn a_full_host_under_a_mounted_image_loses_nothing_acknowledged() {
    skip_if!(not_root());
    skip_if!(no_fuse());
    let place = Place::new();
    let Some(tmpfs) = Tmpfs::new(place.directory("small"), "40m") else {
        return eprintln!("skipped: no tmpfs can be mounted here");
    };
    let sparse = tmpfs.path.join("sparse");
    let mut command = program();
    command.arg("mkfs").arg(&sparse).args(["--size", "5TiB"]);
    run(command).fails(10, &["--sparse"]);
    for (size, force) in [("5TiB", "--sparse"), ("32MiB", "--force")] {
        let mut command = program();
        command
            .arg("mkfs")
            .arg(&sparse)
            .args(["--sparse", "--size", size])
            .args((force == "--force").then_some(force));
        run(command).ok();
        let made = fs::metadata(&sparse).unwrap();
        assert_eq!(syncline([OsStr::new("check"), sparse.as_ref()]).ok().code, 0);
        assert!(made.blocks() * 512 < 8 << 20, "{size}: {} blocks", made.blocks());
    }
    fs::write(tmpfs.path.join("ballast"), vec![1; 24 << 20]).unwrap();

    let mount = Mount::new(&sparse, &place.directory("mount"), &[]);
    let path = mount.path.join("before");
    fs::write(&path, "acknowledged").unwrap();
    fs::File::open(&path).unwrap().sync_all().unwrap();
    let error = fill(&mount.path.join("big")).expect_err("the host holds less than that");
    assert!(matches!(error.raw_os_error(), Some(5 | 28 | 30)), "{error}");
    assert_eq!(fs::read(&path).unwrap(), b"acknowledged");
    let answer = mount.unmount();
    assert!(answer.code == 0 || answer.err.starts_with("syncline: "), "{answer:?}");

    fs::remove_file(tmpfs.path.join("ballast")).unwrap();
    let mount = Mount::new(&sparse, &place.directory("again"), &[]);
    assert_eq!(fs::read(mount.path.join("before")).unwrap(), b"acknowledged");
    fs::write(mount.path.join("after"), "room again").unwrap();
    fs::File::open(mount.path.join("after")).unwrap().sync_all().unwrap();
    mount.unmount().ok();
    syncline([OsStr::new("check"), sparse.as_ref()]).ok();
}

#[test]
fn a_block_device_is_taken_whole() {
    skip_if!(not_root());
    let place = Place::new();
    let backing = place.path().join("backing");
    fs::File::create(&backing).unwrap().set_len(32 << 20).unwrap();
    let Some(device) = Loop::new(&backing) else {
        return eprintln!("skipped: there are no loop devices here");
    };
    syncline([OsStr::new("mkfs"), device.device.as_ref()]).ok();
    let answer = syncline([OsStr::new("info"), device.device.as_ref(), OsStr::new("--json")]).ok();
    let info: serde_json::Value = serde_json::from_str(&answer.out).unwrap();
    assert_eq!(info["size_bytes"], 32 << 20);
    syncline([OsStr::new("check"), device.device.as_ref()]).ok();
}
