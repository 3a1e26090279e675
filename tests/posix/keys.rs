//! Encrypted images: their keys, from wherever they come, and what is left when a part of the record is lost.

use super::fork::{at, on};
use crate::skip_if;
use crate::support::{LIMIT, Mount, Place, edit, no_fuse, program, run, wait};
use pty_process::blocking::{Command, open};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

const BLOCK: u64 = 4096;
/// What must not be found in an image.
const SECRET: &[u8] = b"the secret of this test";

/// An encrypted image, and the file with its key.
fn ground() -> (Place, PathBuf) {
    let place = Place::new();
    let key = place.path().join("key");
    fs::write(&key, "one\n").unwrap();
    on(&[&"mkfs", &place.image(), &"--size", &"32MiB", &"--encrypt", &"--key-file", &key]).ok();
    (place, key)
}

/// The blocks of the copies of the record.
fn copies(image: &Path) -> [u64; 3] {
    [52, 60, fs::metadata(image).unwrap().len() / BLOCK - 1]
}

fn contains(image: &Path, bytes: &[u8]) -> bool {
    fs::read(image).unwrap().windows(bytes.len()).any(|window| window == bytes)
}

fn list(image: &Path) -> serde_json::Value {
    serde_json::from_str(&on(&[&"key", &"list", &image, &"--json"]).ok().out).unwrap()
}

#[test]
fn nothing_of_an_encrypted_image_is_in_the_clear() {
    skip_if!(no_fuse());
    let (place, key) = ground();
    let option = format!("key-file={}", key.display());
    let mut mount = Mount::new(&place.image(), &place.directory("m"), &["-o", &option]);
    fs::create_dir(mount.path.join("folder-of-secrets")).unwrap();
    let file = mount.path.join("folder-of-secrets/file");
    fs::write(&file, SECRET.repeat(1000)).unwrap();
    File::open(&file).unwrap().sync_all().unwrap();
    // A crash: the log is encrypted as well.
    mount.kill();
    drop(mount);
    for text in [SECRET, b"folder-of-secrets", b"SYNCLINE"] {
        assert!(!contains(&place.image(), text));
    }
    let image = place.image();
    on(&[&"info", &image]).fails(9, &["is encrypted", "--key-file"]);
    on(&[&"info", &image, &"--key-command", &"echo two"]).fails(9, &["does not open", "key list"]);
    on(&[&"info", &image, &"--key-command", &"exit 3"]).fails(1, &["exit 3", "exit status: 3"]);
    on(&[&"info", &image, &"--key-file", &"/dev/null"]).fails(2, &["1 to 4000 bytes"]);
    on(&[&"mkfs", &image, &"--encrypt"]).fails(1, &["holds a Syncline filesystem, encrypted", "--force"]);
    // Mounted with the key on standard input.
    let mut command = program();
    let directory = place.directory("again");
    command.args(["mount", "--key-file", "-"]).arg(&image).arg(&directory).stdin(File::open(&key).unwrap());
    assert!(command.status().unwrap().success());
    let mount = Mount::of(&directory);
    assert_eq!(fs::read(mount.path.join("folder-of-secrets/file")).unwrap(), SECRET.repeat(1000));
    mount.unmount().ok();
    assert!(on(&[&"check", &image, &"--key-file", &key]).ok().out.contains("clean"));
    assert!(on(&[&"info", &image, &"--key-file", &key]).ok().out.contains("AES-256-XTS"));
}

#[test]
fn keys_are_added_changed_and_removed() {
    let (place, key) = ground();
    let (image, second) = (place.image(), place.path().join("second"));
    fs::write(&second, [0, 10, 255, 13, 10]).unwrap();
    let add = |name: &str| {
        on(&[&"key", &"add", &image, &"--name", &name, &"--key-file", &key, &"--new-key-file", &second])
    };
    assert_eq!(add("laptop").ok().out, "key 2 was added\n");
    assert_eq!(list(&image)["keys"][1]["name"], "laptop");
    assert!(on(&[&"key", &"list", &image]).ok().out.lines().nth(1).unwrap().ends_with("laptop"));
    add("two\nlines").fails(2, &["no control character"]);
    let opens = |key: &dyn AsRef<OsStr>| on(&[&"label", &image, &"--key-file", key]);
    opens(&second).ok();
    let change = [&"key" as &dyn AsRef<OsStr>, &"change", &image, &"--key-file", &second];
    on(&[&change[..], &[&"--new-key-command", &"echo third"]].concat()).ok();
    opens(&second).fails(9, &["does not open"]);
    on(&[&"label", &image, &"--key-command", &"echo third"]).ok();
    assert_eq!(list(&image)["keys"][1]["name"], "laptop");
    let remove = |number: &str| on(&[&"key", &"remove", &image, &number, &"--key-command", &"echo third"]);
    remove("3").fails(2, &["no key 3", "key list"]);
    assert_eq!(remove("1").ok().out, "key 1 was removed\n");
    opens(&key).fails(9, &["does not open"]);
    remove("2").fails(1, &["only key", "key add"]);
    on(&[&"key", &"list", &key]).fails(1, &["is not encrypted"]);
    on(&[&"key", &"list", &place.path().join("none")]).fails(5, &["check the path"]);
    let plain = place.path().join("plain.img");
    on(&[&"mkfs", &plain, &"--size", &"16MiB"]).ok();
    on(&[&"key", &"list", &plain]).fails(1, &["is not encrypted", "mkfs --encrypt"]);
    on(&[&"mkfs", &place.path().join("small"), &"--size", &"16MiB", &"--encrypt", &"--key-file", &key])
        .fails(2, &["16 MiB and 260 KiB"]);
    assert!(!place.path().join("small").exists());
    on(&[&"mkfs", &place.path().join("small"), &"--size", &"16MiB", &"--key-file", &key])
        .fails(2, &["--encrypt"]);
    on(&[&"info", &plain, &"--key-file", &key]).fails(9, &["is not encrypted, and a key was given"]);
    // An empty file or a device of zeros is no image yet.
    let blank = place.path().join("blank.img");
    File::create(&blank).unwrap().set_len(20 << 20).unwrap();
    on(&[&"mkfs", &blank, &"--encrypt", &"--key-file", &key]).ok();
    on(&[&"check", &blank, &"--key-file", &key]).ok();
    // Made again without encryption, it needs no key.
    on(&[&"mkfs", &image, &"--force"]).ok();
    on(&[&"check", &image]).ok();
}

#[test]
fn snapshots_forks_streams_and_sizes_need_the_key_of_the_image_only() {
    skip_if!(no_fuse());
    let (place, key) = ground();
    let (image, fork, stream) = (place.image(), place.path().join("fork.img"), place.path().join("stream"));
    let with = |words: &[&dyn AsRef<OsStr>]| on(&[words, &[&"--key-file", &key]].concat());
    let write = ["sh", "-c", "echo first >file"];
    let words: Vec<&dyn AsRef<OsStr>> = write.iter().map(|word| word as _).collect();
    on(&[&[&"run" as &dyn AsRef<OsStr>, &"--key-file", &key, &image, &"--"], &words[..]].concat()).ok();
    with(&[&"snapshot", &"create", &image, &"monday"]).ok();
    with(&[&"fork", &at(&image, "monday"), &fork]).ok();
    assert!(!contains(&fork, image.as_os_str().as_encoded_bytes()));
    let ran = on(&[&"run", &"--key-file", &key, &fork, &"--", &"sh", &"-c", &"cat file; echo second >file"]);
    assert_eq!(ran.ok().out, "first\n");
    with(&[&"check", &fork]).ok();
    on(&[&"run", &at(&image, "monday"), &"--key-file", &key, &"--", &"cat", &"file"]).ok();
    let option = format!("key-file={}", key.display());
    let sandbox =
        Mount::new(Path::new(&at(&image, "monday")), &place.directory("m"), &["--fork", "-o", &option]);
    assert_eq!(fs::read_to_string(sandbox.path.join("file")).unwrap(), "first\n");
    sandbox.unmount().ok();
    with(&[&"fork", &"--detach", &fork]).ok();
    assert_eq!(with(&[&"cat", &format!("{}:/file", fork.display())]).ok().out, "second\n");
    // Nothing else in a stream tells that the image was encrypted.
    with(&[&"send", &image, &"monday", &"-o", &stream]).ok();
    let plain = place.path().join("plain.img");
    on(&[&"mkfs", &plain, &"--size", &"16MiB"]).ok();
    on(&[&"receive", &plain, &"-i", &stream]).ok();
    for size in ["64MiB", "min", "48MiB"] {
        with(&[&"resize", &image, &size]).ok();
        with(&[&"check", &image]).ok();
        // Each copy of the record is where it belongs.
        for kept in copies(&image) {
            let copy = place.path().join("copy.img");
            fs::copy(&image, &copy).unwrap();
            let others = copies(&image).into_iter().filter(|place| *place != kept);
            others.for_each(|place| edit(&copy, place * BLOCK, 4096, |block| block.fill(0)));
            with(&[&"cat", &format!("{}:/file", copy.display())]).ok();
        }
    }
}

#[test]
fn lost_copies_of_the_keys_are_written_again() {
    let (place, key) = ground();
    let image = place.image();
    let before = fs::read(&image).unwrap();
    let label = || on(&[&"label", &image, &"new", &"--key-file", &key]);
    let [first, second, last] = copies(&image);
    for (one, other) in [(first, second), (first, last), (second, last)] {
        edit(&image, one * BLOCK, 4096, |block| block.fill(0));
        edit(&image, other * BLOCK + 100, 1, |byte| byte[0] ^= 1);
        label().ok();
        let after = fs::read(&image).unwrap();
        for place in copies(&image) {
            let copy = (place * BLOCK) as usize..((place + 1) * BLOCK) as usize;
            assert!(after[copy.clone()] == before[copy], "block {place}");
        }
    }
    // A plain image whose last block a file has filled with such a record is plain.
    let (plain, record) = (place.path().join("plain.img"), (first * BLOCK) as usize);
    on(&[&"mkfs", &plain, &"--size", &"16MiB"]).ok();
    let [_, _, end] = copies(&plain);
    edit(&plain, end * BLOCK, 4096, |block| block.copy_from_slice(&before[record..record + 4096]));
    on(&[&"label", &plain, &"new"]).ok();
    on(&[&"check", &plain]).ok();
    for place in copies(&image) {
        edit(&image, place * BLOCK + 100, 1, |byte| byte[0] ^= 1);
    }
    label().fails(5, &["every copy of the key record is damaged", "backup"]);
    on(&[&"key", &"list", &image]).fails(5, &["every copy"]);
}

/// The last block of what is left of it is not a copy of the keys, and must stay.
#[test]
fn an_image_that_was_cut_off_loses_nothing_by_being_opened() {
    let (place, key) = ground();
    let image = place.image();
    let before = fs::read(&image).unwrap();
    for cut in [1, 256] {
        let file = File::options().write(true).open(&image).unwrap();
        file.set_len(before.len() as u64 - cut * BLOCK).unwrap();
        let label = || on(&[&"label", &image, &"new", &"--key-file", &key]);
        label().fails(5, &["is truncated", &format!("'truncate -s {}'", before.len())]);
        on(&[&"key", &"add", &image, &"--key-file", &key, &"--new-key-command", &"echo two"]).ok();
        let after = fs::read(&image).unwrap();
        assert!(after[61 * 4096..] == before[61 * 4096..after.len()]);
        file.set_len(before.len() as u64).unwrap();
        label().ok();
        on(&[&"check", &image, &"--key-file", &key]).ok();
        fs::write(&image, &before).unwrap();
    }
}

/// Somebody may have put an image without encryption in the place of his.
#[test]
fn a_plain_image_is_not_mounted_with_a_key() {
    skip_if!(no_fuse());
    let (place, key) = ground();
    let (plain, directory) = (place.path().join("plain.img"), place.directory("m"));
    on(&[&"mkfs", &plain, &"--size", &"16MiB"]).ok();
    let mount = |words: &[&dyn AsRef<OsStr>]| on(&[&[&"mount" as &dyn AsRef<OsStr>], words].concat());
    mount(&[&plain, &directory, &"--key-file", &key]).fails(9, &["is not encrypted"]);
    let option = format!("transport=available, key-file={}", key.display());
    mount(&[&plain, &directory, &"-o", &option]).fails(9, &["is not encrypted"]);
    let new = place.path().join("new.img");
    mount(&[&new, &directory, &"--create", &"16MiB", &"--key-file", &key]).fails(2, &["mkfs --encrypt"]);
    assert!(!new.exists());
    // A key command is called once, and the daemon's command line does not have it.
    let calls = place.path().join("calls");
    let option = format!("key-command=echo called >>{}; echo one", calls.display());
    let mounted = Mount::new(&place.image(), &directory, &["-o", &option]);
    assert_eq!(fs::read_to_string(&calls).unwrap(), "called\n");
    let line = fs::read(format!("/proc/{}/cmdline", mounted.pid().as_raw_nonzero())).unwrap();
    assert!(!String::from_utf8_lossy(&line).contains("called"));
    assert!(!mounted.stats().to_string().contains("called"));
    mounted.unmount().ok();
}

/// The unmount can't look into the image, and must not say that all is well.
#[test]
fn an_unmount_after_the_daemon_has_died_is_no_success() {
    skip_if!(no_fuse());
    let (place, key) = ground();
    let option = format!("key-file={}", key.display());
    let mut mount = Mount::new(&place.image(), &place.directory("m"), &["-o", &option]);
    fs::write(mount.path.join("file"), "unsynced").unwrap();
    mount.kill();
    on(&[&"umount", &mount.path]).fails(8, &["unsynced changes may be lost"]);
}

#[test]
fn a_service_has_its_key_as_a_credential() {
    let (place, key) = ground();
    fs::rename(&key, place.path().join("syncline.key")).unwrap();
    let mut command = program();
    command.arg("label").arg(place.image()).env("CREDENTIALS_DIRECTORY", place.path());
    run(command).ok();
}

/// Runs a command on a terminal, types these lines when it asks, and returns its exit code and what it printed.
fn on_terminal(arguments: &[&OsStr], lines: &[&str]) -> (i32, String) {
    on_terminal_with(env!("CARGO_BIN_EXE_syncline"), arguments, lines)
}

fn on_terminal_with(program: &str, arguments: &[&OsStr], lines: &[&str]) -> (i32, String) {
    let (mut pty, pts) = open().expect("a terminal");
    let mut child = Command::new(program).args(arguments).spawn(pts).expect("the program starts");
    let (mut shown, mut lines) = (String::new(), lines.iter());
    let mut bytes = [0; 1000];
    let mut asked = 0;
    // When the program has ended, reading from its terminal is an error.
    while let Ok(count @ 1..) = pty.read(&mut bytes) {
        shown.push_str(&String::from_utf8_lossy(&bytes[..count]));
        let asks = shown.matches("assphrase").filter(|_| shown.ends_with(": ")).count();
        if asks > asked
            && let Some(line) = lines.next()
        {
            asked = asks;
            pty.write_all(format!("{line}\n").as_bytes()).expect("the program reads");
        }
    }
    (wait(&mut child, LIMIT).expect("it ends"), shown)
}

#[test]
fn a_terminal_is_asked_for_passphrases() {
    skip_if!(no_fuse());
    let place = Place::new();
    let (image, directory) = (place.image(), place.directory("m"));
    let words = |words: &'static str| words.split(' ').map(OsStr::new).collect::<Vec<_>>();
    let make = [&words("mkfs --size 32MiB --encrypt")[..], &[image.as_os_str()]].concat();
    let (code, shown) = on_terminal(&make, &["correct horse", "battery staple"]);
    assert!(code == 1 && shown.contains("differ"), "{shown}");
    assert!(!image.exists());
    let (code, shown) = on_terminal(&make, &["correct horse", "correct horse"]);
    assert!(code == 0 && !shown.contains("horse"), "{shown}");
    // Ctrl-C ends the program as elsewhere, and the terminal shows again what is typed.
    let ask = "trap : INT; \"$0\" label \"$1\"; echo code $?; stty -a";
    let program = OsStr::new(env!("CARGO_BIN_EXE_syncline"));
    let words_of_shell = [OsStr::new("-c"), OsStr::new(ask), program, image.as_os_str()];
    let (_, shown) = on_terminal_with("bash", &words_of_shell, &["\x03"]);
    assert!(shown.contains("code 130") && shown.contains(" echo ") && shown.contains(" icanon "), "{shown}");
    // In a pipeline one command asks after the other.
    let both = "\"$0\" label \"$1\" | \"$0\" label \"$1\"; stty -a";
    let words_of_shell = [OsStr::new("-c"), OsStr::new(both), program, image.as_os_str()];
    let (_, shown) = on_terminal_with("bash", &words_of_shell, &["correct horse", "correct horse"]);
    assert!(!shown.contains("horse") && shown.contains("isig icanon iexten echo "), "{shown}");
    let mount = [&words("mount")[..], &[image.as_os_str(), directory.as_os_str()]].concat();
    let (code, shown) = on_terminal(&mount, &["one", "two", "three"]);
    assert!(code == 9 && shown.contains("does not open the image"), "{shown}");
    let (code, shown) = on_terminal(&mount, &["wrong", "correct horse"]);
    assert!(code == 0, "{shown}");
    Mount::of(&directory).unmount().ok();
    let run = [&words("run")[..], &[image.as_os_str()], &words("-- echo it runs")[..]].concat();
    let (code, shown) = on_terminal(&run, &["correct horse"]);
    assert!(code == 0 && shown.contains("it runs"), "{shown}");
    let add = [&words("key add")[..], &[image.as_os_str()]].concat();
    let (code, shown) = on_terminal(&add, &["correct horse", "next", "next"]);
    assert!(code == 0 && shown.contains("key 2 was added"), "{shown}");
}
