//! The output of the commands when all is well.

use crate::skip_if;
use crate::support::{Answer, Place, no_fuse, program, run};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

fn json(answer: Answer) -> Value {
    serde_json::from_str(&answer.ok().out).expect("JSON")
}

#[test]
fn what_mkfs_was_told_is_what_info_tells() {
    let place = Place::new();
    let uuid = "6ba7b810-9dad-11d1-80b4-00c04fd430c8";
    let mut command = program();
    command.arg("mkfs").arg(place.image());
    command.args(["--size", "24M", "--node-size", "4KiB", "--label", "a label", "--uuid", uuid]);
    run(command).ok();
    assert_eq!(fs::metadata(place.image()).unwrap().len(), 24 << 20);
    let mut command = program();
    command.arg("info").arg(place.image()).arg("--json");
    let info = json(run(command));
    assert_eq!(info["format_version"], 1);
    assert_eq!(info["size_bytes"], 24 << 20);
    assert_eq!(info["node_bytes"], 4096);
    assert_eq!((info["label"].as_str(), info["uuid"].as_str()), (Some("a label"), Some(uuid)));
    assert_eq!((info["clean"].as_bool(), info["objects"].as_u64()), (Some(true), Some(1)));
    let mut command = program();
    command.arg("mkfs").arg(place.image()).args(["--force", "--json", "--label", "other"]);
    let made = json(run(command));
    assert_eq!((made["label"].as_str(), made["size_bytes"].as_u64()), (Some("other"), Some(24 << 20)));
    let mut command = program();
    command.arg("mkfs").arg(place.image()).args(["--force", "--label", "a label", "--uuid", uuid]);
    run(command).ok();
    let mut command = program();
    command.arg("info").arg(place.image());
    let text = run(command).ok().out;
    for word in ["a label", uuid, "24.00 MiB", "clean: it was unmounted"] {
        assert!(text.contains(word), "{word}: {text}");
    }
}

#[test]
fn an_existing_file_keeps_its_length_and_holes_are_filled() {
    use std::os::unix::fs::MetadataExt;
    let place = Place::new();
    fs::File::create(place.image()).unwrap().set_len(20 << 20).unwrap();
    let mut command = program();
    command.arg("mkfs").arg(place.image());
    run(command).ok();
    let metadata = fs::metadata(place.image()).unwrap();
    assert_eq!(metadata.len(), 20 << 20);
    assert!(metadata.blocks() * 512 >= 20 << 20, "fully allocated");
}

#[test]
fn a_report_is_printed_for_people_and_for_programs() {
    let place = Place::with_image("16MiB");
    let mut command = program();
    command.arg("check").arg(place.image());
    assert!(run(command).ok().out.contains("clean (1 inode, 0 names"));
    let mut command = program();
    command.arg("check").arg(place.image()).arg("--json");
    let report = json(run(command));
    assert_eq!(report["findings"].as_array().map(Vec::len), Some(0));
    assert_eq!(report["inodes"], 1);
    assert_eq!(report["clean_unmount"], true);
}

#[test]
fn flags_of_other_filesystems_tools_are_taken() {
    let place = Place::new();
    let image = place.image();
    let call = |words: &[&str]| {
        let mut command = program();
        command.args(words).arg(&image);
        run(command)
    };
    let mut command = program();
    command.args(["mkfs", "-L", "data"]).arg(&image).arg("24MiB");
    run(command).ok();
    assert_eq!(fs::metadata(&image).unwrap().len(), 24 << 20);
    // A size without a unit would be in blocks elsewhere.
    let mut command = program();
    command.arg("mkfs").arg(place.path().join("new")).arg("24000000");
    let answer = run(command);
    assert!(answer.code == 2 && answer.err.contains("24000000MiB"), "{answer:?}");
    assert!(!place.path().join("new").exists());
    for flags in [&["-n"][..], &["-f"], &["-nf"], &["-y"], &["-p"], &["-fp"], &["-a"]] {
        let answer = call(&[&["check"], flags].concat()).ok();
        assert!(answer.out.contains("clean"), "{flags:?}: {answer:?}");
    }
    assert_eq!(call(&["check", "-n", "-y"]).code, 16, "they contradict each other");
    // A rotten copy of a superblock: -n leaves it as it is, -p mends it.
    crate::support::edit(&image, 65536, 4096, |block| block[8] ^= 1);
    assert_eq!(call(&["check", "-n"]).code, 4);
    assert_eq!(call(&["check", "-p"]).code, 1);
    assert_eq!(call(&["check", "-n"]).code, 0);
}

/// As fsck(8) and mkfs(8) call it.
#[test]
fn at_boot_nothing_is_checked_and_what_is_no_image_is_told() {
    let place = Place::with_image("16MiB");
    let named = |name: &str, words: &[&str]| {
        let link = place.path().join(name);
        if !link.exists() {
            std::os::unix::fs::symlink(program().get_program(), &link).unwrap();
        }
        let mut command = std::process::Command::new(link);
        command.args(words).current_dir(place.path());
        run(command)
    };
    let image = place.image();
    let image = image.to_str().unwrap();
    for flags in [&["-a"][..], &["-p"], &["-a", "-C0"], &["-l", "-a"]] {
        let answer = named("fsck.syncline", &[flags, &[image]].concat()).ok();
        assert!(answer.out.lines().count() == 1 && answer.out.contains("use -f to check it"), "{answer:?}");
    }
    fs::write(place.path().join("foreign"), vec![7; 16 << 20]).unwrap();
    named("fsck.syncline", &["-a", "missing"]).fails(8, &["missing", "check the path"]);
    named("fsck.syncline", &["-p", "foreign"]).fails(8, &["foreign", "not a Syncline image"]);
    assert!(named("fsck.syncline", &["-fp", image]).ok().out.contains("clean"));
    assert_eq!(named("fsck.syncline", &["-p", "-n", image]).code, 16);
    for name in ["fsck.syncline", "mkfs.syncline"] {
        assert!(named(name, &["-V"]).ok().out.contains(env!("CARGO_PKG_VERSION")));
    }
    // A rotten copy follows from the other one.
    crate::support::edit(&place.image(), 65536, 4096, |block| block[8] ^= 1);
    assert_eq!(named("fsck.syncline", &["-a", "-f", image]).code, 1);
    assert_eq!(named("fsck.syncline", &["-a", "-f", image]).code, 0);
}

#[test]
fn a_listing_shows_times_that_no_calendar_has() {
    use std::time::{Duration, UNIX_EPOCH};
    let place = Place::with_image("16MiB");
    let fs = syncline::Filesystem::open(place.image(), syncline::ImageOptions::default()).unwrap();
    fs.write("file", "").unwrap();
    let late = UNIX_EPOCH + Duration::from_secs(1 << 40);
    fs.set_times("file", Some(late), Some(late)).unwrap();
    fs.close().unwrap();
    let mut command = program();
    command.args(["ls", "-l"]).arg(place.image());
    let answer = run(command).ok();
    assert!(answer.out.ends_with("0 9999-12-31T23:59:59Z file\n"), "{answer:?}");
}

#[test]
fn a_mount_is_for_reading_goes_lazily_and_tells_what_it_is() {
    skip_if!(no_fuse());
    let place = Place::with_image("32MiB");
    let directory = place.directory("mount");
    let call = |words: &[&str]| {
        let mut command = program();
        command.args(words).arg(&directory);
        run(command)
    };
    let image = place.image();
    let leave = ["-o", "transport=available"];
    call(&[&["mount"][..], &leave, &[image.to_str().unwrap()]].concat()).ok();
    let mount = crate::support::Mount::of(&directory);
    let pid = mount.pid();
    fs::write(directory.join("file"), vec![7; 1 << 20]).unwrap();
    fs::File::open(directory.join("file")).unwrap().sync_all().unwrap();
    let usage = call(&["du", "-sh"]).ok().out;
    assert_eq!((usage.lines().count(), usage.contains("1.00 MiB")), (2, true), "{usage}");
    let mut command = program();
    command.args(["info", "--json"]).arg(&directory);
    let info = json(run(command));
    assert_eq!((&info["size_bytes"], &info["mounted"]), (&(32 << 20).into(), &true.into()));
    assert_eq!(info["image"].as_str(), image.canonicalize().unwrap().to_str());
    let text = call(&["info"]).ok().out;
    for words in
        [image.to_str().unwrap(), info["uuid"].as_str().unwrap(), "32.00 MiB", "state         mounted;"]
    {
        assert!(text.contains(words), "{words}: {text}");
    }
    // An open file stays usable, and is written when it is closed.
    let open = fs::File::create(directory.join("open")).unwrap();
    call(&["umount", "-l"]).ok();
    assert!(!directory.join("file").exists());
    std::io::Write::write_all(&mut &open, b"late").unwrap();
    drop(open);
    crate::support::wait_for_end(pid);
    let mut command = program();
    command.arg("cat").arg(format!("{}:open", image.display()));
    assert_eq!(run(command).ok().out, "late");
    for flag in ["-r", "--ro", "--read-only"] {
        call(&[&["mount", flag][..], &leave, &[image.to_str().unwrap()]].concat()).ok();
        let mount = crate::support::Mount::of(&directory);
        let refused = fs::write(directory.join("new"), "").unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem, "{flag}");
        mount.unmount().ok();
    }
    place.check_clean();
}

/// The log of a daemon that is mounted with these options, and unmounted.
fn logged(words: &[&str]) -> String {
    let place = Place::with_image("32MiB");
    let (directory, log) = (place.directory("mount"), place.path().join("log"));
    let mut command = program();
    command.arg("mount").arg(place.image()).arg(&directory).arg("--log").arg(&log).args(words);
    run(command).ok();
    let mount = crate::support::Mount::of(&directory);
    mount.unmount().ok();
    fs::read_to_string(log).unwrap()
}

#[test]
fn a_daemon_logs_as_its_mount_was_told() {
    skip_if!(no_fuse());
    assert_eq!(logged(&[]), "", "nothing is wrong");
    assert_eq!(logged(&["--quiet"]), "");
    let text = logged(&["-v"]);
    assert!(text.contains("INFO") && text.contains("unmounted"), "{text}");
    let lines = logged(&["-vv", "--log-format", "json"]);
    assert!(lines.lines().count() > 0);
    for line in lines.lines() {
        let line: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        for field in ["timestamp", "level", "target", "message"] {
            assert!(line[field].is_string(), "{field}: {line}");
        }
    }
}

#[test]
fn a_mount_in_the_foreground_logs_to_its_file() {
    skip_if!(no_fuse());
    let place = Place::with_image("32MiB");
    let (directory, log) = (place.directory("mount"), place.path().join("log"));
    let mut command = program();
    command.arg("mount").arg(place.image()).arg(&directory).args(["-v", "--foreground", "--log"]).arg(&log);
    let serving = command.stderr(std::process::Stdio::piped()).spawn().unwrap();
    let is_mounted =
        || fs::read_to_string("/proc/self/mounts").unwrap().contains(&*directory.to_string_lossy());
    crate::support::eventually("it is mounted", is_mounted);
    crate::support::Mount::of(&directory).unmount().ok();
    let said = String::from_utf8(serving.wait_with_output().unwrap().stderr).unwrap();
    assert!(!said.contains("serving") && !said.contains("unmounted"), "{said}");
    let logged = fs::read_to_string(log).unwrap();
    assert!(logged.contains("serving") && logged.contains("unmounted"), "{logged}");
}

#[test]
fn shells_learn_every_command() {
    for (shell, words) in [
        ("bash", ["complete -F _syncline", "--prometheus", "crashlab"]),
        ("zsh", ["#compdef syncline", "--prometheus", "crashlab"]),
        ("fish", ["complete -c syncline", "prometheus", "crashlab"]),
    ] {
        let mut command = program();
        command.args(["completions", shell]);
        let script = run(command).ok().out;
        for word in words {
            assert!(script.contains(word), "{shell}: {word}");
        }
    }
}

#[test]
fn setup_installs_what_mount_man_and_shells_look_for() {
    let place = Place::new();
    let (prefix, sbin) = (place.path().join("prefix"), place.path().join("sbin"));
    let setup = |options: &[&str]| {
        let mut command = program();
        command.arg("setup").arg("--prefix").arg(&prefix).arg("--helpers").arg(&sbin).args(options);
        run(command)
    };
    let files = |folder: &Path| fs::read_dir(folder).unwrap().count();
    // The second time it replaces its own.
    for _ in 0..2 {
        setup(&[]).ok();
        let mut mkfs = Command::new(sbin.join("mkfs.syncline"));
        mkfs.arg("-V");
        assert!(run(mkfs).ok().out.starts_with("syncline "), "the helper is the program");
        let page = fs::read_to_string(prefix.join("share/man/man1/syncline.1")).unwrap();
        assert!(page.contains(".B setup"));
        let mut printed = program();
        printed.args(["completions", "bash"]);
        let script = fs::read_to_string(prefix.join("share/bash-completion/completions/syncline")).unwrap();
        assert_eq!(run(printed).ok().out, script);
        assert_eq!(files(&sbin), 8);
    }

    // An update removes the pages of commands that are gone, and nobody else's.
    let pages = prefix.join("share/man/man1");
    let (former, foreign) = (pages.join("syncline-dedupe.1"), pages.join("syncline-notes.1"));
    fs::copy(pages.join("syncline-clone.1"), &former).unwrap();
    fs::write(&foreign, "how I use syncline").unwrap();
    setup(&[]).ok();
    assert!(!former.exists() && foreign.exists());
    fs::copy(pages.join("syncline-clone.1"), &former).unwrap();
    // As an interrupted setup leaves it.
    fs::copy(prefix.join("bin/syncline"), prefix.join("bin/syncline.new")).unwrap();
    symlink(prefix.join("bin/syncline"), sbin.join("mount.syncline.new")).unwrap();
    setup(&["--remove"]).ok();
    assert_eq!((files(&sbin), files(&pages), files(&prefix.join("bin"))), (0, 1, 0));
    fs::remove_file(&foreign).unwrap();
    setup(&[]).ok();

    // The helper of another installation stays, and nothing is changed.
    let helper = sbin.join("fsck.syncline");
    fs::remove_file(&helper).unwrap();
    fs::write(&helper, "another program").unwrap();
    let installed = prefix.join("bin/syncline");
    fs::remove_file(&installed).unwrap();
    setup(&[]).fails(1, &["fsck.syncline", "another installation", "--helpers"]);
    assert!(!installed.exists());
    // So does a program of that name.
    fs::write(&installed, "another program").unwrap();
    setup(&["--remove"]).ok();
    for foreign in [&helper, &installed] {
        assert_eq!(fs::read_to_string(foreign).unwrap(), "another program");
    }
    assert_eq!((files(&sbin), files(&prefix.join("share/man/man1")), files(&prefix.join("bin"))), (1, 0, 1));
    fs::remove_file(&helper).unwrap();
    setup(&[]).fails(1, &["bin/syncline", "another installation", "--prefix"]);
    assert_eq!(files(&sbin), 0);
    assert!(setup(&["--remove"]).ok().out.starts_with("nothing of Syncline"));
}

#[test]
fn setup_knows_folders_below_the_present_one() {
    let place = Place::new();
    let mut command = program();
    command.args(["setup", "--prefix", "prefix", "--helpers", "sbin"]).current_dir(place.path());
    run(command).ok();
    let helper = fs::read_link(place.path().join("sbin/mount.syncline")).unwrap();
    assert_eq!(helper, place.path().join("prefix/bin/syncline"));
}

#[test]
fn setup_does_not_wait_for_the_other_end_of_a_fifo() {
    let place = Place::new();
    fs::create_dir(place.path().join("bin")).unwrap();
    let fifo = place.path().join("bin/syncline");
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::RWXU).unwrap();
    for options in [&[][..], &["--remove"]] {
        let mut command = program();
        command.args(["setup", "--helpers", "sbin", "--prefix", "."]).args(options).current_dir(place.path());
        let answer = run(command);
        assert_eq!(answer.code, if options.is_empty() { 1 } else { 0 }, "{answer:?}");
    }
    assert!(fifo.symlink_metadata().is_ok());
}

/// Runs the demo in a folder of its own, which must be empty afterwards.
fn demo(options: &[&str]) -> String {
    let place = Place::new();
    let mut command = program();
    command.arg("demo").args(["--seconds", "1", "--seed", "7"]).args(options).env("TMPDIR", place.path());
    let answer = run(command).ok();
    assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0, "it cleans up");
    for word in ["64 KiB append + fsync", "random overwrite", "seed 7", "Cuts:      10", "Lost:      nothing"]
    {
        assert!(answer.out.contains(word), "{word}: {answer:?}");
    }
    answer.out
}

/// The columns of the first workload: jobs, fsyncs/s, flushes and writes per fsync, bytes per byte.
fn first_row(text: &str) -> Vec<f64> {
    let row = text.lines().find(|line| line.starts_with("64 KiB append")).expect("a row");
    row.split_whitespace().filter_map(|word| word.parse().ok()).skip(1).collect()
}

#[test]
fn the_demo_runs_on_a_mount() {
    skip_if!(no_fuse());
    let text = demo(&[]);
    assert!(text.contains("Mounted at"), "{text}");
    let row = first_row(&text);
    assert_eq!(row[0], 1.0);
    assert!(
        row[2] <= 1.05 && row[3] <= 2.2 && row[4] <= 1.2,
        "one flush and two writes for each fsync: {row:?}"
    );
}

#[test]
fn the_demo_runs_embedded() {
    let text = demo(&["--embedded"]);
    assert!(text.contains("embedded in this process"), "{text}");
    assert!(first_row(&text)[2] <= 1.05, "{text}");
}

#[test]
fn the_demo_tells_programs_its_figures() {
    let place = Place::new();
    let mut command = program();
    command.args(["demo", "--seconds", "1", "--embedded", "--json"]).env("TMPDIR", place.path());
    let figures = json(run(command).ok());
    let rows = figures["workloads"].as_array().unwrap();
    assert_eq!(rows.len(), 3);
    for row in rows {
        assert!(
            row["fsyncs"].as_u64().unwrap() > 0 && row["flushes_per_fsync"].as_f64().unwrap() <= 1.05,
            "{row}"
        );
    }
    assert_eq!((&figures["power_cuts"]["cuts"], &figures["power_cuts"]["lost"]), (&10.into(), &0.into()));
    assert!(figures["power_cuts"]["compared"]["bytes"].as_u64().unwrap() > 0, "{figures}");
    assert!(figures["image"].is_null(), "it is gone");
}

#[test]
fn the_demo_keeps_its_image_if_asked() {
    let place = Place::new();
    let mut command = program();
    command.args(["demo", "--seconds", "1", "--embedded", "--keep"]).env("TMPDIR", place.path());
    let answer = run(command).ok();
    let line = answer.out.lines().find_map(|line| line.strip_prefix("The image is ")).expect("its path");
    let mut command = program();
    command.arg("check").arg(line);
    run(command).ok();
}

#[test]
fn prune_keeps_the_newest_of_one_second() {
    let place = Place::with_image("32MiB");
    let image = place.image();
    let image = image.to_str().unwrap();
    // By its name the newer one comes first.
    for (tries, pair) in [["9a", "10a"], ["9b", "10b"], ["9c", "10c"]].into_iter().enumerate() {
        let names = pair.map(|name| format!("t{tries}-{name}"));
        for name in &names {
            crate::support::syncline(["snapshot", "create", image, name]).ok();
        }
        let prefix = format!("t{tries}-");
        let words = ["snapshot", "prune", image, "--prefix", &prefix, "--keep", "last=1"];
        assert_eq!(crate::support::syncline(words).ok().out, format!("deleted {:?}\n", names[0]));
    }
}
