//! An NBD server for one test, and the actions of a user on its export.

use crate::skip_if;
use crate::support::{Mount, Place, missing_of, no_mounts, run, syncline};
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Why nothing can be mounted from an NBD server here, if so.
pub fn no_exports() -> Option<String> {
    no_mounts().or_else(|| missing_of(&["nbdkit"]))
}

/// nbdkit with a file, on a socket of its own. Killed when it is dropped.
pub struct Server {
    child: Option<Child>,
    folder: PathBuf,
}

impl Server {
    /// A server with an export of 512 MiB that is all zeros.
    pub fn new(place: &Place) -> Self {
        let disk = place.path().join("disk");
        fs::File::create(&disk).unwrap().set_len(512 << 20).unwrap();
        let mut server = Self { child: None, folder: place.path().to_owned() };
        server.start(&[], &[]);
        server
    }

    /// A server whose export holds a new filesystem, its folder, and the image.
    pub fn with_filesystem() -> (Place, Self, PathBuf) {
        let place = Place::new();
        let server = Self::new(&place);
        let image = server.image();
        on(&image, &["mkfs"]).ok();
        (place, server, image)
    }

    /// Starts it with these options and parameters besides, and waits until it listens.
    pub fn start(&mut self, options: &[&str], parameters: &[&str]) {
        self.kill();
        let (socket, disk) = (self.folder.join("socket"), self.folder.join("disk"));
        let _ = fs::remove_file(&socket);
        let mut command = Command::new("nbdkit");
        command.args(["--foreground", "--exit-with-parent", "--unix"]).arg(&socket).args(options);
        command.arg("file").arg(disk).args(parameters).stderr(Stdio::null());
        self.child = Some(command.spawn().unwrap());
        crate::support::eventually("nbdkit listens", || {
            std::os::unix::net::UnixStream::connect(&socket).is_ok()
        });
    }

    /// Kills it, also when it is stopped.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// The name that a user writes for the export.
    pub fn image(&self) -> PathBuf {
        self.image_with("20")
    }

    /// The same with another `wait`.
    pub fn image_with(&self, wait: &str) -> PathBuf {
        PathBuf::from(format!("nbd+unix:///?socket={}&wait={wait}", self.folder.join("socket").display()))
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        let pid = self.child.as_ref().expect("it runs").id();
        kill_process(Pid::from_raw(pid as i32).expect("not zero"), signal).unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Runs a command of ours that ends with the image.
fn on(image: &Path, words: &[&str]) -> crate::support::Answer {
    syncline(words.iter().map(OsStr::new).chain([image.as_os_str()]))
}

#[test]
fn an_export_is_an_image_like_any_other() {
    skip_if!(no_exports());
    let place = Place::new();
    let server = Server::new(&place);
    let image = server.image();
    on(&image, &["mkfs", "--label", "far"]).ok();
    on(&image, &["mkfs"]).fails(1, &["holds a Syncline filesystem", "--force"]);
    assert!(on(&image, &["label"]).ok().out.contains("far"));

    let mount = Mount::new(&image, &place.directory("mnt"), &[]);
    fs::write(mount.path.join("file"), "contents").unwrap();
    syncline([OsStr::new("sync"), mount.path.join("file").as_os_str()]).ok();
    syncline([OsStr::new("snapshot"), "create".as_ref(), mount.path.as_os_str(), "monday".as_ref()]).ok();
    fs::write(mount.path.join("file"), "changed").unwrap();
    mount.unmount().ok();

    on(&image, &["check"]).ok();
    assert!(on(&image, &["snapshot", "list"]).ok().out.contains("monday"));
    syncline([OsStr::new("snapshot"), "rollback".as_ref(), image.as_os_str(), "monday".as_ref()]).ok();
    syncline([OsStr::new("snapshot"), "delete".as_ref(), image.as_os_str(), "monday".as_ref()]).ok();
    syncline([OsStr::new("resize"), image.as_os_str(), "256MiB".as_ref()]).ok();
    syncline([OsStr::new("resize"), image.as_os_str(), "max".as_ref()]).ok();
    let mount = Mount::new(&image, &place.directory("again"), &["-o", "ro"]);
    assert_eq!(fs::read_to_string(mount.path.join("file")).unwrap(), "contents");
    mount.unmount().ok();
}

/// The device lease stays readable by hosts without a key, and the server sees nothing of the contents.
#[test]
fn an_export_can_be_encrypted() {
    skip_if!(no_exports());
    let place = Place::new();
    let mut server = Server::new(&place);
    let (image, key) = (server.image(), place.path().join("key"));
    fs::write(&key, "secret").unwrap();
    let with = |words: &[&str]| {
        let key = [OsStr::new("--key-file"), key.as_os_str(), image.as_os_str()];
        syncline(words.iter().map(OsStr::new).chain(key))
    };
    with(&["mkfs", "--encrypt"]).ok();
    on(&image, &["mkfs"]).fails(1, &["encrypted", "--force"]);
    let option = format!("key-file={}", key.display());
    let mount = Mount::new(&image, &place.directory("mnt"), &["-o", &option]);
    assert!(on(&image, &["key", "list"]).ok().out.starts_with("1  added"));
    let contents = "to be seen by nobody".repeat(1000);
    fs::write(mount.path.join("file"), &contents).unwrap();
    server.start(&[], &[]);
    fs::File::open(mount.path.join("file")).unwrap().sync_all().unwrap();
    mount.unmount().ok();
    let disk = fs::read(place.path().join("disk")).unwrap();
    assert!(!disk.windows(20).any(|window| window == &contents.as_bytes()[..20]));
    on(&image, &["info"]).fails(9, &["is encrypted"]);
    assert!(on(&image, &["key", "list"]).ok().out.starts_with("1  added"));
    with(&["check"]).ok();
}

#[test]
fn a_fork_of_an_export_lies_in_a_local_file() {
    skip_if!(no_exports());
    let (place, _server, image) = Server::with_filesystem();
    let base = Mount::new(&image, &place.directory("base"), &[]);
    fs::write(base.path.join("old"), vec![1; 1 << 20]).unwrap();
    syncline([OsStr::new("snapshot"), OsStr::new("create"), base.path.as_ref(), OsStr::new("monday")]).ok();
    base.unmount().ok();
    let mut from = image.clone().into_os_string();
    from.push("@monday");
    let work = place.path().join("work.img");
    syncline([OsStr::new("fork"), &from, work.as_ref()]).ok();
    let fork = Mount::new(&work, &place.directory("fork"), &[]);
    assert_eq!(fs::read(fork.path.join("old")).unwrap(), vec![1; 1 << 20]);
    fs::write(fork.path.join("new"), "new").unwrap();
    fork.unmount().ok();
    syncline([OsStr::new("check"), work.as_ref()]).ok();
}

#[test]
fn a_server_that_starts_anew_loses_nothing() {
    skip_if!(no_exports());
    let (place, mut server, image) = Server::with_filesystem();
    let mount = Mount::new(&image, &place.directory("mnt"), &[]);
    for round in 0..3 {
        for file in 0..20 {
            let path = mount.path.join(format!("{round}-{file}"));
            fs::write(&path, vec![round as u8; 100_000]).unwrap();
            if file == 10 {
                server.start(&[], &[]);
            }
            fs::File::open(&path).unwrap().sync_all().unwrap();
        }
    }
    mount.unmount().ok();
    on(&image, &["check"]).ok();
    let mount = Mount::new(&image, &place.directory("again"), &[]);
    for (round, file) in (0..3).flat_map(|round| (0..20).map(move |file| (round, file))) {
        let read = fs::read(mount.path.join(format!("{round}-{file}"))).unwrap();
        assert!(read == vec![round as u8; 100_000], "{round}-{file}");
    }
    mount.unmount().ok();
}

#[test]
fn what_is_wrong_is_told_in_a_line() {
    skip_if!(missing_of(&["nbdkit"]));
    let place = Place::new();
    let mut server = Server::new(&place);
    let image = server.image();
    server.start(&["--readonly"], &[]);
    on(&image, &["mkfs"]).fails(9, &["read-only"]);
    server.start(&["--filter=error"], &["error-pread=EIO", "error-pread-rate=100%"]);
    on(&image, &["info"]).fails(8, &["nbd+unix"]);
    server.kill();
    on(&image, &["info"]).fails(8, &["nbd+unix", "check the address"]);
    syncline(["info", "nbd+unix:///"]).fails(2, &["socket"]);
    syncline(["info", "nbd+udp://host/"]).fails(2, &["nbd+udp", "known are"]);
    syncline(["mkfs", "nbds://host/e?keyfile=/k"]).fails(2, &["certfile"]);
    let mut create = crate::support::program();
    create.args(["mount", "--create", "1GiB", "--foreground"]).arg(&image).arg(place.directory("mnt"));
    run(create).fails(2, &["--create", "mkfs"]);
}
