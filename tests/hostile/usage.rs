//! Commands with wrong arguments.

use crate::support::{Place, program, run, syncline};

#[test]
fn wrong_usage_has_its_own_exit_codes() {
    for (arguments, code) in [
        (&["check"][..], 16),
        (&["check", "--no-such-option", "image"], 16),
        (&["mkfs"], 2),
        (&["mkfs", "image", "--size", "many"], 2),
        (&["mkfs", "image", "--size", "1MiB"], 2),
        (&["mkfs", "image", "--node-size", "5000"], 2),
        (&["mount", "image"], 2),
        (&["no-such-command"], 2),
    ] {
        let answer = syncline(arguments);
        assert_eq!(answer.code, code, "{arguments:?}: {answer:?}");
        assert!(!answer.err.is_empty());
    }
    assert!(!std::path::Path::new("image").exists(), "nothing was made");
}

#[test]
fn a_directory_in_the_place_of_an_interval_is_recognized() {
    let answer = syncline(["stats", "--watch", "/mnt"]);
    assert_eq!(answer.code, 2, "{answer:?}");
    assert!(answer.err.contains("syncline stats /mnt --watch"), "{answer:?}");
}

#[test]
fn help_and_version_are_no_errors() {
    for arguments in [&["--help"][..], &["--version"], &["check", "--help"], &["mount", "--help"]] {
        let answer = syncline(arguments).ok();
        assert!(!answer.out.is_empty());
    }
    assert!(syncline(["--help"]).out.contains("Exit codes"));
}

#[test]
fn an_unknown_mount_option_is_refused_by_name() {
    let place = Place::with_image("16MiB");
    let mut command = program();
    command.arg("mount").arg(place.image()).arg(place.directory("mount")).args(["-o", "ro,nobarrier"]);
    run(command).fails(2, &["nobarrier", "unknown option", "--help"]);
}

#[test]
fn a_label_is_short_and_plain_text() {
    let place = Place::with_image("16MiB");
    for (label, why) in [("x".repeat(65), "at most 64 bytes"), ("red\u{1b}[31m".into(), "control characters")]
    {
        let mut name = program();
        name.arg("label").arg(place.image()).arg(&label);
        run(name).fails(2, &[why]);
        let mut make = program();
        make.arg("mkfs").arg(place.path().join("new")).args(["--size", "16MiB", "--label", &label]);
        run(make).fails(2, &[why]);
    }
}

#[test]
fn an_image_that_does_not_exist_is_said_to_be_missing() {
    let place = Place::new();
    for command in ["info", "check"] {
        let mut program = program();
        program.arg(command).arg(place.image());
        let code = if command == "check" { 8 } else { 5 };
        run(program).fails(code, &["No such file", "syncline mkfs"]);
    }
    let mut command = program();
    command.arg("mount").arg(place.image()).arg(place.directory("mount"));
    run(command).fails(5, &["No such file", "--create"]);
}

#[test]
fn what_is_expected_is_said_of_a_wrong_value() {
    for (arguments, expected) in [
        (&["umount", "mnt", "--timeout", "3s"][..], "give a number of seconds, such as 60"),
        (&["mkfs", "image", "--size", "10XB"], "give a size such as 10MiB"),
        (&["mkfs", "image", "--size", "99999999999GiB"], "too large"),
        (&["mount", "image", "mnt", "-o", "memory=lots"], "give a size such as 10MiB"),
        (&["send", "image", "s", "--resume", "12"], "this is no token of 'syncline receive --token'"),
    ] {
        let answer = syncline(arguments);
        assert_eq!(answer.code, 2, "{arguments:?}: {answer:?}");
        assert!(answer.err.contains(expected), "{arguments:?}: {answer:?}");
        assert!(!answer.err.contains("invalid digit"), "{arguments:?}: {answer:?}");
    }
}

#[test]
fn no_hidden_command_is_suggested() {
    for (typed, hidden) in [("asq", "'ask'"), ("man", "'manual'")] {
        let answer = syncline([typed]);
        assert_eq!(answer.code, 2, "{answer:?}");
        assert!(!answer.err.contains(hidden), "{answer:?}");
    }
    assert!(syncline(["snapshots"]).err.contains("'snapshot'"), "others are");
}

#[test]
fn a_word_that_is_no_command_here_gets_a_tip() {
    let place = Place::with_image("16MiB");
    let image = place.image();
    let image = image.to_str().unwrap();
    for (code, typed, tip) in [
        (2, vec!["df"], "syncline info IMAGE".to_owned()),
        (2, vec!["snapshot", image, "monday"], format!("syncline snapshot create {image} NAME")),
        (2, vec!["bench", "k5", "--quick"], "syncline-lab bench".to_owned()),
        // Commands and options of earlier versions.
        (2, vec!["archive", "tar", image, "monday"], "syncline run IMAGE -- tar".to_owned()),
        (2, vec!["dedupe", "-r", "mnt"], "cp --reflink=auto".to_owned()),
        (16, vec!["check", image, "--repair", "--undo", "file"], "copy the image".to_owned()),
        (16, vec!["check", image, "--take-back=file"], "copy the image".to_owned()),
    ] {
        let answer = syncline(&typed);
        assert_eq!(answer.code, code, "{answer:?}");
        assert!(answer.err.contains(&tip) && !answer.err.contains("defragment"), "{answer:?}");
    }
}

#[test]
fn fsck_is_check() {
    let place = Place::with_image("16MiB");
    let mut command = program();
    command.arg("fsck").arg(place.image());
    assert!(run(command).ok().out.contains("clean"));
    let answer = syncline(["fsck"]);
    assert_eq!(answer.code, 16, "{answer:?}");
    assert!(answer.err.contains("syncline check"), "{answer:?}");
}
