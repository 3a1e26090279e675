//! Locks that other users take on an image they may read: they exclude no one who may write it, and
//! it never has two writers.

use crate::skip_if;
use crate::support::{
    Mount, NOBODY, Place, as_nobody, c_program, no_fuse, not_root, program, run, syncline, tool,
};
use std::ffi::OsStr;
use std::fs;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::{Child, Command, Stdio};

/// Locks a whole file for reading until killed: a lock of the process or, with a second argument,
/// of the open file.
const LOCKER: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

int main(int argc, char **argv)
{
        struct flock range = { .l_type = F_RDLCK, .l_whence = SEEK_SET };
        int fd = open(argv[1], O_RDONLY);

        if (fd < 0 || fcntl(fd, argc > 2 ? F_OFD_SETLK : F_SETLK, &range) < 0) {
                perror(argv[1]);
                return 1;
        }
        puts("locked");
        fflush(stdout);
        for (;;)
                pause();
}
"#;

/// A process that is killed when this is dropped.
struct Locker(Child);

impl Locker {
    fn start(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut word = [0; 6];
        child.stdout.as_mut().unwrap().read_exact(&mut word).expect("it gets its lock");
        assert_eq!(&word, b"locked");
        Self(child)
    }
}

impl Drop for Locker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn images_are_their_owners_business() {
    let place = Place::with_image("16MiB");
    assert_eq!(fs::metadata(place.image()).unwrap().mode() & 0o777, 0o600);
    // An existing image keeps its mode.
    fs::set_permissions(place.image(), fs::Permissions::from_mode(0o640)).unwrap();
    syncline([OsStr::new("mkfs"), place.image().as_ref(), "--force".as_ref()]).ok();
    assert_eq!(fs::metadata(place.image()).unwrap().mode() & 0o777, 0o640);
}

#[test]
fn a_strangers_lock_keeps_root_from_nothing_and_two_writers_apart() {
    skip_if!(not_root());
    skip_if!(no_fuse());
    skip_if!(tool("cc", &["--version".as_ref()]).is_none().then_some("there is no compiler"));
    let place = Place::with_image("32MiB");
    let locker = c_program(&place, LOCKER);
    for (path, mode) in [(place.path(), 0o755), (&place.image(), 0o644), (&locker, 0o755)] {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }
    let lock = |sort: &[&str], entitled: bool| {
        let mut command = Command::new(&locker);
        command.arg(place.image()).args(sort);
        Locker::start(if entitled { command } else { as_nobody(command) })
    };
    let refused = |words: &[&str]| {
        let mut command = program();
        command.args(words).current_dir(place.path());
        run(command)
    };
    place.directory("second");
    for (round, sort) in [&[][..], &["of the open file"]].into_iter().enumerate() {
        let stranger = lock(sort, false);
        let mount = place.mount(&format!("mount {round}"));
        fs::write(mount.path.join("file"), "written beside a stranger").unwrap();
        // No one else can write it, or read it while it changes, whether or not the stranger's lock
        // is still there.
        let mut locker = Some(stranger);
        for _ in 0..2 {
            refused(&["mount", "image", "second"]).fails(3, &["in use"]);
            refused(&["mount", "image", "second", "-o", "ro"]).fails(3, &["in use"]);
            refused(&["info", "image"]).fails(3, &["in use"]);
            refused(&["check", "image"]).fails(8, &["in use"]);
            refused(&["label", "image", "new"]).fails(3, &["in use"]);
            locker = None;
        }
        assert!(locker.is_none());
        let again = lock(sort, false);
        mount.unmount().ok();
        // Readers ignore a stranger's lock too.
        syncline([OsStr::new("info"), place.image().as_ref()]).ok();
        place.check_clean();
        drop(again);
    }
    // Root's own lock and the owner's lock count.
    let own = lock(&["of the open file"], true);
    refused(&["mount", "image", "second"]).fails(3, &["in use"]);
    drop(own);
    let reader = Mount::new(&place.image(), &place.directory("reader"), &["-o", "ro"]);
    let stranger = lock(&[], false);
    refused(&["mount", "image", "second"]).fails(3, &["in use"]);
    reader.unmount().ok();
    drop(stranger);
    std::os::unix::fs::chown(place.image(), Some(NOBODY), None).unwrap();
    let owner = lock(&[], false);
    refused(&["mount", "image", "second"]).fails(3, &["in use"]);
    drop(owner);
    place.mount("at last").unmount().ok();
}
