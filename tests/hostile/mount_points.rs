//! Places where nothing can be mounted.

use crate::skip_if;
use crate::support::{
    ALONE, Answer, Place, as_nobody, is_root, no_fuse, not_root, program, run, starting_a_namespace, tool,
    wait_for_end,
};
use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use syncline_nbdlab::Pace;

fn mount_at(place: &Place, directory: &Path) -> Answer {
    let mut command = program();
    command.arg("mount").arg(place.image()).arg(directory);
    run(command)
}

#[test]
fn a_bad_mount_point_is_called_by_its_name() {
    let place = Place::with_image("16MiB");
    mount_at(&place, &place.path().join("missing")).fails(6, &["does not exist", "mkdir"]);
    let file = place.path().join("file");
    fs::write(&file, "").unwrap();
    mount_at(&place, &file).fails(6, &["not a directory"]);
    let full = place.directory("full");
    fs::write(full.join("file"), "").unwrap();
    mount_at(&place, &full).fails(6, &["not empty"]);
    // None of these has touched the image.
    place.check_clean();
}

#[test]
fn a_mount_point_in_use_says_by_what() {
    skip_if!(no_fuse());
    let place = Place::with_image("16MiB");
    let mount = place.mount("mount");
    let other = Place::with_image("16MiB");
    mount_at(&other, &mount.path).fails(3, &["already mounted", "umount"]);
    mount.unmount().ok();
}

#[test]
fn what_is_not_mounted_cannot_be_unmounted_or_asked() {
    let place = Place::new();
    let directory = place.directory("nothing");
    for name in ["umount", "stats"] {
        let mut command = program();
        command.arg(name).arg(&directory);
        run(command).fails(6, &["nothing", "syncline status"]);
        let mut command = program();
        command.arg(name).arg(place.path().join("missing"));
        run(command).fails(6, &["missing"]);
    }
}

#[test]
fn a_busy_mount_is_not_torn_away() {
    skip_if!(no_fuse());
    let place = Place::with_image("16MiB");
    let mount = place.mount("mount");
    let open = fs::File::create(mount.path.join("open")).unwrap();
    let mut command = program();
    command.arg("umount").arg(&mount.path);
    run(command).fails(3, &["in use", "fuser"]);
    drop(open);
    mount.unmount().ok();
    place.check_clean();
}

/// A process that is killed when this is dropped.
struct Sleeper(Child);

impl Sleeper {
    /// Starts it in a separate mount namespace, which also has this mount.
    fn with(mount: &Path) -> Self {
        let script = r#"
            while read -r _ directory type _; do
                case "$type" in
                fuse.syncline|fuseblk.syncline) test "$directory" = "$1" || umount -i -l "$directory";;
                esac
            done </proc/self/mounts 2>/dev/null
            echo there
            exec sleep 1000
        "#;
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c", script, "sh"]).arg(mount);
        let _starting = starting_a_namespace();
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut word = [0; 5];
        child.stdout.as_mut().unwrap().read_exact(&mut word).expect("it gets its namespace");
        Self(child)
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_mount_that_another_namespace_has_is_said_to_be_there_and_whose_it_is() {
    skip_if!(no_fuse());
    skip_if!(not_root());
    let place = Place::with_image("16MiB");
    let mount = place.mount("mount");
    fs::write(mount.path.join("file"), "contents").unwrap();
    let pid = mount.pid();
    let sleeper = Sleeper::with(&mount.path);
    let process = format!("process {} (sleep)", sleeper.0.id());
    let pace = Pace::start();
    let mut command = program();
    command.arg("umount").arg(&mount.path);
    let enter = format!("nsenter -t {} -m umount {}", sleeper.0.id(), mount.path.display());
    run(command).fails(3, &["unmounted here", "mount namespace of", &process, &enter]);
    pace.assert_within(Duration::from_secs(20));
    // The mount stays there and ends with the process.
    let there = Path::new("/proc").join(sleeper.0.id().to_string()).join("root");
    let file = there.join(mount.path.strip_prefix("/").unwrap()).join("file");
    assert_eq!(fs::read_to_string(file).unwrap(), "contents");
    drop(sleeper);
    wait_for_end(pid);
    drop(mount);
    place.check_clean();
}

#[test]
fn a_mount_that_is_bound_elsewhere_is_said_to_be_there() {
    skip_if!(no_fuse());
    skip_if!(not_root());
    let place = Place::with_image("16MiB");
    let mount = place.mount("mount");
    let second = place.directory("second");
    assert!(tool("mount", &["--bind".as_ref(), mount.path.as_ref(), second.as_ref()]).is_some());
    let mut command = program();
    command.arg("umount").arg(&mount.path);
    run(command).fails(3, &["still mounted at", "second", "syncline umount"]);
    let mut command = program();
    command.arg("umount").arg(&second);
    run(command).ok();
    drop(mount);
    place.check_clean();
}

#[test]
fn a_mount_whose_daemon_died_can_be_taken_away() {
    skip_if!(no_fuse());
    let place = Place::with_image("16MiB");
    let mut mount = place.mount("mount");
    mount.kill();
    mount_at(&place, &mount.path).fails(6, &["daemon has gone", "umount"]);
    mount.unmount().fails(8, &["it is unmounted", "unsynced changes may be lost"]);
    let again = place.mount("again");
    again.unmount().ok();
}

#[test]
fn who_may_not_read_the_image_is_told_so() {
    skip_if!(not_root());
    let place = Place::with_image("16MiB");
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(place.image(), fs::Permissions::from_mode(0o600)).unwrap();
    for name in ["info", "check"] {
        let mut command = copy_of_program(&place, name);
        command.arg(name).arg(place.image());
        let code = if name == "check" { 8 } else { 9 };
        run(as_nobody(command)).fails(code, &["Permission denied", "root"]);
    }
    let mut command = copy_of_program(&place, "mkfs");
    command.arg("mkfs").arg(place.path().join("new image")).args(["--size", "16MiB"]);
    run(as_nobody(command)).fails(9, &["Permission denied"]);
}

/// Other users may not be able to enter the build folder.
fn copy_of_program(place: &Place, name: &str) -> Command {
    Command::new(place.copy_of_program(&format!("program for {name}")))
}

/// In a separate mount namespace with a nearly empty /dev.
#[test]
fn without_fuse_the_message_says_what_to_do() {
    skip_if!(not_root());
    let place = Place::with_image("16MiB");
    let directory = place.directory("mount");
    let script =
        r#"mount --make-rprivate / && mount -t tmpfs none /dev && mknod -m 666 /dev/null c 1 3 && exec "$@""#;
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "sh", "-c", &format!("{ALONE}{script}"), "sh"])
        .arg(env!("CARGO_BIN_EXE_syncline"));
    command.arg("mount").arg(place.image()).arg(directory);
    let answer = run(command);
    skip_if!(
        (answer.err.contains("unshare") || answer.err.contains("mknod") || answer.err.contains("mount:"))
            .then_some("no mount namespaces here")
    );
    answer.fails(7, &["/dev/fuse", "modprobe fuse"]);
    place.check_clean();
    assert!(is_root());
}

#[test]
fn the_demo_falls_back_where_fuse_is_missing() {
    skip_if!(not_root());
    let place = Place::new();
    let script = r#"mount --make-rprivate / && mount -t tmpfs none /dev && mknod -m 666 /dev/null c 1 3 && mknod -m 666 /dev/urandom c 1 9 && exec "$@""#;
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "sh", "-c", &format!("{ALONE}{script}"), "sh"])
        .arg(env!("CARGO_BIN_EXE_syncline"));
    command.args(["demo", "--seconds", "1"]).env("TMPDIR", place.path());
    let answer = run(command);
    skip_if!(
        (answer.err.contains("unshare") || answer.err.contains("mknod") || answer.err.contains("mount:"))
            .then_some("no mount namespaces here")
    );
    let answer = answer.ok();
    assert!(answer.out.contains("embedded in this process: /dev/fuse"), "{answer:?}");
    assert!(answer.out.contains("Lost:      nothing"), "{answer:?}");
}
