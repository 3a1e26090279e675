//! The resource agent of the examples, as a cluster manager calls it. A second host is a second
//! directory here.

use super::nbd::{Server, no_exports};
use crate::skip_if;
use crate::support::{Answer, Mount, run, stop};
use rustix::process::{Signal, kill_process};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const SUCCESS: i32 = 0;
const GENERIC: i32 = 1;
const UNIMPLEMENTED: i32 = 3;
const INSTALLED: i32 = 5;
const CONFIGURED: i32 = 6;
const NOT_RUNNING: i32 = 7;

/// Calls the agent for the image at this directory.
fn agent(action: &str, image: &Path, directory: &Path) -> Command {
    let mut command =
        Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/failover/syncline"));
    command.arg(action).env("OCF_RESKEY_image", image).env("OCF_RESKEY_directory", directory);
    command.env("OCF_RESKEY_options", "noatime,transport=available");
    command.env("OCF_RESKEY_program", env!("CARGO_BIN_EXE_syncline")).env("OCF_RESOURCE_INSTANCE", "db");
    command
}

#[track_caller]
fn ends(action: &str, image: &Path, directory: &Path, code: i32) -> Answer {
    let answer = run(agent(action, image, directory));
    assert_eq!(answer.code, code, "{action}: {answer:?}");
    answer
}

#[test]
fn a_manager_moves_an_image_from_a_host_that_hangs() {
    skip_if!(no_exports());
    let (place, _server, image) = Server::with_filesystem();
    let (first, second) = (place.path().join("a first"), place.path().join("second"));
    for action in ["monitor", "stop"] {
        let code = if action == "monitor" { NOT_RUNNING } else { SUCCESS };
        ends(action, &image, &first, code);
    }
    ends("start", &image, &first, SUCCESS);
    ends("start", &image, &first, SUCCESS);
    ends("monitor", &image, &first, SUCCESS);
    let host = Mount::of(&first);
    fs::write(first.join("file"), "synced").unwrap();
    fs::File::open(first.join("file")).unwrap().sync_all().unwrap();

    let stopped = host.pid();
    stop(stopped);
    ends("start", &image, &second, SUCCESS);
    let other = Mount::of(&second);
    assert_eq!(fs::read_to_string(second.join("file")).unwrap(), "synced");
    kill_process(stopped, Signal::CONT).unwrap();
    ends("monitor", &image, &first, GENERIC);
    ends("monitor", &image, &second, SUCCESS);
    ends("stop", &image, &first, SUCCESS);
    ends("monitor", &image, &first, NOT_RUNNING);
    // A daemon that died is no running one, and its mount is not in the way of a new one.
    let mut other = other;
    other.kill();
    ends("monitor", &image, &second, GENERIC);
    ends("start", &image, &second, SUCCESS);
    ends("stop", &image, &second, SUCCESS);
    ends("monitor", &image, &second, NOT_RUNNING);
    let mut check = crate::support::program();
    check.arg("check").arg(&image);
    run(check).ok();
}

#[test]
fn the_agent_says_what_it_is_and_what_is_missing() {
    let (image, directory) = (PathBuf::from("nbd://host/db"), PathBuf::from("/srv/db"));
    let xml = ends("meta-data", &image, &directory, SUCCESS).out;
    for word in
        ["<resource-agent name=\"syncline\"", "name=\"image\"", "action name=\"start\"", "</resource-agent>"]
    {
        assert!(xml.contains(word), "{word}: {xml}");
    }
    ends("validate-all", &image, &directory, SUCCESS);
    ends("validate-all", Path::new(""), &directory, CONFIGURED);
    ends("validate-all", &image, Path::new("srv"), CONFIGURED);
    ends("promote", &image, &directory, UNIMPLEMENTED);
    for (action, code) in [("validate-all", INSTALLED), ("monitor", NOT_RUNNING), ("stop", SUCCESS)] {
        let mut command = agent(action, &image, &directory);
        command.env("OCF_RESKEY_program", "/nowhere/syncline");
        assert_eq!(run(command).code, code, "{action}");
    }
}
