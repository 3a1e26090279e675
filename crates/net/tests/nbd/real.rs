//! Real servers, where they are installed: nbdkit, qemu-nbd, qemu-storage-daemon.

mod programs;
mod tls;

use super::*;
use programs::{Server, installed};
use std::path::Path;
use std::process::Command;

/// Writes, flushes, reads, discards and zeros, with many in flight.
fn exercise(device: &NbdDevice) {
    let writes: Vec<_> =
        (0..64u64).map(|index| write(device, index * 65536, index as u8 + 1, 65536)).collect();
    writes.into_iter().for_each(|write| write.wait().unwrap());
    flush(device).wait().unwrap();
    write_through(device, 0, 200).wait().unwrap();
    let reads: Vec<_> = (1..64u64).map(|index| (index, read(device, index * 65536, 65536))).collect();
    for (index, read) in reads {
        assert!(read.wait().unwrap().iter().all(|&byte| byte == index as u8 + 1));
    }
    assert_filled(device, 0, 200, 4096);
    if device.discards() {
        ask(|done| device.discard(65536, 65536, done)).wait().unwrap();
    }
    ask(|done| device.write_zeros(131072, 65536, done)).wait().unwrap();
    assert_filled(device, 131072, 0, 65536);
    // Longer than a request may be.
    write(device, 8 << 20, 77, 40 << 20).wait().unwrap();
    assert_filled(device, 8 << 20, 77, 40 << 20);
    flush(device).wait().unwrap();
}

fn image(dir: &Path, bytes: u64) -> std::path::PathBuf {
    let path = dir.join("image");
    std::fs::File::create(&path).unwrap().set_len(bytes).unwrap();
    path
}

#[test]
fn nbdkit_serves_memory_and_files() {
    if !installed("nbdkit") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let file = image(dir.path(), 64 << 20);
    let file = format!("file={}", file.display());
    for backend in [&["memory", "64M"][..], &["file", &file]] {
        let server = Server::nbdkit(dir.path(), backend);
        let device = server.open(Wait::Seconds(20));
        assert_eq!(device.size_bytes(), 64 << 20);
        exercise(&device);
        assert_eq!(device.counters().reconnects, 0);
    }
}

#[test]
fn nbdkit_fails_and_is_slow() {
    if !installed("nbdkit") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let switch = dir.path().join("fail");
    let switched = format!("error-file={}", switch.display());
    let arguments = [
        "--filter=error",
        "--filter=delay",
        "memory",
        "64M",
        "error=EIO",
        "error-rate=100%",
        &switched,
        "delay-write=5ms",
    ];
    let server = Server::nbdkit(dir.path(), &arguments);
    let device = server.open(Wait::Seconds(20));
    exercise(&device);
    std::fs::write(&switch, "").unwrap();
    for error in [write(&device, 0, 1, 4096).wait(), read(&device, 0, 4096).wait().map(drop)] {
        assert_eq!(error.unwrap_err().io_error().unwrap().raw_os_error(), Some(5));
    }
    std::fs::remove_file(&switch).unwrap();
    exercise(&device);
    assert_eq!(device.counters().reconnects, 0);
}

/// nbdkit's cache filter loses unflushed data with its process.
#[test]
fn nbdkit_is_killed_and_started_anew() {
    if !installed("nbdkit") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let file = image(dir.path(), 16 << 20);
    let plugin = format!("file={}", file.display());
    let arguments = ["--filter=cache", "file", &plugin, "cache=writeback"];
    let mut server = Server::nbdkit(dir.path(), &arguments);
    let device = server.open(Wait::Seconds(20));
    for round in 1..=8u8 {
        let at = |index: u64| index * 131072 + u64::from(round) * 4096;
        (0..16).for_each(|index| write(&device, at(index), round, 8192).wait().unwrap());
        server.kill();
        let on_disk = std::fs::read(&file).unwrap();
        let forgotten = (0..16).filter(|&index| on_disk[at(index) as usize + 4096] != round).count();
        assert!(forgotten > 0, "a server that forgets nothing shows nothing");
        let in_flight = write(&device, 8 << 20, round, 65536);
        server = Server::nbdkit(dir.path(), &arguments);
        in_flight.wait().unwrap();
        (0..16).for_each(|index| assert_filled(&device, at(index), round, 8192));
        flush(&device).wait().unwrap();
        let on_disk = std::fs::read(&file).unwrap();
        assert!((0..16).all(|index| on_disk[at(index) as usize..][..8192] == [round; 8192]));
    }
    let counters = device.counters();
    assert_eq!(counters.reconnects, 8);
    assert!(counters.rewritten >= 8 * 16, "{counters:?}");
}

#[test]
fn qemu_nbd_serves_a_file() {
    if !installed("qemu-nbd") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let file = image(dir.path(), 64 << 20);
    let socket = dir.path().join("socket");
    let mut command = Command::new("qemu-nbd");
    command.args([
        "--format=raw",
        "--persistent",
        "--shared=4",
        "--discard=unmap",
        "--export-name=disk",
        "--socket",
    ]);
    command.arg(&socket).arg(&file);
    let mut server = Server::start(command, socket.clone(), "disk");
    let device = server.open(Wait::Seconds(20));
    exercise(&device);
    server.kill();
    let mut again = Command::new("qemu-nbd");
    again
        .args(["--format=raw", "--persistent", "--shared=4", "--export-name=disk", "--socket"])
        .arg(&socket)
        .arg(&file);
    let written = write(&device, 0, 9, 4096);
    let _server = Server::start(again, socket, "disk");
    written.wait().unwrap();
    flush(&device).wait().unwrap();
    assert_eq!(std::fs::read(&file).unwrap()[..4096], [9; 4096]);
}

#[test]
fn qemu_storage_daemon_serves_a_file() {
    if !installed("qemu-storage-daemon") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let file = image(dir.path(), 64 << 20);
    let socket = dir.path().join("socket");
    let mut command = Command::new("qemu-storage-daemon");
    command
        .arg("--blockdev")
        .arg(format!("driver=file,node-name=file,filename={},discard=unmap", file.display()));
    command
        .arg("--nbd-server")
        .arg(format!("addr.type=unix,addr.path={},max-connections=8", socket.display()));
    command.args(["--export", "type=nbd,id=disk,node-name=file,name=disk,writable=on"]);
    let server = Server::start(command, socket, "disk");
    let device = server.open(Wait::Seconds(20));
    exercise(&device);
    assert_eq!(device.counters().reconnects, 0);
}
