//! Streams that are cut off and go on, and streams into a mount, through the binary.

use super::streams::{call, seen, sent, snapshot_names};
use crate::skip_if;
use crate::support::{Answer, Mount, Place, eventually, no_fuse, program, wait_for_log};
use rand::{Rng, SeedableRng};
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use syncline_nbdlab::Pace;

/// The receiver's answer to a stream on its standard input.
fn receive_bytes(target: &Path, bytes: &[u8], more: &[&str]) -> Answer {
    let mut command = program();
    command.args(["receive".as_ref(), target.as_os_str()]).args(more);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // A receiver that refuses the stream does not read it.
    let _ = child.stdin.take().unwrap().write_all(bytes);
    let done = child.wait_with_output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Answer { code: done.status.code().unwrap(), out: text(done.stdout), err: text(done.stderr) }
}

fn token_of(target: &Path) -> String {
    call(&[&"receive", &target, &"--token"]).ok().out.trim().to_owned()
}

#[test]
fn a_stream_that_was_cut_off_goes_on() {
    skip_if!(no_fuse());
    let place = Place::with_image("64MiB");
    let (stream, target) = sent(&place);
    let bytes = fs::read(&stream).unwrap();
    let nothing: &[&str] = &["no part of a stream is saved", "from its beginning"];
    call(&[&"receive", &target, &"--token"]).fails(1, nothing);
    call(&[&"receive", &target, &"--abandon"])
        .fails(1, &["no part of a stream is saved", "nothing to abandon"]);
    let cut = receive_bytes(&target, &bytes[..bytes.len() / 3], &["--resume"]);
    cut.fails(11, &["ends too early", "is saved", "--resume"]);
    let token = token_of(&target);
    assert!(snapshot_names(&target).is_empty());
    assert!(call(&[&"snapshot", &"list", &target]).ok().err.contains("part of a stream"));
    let told = |source: &Path| call(&[&"info", &source]).ok().out.contains("receive --resume");
    assert!(told(&target) && !told(&place.image()));
    assert!(call(&[&"info", &target, &"--json"]).ok().out.contains("\"part_of_stream\": true"));
    call(&[&"check", &target]).ok();
    // It is nobody's snapshot.
    let hidden = ".syncline-receiving";
    let directory = place.directory("view");
    call(&[&"snapshot", &"mount", &target, &hidden, &directory]).fails(1, &["no snapshot"]);
    call(&[&"snapshot", &"rollback", &target, &hidden]).fails(1, &["no snapshot"]);
    call(&[&"snapshot", &"create", &target, &hidden]).fails(1, &["can't be the name"]);
    call(&[&"send", &target, &hidden, &"-o", &place.path().join("x")]).fails(1, &["no snapshot"]);
    // The rest, cut off once more; then the rest of that.
    let rest = place.path().join("rest");
    call(&[&"send", &place.image(), &"s", &"--resume", &token, &"-o", &rest]).ok();
    let rest_bytes = fs::read(&rest).unwrap();
    assert!(rest_bytes.len() < bytes.len() * 3 / 4);
    call(&[&"receive", &target, &"-i", &rest]).fails(11, &["goes on after record", "--resume"]);
    receive_bytes(&target, &rest_bytes[..rest_bytes.len() / 2], &["--resume"]).fails(11, &["is saved"]);
    call(&[&"receive", &target, &"--resume", &"-i", &rest]).fails(11, &["goes on after record", "--token"]);
    let later = token_of(&target);
    assert_ne!(later, token);
    let refused = call(&[&"send", &place.image(), &"s", &"--resume", &"abc", &"-o", &place.path().join("x")]);
    assert!(refused.code == 2 && refused.err.contains("token"), "{refused:?}");
    call(&[&"snapshot", &"create", &place.image(), &"t"]).ok();
    call(&[&"send", &place.image(), &"t", &"--resume", &later, &"-o", &place.path().join("x")])
        .fails(11, &["another stream", "another snapshot"]);
    assert!(!place.path().join("x").exists());
    fs::remove_file(&rest).unwrap();
    call(&[&"send", &place.image(), &"s", &"--resume", &later, &"-o", &rest]).ok();
    call(&[&"receive", &target, &"--resume", &"-i", &rest]).ok();
    assert_eq!(snapshot_names(&target), ["s"]);
    call(&[&"receive", &target, &"--token"]).fails(1, nothing);
    assert!(!told(&target));
    require_same_trees(&place, &target);
    call(&[&"check", &target]).ok();
}

/// Fails unless the snapshot `s` is the same in both images.
fn require_same_trees(place: &Place, target: &Path) {
    let views = [("sent", place.image()), ("received", target.to_owned())].map(|(name, image)| {
        let directory = place.directory(&format!("{name}-view"));
        call(&[&"snapshot", &"mount", &image, &"s", &directory]).ok();
        Mount::of(&directory)
    });
    let [sent, received] = [0, 1].map(|index: usize| seen(&views[index].path));
    assert!(sent.len() > 5);
    assert_eq!(sent, received);
    views.into_iter().for_each(|view| drop(view.unmount().ok()));
}

#[test]
fn an_image_that_keeps_part_of_a_stream_is_used_as_any_other() {
    skip_if!(no_fuse());
    let place = Place::with_image("64MiB");
    let (stream, target) = sent(&place);
    let bytes = fs::read(&stream).unwrap();
    receive_bytes(&target, &bytes[..bytes.len() / 2], &["--resume"]).fails(11, &["is saved"]);
    let token = token_of(&target);
    let directory = place.directory("mounted");
    let mount = Mount::new(&target, &directory, &[]);
    fs::write(directory.join("own"), vec![5; 500_000]).unwrap();
    call(&[&"snapshot", &"create", &directory, &"own"]).ok();
    assert_eq!(token_of(&directory), token);
    let told = || call(&[&"info", &directory]).ok().out.contains("--abandon");
    assert!(told());
    assert_eq!(snapshot_names(&target), ["own"]);
    mount.unmount().ok();
    call(&[&"resize", &target, &"96MiB"]).ok();
    call(&[&"resize", &target, &"48MiB"]).fails(1, &["the saved part of a stream", "--abandon"]);
    call(&[&"check", &target, &"--repair"]).ok();
    assert_eq!(token_of(&target), token);
    call(&[&"receive", &target, &"--resume", &"-i", &stream]).ok();
    require_same_trees(&place, &target);
    // Abandoned on a mount.
    call(&[&"snapshot", &"delete", &target, &"s"]).ok();
    receive_bytes(&target, &bytes[..bytes.len() / 2], &["--resume"]).fails(11, &["is saved"]);
    let mount = Mount::new(&target, &directory, &[]);
    assert!(told());
    call(&[&"receive", &directory, &"--abandon"]).ok();
    assert!(!told());
    call(&[&"receive", &directory, &"--token"]).fails(1, &["no part of a stream is saved"]);
    mount.unmount().ok();
    call(&[&"check", &target]).ok();
}

/// A stream of more than two pieces, whose receiver is killed when it has kept one, and later ones.
#[test]
fn a_receiver_that_is_killed_goes_on() {
    skip_if!(no_fuse());
    let place = Place::with_image("320MiB");
    let path = |name: &str| place.path().join(name);
    let (stream, target) = (path("stream"), path("target"));
    let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(4);
    let mount = place.mount("tree");
    for number in 0..20 {
        let data: Vec<u8> = (0..2_000_000).flat_map(|_| rng.random::<u32>().to_le_bytes()).collect();
        fs::write(mount.path.join(format!("file-{number}")), data).unwrap();
    }
    mount.unmount().ok();
    call(&[&"snapshot", &"create", &place.image(), &"s"]).ok();
    call(&[&"send", &place.image(), &"s", &"-o", &stream]).ok();
    call(&[&"mkfs", &target, &"--size", &"320MiB"]).ok();
    let bytes = fs::read(&stream).unwrap();
    let mut before = String::new();
    for kill in 0..2 {
        let mut command = program();
        command.args(["receive".as_ref(), target.as_os_str(), "--resume".as_ref()]);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let mut pipe = child.stdin.take().unwrap();
        // One piece more than before, and not the end: however slow this machine is, it waits for more.
        let part = &bytes[..bytes.len() * (9 + 5 * kill) / 15];
        let kept = std::thread::scope(|scope| {
            let feeding = scope.spawn(move || {
                let _ = pipe.write_all(part);
                pipe
            });
            let kept = (0..6000).find_map(|_| {
                std::thread::sleep(Duration::from_millis(5));
                let answer = call(&[&"receive", &target, &"--token"]);
                let token = answer.out.trim().to_owned();
                (!token.is_empty() && token != before).then_some(token)
            });
            child.kill().unwrap();
            drop(feeding.join());
            kept
        });
        child.wait().unwrap();
        before = kept.unwrap_or_else(|| panic!("kill {kill}: a piece was kept"));
        assert!(snapshot_names(&target).is_empty(), "kill {kill}: it was too late");
        call(&[&"check", &target]).ok();
        assert_eq!(token_of(&target), before);
    }
    let rest = path("rest");
    call(&[&"send", &place.image(), &"s", &"--resume", &before, &"-o", &rest]).ok();
    let length = |path: &Path| path.metadata().unwrap().len();
    assert!(length(&rest) < length(&stream) - (100 << 20), "two pieces are kept: {}", length(&rest));
    call(&[&"receive", &target, &"--resume", &"-i", &rest]).ok();
    require_same_trees(&place, &target);
    call(&[&"check", &target]).ok();
}

/// The target, mounted.
fn mounted(place: &Place, target: &Path) -> Mount {
    let directory = place.path().join("target-mount");
    fs::create_dir_all(&directory).unwrap();
    Mount::new(target, &directory, &[])
}

#[test]
fn a_mount_receives_while_others_use_it() {
    skip_if!(no_fuse());
    let place = Place::with_image("64MiB");
    let (stream, target) = sent(&place);
    let mount = mounted(&place, &target);
    let directory = mount.path.clone();
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let writer = {
        let (directory, stop) = (directory.clone(), stop.clone());
        std::thread::spawn(move || {
            let mut rounds = 0u32;
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                let path = directory.join(format!("own-{}", rounds % 7));
                fs::write(&path, rounds.to_le_bytes().repeat(5000)).unwrap();
                fs::File::open(&path).unwrap().sync_all().unwrap();
                rounds += 1;
            }
            rounds
        })
    };
    let bytes = fs::read(&stream).unwrap();
    assert!(receive_bytes(&directory, &bytes, &["--name", "piped"]).ok().out.contains("\"piped\""));
    receive_bytes(&directory, &bytes[..bytes.len() / 2], &[]).fails(11, &["ends too early", "send it again"]);
    call(&[&"receive", &directory, &"--token"]).fails(1, &["no part of a stream is saved"]);
    receive_bytes(&directory, &bytes[..bytes.len() / 2], &["--resume"]).fails(11, &["is saved", "--resume"]);
    let rest = place.path().join("rest");
    call(&[&"send", &place.image(), &"s", &"--resume", &token_of(&directory), &"-o", &rest]).ok();
    call(&[&"receive", &directory, &"-i", &rest]).fails(11, &["goes on after record"]);
    // Longer than a message to the daemon.
    let name = "x".repeat(20_000);
    call(&[&"receive", &directory, &"--resume", &"-i", &rest, &"--name", &name])
        .fails(1, &["can't be the name"]);
    call(&[&"receive", &directory, &"--resume", &"-i", &rest]).ok();
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    let rounds = writer.join().unwrap();
    assert!(rounds > 20, "{rounds}");
    for number in 0..7 {
        let last = (rounds - 1 - number % rounds).to_le_bytes().repeat(5000);
        let path = directory.join(format!("own-{}", (rounds - 1 - number) % 7));
        assert!(fs::read(path).unwrap() == last);
    }
    assert_eq!(snapshot_names(&target), ["piped", "s"]);
    require_same_trees(&place, &target);
    mount.unmount().ok();
    call(&[&"check", &target]).ok();
}

#[test]
fn a_full_mount_refuses_a_stream_and_goes_on() {
    skip_if!(no_fuse());
    let place = Place::with_image("64MiB");
    let (stream, _) = sent(&place);
    let target = place.path().join("small");
    call(&[&"mkfs", &target, &"--size", &"24MiB"]).ok();
    let mount = mounted(&place, &target);
    fs::write(mount.path.join("own"), vec![7; 17 << 20]).unwrap();
    fs::File::open(mount.path.join("own")).unwrap().sync_all().unwrap();
    call(&[&"receive", &mount.path, &"-i", &stream]).fails(10, &["no space", "'syncline resize'"]);
    assert!(snapshot_names(&target).is_empty());
    fs::remove_file(mount.path.join("own")).unwrap();
    call(&[&"sync", &"--all", &mount.path]).ok();
    call(&[&"receive", &mount.path, &"-i", &stream]).ok();
    require_same_trees(&place, &target);
    mount.unmount().ok();
    call(&[&"check", &target]).ok();
}

#[test]
fn a_stream_that_found_no_room_goes_on_in_a_larger_image() {
    skip_if!(no_fuse());
    let place = Place::with_image("192MiB");
    let path = |name: &str| place.path().join(name);
    let (stream, target) = (path("stream"), path("target"));
    let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(5);
    let mount = place.mount("tree");
    for number in 0..15 {
        let data: Vec<u8> = (0..2_000_000).flat_map(|_| rng.random::<u32>().to_le_bytes()).collect();
        fs::write(mount.path.join(format!("file-{number}")), data).unwrap();
    }
    mount.unmount().ok();
    call(&[&"snapshot", &"create", &place.image(), &"s"]).ok();
    call(&[&"send", &place.image(), &"s", &"-o", &stream]).ok();
    call(&[&"mkfs", &target, &"--size", &"96MiB"]).ok();
    let enlarge = "enlarge the image with 'syncline resize', or delete snapshots there";
    call(&[&"receive", &target, &"-i", &stream]).fails(10, &["no space", enlarge]);
    let next = format!("is saved; {enlarge}, then send the rest with 'syncline send");
    let refused = call(&[&"receive", &target, &"--resume", &"-i", &stream]).fails(10, &["no space", &next]);
    assert!(refused.err.contains(&token_of(&target)), "{refused:?}");
    call(&[&"resize", &target, &"192MiB"]).ok();
    let rest = path("rest");
    call(&[&"send", &place.image(), &"s", &"--resume", &token_of(&target), &"-o", &rest]).ok();
    call(&[&"receive", &target, &"--resume", &"-i", &rest]).ok();
    require_same_trees(&place, &target);
    call(&[&"check", &target]).ok();
}

/// The daemon's log and the answer say the same: nothing has to be sent twice.
#[test]
fn the_log_of_a_mount_says_how_a_stream_goes_on() {
    skip_if!(no_fuse());
    let place = Place::with_image("64MiB");
    let (stream, target) = sent(&place);
    let bytes = fs::read(&stream).unwrap();
    let log = place.path().join("log");
    let option = format!("log={}", log.display());
    let mount = Mount::new(&target, &place.directory("logged"), &["-o", &option]);
    receive_bytes(&mount.path, &bytes[..bytes.len() / 2], &["--resume"]).fails(11, &["send the rest"]);
    let token = token_of(&mount.path);
    let told = wait_for_log(&log, &format!("send the rest with 'syncline send … --resume {token}'"));
    assert!(!told.contains("send it again"), "{told}");
    receive_bytes(&mount.path, &bytes[..bytes.len() / 2], &[]).fails(11, &["send it again"]);
    let told = wait_for_log(&log, "send it again");
    assert!(told.lines().next_back().unwrap().contains("send it again"), "{told}");
    mount.unmount().ok();
}

/// `info` shows the room that a backup's snapshots take without mounting it; the backup's files take none.
#[test]
fn info_tells_what_snapshots_take() {
    skip_if!(no_fuse());
    let place = Place::with_image("64MiB");
    let (stream, target) = sent(&place);
    let bytes = fs::read(&stream).unwrap();
    let info = |source: &Path| {
        let text = call(&[&"info", &source, &"--json"]).ok().out;
        serde_json::from_str::<serde_json::Value>(&text).unwrap()
    };
    let shown = |source: &Path| {
        let text = call(&[&"info", &source]).ok().out;
        text.lines().find_map(|line| line.strip_prefix("snapshots     ").map(str::to_owned))
    };
    assert_eq!((&info(&target)["kept_bytes"], &info(&target)["snapshots"]), (&0.into(), &0.into()));
    assert_eq!(shown(&target), None);
    receive_bytes(&target, &bytes[..bytes.len() / 2], &["--resume"]).fails(11, &["is saved"]);
    let part = info(&target)["kept_bytes"].as_u64().unwrap();
    assert!(part > bytes.len() as u64 / 3, "{part} of {}", bytes.len());
    assert!(shown(&target).unwrap().starts_with("0, and part of a stream; they take"));
    call(&[&"receive", &target, &"--resume", &"-i", &stream]).ok();
    let unmounted = info(&target);
    assert_eq!(unmounted["snapshots"], 1);
    let kept = unmounted["kept_bytes"].as_u64().unwrap();
    assert!(kept > part && kept < bytes.len() as u64 * 2, "{kept} of {}", bytes.len());
    assert!(shown(&target).unwrap().starts_with("1; they take "));
    // Blocks that the files use as well are not counted twice.
    assert!(info(&place.image())["kept_bytes"].as_u64().unwrap() < 1 << 20);
    let mount = mounted(&place, &target);
    let here = info(&mount.path);
    assert_eq!(
        (&here["snapshots"], &here["kept_bytes"]),
        (&unmounted["snapshots"], &unmounted["kept_bytes"])
    );
    let free = rustix::fs::statvfs(&mount.path).unwrap().f_bfree * 4096;
    assert!(here["free_bytes"].as_u64().unwrap() >= free);
    assert!(shown(&mount.path).unwrap().contains("take"));
    mount.unmount().ok();
}

#[test]
fn a_mount_that_is_killed_while_it_receives_is_as_it_was() {
    skip_if!(no_fuse());
    let place = Place::with_image("64MiB");
    let (stream, target) = sent(&place);
    let bytes = fs::read(&stream).unwrap();
    let mut mount = mounted(&place, &target);
    fs::write(mount.path.join("own"), "own").unwrap();
    fs::File::open(mount.path.join("own")).unwrap().sync_all().unwrap();
    receive_bytes(&mount.path, &bytes[..bytes.len() / 3], &["--resume"]).fails(11, &["is saved"]);
    let token = token_of(&mount.path);
    let mut command = program();
    command.args(["receive".as_ref(), mount.path.as_os_str(), "--resume".as_ref()]);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut receiver = command.spawn().unwrap();
    let mut input = receiver.stdin.take().unwrap();
    input.write_all(&bytes[..bytes.len() / 2]).unwrap();
    input.flush().unwrap();
    eventually("it has read all of it", || rustix::io::ioctl_fionread(&input).unwrap() == 0);
    Pace::sleep(Duration::from_millis(500));
    // It is still at it: another stream has to wait.
    call(&[&"receive", &mount.path, &"-i", &stream]).fails(3, &["another stream"]);
    mount.kill();
    drop(input);
    assert!(!receiver.wait().unwrap().success());
    drop(mount);
    let mount = mounted(&place, &target);
    assert_eq!(fs::read(mount.path.join("own")).unwrap(), b"own");
    assert!(snapshot_names(&target).is_empty());
    assert_eq!(token_of(&mount.path), token);
    call(&[&"receive", &mount.path, &"--resume", &"-i", &stream]).ok();
    require_same_trees(&place, &target);
    mount.unmount().ok();
    call(&[&"check", &target]).ok();
}
