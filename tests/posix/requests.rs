//! The requests that the steps of programs cost, beside the table in docs/lab/2026-requests.md.
//!
//! The kernel decides on most of them, and another kernel may forget and ask differently. So these
//! are bounds, but a request that the daemon has refused for good must never come again.

use super::Ground;
use crate::skip_if;
use crate::support::no_fuse;
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::time::Duration;

/// Repetitions of each step, each with a file of its own.
const TIMES: u64 = 20;
/// Requests of a kind that may come from elsewhere, in all repetitions.
const STRAY: u64 = 3;

type Counts = BTreeMap<String, u64>;

fn requests(ground: &Ground) -> Counts {
    let stats = ground.mount.as_ref().unwrap().stats();
    let kinds = stats["requests"].as_object().unwrap().iter();
    // `stats` itself opens the mount point for an ioctl.
    kinds
        .filter(|(kind, _)| !["OpenDir", "Ioctl", "ReleaseDir"].contains(&kind.as_str()))
        .map(|(kind, count)| (kind.clone(), count.as_u64().unwrap()))
        .collect()
}

/// FORGETs come on their own, some time after the calls that cause them.
fn settled(ground: &Ground) -> Counts {
    let mut before = requests(ground);
    loop {
        std::thread::sleep(Duration::from_millis(50));
        let now = requests(ground);
        let forgets = |counts: &Counts| ["Forget", "BatchForget"].map(|kind| counts.get(kind).copied());
        if forgets(&now) == forgets(&before) {
            return now;
        }
        before = now;
    }
}

/// Repeats a step and compares the requests of each kind with `bounds`. Of the kinds in `exact`,
/// there must be as many.
fn expect(ground: &Ground, what: &str, exact: &[(&str, u64)], bounds: &[(&str, u64)], step: impl Fn(u64)) {
    let before = settled(ground);
    (0..TIMES).for_each(step);
    let after = settled(ground);
    let more = |kind: &str| after.get(kind).unwrap_or(&0) - before.get(kind).unwrap_or(&0);
    let taken: Counts =
        after.keys().map(|kind| (kind.clone(), more(kind))).filter(|(_, more)| *more > 0).collect();
    println!("{what}, {TIMES} times: {taken:?}");
    for (kind, each) in exact {
        assert_eq!(more(kind), each * TIMES, "{what}: {kind}, of {taken:?}");
    }
    for (kind, taken_of) in &taken {
        let bound = exact.iter().chain(bounds).find(|(name, _)| name == kind).map_or(0, |(_, each)| *each);
        assert!(*taken_of <= bound * TIMES + STRAY, "{what}: {kind}, of {taken:?}");
    }
    for refused in ["Open", "Create", "Release", "Flush"] {
        assert_eq!(more(refused), 0, "{what}: {refused} was refused for good");
    }
}

#[test]
fn no_step_costs_more_requests_than_the_table_says() {
    skip_if!(no_fuse());
    let ground = Ground::new();
    // The first of some requests is refused for good.
    fs::write(ground.path("first"), "contents").unwrap();
    File::open(ground.path("first")).unwrap();
    let path = |number: u64| ground.path(&format!("file{number}"));
    let open = |number: u64| OpenOptions::new().read(true).write(true).open(path(number)).unwrap();

    expect(&ground, "make an empty file", &[("MkNod", 1)], &[("Lookup", 1), ("GetAttr", 1)], |number| {
        File::create_new(path(number)).unwrap();
    });
    let files: Vec<File> = (0..TIMES).map(open).collect();
    let file = |number: u64| &files[number as usize];
    expect(&ground, "the first write", &[("Write", 1)], &[("GetXattr", 1)], |number| {
        file(number).write_all_at(&[1; 4096], 0).unwrap();
    });
    expect(&ground, "write again", &[("Write", 1)], &[], |number| {
        file(number).write_all_at(&[2; 4096], 0).unwrap();
    });
    expect(&ground, "fsync", &[("FSync", 1)], &[], |number| file(number).sync_all().unwrap());
    expect(&ground, "write and fdatasync", &[("Write", 1), ("FSync", 1)], &[], |number| {
        file(number).write_all_at(&[3; 4096], 0).unwrap();
        file(number).sync_data().unwrap();
    });
    drop(files);
    let saved = [("MkNod", 1), ("Write", 1), ("FSync", 1), ("Rename", 1)];
    let asked = [("Lookup", 2), ("GetAttr", 2), ("GetXattr", 1), ("Forget", 1), ("BatchForget", 1)];
    expect(&ground, "save by a new file and rename", &saved, &asked, |number| {
        let new = ground.path(&format!("new{number}"));
        let file = File::create_new(&new).unwrap();
        file.write_all_at(&[4; 4096], 0).unwrap();
        file.sync_all().unwrap();
        drop(file);
        fs::rename(new, path(number)).unwrap();
    });
    let asked = [("GetAttr", 1), ("Forget", 1), ("BatchForget", 1)];
    expect(&ground, "remove a file", &[("Unlink", 1)], &asked, |number| {
        fs::remove_file(path(number)).unwrap();
    });
    ground.end();
}
