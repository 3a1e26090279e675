//! Quotas of directory trees: set, reached, shown, kept across remounts and removed, as programs
//! see them.

use super::Ground;
use crate::skip_if;
use crate::support::{Answer, eventually, no_fuse, syncline};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

const EXDEV: i32 = 18;
const EDQUOT: i32 = 122;

fn quota(words: &[&dyn AsRef<OsStr>]) -> Answer {
    let words = words.iter().map(|word| word.as_ref());
    syncline([OsStr::new("quota")].into_iter().chain(words))
}

fn usage(directory: &Path) -> serde_json::Value {
    let text = quota(&[&"show", &directory, &"--json"]).ok().out;
    serde_json::from_str::<serde_json::Value>(&text).unwrap()["usage"].clone()
}

fn refused<T: std::fmt::Debug>(result: io::Result<T>, errno: i32) {
    assert_eq!(result.unwrap_err().raw_os_error(), Some(errno));
}

#[test]
fn limits_hold_are_shown_and_give_back_what_is_removed() {
    skip_if!(no_fuse());
    let mut ground = Ground::new();
    let home = ground.path("home");
    fs::create_dir(&home).unwrap();
    quota(&[&"set", &home, &"--bytes", &"4MiB", &"--inodes", &"20"]).ok();
    let file = File::create(home.join("file")).unwrap();
    file.write_all_at(&vec![1; 4 << 20], 0).unwrap();
    refused(file.write_all_at(b"x", 4 << 20), EDQUOT);
    let all = rustix::fs::statvfs(&home).unwrap();
    assert_eq!((all.f_blocks * all.f_frsize, all.f_bavail), (4 << 20, 0));
    assert_eq!((all.f_files, all.f_ffree), (20, 18));
    // Accepted data is not refused later, and overwriting needs no more.
    file.sync_all().unwrap();
    file.write_all_at(&vec![2; 1 << 20], 12_345).unwrap();
    file.sync_all().unwrap();
    drop(file);
    ground.remount();
    let before = usage(&home);
    assert_eq!((&before["used_bytes"], &before["used_inodes"]), (&(4 << 20).into(), &2.into()));
    refused(fs::write(home.join("other"), b"x"), EDQUOT);
    fs::remove_file(home.join("file")).unwrap();
    fs::write(home.join("other"), vec![3; 3 << 20]).unwrap();
    for number in 0..18 {
        fs::create_dir(home.join(number.to_string())).unwrap();
    }
    refused(fs::create_dir(home.join("more")), EDQUOT);
    fs::remove_dir(home.join("0")).unwrap();
    fs::create_dir(home.join("more")).unwrap();
    // Changes one limit and keeps the other.
    quota(&[&"set", &home, &"--inodes", &"0"]).ok();
    fs::create_dir(home.join("much more")).unwrap();
    assert_eq!(usage(&home)["limits"]["bytes"], 4 << 20);
    ground.end();
}

#[test]
fn a_quota_that_was_set_outlives_a_crash() {
    skip_if!(no_fuse());
    let mut ground = Ground::new();
    let home = ground.path("home");
    fs::create_dir(&home).unwrap();
    fs::write(home.join("file"), vec![1; 10_000]).unwrap();
    quota(&[&"set", &home, &"--bytes", &"4MiB"]).ok();
    let mut mount = ground.mount.take().unwrap();
    let directory = mount.path.clone();
    mount.kill();
    drop(mount);
    ground.mount = Some(crate::support::Mount::new(&ground.place.image(), &directory, &[]));
    let after = usage(&home);
    assert_eq!(
        (&after["limits"]["bytes"], &after["being_set"]),
        (&(4 << 20).into(), &false.into()),
        "{after}"
    );
    ground.end();
}

#[test]
fn trees_have_borders_and_mv_copies_over_them() {
    skip_if!(no_fuse());
    let ground = Ground::new();
    let (one, two) = (ground.path("one"), ground.path("two"));
    for directory in [&one, &two] {
        fs::create_dir(directory).unwrap();
        fs::write(directory.join("file"), b"contents").unwrap();
        quota(&[&"set", directory, &"--bytes", &"10MiB"]).ok();
    }
    refused(fs::rename(one.join("file"), two.join("moved")), EXDEV);
    refused(fs::hard_link(one.join("file"), ground.path("linked")), EXDEV);
    let mv = crate::support::tool("mv", &[one.join("file").as_ref(), two.join("moved").as_ref()]);
    assert!(mv.is_some() && !one.join("file").exists());
    assert_eq!(fs::read(two.join("moved")).unwrap(), b"contents");
    // The kernel reports mv's close a moment later, and an open file counts.
    eventually("the file that mv removed is gone", || usage(&one)["used_inodes"] == 1);
    assert_eq!(usage(&two)["used_inodes"], 3);
    // A whole tree moves together with its quota.
    fs::rename(&one, ground.path("three")).unwrap();
    assert_eq!(usage(&ground.path("three"))["limits"]["bytes"], 10 << 20);
    let below = two.join("below");
    fs::create_dir(&below).unwrap();
    quota(&[&"set", &below, &"--bytes", &"1MiB"]).fails(1, &["do not nest", "quota list"]);
    quota(&[&"set", &ground.path(""), &"--bytes", &"1MiB"]).fails(1, &["do not nest"]);
    quota(&[&"show", &below]).fails(1, &["no quota of its own"]);
    let listed = quota(&[&"list", &ground.path("")]).ok().out;
    assert!(listed.contains("/two") && listed.contains("/three"), "{listed}");
    quota(&[&"remove", &two]).ok();
    quota(&[&"remove", &two]).fails(1, &["no quota of its own"]);
    fs::rename(two.join("moved"), ground.path("moved")).unwrap();
    let without_limits = quota(&[&"set", &two]);
    assert!(without_limits.code == 2 && without_limits.err.contains("--bytes"), "{without_limits:?}");
    ground.end();
}

#[test]
fn what_is_there_is_counted_and_an_image_tells_without_a_mount() {
    skip_if!(no_fuse());
    let mut ground = Ground::new();
    let tree = ground.path("tree");
    for number in 0..30 {
        let directory = tree.join(format!("{}/{number}", number % 3));
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join("file"), vec![1; number * 1000]).unwrap();
    }
    quota(&[&"set", &tree, &"--bytes", &"1MiB"]).ok();
    let counted = usage(&tree);
    assert_eq!((&counted["used_inodes"], &counted["being_set"]), (&64.into(), &false.into()));
    let place = ground.place.image();
    let path = ground.mount.as_ref().unwrap().path.clone();
    ground.mount.take().unwrap().unmount().ok();
    let text = quota(&[&"list", &place, &"--json"]).ok().out;
    let told = serde_json::from_str::<serde_json::Value>(&text).unwrap();
    assert_eq!(told["quotas"][0]["usage"], counted);
    ground.mount = Some(crate::support::Mount::new(&place, &path, &[]));
    ground.end();
}

const PROGRAM: &str = r#"
#include "syncline.h"
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* DIRECTORY set BYTES INODES | show | remove: prints the number of the error, or what is known */
int main(int count, char **words)
{
	char text[4096] = "", cut[8] = "";
	int fd = open(words[1], O_RDONLY | O_DIRECTORY), failed = -1, len;

	if (fd < 0)
		return 1;
	if (words[2][0] == 's' && count == 5)
		failed = syncline_set_quota(fd, strtoull(words[3], 0, 10),
					    words[4][0] == '-' ? SYNCLINE_LIMIT_STAYS : strtoull(words[4], 0, 10));
	else if (words[2][0] == 'r')
		failed = syncline_remove_quota(fd);
	else if ((len = syncline_quota(fd, text, sizeof text)) >= 0)
		failed = len != (int)strlen(text) || syncline_quota(fd, cut, sizeof cut) != len || strlen(cut) != 7;
	printf("%d %s\n", failed ? errno : 0, text);
	return 0;
}
"#;

#[test]
fn programs_in_c_can_set_show_and_remove_quotas() {
    skip_if!(no_fuse());
    skip_if!(
        crate::support::tool("cc", &["--version".as_ref()]).is_none().then_some("no C compiler is installed")
    );
    let place = crate::support::Place::new();
    let binary = crate::support::c_program(&place, PROGRAM);
    let call = |directory: &Path, words: &[&str]| {
        let output = std::process::Command::new(&binary).arg(directory).args(words).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    let ground = Ground::new();
    let home = ground.path("home");
    fs::create_dir_all(home.join("below")).unwrap();
    assert_eq!(call(&home, &["show"]), "2", "ENOENT");
    assert_eq!(call(&home, &["remove"]), "2", "ENOENT");
    assert_eq!(call(&home, &["set", "1048576", "20"]), "0");
    refused(fs::write(home.join("file"), vec![1; 2 << 20]), EDQUOT);
    assert_eq!(call(&home, &["set", "4194304", "-"]), "0");
    fs::write(home.join("file"), vec![1; 2 << 20]).unwrap();
    let shown = call(&home, &["show"]);
    let shown: serde_json::Value = serde_json::from_str(shown.strip_prefix("0 ").unwrap()).unwrap();
    assert_eq!(shown["usage"]["limits"], serde_json::json!({ "bytes": 4 << 20, "inodes": 20 }), "{shown}");
    assert_eq!(shown["usage"], usage(&home));
    assert_eq!(call(&home.join("below"), &["set", "1", "1"]), "16", "EBUSY");
    assert_eq!(call(&home, &["remove"]), "0");
    fs::write(home.join("file"), vec![1; 8 << 20]).unwrap();
    assert_eq!(call(place.path(), &["set", "1", "1"]), "25", "ENOTTY elsewhere");
    ground.end();
}
