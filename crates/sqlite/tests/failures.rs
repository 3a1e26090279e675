//! Devices that fail, and images without room.

use crate::sqlite::{FULL, name, new_name, sqlite};
use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use syncline::device::{AlignedBuf, Completion, Device, DeviceError, MemoryDevice, Operation};
use syncline::{Filesystem, FormatOptions, ImageOptions, format_device};
use syncline_sqlite::serve;

const IOERR: i32 = 10;

/// A device whose flushes, or all writes as well, fail for as long as wanted.
struct Failing {
    inner: Arc<MemoryDevice>,
    flushes: AtomicBool,
    writes: AtomicBool,
}

fn failure(operation: Operation) -> DeviceError {
    DeviceError::io(operation, 0, 0, std::io::Error::from_raw_os_error(5))
}

impl Device for Failing {
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }

    fn read(&self, offset: u64, buf: AlignedBuf, done: Completion<AlignedBuf>) {
        self.inner.read(offset, buf, done);
    }

    fn write(&self, offset: u64, bufs: Vec<Bytes>, done: Completion<()>) {
        match self.writes.load(Ordering::Relaxed) {
            true => done(Err(failure(Operation::Write))),
            false => self.inner.write(offset, bufs, done),
        }
    }

    fn flush(&self, done: Completion<()>) {
        match self.flushes.load(Ordering::Relaxed) {
            true => done(Err(failure(Operation::Flush))),
            false => self.inner.flush(done),
        }
    }

    fn discard(&self, offset: u64, len_bytes: u64, done: Completion<()>) {
        self.inner.discard(offset, len_bytes, done);
    }
}

#[test]
fn a_full_image_refuses_a_commit_and_keeps_the_database() {
    let Some(sqlite) = sqlite() else { return };
    for (mode, options) in [("delete", ""), ("delete", "&memory=2MiB"), ("memory", ""), ("wal", "")] {
        let fs = Filesystem::in_memory(40 << 20).unwrap();
        fs.write("/filler", vec![1; 8 << 20]).unwrap();
        fs.sync().unwrap();
        let name = new_name("full");
        let _served = serve(&name, &fs);
        let connection = sqlite.open_in(&name, "a.db", options);
        connection.run(&format!("pragma journal_mode = {mode}; create table t(id integer primary key, b)"));
        connection.run("pragma cache_size = 20");
        let transactions = || fs.statistics().filesystem.transactions;
        let (mut rows, mut before) = (0, 0);
        let failed = loop {
            before = transactions().max(before);
            let more = "with recursive n(i) as (select 1 union all select i + 1 from n where i < 1000)
                 insert into t select null, randomblob(1000) from n;";
            match connection.try_run(more) {
                Ok(_) => rows += 1000,
                Err(failed) => break failed,
            }
            assert!(rows < 100_000);
        };
        assert_eq!(failed.code, FULL, "{mode} {options}: {failed:?}");
        assert!(rows >= 5000, "{rows}");
        assert_eq!(transactions(), before, "{mode} {options}: the undo needed room");
        // It is read, without room, and through another connection.
        for connection in [&connection, &sqlite.open_in(&name, "a.db", options)] {
            assert_eq!(connection.number("select count(*) from t"), rows, "{mode} {options}");
            connection.require_sound();
        }
        // And it goes on when there is room again.
        fs.remove_file("/filler").unwrap();
        connection.run("delete from t where id <= 1000");
        connection.run("insert into t select null, randomblob(100)");
        assert_eq!(connection.number("select count(*) from t"), rows - 1000 + 1);
        connection.require_sound();
    }
}

#[test]
fn a_database_with_a_write_ahead_log_is_opened_without_room() {
    let Some(sqlite) = sqlite() else { return };
    let fs = Filesystem::in_memory(32 << 20).unwrap();
    let name = new_name("full-wal");
    let _served = serve(&name, &fs);
    let connection = sqlite.open_in(&name, "a.db", "");
    connection.run("pragma journal_mode = wal; pragma syncline_durability = ordered");
    connection.run("create table t(a); insert into t values(1)");
    drop(connection);
    fill(&fs);
    let connection = sqlite.open_in(&name, "a.db", "");
    assert_eq!(connection.number("select a from t"), 1);
    connection.require_sound();
    assert_eq!(connection.try_run("insert into t values(zeroblob(100000))").unwrap_err().code, FULL);
    assert_eq!(connection.number("select count(*) from t"), 1);
}

#[test]
fn a_checkpoint_is_not_forgotten_with_a_commit_that_finds_no_room() {
    let Some(sqlite) = sqlite() else { return };
    for locking in ["normal", "exclusive"] {
        let fs = Filesystem::in_memory(64 << 20).unwrap();
        let name = new_name("full-checkpoint");
        let _served = serve(&name, &fs);
        let connection = sqlite.open_in(&name, "a.db", "");
        connection.run(&format!("pragma locking_mode = {locking}; pragma journal_mode = wal"));
        connection.run("pragma synchronous = off; create table t(b)");
        connection.run(
            "insert into t with recursive n(i) as (select 1 union all select i + 1 from n where i < 1000)
             select randomblob(3000) from n",
        );
        connection.run("pragma wal_checkpoint");
        fill(&fs);
        // The first insert writes over the beginning of the log.
        let more = (0..20).map_while(|_| connection.try_run("insert into t values(zeroblob(1000000))").ok());
        let rows = 1000 + more.count() as i64;
        assert!(rows < 1020, "there was room");
        assert_eq!(connection.number("select count(*) from t"), rows, "{locking}");
        drop(connection);
        let connection = sqlite.open_in(&name, "a.db", "");
        assert_eq!(connection.number("select count(*) from t"), rows, "{locking}");
        connection.require_sound();
    }
}

/// Fills an image with files.
fn fill(fs: &Filesystem) {
    for bytes in [1 << 20, 64 << 10, 4 << 10, 0] {
        let full = (0..).find(|number| fs.write(format!("/{bytes}-{number}"), vec![1; bytes]).is_err());
        assert!(full.is_some());
    }
    assert!(fs.create_file("/one-more").is_err(), "the image is full");
}

#[test]
fn a_full_image_refuses_a_commit_of_two_databases() {
    let Some(sqlite) = sqlite() else { return };
    let fs = Filesystem::in_memory(40 << 20).unwrap();
    let image = new_name("full-two");
    let _served = serve(&image, &fs);
    let connection = sqlite.open_in(&image, "one.db", "");
    connection.run(&format!("attach '{}' as two", name(&image, "two.db", "")));
    connection.run("create table one(b); create table two.two(b)");
    let mut rows = 0;
    let failed = loop {
        let more = "begin; with recursive n(i) as (select 1 union all select i + 1 from n where i < 300)
             insert into one select randomblob(1000) from n; insert into two select randomblob(1000) from one; commit";
        match connection.try_run(more) {
            Ok(_) => rows += 300,
            Err(failed) => break failed,
        }
    };
    assert_eq!(failed.code, FULL, "{failed:?}");
    connection.try_run("rollback").ok();
    // One gets all rows of the other each time.
    let sums = (rows, rows * (rows + 300) / 600);
    let two = sqlite.open_in(&image, "two.db", "");
    for connection in [&connection, &two] {
        connection.require_sound();
        assert_eq!(connection.number("select count(*) from two"), sums.1);
    }
    assert_eq!(connection.number("select count(*) from one"), sums.0);
    drop((connection, two));
    let again = sqlite.open_in(&image, "two.db", "");
    assert_eq!(again.number("select count(*) from two"), sums.1);
}

#[test]
fn a_flush_that_fails_is_an_error_of_the_commit() {
    let Some(sqlite) = sqlite() else { return };
    let memory = MemoryDevice::new(64 << 20);
    format_device(memory.clone(), &FormatOptions::default()).unwrap();
    let device =
        Arc::new(Failing { inner: memory, flushes: AtomicBool::new(false), writes: AtomicBool::new(false) });
    let fs = Filesystem::open_device(device.clone(), ImageOptions::new()).unwrap();
    let name = new_name("flush");
    let served = serve(&name, &fs);
    let connection = sqlite.open_in(&name, "a.db", "");
    connection.run("create table t(a); insert into t values(1)");
    device.flushes.store(true, Ordering::Relaxed);
    let failed = connection.try_run("insert into t values(2)").unwrap_err();
    assert_eq!(failed.code & 255, IOERR, "{failed:?}");
    assert!(!sqlite.last_error().is_empty());
    device.flushes.store(false, Ordering::Relaxed);
    // The connection, and others, see the state from before; the next commit is durable.
    let other = sqlite.open_in(&name, "a.db", "");
    for connection in [&connection, &other] {
        assert_eq!(connection.number("select count(*) from t"), 1);
    }
    connection.run("insert into t values(3)");
    connection.require_sound();
    drop((connection, other, served));
    drop(fs);
    let again = Filesystem::open_device(device, ImageOptions::new()).unwrap();
    let _served = serve(&name, &again);
    let connection = sqlite.open_in(&name, "a.db", "");
    assert_eq!(connection.run("select a from t"), [["1"], ["3"]]);
}

#[test]
fn a_flush_that_fails_undoes_a_commit_of_two_databases() {
    let Some(sqlite) = sqlite() else { return };
    let memory = MemoryDevice::new(64 << 20);
    format_device(memory.clone(), &FormatOptions::default()).unwrap();
    let flags = (AtomicBool::new(false), AtomicBool::new(false));
    let device = Arc::new(Failing { inner: memory, flushes: flags.0, writes: flags.1 });
    let fs = Filesystem::open_device(device.clone(), ImageOptions::new()).unwrap();
    let image = new_name("flush-two");
    let _served = serve(&image, &fs);
    let connection = sqlite.open_in(&image, "one.db", "");
    connection.run(&format!("attach '{}' as two", name(&image, "two.db", "")));
    connection.run("create table one(a); create table two.two(a)");
    device.flushes.store(true, Ordering::Relaxed);
    let both = "begin; insert into one values(1); insert into two values(1); commit";
    connection.try_run(both).unwrap_err();
    connection.try_run("rollback").ok();
    device.flushes.store(false, Ordering::Relaxed);
    let two = sqlite.open_in(&image, "two.db", "");
    for connection in [&connection, &two] {
        connection.require_sound();
        assert_eq!(connection.number("select count(*) from two"), 0);
    }
    assert_eq!(connection.number("select count(*) from one"), 0);
    connection.run(both);
    assert_eq!(two.number("select count(*) from two"), 1);
}

#[test]
fn a_device_that_dies_leaves_what_was_committed() {
    let Some(sqlite) = sqlite() else { return };
    for options in ["", "&memory=2MiB"] {
        let memory = MemoryDevice::new(64 << 20);
        format_device(memory.clone(), &FormatOptions::default()).unwrap();
        let flags = (AtomicBool::new(false), AtomicBool::new(false));
        let device = Arc::new(Failing { inner: memory.clone(), flushes: flags.0, writes: flags.1 });
        let patient = ImageOptions::new().patience(std::time::Duration::ZERO);
        let fs = Filesystem::open_device(device.clone(), patient).unwrap();
        let name = new_name("dead");
        let served = serve(&name, &fs);
        let connection = sqlite.open_in(&name, "a.db", options);
        connection.run("create table t(b); insert into t values('kept')");
        let dead = memory.snapshot();
        device.flushes.store(true, Ordering::Relaxed);
        device.writes.store(true, Ordering::Relaxed);
        connection
            .try_run(
                "with recursive n(i) as (select 1 union all select i + 1 from n where i < 5000)
                 insert into t select randomblob(1000) from n;",
            )
            .unwrap_err();
        // Reads may fail from here on, and nothing panics.
        connection.try_run("select count(*) from t").ok();
        drop((connection, served, fs));
        let fs = Filesystem::open_device(dead, ImageOptions::new()).unwrap();
        let _served = serve(&name, &fs);
        let connection = sqlite.open_in(&name, "a.db", options);
        connection.require_sound();
        assert_eq!(connection.run("select b from t"), [["kept"]]);
    }
}
