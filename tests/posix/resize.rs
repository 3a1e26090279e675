//! A filesystem that is grown while programs use it.

use super::{Ground, errno};
use crate::skip_if;
use crate::support::{Answer, Loop, Mount, Place, as_nobody, no_fuse, not_root, program, run, tool};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

const MIB: u64 = 1 << 20;

fn resize(what: &Path, size: &str) -> Answer {
    let mut command = program();
    command.arg("resize").arg(what).arg(size);
    run(command)
}

/// Total size and available room, as df(1) shows them.
fn df(path: &Path) -> (u64, u64) {
    let all = rustix::fs::statvfs(path).unwrap();
    (all.f_blocks * all.f_frsize, all.f_bavail * all.f_frsize)
}

fn block(writer: u8, turn: u64) -> [u8; 4096] {
    let mut block = [writer; 4096];
    block[..8].copy_from_slice(&turn.to_ne_bytes());
    block
}

/// Writes blocks and syncs each, then a file, until told to stop; returns the number of blocks.
fn write_and_sync(root: &Path, writer: u8, stop: &AtomicBool) -> u64 {
    let file = File::create(root.join(format!("blocks {writer}"))).unwrap();
    let mut turn = 0;
    while !stop.load(Ordering::Relaxed) {
        file.write_all_at(&block(writer, turn), turn * 4096).unwrap();
        file.sync_data().unwrap();
        fs::write(root.join(format!("last {writer}")), turn.to_string()).unwrap();
        turn += 1;
    }
    turn
}

fn assert_blocks(root: &Path, writer: u8, turns: u64) {
    let file = File::open(root.join(format!("blocks {writer}"))).unwrap();
    let mut found = [0; 4096];
    for turn in 0..turns {
        file.read_exact_at(&mut found, turn * 4096).unwrap();
        assert!(found == block(writer, turn), "block {turn} of writer {writer}");
    }
}

#[test]
fn it_grows_under_load_and_everything_synced_survives_a_kill() {
    skip_if!(no_fuse());
    let mut ground = Ground::new();
    let (root, image) = (ground.path(""), ground.place.image());
    let stop = AtomicBool::new(false);
    let turns = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..3)
            .map(|writer| {
                scope.spawn({
                    let (root, stop) = (&root, &stop);
                    move || write_and_sync(root, writer, stop)
                })
            })
            .collect();
        let mut before = 128 * MIB;
        // At 127 MiB and at twice that the space map gets another page, at the first also an index
        // page.
        for size in [129, 256, 300] {
            let answer = resize(&root, &format!("{size}MiB")).ok();
            assert!(answer.out.contains(&format!("{size}.00 MiB now")), "{answer:?}");
            let (now, available) = df(&root);
            assert_eq!(now, size * MIB);
            assert!(available > size * MIB * 3 / 4, "{available}");
            assert!(now > before && image.metadata().unwrap().len() == now);
            before = now;
        }
        // More than there was room for before.
        fs::write(root.join("large"), vec![7; 160 << 20]).unwrap();
        stop.store(true, Ordering::Relaxed);
        writers.into_iter().map(|writer| writer.join().unwrap()).collect::<Vec<_>>()
    });
    File::open(root.join("large")).unwrap().sync_all().unwrap();
    ground.mount.as_mut().unwrap().kill();
    drop(ground.mount.take());
    ground.mount = Some(Mount::new(&image, &root, &[]));
    assert!(fs::read(root.join("large")).unwrap() == vec![7; 160 << 20]);
    (0..).zip(turns).for_each(|(writer, turns)| assert_blocks(&root, writer, turns));
    assert_eq!(df(&root).0, 300 * MIB);
    ground.end();
}

#[test]
fn a_full_filesystem_grows_and_goes_on() {
    skip_if!(no_fuse());
    let mut ground = Ground::new();
    let root = ground.path("");
    let fill = |name: &str| -> (PathBuf, u64) {
        let path = root.join(name);
        let file = File::create(&path).unwrap();
        let mut len = 0;
        loop {
            match errno(file.write_all_at(&vec![3; 1 << 20], len).and_then(|()| file.sync_data())) {
                None => len += MIB,
                Some(28) => return (path, len),
                Some(other) => panic!("errno {other}"),
            }
        }
    };
    let (first, len) = fill("first");
    assert!(len > 90 * MIB, "{len}");
    resize(&root, "200MiB").ok();
    let (second, more) = fill("second");
    assert!(more > 60 * MIB, "{more}");
    ground.remount();
    for (path, len) in [(first, len), (second, more)] {
        assert!(fs::read(path).unwrap()[..len as usize] == vec![3; len as usize]);
    }
    ground.end();
}

#[test]
fn what_makes_no_sense_is_refused_and_strangers_may_not() {
    skip_if!(no_fuse());
    let ground = Ground::with(if not_root().is_none() { &["-o", "allow_other"] } else { &[] });
    let root = ground.path("");
    resize(&root, "64MiB").fails(3, &["can't be made smaller", "unmount it"]);
    resize(&root, "300TiB").fails(2, &["256 TiB"]);
    assert!(resize(&root, "128MiB").ok().out.contains("as before"));
    assert!(resize(&root, "max").ok().out.contains("as before"));
    resize(&ground.place.image(), "256MiB").fails(3, &["in use"]);
    assert_eq!(df(&root).0, 128 * MIB);
    // The file was made longer.
    File::options().write(true).open(ground.place.image()).unwrap().set_len(140 * MIB).unwrap();
    assert!(resize(&root, "max").ok().out.contains("140.00 MiB now"));
    // For a directory with a quota, df(1) shows the quota.
    fs::create_dir(root.join("limited")).unwrap();
    syncline_fuse::control::set_quota(&root.join("limited"), Some(MIB), None).unwrap();
    assert!(resize(&root.join("limited"), "150MiB").ok().out.contains("140.00 MiB before, 150.00 MiB now"));
    if not_root().is_none() {
        fs::set_permissions(ground.place.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let copy = ground.place.copy_of_program("syncline");
        let mut command = Command::new(&copy);
        command.arg("resize").arg(&root).arg("200MiB");
        run(as_nobody(command)).fails(9, &["only root"]);
    }
    ground.end();
    let place = Place::with_image("32MiB");
    let mount = Mount::new(&place.image(), &place.directory("mount"), &["-o", "ro"]);
    resize(&mount.path, "64MiB").fails(9, &["read-only"]);
    mount.unmount().ok();
    resize(place.path(), "64MiB").fails(6, &["not on a mounted Syncline filesystem"]);
}

#[test]
fn all_of_a_block_device_that_was_enlarged() {
    skip_if!(no_fuse());
    skip_if!(not_root());
    let place = Place::with_image("64MiB");
    let Some(disk) = Loop::new(&place.image()) else {
        eprintln!("skipped: there are no loop devices");
        return;
    };
    let mount = Mount::new(&disk.device, &place.directory("mount"), &[]);
    fs::write(mount.path.join("file"), vec![1; 40 << 20]).unwrap();
    resize(&mount.path, "200MiB").fails(2, &["device below is smaller", "'max'"]);
    File::options().write(true).open(place.image()).unwrap().set_len(200 * MIB).unwrap();
    tool("losetup", &["--set-capacity".as_ref(), disk.device.as_ref()]).unwrap();
    assert!(resize(&mount.path, "max").ok().out.contains("64.00 MiB before, 200.00 MiB now"));
    assert_eq!(df(&mount.path).0, 200 * MIB);
    fs::write(mount.path.join("more"), vec![2; 100 << 20]).unwrap();
    mount.unmount().ok();
    let mount = Mount::new(&disk.device, &place.directory("again"), &[]);
    assert!(fs::read(mount.path.join("file")).unwrap() == vec![1; 40 << 20]);
    assert!(fs::read(mount.path.join("more")).unwrap() == vec![2; 100 << 20]);
    mount.unmount().ok();
    drop(disk);
    place.check_clean();
}
