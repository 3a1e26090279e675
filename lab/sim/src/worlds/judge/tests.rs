//! The oracle accepts promised states and rejects similar states that break a promise.

use super::*;
use crate::worlds::base::Base;
use crate::worlds::run::run;
use crate::worlds::step::Path;

struct World {
    run: Run,
}

impl World {
    fn of(workload: &str) -> Self {
        let base = Base::make().unwrap();
        let run = run(&base.image, &base.state, &workload.parse().unwrap(), 1, None).unwrap();
        Self { run }
    }

    /// The recovered state with the first `calls` calls and all their data.
    fn after(&self, calls: usize) -> Found {
        let op = if calls == 0 { self.run.ran[0].ops.0 } else { self.run.ran[calls - 1].ops.1 };
        Found { state: self.run.states[calls].clone(), op, ..Found::default() }
    }

    /// Like `after`, but with other data in one file, and the times that belong to it.
    fn with_data(&self, calls: usize, path: &str, data: &[u8]) -> Found {
        let mut found = self.after(calls);
        let ino = found.state.find(&Path::new(path)).unwrap();
        found.state.node_mut(ino).body = Body::File(data.to_vec());
        if let Some(old) = self.run.states[0].tree.nodes.get(&ino) {
            found.state.node_mut(ino).times = old.times;
        }
        found
    }

    fn data(&self, calls: usize, path: &str) -> Vec<u8> {
        let state = &self.run.states[calls];
        state.tree.nodes[&state.find(&Path::new(path)).unwrap()].data().unwrap().to_vec()
    }

    /// Judges a state recovered at the end of the run.
    fn judged(&self, found: &Found) -> Result<(), String> {
        judge(&self.run, found, self.run.events.len())
    }

    /// Judges a state recovered before anything was promised.
    fn judged_early(&self, found: &Found) -> Result<(), String> {
        judge(&self.run, found, 0)
    }
}

#[test]
fn a_promised_change_must_be_there() {
    let world = World::of("create B/foo; -; chmod A 700; fsync A");
    assert_eq!(world.judged(&world.after(2)), Ok(()));
    for calls in [0, 1] {
        assert!(world.judged(&world.after(calls)).unwrap_err().contains("promised"), "{calls}");
        assert_eq!(world.judged_early(&world.after(calls)), Ok(()));
    }
}

#[test]
fn a_tree_that_never_was_is_rejected() {
    let world = World::of("create B/foo; -; chmod A 700; -");
    // The later change without the earlier one, with any transaction number.
    let mut torn = world.after(0);
    let dir = torn.state.find(&Path::new("A")).unwrap();
    torn.state.tree.nodes.insert(dir, world.run.states[2].tree.nodes[&dir].clone());
    for op in [world.after(0).op, world.after(1).op, world.after(2).op] {
        assert!(world.judged_early(&Found { op, ..torn.clone() }).is_err());
    }
    // A transaction number that does not belong to the state.
    assert!(world.judged_early(&Found { op: world.after(2).op, ..world.after(1) }).is_err());
}

#[test]
fn every_attribute_counts() {
    let world = World::of("chmod A 700; syncfs");
    let changes: [fn(&mut Node<Vec<u8>>); 6] = [
        |node| node.permissions ^= 1,
        |node| node.nlink += 1,
        |node| node.xattrs.clear(),
        |node| drop(node.xattrs.insert(b"user.new".to_vec(), Vec::new())),
        |node| node.times.mtime.nanoseconds += 1,
        |node| node.times.fixed.0.seconds += 1,
    ];
    for (index, change) in changes.into_iter().enumerate() {
        let mut found = world.after(1);
        let ino = found.state.find(&Path::new("A/foo")).unwrap();
        change(found.state.node_mut(ino));
        assert!(world.judged(&found).is_err(), "change {index}");
    }
    let mut found = world.after(1);
    let ino = found.state.find(&Path::new("A/foo")).unwrap();
    found.state.tree.nodes.remove(&ino);
    assert!(world.judged(&found).is_err());
}

#[test]
fn synced_data_is_exact() {
    let world = World::of("write A/bar 4000 200; fsync A/bar");
    assert_eq!(world.judged(&world.after(1)), Ok(()));
    let old = world.data(0, "A/bar");
    assert!(world.judged(&world.with_data(1, "A/bar", &old)).is_err());
    assert_eq!(world.judged_early(&world.with_data(1, "A/bar", &old)), Ok(()));
    let mut garbled = world.data(1, "A/bar");
    garbled[9000] ^= 1;
    assert!(world.judged_early(&world.with_data(1, "A/bar", &garbled)).is_err());
}

#[test]
fn unsynced_data_is_old_or_new_by_whole_blocks() {
    let world = World::of("write A/bar 2000 8192; -");
    let (old, new) = (world.data(0, "A/bar"), world.data(1, "A/bar"));
    let mut mixed = old.clone();
    mixed[4096..8192].copy_from_slice(&new[4096..8192]);
    assert_eq!(world.judged(&world.with_data(1, "A/bar", &mixed)), Ok(()));
    mixed[2000..3000].copy_from_slice(&new[2000..3000]);
    let error = world.judged(&world.with_data(1, "A/bar", &mixed)).unwrap_err();
    assert!(error.contains("block 0") && error.contains("never held"), "{error}");
    let mut foreign = old.clone();
    foreign[4096..8192].copy_from_slice(&world.data(0, "foo"));
    assert!(world.judged(&world.with_data(1, "A/bar", &foreign)).is_err());
    let mut zeros = old;
    zeros[8192..].fill(0);
    assert!(world.judged(&world.with_data(1, "A/bar", &zeros)).is_err());
}

#[test]
fn the_size_does_not_run_ahead_of_the_data() {
    let world = World::of("append A/bar 9000; -");
    let (old, new) = (world.data(0, "A/bar"), world.data(1, "A/bar"));
    assert_eq!(world.judged(&world.with_data(1, "A/bar", &new[..4 * 4096])), Ok(()), "cut at a block");
    assert!(world.judged(&world.with_data(1, "A/bar", &new[..13_000])).is_err(), "cut inside a block");
    let mut ahead = new.clone();
    ahead[old.len()..].fill(0);
    assert!(world.judged(&world.with_data(1, "A/bar", &ahead)).is_err());
}

#[test]
fn what_a_truncation_cut_off_stays_away() {
    let world = World::of("truncate A/bar 5000; -; truncate A/bar 12788; fsync A");
    assert_eq!(world.judged(&world.after(2)), Ok(()));
    let old = world.data(0, "A/bar");
    assert!(world.judged(&world.with_data(2, "A/bar", &old)).is_err());
    assert_eq!(world.judged_early(&world.after(1)), Ok(()));
    // The first call is missing, but the bytes that it cut off are gone.
    assert!(world.judged_early(&world.with_data(0, "A/bar", &old[..5000])).is_err());
}

#[test]
fn a_rename_brings_the_data_along() {
    let world = World::of("replace A/foo 500; -");
    let calls = world.run.ran.len();
    assert_eq!(calls, 3);
    assert_eq!(world.judged(&world.after(3)), Ok(()));
    assert_eq!(world.judged(&world.after(0)), Ok(()), "nothing was promised");
    for data in [&[][..], &[0; 500]] {
        let mut found = world.after(3);
        let ino = found.state.find(&Path::new("A/foo")).unwrap();
        found.state.node_mut(ino).body = Body::File(data.to_vec());
        assert!(world.judged(&found).is_err());
    }
}

#[test]
fn one_sync_of_two_files_is_all_or_nothing() {
    let world = World::of("write A/foo 50 30; -; write B/bar 0 100; fsync2 A/foo B/bar");
    let (foo, bar) = (world.data(0, "A/foo"), world.data(0, "B/bar"));
    assert_eq!(world.judged(&world.after(2)), Ok(()));
    assert_eq!(world.judged_early(&world.after(0)), Ok(()));
    for half in [world.with_data(2, "A/foo", &foo), world.with_data(2, "B/bar", &bar)] {
        assert!(world.judged_early(&half).unwrap_err().contains("some came back"));
    }
}

#[test]
fn a_datasync_promises_the_data_and_the_name() {
    let world = World::of("create B/foo; -; chmod A 700; -; write B/foo 0 300; fdatasync B/foo");
    assert_eq!(world.judged(&world.after(3)), Ok(()));
    assert!(world.judged(&world.after(0)).is_err());
    assert!(world.judged(&world.after(1)).is_err(), "the data is missing");
}

#[test]
fn a_copy_that_shares_all_its_blocks_is_there_or_not() {
    let world = World::of("write A/bar 4000 200; -; copy A/bar B/bar; -");
    let (old, new) = (world.data(1, "B/bar"), world.data(2, "B/bar"));
    assert_eq!(world.judged(&world.after(2)), Ok(()));
    assert!(world.judged(&world.with_data(2, "B/bar", &old)).is_err(), "it came back without what it copied");
    assert!(world.judged(&world.with_data(1, "B/bar", &new)).is_err(), "contents came without the copy");
    let mixed = [&new[..4096], &old[4096..]].concat();
    assert!(world.judged(&world.with_data(2, "B/bar", &mixed)).is_err());
    // The source's dirty data was submitted first.
    let stale = world.data(0, "A/bar");
    assert!(world.judged(&world.with_data(2, "A/bar", &stale)).is_err());
    assert_eq!(world.judged(&world.with_data(1, "A/bar", &stale)), Ok(()));
}

#[test]
fn the_times_of_a_copy_in_parts_lie_between_its_ends() {
    // One block is shared, and the rest is copied, which makes ordinary dirty data.
    let world = World::of("copy B/bar A/bar; -");
    let old = world.data(0, "A/bar");
    let mut found = world.with_data(1, "A/bar", &[&world.data(1, "A/bar")[..4096], &old[4096..]].concat());
    assert_eq!(world.judged(&found), Ok(()));
    let ino = found.state.find(&Path::new("A/bar")).unwrap();
    let end = world.run.states[1].tree.nodes[&ino].times.mtime;
    let at = |nanoseconds| syncline_fs::types::Timestamp { nanoseconds, ..end };
    found.state.node_mut(ino).times.mtime = at(end.nanoseconds - 1);
    assert_eq!(world.judged(&found), Ok(()));
    found.state.node_mut(ino).times.mtime = at(end.nanoseconds + 1);
    assert!(world.judged(&found).unwrap_err().contains("never had"));
}

#[test]
fn a_snapshot_shows_exactly_what_there_was() {
    let world = World::of("append A/bar 100; -; snapshot one; -; append A/bar 5000; -");
    let with = |shown: Option<usize>| {
        let kept = shown.map(|calls| (world.run.states[calls].clone(), Accounts::default()));
        let snapshots = kept.map(|kept| (Path::new("one"), kept)).into_iter().collect();
        Found { snapshots, ..world.after(3) }
    };
    assert_eq!(world.judged(&with(Some(1))), Ok(()));
    assert!(world.judged(&with(None)).unwrap_err().contains("promised"));
    for calls in [0, 3] {
        assert!(world.judged(&with(Some(calls))).is_err(), "it shows what was after {calls} calls");
    }
    assert!(world.judged_early(&with(Some(1))).unwrap_err().contains("never made"));
    let another = Found { snapshots: [(Path::new("two"), Default::default())].into(), ..world.after(3) };
    assert!(world.judged(&another).unwrap_err().contains("nobody asked"));
}

#[test]
fn a_snapshot_is_there_until_its_removal_is_asked_for() {
    let world = World::of("snapshot one; -; delete-snapshot one; -");
    let kept = (world.run.states[0].clone(), Accounts::default());
    let there = Found { snapshots: [(Path::new("one"), kept)].into(), ..world.after(2) };
    let [made, gone] = &world.run.turns[..] else { panic!("{:?}", world.run.turns) };
    let judged = |found: &Found, position: usize| judge(&world.run, found, position);
    assert_eq!(judged(&there, made.given), Ok(()));
    assert!(judged(&world.after(2), made.given).is_err() || gone.asked == made.given);
    assert_eq!(judged(&there, gone.given - 1), Ok(()));
    assert_eq!(judged(&world.after(2), gone.given - 1), Ok(()));
    assert!(judged(&there, gone.given).is_err());
    assert_eq!(judged(&world.after(2), gone.given), Ok(()));
}

#[test]
fn what_a_quota_says_is_what_a_count_finds() {
    let world = World::of("quota A 24576 4; -; create A/new; syncfs");
    let found =
        |calls: usize| Found { accounts: Accounts::counted(&world.run.states[calls]), ..world.after(calls) };
    assert_eq!(world.judged(&found(2)), Ok(()));
    assert_eq!(world.judged_early(&found(1)), Ok(()));
    assert!(world.judged(&world.after(2)).unwrap_err().contains("lost its quota"));
    let changes: [fn(&mut syncline_fs::QuotaUsage); 5] = [
        |usage| usage.used_bytes += 512,
        |usage| usage.used_inodes -= 1,
        |usage| usage.limits.bytes += 1,
        |usage| usage.limits.inodes = 0,
        |usage| usage.being_set = true,
    ];
    for (index, change) in changes.into_iter().enumerate() {
        let mut found = found(2);
        found.accounts.each(change);
        assert!(world.judged(&found).is_err(), "change {index}");
    }
    // Half of setting the quota may be there, as long as it was never acknowledged, and only with a
    // transaction of its own.
    let (begun, ended) = world.run.ran[0].ops;
    let mut half = Found { op: begun + 1, ..found(1) };
    half.accounts.each(|usage| usage.being_set = true);
    assert!(begun + 1 < ended);
    half.state = world.run.states[0].clone();
    assert_eq!(world.judged_early(&half), Ok(()));
    assert!(world.judged_early(&Found { op: begun, ..half }).is_err());
}

#[test]
fn how_a_file_is_compressed_counts() {
    let world = World::of("compress A/bar zstd; syncfs");
    assert_eq!(world.judged(&world.after(1)), Ok(()));
    let mut found = world.after(1);
    let ino = found.state.find(&Path::new("A/bar")).unwrap();
    found.state.node_mut(ino).compression = None;
    assert!(world.judged(&found).is_err());
}
