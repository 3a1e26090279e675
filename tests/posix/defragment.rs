//! `syncline defragment` through a mount.

use super::Ground;
use crate::skip_if;
use crate::support::{Answer, as_nobody, no_fuse, not_root, program, run};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

fn defragment(arguments: &[&Path]) -> Answer {
    let mut command = program();
    command.arg("defragment").args(arguments);
    run(command)
}

/// Without this, data synced in small pieces is placed together.
const PLACED: &str = "ablate=data-in-log";

/// Two files whose blocks alternate on the device.
fn scatter(ground: &Ground, names: [&str; 2], blocks: u64) {
    let files = names.map(|name| File::create(ground.path(name)).unwrap());
    for block in 0..blocks {
        for (fill, file) in (0..).zip(&files) {
            file.write_all_at(&[fill + block as u8; 4096], block * 4096).unwrap();
            file.sync_all().unwrap();
        }
    }
}

fn is_whole(path: &Path, fill: u8, blocks: usize) -> bool {
    let contents = fs::read(path).unwrap();
    contents.len() == blocks * 4096
        && contents
            .chunks(4096)
            .zip(0..)
            .all(|(block, number)| block.iter().all(|&byte| byte == fill + number))
}

#[test]
fn files_that_lie_scattered_are_put_together() {
    skip_if!(no_fuse());
    let mut ground = Ground::with(&["-o", PLACED]);
    fs::create_dir(ground.path("d")).unwrap();
    scatter(&ground, ["d/one", "d/other"], 100);
    let before = ground.path("d/one").metadata().unwrap();
    let answer = defragment(&["-r".as_ref(), "--json".as_ref(), &ground.path("d")]).ok();
    let lines: Vec<serde_json::Value> = serde_json::from_str(&answer.out).unwrap();
    assert_eq!(lines.len(), 2);
    for line in &lines {
        assert!(line["fragments_before"].as_u64().unwrap() > 20, "{line}");
        assert!(line["fragments_after"].as_u64().unwrap() <= 2, "{line}");
    }
    let after = ground.path("d/one").metadata().unwrap();
    let times = |metadata: &fs::Metadata| (metadata.mtime(), metadata.mtime_nsec(), metadata.ctime_nsec());
    assert_eq!((times(&after), after.blocks()), (times(&before), before.blocks()));
    assert!(defragment(&[&ground.path("d/one")]).ok().out.contains("0 B moved"));
    for _ in 0..2 {
        assert!(is_whole(&ground.path("d/one"), 0, 100) && is_whole(&ground.path("d/other"), 1, 100));
        ground.remount();
    }
    defragment(&[&ground.path("d")]).fails(2, &["is a directory", "-r"]);
    defragment(&[&ground.path("none")]).fails(6, &["No such file"]);
    defragment(&[Path::new("/proc/self/stat")]).fails(6, &["not on a mounted Syncline filesystem"]);
    ground.end();
}

#[test]
fn only_owners_defragment() {
    skip_if!(no_fuse());
    skip_if!(not_root());
    let ground = Ground::with(&["-o", "allow_other", "-o", PLACED]);
    scatter(&ground, ["one", "other"], 10);
    fs::set_permissions(ground.place.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let copy = ground.place.copy_of_program("syncline");
    let mut command = Command::new(&copy);
    command.arg("defragment").arg(ground.path("one"));
    run(as_nobody(command)).fails(9, &["only root and the owner"]);
    ground.end();
}
