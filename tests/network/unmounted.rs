//! Commands on images that other hosts may have, without mounting them here.

use super::nbd::{Server, no_exports};
use crate::skip_if;
use crate::support::{Loop, Mount, Place, eventually, no_fuse, not_root, stop, syncline};
use rustix::process::{Signal, kill_process};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

/// A place in an image.
fn at(image: &Path, rest: &str) -> OsString {
    let mut place = image.as_os_str().to_owned();
    place.push(rest);
    place
}

#[test]
fn files_are_listed_and_copied_from_an_export() {
    skip_if!(no_exports());
    let (place, _server, image) = Server::with_filesystem();
    let mount = Mount::new(&image, &place.directory("mnt"), &[]);
    fs::create_dir(mount.path.join("folder")).unwrap();
    fs::write(mount.path.join("folder/file"), "on monday").unwrap();
    syncline([OsStr::new("snapshot"), "create".as_ref(), mount.path.as_os_str(), "monday".as_ref()]).ok();
    fs::write(mount.path.join("folder/file"), "now").unwrap();
    let busy = syncline([OsStr::new("ls"), image.as_os_str()]);
    busy.fails(3, &["in use by", "process"]);
    mount.unmount().ok();

    assert_eq!(syncline([OsStr::new("ls"), image.as_os_str()]).ok().out, "folder\n");
    assert_eq!(syncline([OsString::from("ls"), at(&image, ":/folder")]).ok().out, "file\n");
    assert_eq!(syncline([OsString::from("cat"), at(&image, ":/folder/file")]).ok().out, "now");
    assert_eq!(syncline([OsString::from("cat"), at(&image, "@monday:/folder/file")]).ok().out, "on monday");
    let copy = place.path().join("copy");
    syncline([OsString::from("cp"), "-a".into(), at(&image, "@monday:"), copy.clone().into()]).ok();
    assert_eq!(fs::read_to_string(copy.join("folder/file")).unwrap(), "on monday");
    syncline([OsString::from("cp"), at(&image, ""), copy.clone().into()]).fails(2, &["no path in an image"]);
    let into = [OsString::from("cp"), at(&image, ":/folder/file"), at(&image, ":/other")];
    syncline(into).fails(2, &["nothing is copied into an image"]);
}

#[test]
fn an_image_is_taken_without_mounting_it() {
    skip_if!(no_exports());
    let (place, _server, image) = Server::with_filesystem();
    let mut mount = Mount::new(&image, &place.directory("mnt"), &[]);
    let mut file = fs::File::create(mount.path.join("file")).unwrap();
    file.write_all(b"acknowledged").unwrap();
    file.sync_all().unwrap();
    let daemon = mount.pid();
    stop(daemon);
    let taken = syncline([OsStr::new("takeover"), image.as_os_str()]).ok().out;
    assert!(taken.contains("free after"), "{taken}");
    kill_process(daemon, Signal::CONT).unwrap();
    // The write is refused when the daemon has noticed by then, and the sync otherwise.
    let late = file.write_all(b" too late").and_then(|()| file.sync_all());
    assert_eq!(late.expect_err("another host may have it by now").raw_os_error(), Some(5));
    drop(file);
    mount.kill();
    // Nobody has it, so nothing is waited for; and nothing was recovered before.
    let info = syncline([OsStr::new("info"), image.as_os_str()]).ok().out;
    assert!(info.contains("not unmounted") && info.contains("device lease"), "{info}");
    assert_eq!(syncline([OsString::from("cat"), at(&image, ":/file")]).ok().out, "acknowledged");
}

#[test]
fn a_block_device_is_shared_from_now_on_or_no_longer() {
    skip_if!(no_fuse());
    skip_if!(not_root());
    let place = Place::new();
    let disk = place.path().join("disk");
    fs::File::create(&disk).unwrap().set_len(64 << 20).unwrap();
    let Some(device) = Loop::with(&disk, &["--direct-io=on"]) else {
        return eprintln!("skipped: there are no loop devices here");
    };
    let image = device.device.as_os_str();
    let shared = || {
        let info = syncline([OsStr::new("info"), "--json".as_ref(), image]).ok().out;
        serde_json::from_str::<serde_json::Value>(&info).unwrap()["device_lease"].as_bool().unwrap()
    };
    let share = |switch: &str| syncline([OsStr::new("label"), image, "--shared".as_ref(), switch.as_ref()]);
    syncline([OsStr::new("mkfs"), image]).ok();
    assert!(!shared());
    syncline([OsStr::new("takeover"), image]).fails(2, &["no lease", "label --shared on"]);
    share("on").ok();
    assert!(shared());
    let mount = Mount::new(&device.device, &place.directory("mnt"), &[]);
    let mounted = mount.path.as_os_str();
    syncline([OsStr::new("label"), mounted, "--shared".as_ref(), "off".as_ref()]).fails(3, &["unmount it"]);
    share("off").fails(3, &["in use"]);
    fs::write(mount.path.join("file"), "contents").unwrap();
    mount.unmount().ok();
    syncline([OsStr::new("takeover"), image]).ok();
    share("off").ok();
    assert!(!shared());
    assert_eq!(syncline([OsString::from("cat"), at(&device.device, ":file")]).ok().out, "contents");
    let (nbd, rbd) = ("nbd://host/disk", "rbd:pool/disk");
    syncline(["label", nbd, "--shared", "off"]).fails(2, &["always taken"]);
    syncline(["label", rbd, "--shared", "on"]).fails(2, &["lock of its own"]);
}

/// A disk behind an export of which a block can't be read, however often it is written.
#[test]
fn a_superblock_that_stays_unreadable_is_not_called_repaired() {
    skip_if!(no_exports());
    let place = Place::new();
    let (disk, socket, bad) =
        (place.path().join("disk"), place.path().join("socket"), place.path().join("bad"));
    fs::File::create(&disk).unwrap().set_len(64 << 20).unwrap();
    let [disk, bad] = [disk, bad].map(|path| path.display().to_string());
    // $3 bytes at $4.
    let read = format!(
        "if [ -e {bad} ] && [ $4 -le 65536 ] && [ $(($4 + $3)) -gt 65536 ]; then echo EIO a bad block >&2; exit 1; fi; \
         dd if={disk} iflag=skip_bytes,count_bytes bs=65536 skip=$4 count=$3"
    );
    let write = format!("dd of={disk} oflag=seek_bytes bs=65536 seek=$4 conv=notrunc");
    let mut server = Command::new("nbdkit");
    server.args(["--foreground", "--exit-with-parent", "--unix"]).arg(&socket).arg("eval");
    server
        .arg(format!("get_size=echo {}", 64 << 20))
        .arg(format!("pread={read}"))
        .arg(format!("pwrite={write}"));
    server.args(["can_write=exit 0", "can_flush=exit 0", "flush=exit 0"]).stderr(Stdio::null());
    let mut server = server.spawn().unwrap();
    eventually("nbdkit listens", || UnixStream::connect(&socket).is_ok());
    let image = format!("nbd+unix:///?socket={}", socket.display());
    syncline(["mkfs", &image]).ok();
    fs::write(&bad, "").unwrap();
    for how in ["-p", "--repair"] {
        let answer = syncline(["check", how, &image]);
        assert_eq!(answer.code, 4, "{answer:?}");
        assert!(answer.out.contains("remaining findings") && answer.out.contains("block 16"), "{answer:?}");
    }
    fs::remove_file(&bad).unwrap();
    syncline(["check", "-p", &image]).ok();
    server.kill().unwrap();
    server.wait().unwrap();
}
