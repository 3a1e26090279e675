//! An ordinary user mounts an image of their own, through fusermount3.

use crate::skip_if;
use crate::support::{ALONE, Answer, NOBODY, Place, no_fuse, not_root, run, tool};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::chown;
use std::process::Command;

/// Runs a script as an ordinary user, then one as root, in a place with the program; `None` if that
/// is not possible.
fn run_both(of_user: &str, of_root: &str) -> Option<(Place, Answer)> {
    let place = Place::new();
    chown(place.path(), Some(NOBODY), Some(NOBODY)).unwrap();
    // Other users may not be able to enter the build folder.
    place.copy_of_program("syncline");
    // In separate namespaces, where /dev/fuse is open to all users, as in distributions; everything
    // there ends with the first process.
    let outer = r#"
        mount --make-rprivate / && mknod -m 666 "$1/fuse" c 10 229 && mount --bind "$1/fuse" /dev/fuse || exit 77
        cd "$1"
        setpriv --reuid 65534 --regid 65534 --clear-groups sh -e -c "$2" || exit
        exec sh -e -c "$3"
    "#;
    let mut command = Command::new("unshare");
    command.args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]);
    command.args(["sh", "-c", &format!("{ALONE}{outer}"), "sh"]).arg(place.path()).args([of_user, of_root]);
    let answer = run(command);
    let barred = answer.code == 77 || answer.err.contains("unshare");
    (!barred).then_some((place, answer))
}

fn no_namespaces<T>(ran: &Option<T>) -> Option<&'static str> {
    ran.is_none().then_some("no namespaces with a /dev/fuse of their own here")
}

fn no_fusermount() -> Option<&'static str> {
    tool("fusermount3", &[OsStr::new("--version")]).is_none().then_some("fusermount3 is not installed")
}

#[test]
fn an_ordinary_user_makes_mounts_uses_and_unmounts() {
    skip_if!(not_root());
    skip_if!(no_fuse());
    skip_if!(no_fusermount());
    let script = r#"
        mkdir mount
        ./syncline mkfs image --size 32MiB
        ./syncline mount image mount
        echo kept > mount/file
        sync mount/file
        mkdir mount/dir
        ln mount/file mount/dir/second
        ./syncline stats mount --json > stats
        test "$(stat -c %u:%h mount/file)" = 65534:2
        ./syncline umount mount
        ./syncline check image
        ./syncline mount image mount -o ro
        test "$(cat mount/dir/second)" = kept
        ! echo more > mount/file
        ./syncline umount mount
    "#;
    let ran = run_both(script, "true");
    skip_if!(no_namespaces(&ran));
    let (place, answer) = ran.unwrap();
    answer.ok();
    let stats: serde_json::Value =
        serde_json::from_slice(&fs::read(place.path().join("stats")).unwrap()).unwrap();
    assert!(stats["requests"]["FSync"].as_u64().unwrap() >= 1);
}

/// The mount of an unprivileged user admits no other user, not even root, and root is not told to
/// ask as root.
#[test]
fn root_is_told_whom_to_ask_as() {
    skip_if!(not_root());
    skip_if!(no_fuse());
    skip_if!(no_fusermount());
    let of_user = "mkdir mount; ./syncline mount image mount --create 32MiB";
    let of_root = r#"
        for words in stats "sync --all" "snapshot list" "quota list" trim; do
            ./syncline $words mount && exit 1
            test $? = 9
        done
        ./syncline umount mount
    "#;
    let ran = run_both(of_user, of_root);
    skip_if!(no_namespaces(&ran));
    let answer = ran.unwrap().1.ok();
    assert_eq!(answer.err.matches("ask as that user").count(), 5, "{answer:?}");
    assert!(!answer.err.contains("as root"), "{answer:?}");
}
