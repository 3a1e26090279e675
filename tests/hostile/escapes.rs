//! Names may contain anything, including sequences that a terminal obeys. The output of a command
//! contains none of these: only the command's own line breaks and tabs.

use crate::skip_if;
use crate::support::{Answer, Mount, Place, no_fuse, program, run, syncline};
use std::fs;
use std::path::Path;

/// Clears the screen, sets the title, returns to the start of the line, starts a new line, reverses
/// the text direction.
const EVIL: &str = "e\u{1b}[2Jv\u{1b}]0;t\u{7}i\rl\u{9b}31m\u{202e}\nclean";

/// How it must be shown.
const SHOWN: &str = r"e\u001b[2Jv\u001b]0;t\u0007i\u000dl\u009b31m\u202e\u000aclean";

#[track_caller]
fn is_harmless(what: &str, answer: &Answer) {
    for printed in [&answer.out, &answer.err] {
        let obeyed = |c: char| (c.is_control() && c != '\n' && c != '\t') || c == '\u{202e}';
        assert!(!printed.contains(obeyed), "{what}: {answer:?}");
        // A line that looks like the command's own.
        assert!(!printed.lines().any(|line| line.starts_with("clean")), "{what}: {answer:?}");
    }
}

fn call(there: &Path, words: &[&str]) -> Answer {
    let mut command = program();
    command.args(words).current_dir(there);
    let answer = run(command);
    is_harmless(&words.join(" "), &answer);
    answer
}

/// Output about paths on the command line, whether the command can use them or not.
#[test]
fn paths_are_shown_harmless_when_they_are_refused() {
    let place = Place::new();
    let there = place.directory(EVIL);
    fs::write(there.join("junk"), vec![0xa5; 20 << 20]).unwrap();
    fs::write(there.join(EVIL), "no image").unwrap();
    for command in [
        "info",
        "check",
        "label",
        "uuid",
        "trim",
        "umount",
        "scrub",
        "sync",
        "barrier",
        "du",
        "defragment",
        "compress",
        "durability",
        "stats",
        "explain",
    ] {
        for path in [EVIL, "junk", "missing\u{1b}c"] {
            let answer = call(&there, &[command, path]);
            assert_ne!(answer.code, 0, "{command} {path:?}");
        }
    }
    // It shows the bytes of any file.
    call(&there, &["inspect", EVIL]);
    for words in [
        &["mount", EVIL, EVIL][..],
        &["mount", "junk", EVIL],
        &["mount", EVIL, "missing\u{1b}c"],
        &["mount", EVIL, "x", "-o", EVIL],
        &["mkfs", EVIL],
        &["mkfs", "junk", "--label", EVIL],
        &["resize", EVIL, "1GiB"],
        &["resize", EVIL, EVIL],
        &["path", EVIL, "1"],
        &["quota", "list", EVIL],
        &["snapshot", "list", EVIL],
        &["snapshot", "create", EVIL, EVIL],
        &["snapshot", "mount", EVIL, EVIL, EVIL],
        &["clone", EVIL, EVIL],
        &["crashlab", "list", EVIL],
        &["top", EVIL, "--once"],
        &[EVIL],
        &["info", "--no\u{1b}c"],
    ] {
        assert_ne!(call(&there, words).code, 0, "{words:?}");
    }
    let shown = call(&there, &["info", EVIL]);
    // A message is a single line, so a line break in it becomes a space.
    assert!(shown.err.contains(SHOWN.split_once("\\u000a").unwrap().0), "{shown:?}");
}

/// Output about names, labels and paths in a filesystem.
#[test]
fn names_are_shown_harmless_where_they_are_told() {
    skip_if!(no_fuse());
    let place = Place::new();
    let there = place.directory(EVIL);
    let (image, directory) = (there.join(EVIL), there.join("m\u{1b}cnt"));
    let label = "l\u{1b}[31mabel\u{9b}\ncl";
    let words = ["mkfs".as_ref(), image.as_os_str(), "--size".as_ref(), "64MiB".as_ref()];
    is_harmless("mkfs", &syncline(words).ok());
    fs::create_dir(&directory).unwrap();
    let mount = Mount::new(&image, &directory, &[]);
    // The commands refuse such a label, but a request to the mount itself may set any.
    syncline_fuse::control::set_label(&directory, label).unwrap();
    let tree = directory.join(EVIL);
    fs::create_dir(&tree).unwrap();
    for name in [EVIL, "other"] {
        fs::write(tree.join(name), vec![7; 300_000]).unwrap();
    }
    let evil = tree.join(EVIL);
    let [evil, tree, mounted] = [&evil, &tree, &directory].map(|path| path.to_str().unwrap().to_owned());
    let inode = std::os::unix::fs::MetadataExt::ino(&fs::metadata(&evil).unwrap()).to_string();
    let ok = |words: &[&str]| {
        let answer = call(&there, words);
        assert_eq!(answer.code, 0, "{words:?}: {answer:?}");
        answer
    };
    ok(&["snapshot", "create", &mounted, "before"]);
    ok(&["sync", &evil]);
    let names = [
        ok(&["path", &mounted, &inode]),
        ok(&["du", &evil]),
        ok(&["explain", &evil]),
        ok(&["defragment", &evil]),
        ok(&["quota", "set", &tree, "--bytes", "16MiB"]),
        ok(&["quota", "list", &mounted]),
        ok(&["compress", &evil]),
        ok(&["compress", &evil, "--show"]),
        ok(&["durability", "set", &tree, "ordered"]),
        ok(&["durability", "list", &mounted]),
    ];
    for (index, answer) in names.iter().enumerate().filter(|(index, _)| [0, 1, 5].contains(index)) {
        assert!(answer.out.contains(SHOWN), "{index}: {answer:?}");
    }
    for words in [
        &["du", "--json", &evil][..],
        &["path", "--json", &mounted, &inode],
        &["quota", "show", &tree],
        &["quota", "list", "--json", &mounted],
        &["clone", &evil, directory.join("c\u{1b}opy").to_str().unwrap()],
        &["scrub", &mounted, "--rate", "0"],
        &["stats", &mounted],
        &["stats", &mounted, "--json"],
        &["top", &mounted, "--once", "--interval", "0.2"],
        &["top", &mounted, "--json", "--interval", "0.2"],
        &["explain", &mounted],
        &["label", &mounted],
        &["trim", &mounted],
        &["umount", &tree],
    ] {
        // Other tests check whether it succeeds.
        call(&there, words);
    }
    mount.unmount().ok();
    for words in [
        &["info", EVIL][..],
        &["info", EVIL, "--json"],
        &["label", EVIL],
        &["check", EVIL],
        &["snapshot", "list", EVIL],
        &["snapshot", "diff", EVIL, "before"],
        &["snapshot", "diff", EVIL, "before", "--json"],
        &["path", EVIL, &inode],
        &["resize", EVIL, "80MiB"],
    ] {
        ok(words);
    }
    for command in ["ls /", "tree", "superblock"] {
        call(&there, &["inspect", EVIL, "-c", command]);
    }
    assert!(ok(&["snapshot", "diff", EVIL, "before"]).out.contains(r"\u001b"));
    assert!(ok(&["label", EVIL]).out.contains(r"l\u001b[31mabel\u009b\u000acl"));
}
