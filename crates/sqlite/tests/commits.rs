//! What a commit costs, and what it leaves: the device's requests are recorded.

use crate::sqlite::{Connection, new_name, sqlite};
use std::sync::Arc;
use syncline::device::MemoryDevice;
use syncline::{Filesystem, FormatOptions, ImageOptions, format_device};
use syncline_powercut::{Event, RecordingDevice};
use syncline_sqlite::serve;

/// Flushes and writes that a device got while `work` ran.
fn requests(device: &RecordingDevice, work: impl FnOnce()) -> (usize, usize) {
    let before = device.position();
    work();
    let events = device.events();
    let count = |wanted: fn(&Event) -> bool| events[before..].iter().filter(|event| wanted(event)).count();
    (count(|event| matches!(event, Event::Flush)), count(|event| matches!(event, Event::Write { .. })))
}

fn recorded() -> (Arc<RecordingDevice>, Filesystem) {
    let memory = MemoryDevice::new(64 << 20);
    format_device(memory.clone(), &FormatOptions::default()).unwrap();
    let device = RecordingDevice::new(memory);
    // No checkpoint by time comes between.
    let options = ImageOptions::new().checkpoint_interval(std::time::Duration::from_secs(3600));
    let fs = Filesystem::open_device(device.clone(), options).unwrap();
    (device, fs)
}

fn filled(connection: &Connection) {
    connection.run(
        "create table t(id integer primary key, b blob); create table small(b);
         with recursive n(i) as (select 1 union all select i + 1 from n where i < 2000)
         insert into t select i, zeroblob(1000) from n;",
    );
}

#[test]
fn a_commit_takes_one_flush_and_one_write() {
    let Some(sqlite) = sqlite() else { return };
    let (device, fs) = recorded();
    let name = new_name("counts");
    let _served = serve(&name, &fs);
    let connection = sqlite.open_in(&name, "a.db", "");
    filled(&connection);
    const COMMITS: usize = 100;
    let inserts = requests(&device, || {
        for _ in 0..COMMITS {
            connection.run("insert into small values(zeroblob(100))");
        }
    });
    let updates = requests(&device, || {
        for number in 0..COMMITS {
            let at = number * 7;
            connection.run(&format!(
                "update t set b = randomblob(1000) where id in ({at}, {at} + 500, {at} + 1000, {at} + 1200)"
            ));
        }
    });
    // A marker batch may follow a pause, without a flush.
    assert_eq!(inserts.0, COMMITS, "flushes of single inserts");
    assert!((COMMITS..=COMMITS + 2).contains(&inserts.1), "{} writes of single inserts", inserts.1);
    assert_eq!(updates.0, COMMITS, "flushes of updates of four pages");
    // The log has the pages. Some sixteen at a time get their place later, in one write, for no flush.
    let written = COMMITS..=COMMITS * 5 / 4;
    assert!(written.contains(&updates.1), "{} writes of updates of four pages", updates.1);
}

#[test]
fn nothing_reaches_the_device_before_the_commit() {
    let Some(sqlite) = sqlite() else { return };
    let (device, fs) = recorded();
    let name = new_name("spill");
    let _served = serve(&name, &fs);
    let connection = sqlite.open_in(&name, "a.db", "");
    // SQLite writes changed pages long before the commit.
    connection.run("pragma cache_size = 10");
    filled(&connection);
    let spilled = requests(&device, || {
        connection.run("begin; update t set b = randomblob(1000); savepoint s; delete from t where id % 2");
        connection.run("rollback to s; rollback");
    });
    // The rollback writes the old pages, and syncs them.
    assert!(spilled.0 <= 1, "{} flushes", spilled.0);
    connection.require_sound();
    assert_eq!(connection.number("select count(*) from t where b = zeroblob(1000)"), 2000);
}

#[test]
fn a_write_ahead_log_takes_one_flush_a_commit() {
    let Some(sqlite) = sqlite() else { return };
    let (device, fs) = recorded();
    let name = new_name("wal");
    let _served = serve(&name, &fs);
    let connection = sqlite.open_in(&name, "a.db", "");
    filled(&connection);
    assert_eq!(connection.one("pragma journal_mode = wal"), "wal");
    connection.run("pragma synchronous = full; insert into small values(1)");
    let (flushes, _) = requests(&device, || {
        for _ in 0..50 {
            connection.run("insert into small values(zeroblob(100))");
        }
    });
    assert_eq!(flushes, 50);
}

/// The log of commits without syncs is durable before a checkpoint brings them into the database.
#[test]
fn a_checkpoint_without_syncs_leaves_a_sound_database() {
    let Some(sqlite) = sqlite() else { return };
    for locking in ["normal", "exclusive"] {
        let memory = MemoryDevice::new(64 << 20);
        format_device(memory.clone(), &FormatOptions::default()).unwrap();
        let fs = Filesystem::open_device(memory.clone(), ImageOptions::new()).unwrap();
        let name = new_name("checkpoint");
        let _served = serve(&name, &fs);
        let connection = sqlite.open_in(&name, "a.db", "");
        connection.run(&format!("pragma locking_mode = {locking}; pragma journal_mode = wal"));
        connection.run("pragma synchronous = full; create table t(a integer primary key, b)");
        let insert = |from: i64, to: i64| {
            connection.run(&format!(
                "with recursive n(i) as (select {from} union all select i + 1 from n where i < {to})
                 insert into t select i, randomblob(500) from n"
            ))
        };
        connection.run("create index i on t(b)");
        insert(0, 49);
        connection.run("pragma wal_checkpoint(truncate); update t set b = 1 where a = 1");
        connection.run("pragma synchronous = off; delete from t where a % 3 = 0");
        insert(100, 499);
        connection.run("pragma wal_checkpoint; insert into t values(1000, 1)");
        // The program is killed.
        let fs = Filesystem::open_device(memory.snapshot(), ImageOptions::new()).unwrap();
        let name = new_name("killed");
        let _served = serve(&name, &fs);
        sqlite.open_in(&name, "a.db", "").require_sound();
    }
}

#[test]
fn class_ordered_waits_for_no_flush() {
    let Some(sqlite) = sqlite() else { return };
    let (device, fs) = recorded();
    let name = new_name("ordered");
    let _served = serve(&name, &fs);
    let connection = sqlite.open_in(&name, "a.db", "");
    connection.run("create table t(a)");
    assert_eq!(connection.one("pragma syncline_durability"), "fsync");
    assert_eq!(connection.one("pragma syncline_durability = ordered"), "ordered");
    let (flushes, _) = requests(&device, || {
        for number in 0..200 {
            connection.run(&format!("insert into t values({number})"));
        }
    });
    // One begins within the class's five seconds.
    assert!(flushes < 20, "{flushes} flushes for 200 commits");
    let failed = connection.try_run("pragma syncline_durability = never").unwrap_err();
    assert!(failed.text.contains("fsync, ordered or strict"), "{failed:?}");
}

#[test]
fn without_syncs_a_commit_takes_one_flush_all_the_same() {
    let Some(sqlite) = sqlite() else { return };
    let (device, fs) = recorded();
    let name = new_name("off");
    let _served = serve(&name, &fs);
    let connection = sqlite.open_in(&name, "a.db", "");
    connection.run("create table t(a); pragma synchronous = off");
    let (flushes, _) = requests(&device, || {
        for number in 0..50 {
            connection.run(&format!("insert into t values({number})"));
        }
    });
    assert_eq!(flushes, 50);
    assert_eq!(connection.one("select syncline_snapshot('now')"), "now");
    assert_eq!(sqlite.open_in(&name, "a.db", "").number("select count(*) from t"), 50);
}

#[test]
fn a_write_ahead_log_without_syncs_is_there_after_the_last_close() {
    let Some(sqlite) = sqlite() else { return };
    let (device, fs) = recorded();
    let name = new_name("off");
    let served = serve(&name, &fs);
    for (database, locking) in [("a.db", "normal"), ("b.db", "exclusive")] {
        let connection = sqlite.open_in(&name, database, "");
        connection.run(&format!("pragma locking_mode = {locking}; pragma journal_mode = wal"));
        connection.run("pragma synchronous = off; create table t(a)");
        for number in 0..1500 {
            connection.run(&format!("insert into t values(zeroblob({number}))"));
        }
        drop(connection);
        let again = sqlite.open_in(&name, database, "");
        assert_eq!(again.number("select count(*) from t"), 1500, "{locking}");
        again.require_sound();
    }
    drop(served);
    fs.close().unwrap();
    let fs = Filesystem::open_device(device, ImageOptions::new()).unwrap();
    let _served = serve(&name, &fs);
    for database in ["a.db", "b.db"] {
        assert_eq!(sqlite.open_in(&name, database, "").number("select count(*) from t"), 1500);
    }
}
