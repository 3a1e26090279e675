//! An ordinary user mounts an image of their own, through fusermount3.

use crate::skip_if;
use crate::support::{ALONE, NOBODY, Place, no_fuse, not_root, run, tool};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::process::Command;

#[test]
fn an_ordinary_user_makes_mounts_uses_and_unmounts() {
    skip_if!(not_root());
    skip_if!(no_fuse());
    skip_if!(
        tool("fusermount3", &[OsStr::new("--version")]).is_none().then_some("fusermount3 is not installed")
    );
    let place = Place::new();
    chown(place.path(), Some(NOBODY), Some(NOBODY)).unwrap();
    // Where the build folder lies, others may not be able to enter.
    let program = place.path().join("syncline");
    fs::copy(env!("CARGO_BIN_EXE_syncline"), &program).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    // In namespaces of its own, where /dev/fuse is open to everybody, as distributions have it; whatever runs there ends
    // with the first process.
    let outer = r#"
        mount --make-rprivate / && mknod -m 666 "$1/fuse" c 10 229 && mount --bind "$1/fuse" /dev/fuse || exit 77
        exec setpriv --reuid 65534 --regid 65534 --clear-groups sh -c "$2" sh "$1"
    "#;
    let script = r#"
        set -e
        cd "$1"
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
    let mut command = Command::new("unshare");
    command.args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]);
    command.args(["sh", "-c", &format!("{ALONE}{outer}"), "sh"]).arg(place.path()).arg(script);
    let answer = run(command);
    let barred = answer.code == 77 || answer.err.contains("unshare");
    skip_if!(barred.then_some("no namespaces with a /dev/fuse of their own here"));
    answer.ok();
    let stats: serde_json::Value =
        serde_json::from_slice(&fs::read(place.path().join("stats")).unwrap()).unwrap();
    assert!(stats["requests"]["FSync"].as_u64().unwrap() >= 1);
}
