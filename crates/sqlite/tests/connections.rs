//! Several connections, databases and modes.

use crate::sqlite::{image, name, sqlite};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use syncline::{Filesystem, ImageOptions};

const MODES: [(&str, &str); 5] =
    [("delete", ""), ("persist", ""), ("memory", ""), ("truncate", "&journal=file"), ("wal", "")];

#[test]
fn threads_read_and_write_one_database() {
    let Some(sqlite) = sqlite() else { return };
    for (mode, options) in MODES {
        let (_fs, _served, image) = image(64 << 20);
        let first = sqlite.open_in(&image, "bank.db", options);
        assert_eq!(first.one(&format!("pragma journal_mode = {mode}")), mode);
        first.run(
            "create table account(id integer primary key, balance, note);
             with recursive n(i) as (select 0 union all select i + 1 from n where i < 99)
             insert into account select i, 100, zeroblob(500) from n;",
        );
        const WRITERS: usize = 3;
        const TRANSFERS: usize = 40;
        let (begin, done) = (Barrier::new(WRITERS + 2), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let writers: Vec<_> = (0..WRITERS)
                .map(|writer| {
                    let (begin, image) = (&begin, &image);
                    scope.spawn(move || {
                        let connection = sqlite.open_in(image, "bank.db", options);
                        connection.run(&format!("pragma journal_mode = {mode}"));
                        begin.wait();
                        for number in 0..TRANSFERS {
                            let (from, to) =
                                ((writer * 31 + number * 7) % 100, (writer * 17 + number * 13 + 1) % 100);
                            connection.run(&format!(
                                "begin immediate; update account set balance = balance - 1 where id = {from};
                                 savepoint s; update account set balance = 0; rollback to s; release s;
                                 update account set balance = balance + 1 where id = {to}; commit"
                            ));
                        }
                    })
                })
                .collect();
            for _ in 0..2 {
                let (begin, done, image) = (&begin, &done, &image);
                scope.spawn(move || {
                    let connection = sqlite.open_in(image, "bank.db", options);
                    connection.run("pragma cache_size = 5");
                    begin.wait();
                    let mut rounds = 0;
                    while !done.load(Ordering::Relaxed) || rounds == 0 {
                        assert_eq!(connection.number("select sum(balance) from account"), 10_000, "{mode}");
                        rounds += 1;
                    }
                });
            }
            for writer in writers {
                writer.join().unwrap();
            }
            done.store(true, Ordering::Relaxed);
        });
        first.require_sound();
        assert_eq!(first.number("select sum(balance) from account"), 10_000);
        assert_eq!(first.one("pragma journal_mode"), mode);
    }
}

#[test]
fn a_statement_that_is_interrupted_leaves_nothing() {
    let Some(sqlite) = sqlite() else { return };
    let (_fs, _served, image) = image(64 << 20);
    let connection = sqlite.open_in(&image, "a.db", "");
    connection.run(
        "pragma cache_size = 10; create table t(b);
         with recursive n(i) as (select 1 union all select i + 1 from n where i < 2000)
         insert into t select zeroblob(1000) from n;",
    );
    let begun = Barrier::new(2);
    std::thread::scope(|scope| {
        let (connection, begun) = (&connection, &begun);
        scope.spawn(move || {
            begun.wait();
            // Until one call finds the statement running.
            for _ in 0..100_000 {
                connection.interrupt();
                std::thread::yield_now();
            }
        });
        begun.wait();
        let endless = "with recursive n(i) as (select 1 union all select i + 1 from n)
             insert into t select randomblob(1000) from n;";
        let failed = connection.try_run(endless).unwrap_err();
        assert_eq!(failed.text, "interrupted");
    });
    connection.require_sound();
    assert_eq!(connection.number("select count(*) from t"), 2000);
}

#[test]
fn a_class_that_is_set_beside_a_large_transaction_stays() {
    let Some(sqlite) = sqlite() else { return };
    let (_fs, _served, image) = image(64 << 20);
    let connection = sqlite.open_in(&image, "a.db", "&memory=1MiB");
    connection
        .run("pragma cache_size = 10; create table t(b); begin; insert into t values(zeroblob(2000000))");
    let other = sqlite.open_in(&image, "a.db", "");
    assert_eq!(other.one("pragma syncline_durability = ordered"), "ordered");
    assert_eq!(other.one("pragma syncline_compression = zstd"), "zstd");
    connection.run("commit");
    assert_eq!(connection.one("pragma syncline_durability"), "ordered");
    assert_eq!(connection.one("pragma syncline_compression"), "zstd");
}

#[test]
fn a_vacuum_and_a_large_transaction_come_whole() {
    let Some(sqlite) = sqlite() else { return };
    let (fs, _served, image) = image(256 << 20);
    // A quarter of the memory is for changes: the transactions below outgrow it.
    let connection = sqlite.open_in(&image, "a.db", "&memory=4MiB");
    connection.run("pragma cache_size = 100; create table t(id integer primary key, b)");
    connection.run("pragma syncline_durability = ordered");
    fs.set_permissions("/a.db", 0o600).unwrap();
    fs.set_xattr("/a.db", "user.note", b"kept").unwrap();
    let fill = "with recursive n(i) as (select 1 union all select i + 1 from n where i < 10000)
         insert into t select null, randomblob(1000) from n;";
    connection.run(fill);
    let before = connection.one("select sum(length(b)) from t");
    connection.run("begin; update t set b = zeroblob(1500)");
    connection.run(fill);
    assert_eq!(connection.number("select count(*) from t"), 20_000);
    connection.run("rollback");
    connection.require_sound();
    assert_eq!(connection.one("select sum(length(b)) from t"), before);
    connection.run(fill);
    connection.run("delete from t where id % 3 = 0; vacuum");
    connection.require_sound();
    assert_eq!(connection.number("select count(*) from t"), 20_000 - 6_666);
    // The copy that took the name has what the file had.
    assert_eq!(connection.one("pragma syncline_durability"), "ordered");
    assert_eq!(fs.metadata("/a.db").unwrap().permissions(), 0o600);
    assert_eq!(fs.xattr("/a.db", "user.note").unwrap().as_deref(), Some(&b"kept"[..]));
    let names: Vec<_> = fs.read_dir("/").unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["a.db"], "nothing is left over");
    let other = sqlite.open_in(&image, "a.db", "");
    assert_eq!(other.number("select count(*) from t"), 20_000 - 6_666);
}

#[test]
fn databases_of_one_image_commit_together() {
    let Some(sqlite) = sqlite() else { return };
    for options in ["", "&journal=file"] {
        let (_fs, _served, image) = image(64 << 20);
        let connection = sqlite.open_in(&image, "one.db", options);
        connection.run(&format!("attach '{}' as two", name(&image, "two.db", options)));
        connection.run("create table one(a); create table two.two(a)");
        connection.run("begin; insert into one values(1); insert into two values(1); commit");
        connection.run("begin; insert into one values(2); insert into two values(2); rollback");
        let two = sqlite.open_in(&image, "two.db", options);
        assert_eq!(two.number("select count(*) from two"), 1);
        two.run("begin immediate");
        connection.set_timeout(0);
        let failed =
            connection.try_run("begin; insert into one values(3); insert into two values(3); commit");
        assert_eq!(failed.unwrap_err().code & 255, crate::sqlite::BUSY);
        connection.run("rollback");
        two.run("rollback");
        assert_eq!(connection.number("select count(*) from one"), 1);
        connection.run("begin; insert into one values(4); insert into two values(4); commit");
        assert_eq!(two.number("select count(*) from two"), 2);
        connection.require_sound();
        two.require_sound();
    }
}

#[test]
fn a_transaction_stays_in_one_image() {
    let Some(sqlite) = sqlite() else { return };
    let (_fs, _served, image) = image(64 << 20);
    let folder = tempfile::tempdir().unwrap();
    let host = folder.path().join("host.db").display().to_string();
    let inside = sqlite.open_in(&image, "a.db", "");
    inside.run(&format!("attach '{host}' as host; attach 'file:{host}2?vfs=unix' as host2"));
    inside.run("create table a(a); create table host.h(a); create table host2.h2(a)");
    let failed =
        inside.try_run("begin; insert into a values(1); insert into h values(1); commit").unwrap_err();
    assert!(sqlite.last_error().contains("two images"), "{failed:?}: {}", sqlite.last_error());
    inside.try_run("rollback").ok();
    assert_eq!((inside.number("select count(*) from a"), inside.number("select count(*) from h")), (0, 0));
    inside.run("insert into a values(2); insert into h values(2)");
    // From the host's side as well.
    let outside = sqlite.open(&format!("file:{host}?vfs=unix")).unwrap();
    outside.run(&format!("attach '{}' as inside", name(&image, "a.db", "")));
    outside.try_run("begin; insert into a values(3); insert into h values(3); commit").unwrap_err();
    outside.try_run("rollback").ok();
    assert_eq!((outside.number("select count(*) from a"), outside.number("select count(*) from h")), (1, 1));
}

#[test]
fn the_backup_api_copies_a_database_in_use() {
    let Some(sqlite) = sqlite() else { return };
    let (_fs, _served, image) = image(64 << 20);
    let connection = sqlite.open_in(&image, "a.db", "");
    connection.run(
        "create table t(b);
         with recursive n(i) as (select 1 union all select i + 1 from n where i < 500)
         insert into t select randomblob(1000) from n;",
    );
    let (inside, outside) = (sqlite.open_in(&image, "b.db", ""), sqlite.open(":memory:").unwrap());
    let mut rounds = 0;
    connection.back_up_to(&inside, || {
        rounds += 1;
        if rounds == 3 {
            connection.run("insert into t values('meanwhile')");
        }
    });
    inside.back_up_to(&outside, || {});
    for copy in [&inside, &outside] {
        copy.require_sound();
        assert_eq!(copy.number("select count(*) from t"), 501);
    }
}

#[test]
fn a_journal_that_a_killed_program_left_is_rolled_back() {
    let Some(sqlite) = sqlite() else { return };
    let folder = tempfile::tempdir().unwrap();
    let host = folder.path().join("host.db");
    let name_of = |name: &str| folder.path().join(name).display().to_string();
    // A program on a mount, killed in the midst of a transaction.
    let connection = sqlite.open(&name_of("host.db")).unwrap();
    connection.run(
        "create table t(b);
         with recursive n(i) as (select 1 union all select i + 1 from n where i < 500)
         insert into t select zeroblob(1000) from n;
         pragma cache_size = 10; begin; update t set b = randomblob(1000)",
    );
    let (fs, served, image) = image(64 << 20);
    fs.write("/a.db", std::fs::read(&host).unwrap()).unwrap();
    fs.write("/a.db-journal", std::fs::read(name_of("host.db-journal")).unwrap()).unwrap();
    let recovered = sqlite.open_in(&image, "a.db", "");
    recovered.require_sound();
    assert_eq!(recovered.number("select count(*) from t where b = zeroblob(1000)"), 500);
    assert!(!fs.exists("/a.db-journal"));
    drop((recovered, served));
}

#[test]
fn what_was_committed_is_there_when_the_image_is_opened_again() {
    let Some(sqlite) = sqlite() else { return };
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("app.img").display().to_string();
    for (mode, options) in MODES {
        let file = format!("{mode}.db");
        let connection = sqlite.open_in(&image, &file, &format!("{options}&create=64MiB"));
        connection.run(&format!("pragma journal_mode = {mode}; create table t(a); insert into t values(1)"));
        drop(connection);
        let connection = sqlite.open_in(&image, &file, options);
        connection.require_sound();
        assert_eq!(connection.number("select a from t"), 1);
    }
    let fs = Filesystem::open(&image, ImageOptions::new()).unwrap();
    assert!(fs.recovery().clean);
    let names: Vec<_> = fs.read_dir("/").unwrap().map(|entry| entry.unwrap().file_name()).collect();
    let mut journals: Vec<_> = names.iter().filter(|name| name.to_string_lossy().contains('-')).collect();
    journals.sort();
    // These modes keep their files, empty.
    assert_eq!(journals, ["truncate.db-journal", "wal.db-wal"]);
    assert!(journals.iter().all(|name| fs.metadata(name).unwrap().is_empty()));
}

#[test]
fn a_name_through_the_image_needs_no_parameters() {
    let Some(sqlite) = sqlite() else { return };
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("app.img").display().to_string();
    let connection = sqlite.open_in(&image, "a.db", "&create=64MiB");
    connection.run(&format!("attach '{image}/b.db' as b; create table b.t(a); insert into b.t values(7)"));
    connection.run(&format!("create table c(a); insert into c values(8); vacuum into '{image}/copy.db'"));
    drop(connection);
    let copy = sqlite.open(&format!("file:{image}/copy.db?vfs=syncline")).unwrap();
    assert_eq!(copy.number("select a from c"), 8);
    copy.require_sound();
    let b = sqlite.open_in(&image, "b.db", "");
    assert_eq!(b.number("select a from t"), 7);
}
