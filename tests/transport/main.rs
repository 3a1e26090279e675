//! How requests arrive from the kernel, as the user chooses. A separate program: beside other tests
//! that mount, the machine's switch would not stay as set here.

#[path = "../support/mod.rs"]
mod support;
#[path = "../../crates/fuse/tests/support/switch.rs"]
mod switch;

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::Command;
use support::{Mount, Place, eventually, no_fuse, not_root, program, syncline};
use switch::Switch;
use syncline_device::{Worker, WorkerOptions};

const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

/// The reason why nothing can be mounted with io_uring here, if so.
fn no_uring() -> Option<String> {
    if let Some(why) = not_root() {
        return Some(why.into());
    }
    if !Path::new(SWITCH).exists() {
        return Some("this kernel has no FUSE over io_uring".into());
    }
    if !Worker::new(WorkerOptions::default()).unwrap().has_ring() {
        return Some("this process may not use io_uring".into());
    }
    Switch::set(true).err().or_else(no_fuse)
}

/// Mounts with these options while the switch is on or off.
fn mount(place: &Place, name: &str, on: bool, options: &[&str]) -> Mount {
    let _switch = Switch::set(on).unwrap();
    Mount::new(&place.image(), &place.directory(name), options)
}

fn transport(mount: &Mount) -> String {
    mount.stats()["daemon"]["transport"].as_str().expect("a word").to_owned()
}

#[test]
fn a_mount_over_io_uring_keeps_what_was_synced_through_a_crash() {
    skip_if!(no_uring());
    let place = Place::with_image("128MiB");
    let mut mounted = mount(&place, "mount", true, &["-o", "transport=uring"]);
    assert_eq!(transport(&mounted), "uring");
    let data: Vec<u8> = (0..2_000_003u32).map(|index| (index % 249) as u8).collect();
    let directory = mounted.path.join("directory");
    fs::create_dir(&directory).unwrap();
    for index in 0..50 {
        let mut file = File::create(directory.join(format!("{index}"))).unwrap();
        file.write_all(&data[..index * 40_000]).unwrap();
        file.sync_all().unwrap();
    }
    let stats = mounted.stats();
    assert!(stats["requests"]["FSync"].as_u64() >= Some(50), "{stats}");
    mounted.kill();
    drop(mounted);
    // Data written through one transport is read through the other. (Of both options, the one in -o
    // counts.)
    let mounted = mount(&place, "again", true, &["-o", "transport=classic", "--transport", "uring"]);
    assert_eq!(transport(&mounted), "classic");
    for index in 0..50 {
        let read = fs::read(mounted.path.join("directory").join(format!("{index}"))).unwrap();
        assert!(read == data[..index * 40_000], "{index}");
    }
    mounted.unmount().ok();
    place.check_clean();
}

#[test]
fn what_is_not_switched_on_is_an_error_only_if_asked_for() {
    skip_if!(no_uring());
    let place = Place::with_image("32MiB");
    let directory = place.directory("refused");
    {
        let _switch = Switch::set(false).unwrap();
        let image = place.image();
        let before = fs::read(&image).unwrap();
        let words = ["--transport", "uring"].map(Path::new);
        let answer = syncline([Path::new("mount"), &image, &directory].into_iter().chain(words));
        answer.fails(7, &["switched off", &format!("echo Y > {SWITCH}"), "--transport classic"]);
        assert!(fs::read(&image).unwrap() == before, "the refusal comes before the first write");
    }
    assert!(fs::read_dir(&directory).unwrap().next().is_none(), "nothing is mounted there");
    let mounted = mount(&place, "mount", false, &[]);
    assert_eq!(transport(&mounted), "classic");
    mounted.unmount().ok();
    place.check_clean();
}

#[test]
fn a_mount_by_root_switches_it_on_and_says_so_once() {
    skip_if!(no_uring());
    let place = Place::with_image("32MiB");
    let (image, directory) = (place.image(), place.directory("mount"));
    let state = || fs::read_to_string(SWITCH).unwrap().trim().to_owned();
    let switch = Switch::set(false).unwrap();
    let mount = |options: &'static [&str]| {
        let words = options.iter().copied().map(Path::new);
        let answer = syncline([Path::new("mount"), &image, &directory].into_iter().chain(words)).ok();
        (answer.err, Mount::of(&directory))
    };
    // A request for another transport leaves the switch alone.
    for options in [&["--transport", "classic"][..], &["-o", "transport=available"]] {
        let (said, mounted) = mount(options);
        assert_eq!((transport(&mounted), state(), said), ("classic".into(), "N".into(), "".into()));
        mounted.unmount().ok();
    }
    for (options, words) in [(&[][..], 3), (&["-q"][..], 0)] {
        fs::write(SWITCH, "N").unwrap();
        let (said, mounted) = mount(options);
        assert_eq!((transport(&mounted), state()), ("uring".into(), "Y".into()));
        let told =
            ["switched off", "transport=available", "echo N"].iter().filter(|word| said.contains(**word));
        assert_eq!(told.count(), words, "{said}");
        mounted.unmount().ok();
    }
    let (said, mounted) = mount(&[]);
    assert_eq!((transport(&mounted), said), ("uring".into(), "".into()));
    mounted.unmount().ok();
    drop(switch);
    place.check_clean();
}

#[test]
fn the_demo_leaves_the_switch_as_it_was() {
    skip_if!(no_uring());
    let _switch = Switch::set(false).unwrap();
    // Another mount by root on this machine may switch it on at the same time.
    let is_left = || {
        fs::write(SWITCH, "N").unwrap();
        syncline(["demo", "--seconds", "1"]).ok();
        fs::read_to_string(SWITCH).unwrap().trim() == "N"
    };
    assert!((0..5).any(|_| is_left()));
}

/// The kernel offers io_uring at the mount and may still refuse it when the daemon registers: here
/// because it is switched off in between. strace delays the daemon for that long.
#[test]
fn a_registration_that_the_kernel_refuses_makes_the_mount_a_classic_one() {
    skip_if!(no_uring());
    skip_if!(support::tool("strace", &["--version".as_ref()]).is_none().then_some("there is no strace"));
    let place = Place::with_image("32MiB");
    let directory = place.directory("mount");
    let switch = Switch::set(true).unwrap();
    let mut traced = Command::new("strace");
    traced.args(["-f", "-o"]).arg(place.path().join("trace"));
    traced.args(["-e", "trace=mount", "-e", "inject=mount:delay_exit=2000000"]);
    traced.arg(program().get_program()).arg("mount").arg(place.image()).arg(&directory);
    let mut traced = traced.spawn().unwrap();
    let is_mounted = || {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        mounts.contains(directory.to_str().unwrap())
    };
    eventually("the kernel mounts", is_mounted);
    fs::write(SWITCH, "N").unwrap();
    // The first mount is removed again. The second mount may only ask for the features that are
    // available.
    let stats = [Path::new("stats"), &directory, Path::new("--json")];
    eventually("the daemon answers", || is_mounted() && syncline(stats).code == 0);
    drop(switch);
    let mounted = Mount::of(&directory);
    assert_eq!(transport(&mounted), "classic");
    fs::write(directory.join("file"), "over the old way").unwrap();
    assert_eq!(fs::read(directory.join("file")).unwrap(), b"over the old way");
    mounted.unmount().ok();
    traced.wait().unwrap();
    place.check_clean();
}
