//! Images: snapshots, and what is refused.

use crate::sqlite::{BUSY, CANTOPEN, image, name, new_name, sqlite};
use syncline::device::block_on;
use syncline::{Filesystem, FormatOptions};
use syncline_sqlite::serve;

#[test]
fn a_snapshot_is_read_while_the_database_goes_on() {
    let Some(sqlite) = sqlite() else { return };
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("app.img").display().to_string();
    for mode in ["delete", "wal"] {
        let file = format!("{mode}.db");
        let connection = sqlite.open_in(&image, &file, "&create=64MiB");
        connection.run(&format!("pragma journal_mode = {mode}; create table t(a); insert into t values(1)"));
        connection.run(&format!("begin; insert into t values(2); select syncline_snapshot('{mode}')"));
        connection.run("commit");
        let snapshot = sqlite.open_in(&image, &file, &format!("&snapshot={mode}"));
        assert_eq!(snapshot.number("select count(*) from t"), 1, "what was committed, and no more");
        snapshot.require_sound();
        let failed = snapshot.try_run("insert into t values(3)").unwrap_err();
        assert_eq!(failed.text, "attempt to write a readonly database");
        drop(snapshot);
        assert_eq!(connection.number("select count(*) from t"), 2);
        let listed = connection.one("select syncline_snapshots()");
        assert!(listed.contains(&format!("\"name\":\"{mode}\"")), "{listed}");
        connection.run(&format!("select syncline_delete_snapshot('{mode}')"));
        assert_eq!(connection.one("select syncline_snapshots()"), "[]");
        let failed = connection.try_run("select syncline_delete_snapshot('none')").unwrap_err();
        assert!(failed.text.contains("none"), "{failed:?}");
    }
    let plain = sqlite.open(":memory:").unwrap();
    let failed = plain.try_run("select syncline_snapshot('x')").unwrap_err();
    assert!(failed.text.contains("vfs=syncline"), "{failed:?}");
}

#[test]
fn a_snapshot_without_a_write_ahead_log_is_read() {
    let Some(sqlite) = sqlite() else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("app.img").display().to_string();
    let connection = sqlite.open_in(&path, "a.db", "&create=64MiB");
    connection.run("pragma journal_mode = wal; create table t(a); insert into t values(1)");
    drop(connection);
    // As if the database had come from a filesystem, where the last connection removes the log.
    let fs = Filesystem::open(&path, syncline::ImageOptions::default()).unwrap();
    assert!(fs.metadata("/a.db-wal").unwrap().is_empty());
    fs.remove_file("/a.db-wal").unwrap();
    fs.close().unwrap();
    let connection = sqlite.open_in(&path, "b.db", "");
    connection.run("create table other(a); select syncline_snapshot('closed')");
    let snapshot = sqlite.open_in(&path, "a.db", "&snapshot=closed");
    assert_eq!(snapshot.number("select a from t"), 1);
}

#[test]
fn a_snapshot_is_not_taken_for_an_image_of_that_name() {
    let Some(sqlite) = sqlite() else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let first = sqlite.open_in(&path("app.img"), "a.db", "&create=64MiB");
    first.run("create table t(a); insert into t values(1); select syncline_snapshot('monday')");
    let second = sqlite.open_in(&path("app.img@monday"), "a.db", "&create=64MiB");
    second.run("create table t(a); insert into t values(2)");
    let snapshot = sqlite.open_in(&path("app.img"), "a.db", "&snapshot=monday");
    assert_eq!((snapshot.number("select a from t"), second.number("select a from t")), (1, 2));
}

#[test]
fn an_image_is_made_only_for_a_database_that_is_made() {
    let Some(sqlite) = sqlite() else { return };
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("app.img");
    let open = |options: &str| sqlite.open(&name(&image.display().to_string(), "a.db", options));
    for options in ["&create=64MiB&mode=ro", "&create=64MiB&mode=rw", "&create=1MiB"] {
        assert_eq!(open(options).err().unwrap().code & 255, CANTOPEN);
        assert!(!image.exists(), "{options}");
    }
    open("&create=64mb").unwrap().run("create table t(a)");
    open("&snapshot=tuesday").err().expect("there is none");
    assert!(!sqlite.last_error().contains("mkfs"), "{}", sqlite.last_error());
    open("&mode=ro").unwrap();
    assert_eq!(sqlite.last_error(), "", "a database that was opened has no error");
}

#[test]
fn an_image_whose_name_begins_like_another_has_its_own_files() {
    let Some(sqlite) = sqlite() else { return };
    let outer = new_name("outer");
    let inner = format!("{outer}/disk");
    let [outer_fs, inner_fs] = [(); 2].map(|()| Filesystem::in_memory(32 << 20).unwrap());
    let _served = [serve(&outer, &outer_fs), serve(&inner, &inner_fs)];
    let connection = sqlite.open_in(&inner, "a.db", "");
    connection.run("pragma journal_mode = wal; create table t(a); insert into t values(1)");
    assert!(!inner_fs.metadata("/a.db-wal").unwrap().is_empty());
    assert_eq!(outer_fs.read_dir("/").unwrap().count(), 0);
}

#[test]
fn a_log_that_outlived_its_database_gets_the_class_of_the_next() {
    let Some(sqlite) = sqlite() else { return };
    let (fs, _served, image) = image(32 << 20);
    let connection = sqlite.open_in(&image, "a.db", "");
    connection.run("pragma journal_mode = wal; create table t(a)");
    connection.run("pragma syncline_durability = ordered; pragma syncline_compression = lz4");
    drop(connection);
    fs.remove_file("/a.db").unwrap();
    let connection = sqlite.open_in(&image, "a.db", "");
    connection.run("pragma journal_mode = wal; create table t(a)");
    let log = fs.metadata("/a.db-wal").unwrap();
    assert!(!log.is_empty());
    let engine = fs.engine();
    assert_eq!(block_on(engine.durability(log.ino())).unwrap().0, None);
    assert_eq!(block_on(engine.file_flags(log.ino())).unwrap().compression, None);
}

#[test]
fn a_name_without_room_for_a_journal_is_refused() {
    let Some(sqlite) = sqlite() else { return };
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("app.img").display().to_string();
    for mode in ["delete", "wal"] {
        let connection = sqlite.open_in(&image, &"n".repeat(247), "&create=64MiB");
        connection.run(&format!("pragma journal_mode = {mode}; create table if not exists t(a)"));
        connection.run("insert into t values(1)");
    }
    sqlite.open(&name(&image, &"n".repeat(248), "")).err().expect("its journal's name is too long");
    assert!(sqlite.last_error().contains("at most 247"), "{}", sqlite.last_error());
}

#[test]
fn an_image_that_was_replaced_is_not_taken_for_the_open_one() {
    let Some(sqlite) = sqlite() else { return };
    let folder = tempfile::tempdir().unwrap();
    let [first, second] = ["one.img", "two.img"].map(|name| folder.path().join(name).display().to_string());
    for path in [&first, &second] {
        sqlite.open_in(path, "a.db", "&create=64MiB").run("create table t(a)");
    }
    let connection = sqlite.open_in(&first, "a.db", "");
    std::fs::rename(&second, &first).unwrap();
    sqlite.open(&name(&first, "a.db", "")).err().expect("it is another image");
    assert!(sqlite.last_error().contains("replaced"), "{}", sqlite.last_error());
    drop(connection);
    sqlite.open_in(&first, "a.db", "").run("insert into t values(1)");
}

#[test]
fn an_image_in_use_is_refused_and_the_text_names_the_mount() {
    let Some(sqlite) = sqlite() else { return };
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("app.img").display().to_string();
    let fs = Filesystem::create(&image, 64 << 20, &FormatOptions::default()).unwrap();
    let failed = sqlite.open(&name(&image, "a.db", "")).err().unwrap();
    assert_eq!(failed.code & 255, BUSY);
    let text = sqlite.last_error();
    assert!(text.contains("in use") && text.contains("syncline mount"), "{text}");
    fs.close().unwrap();
    sqlite.open_in(&image, "a.db", "").run("create table t(a)");
}

#[test]
fn what_can_not_be_opened_says_why() {
    let Some(sqlite) = sqlite() else { return };
    let (fs, _served, image) = image(64 << 20);
    let refused = |file: &str, options: &str| {
        let failed = sqlite.open(&name(&image, file, options)).err().unwrap();
        assert_eq!(failed.code & 255, CANTOPEN, "{failed:?}");
        sqlite.last_error()
    };
    fs.write("/real.db", "").unwrap();
    fs.symlink("real.db", "/link.db").unwrap();
    assert!(refused("link.db", "").contains("/real.db instead"));
    fs.hard_link("/real.db", "/second.db").unwrap();
    assert!(refused("second.db", "").contains("more than one name"));
    fs.create_dir("/folder").unwrap();
    assert!(refused("folder", "").contains("directory"));
    assert!(refused("none/a.db", "").contains("no such file"));
    assert!(refused("a.db", "&snapshot=%FF").contains("not UTF-8"));
    assert!(refused("a.db", "&journal=none").contains("'memory' or in a 'file'"));
    let missing = sqlite.open(&name("/no/such.img", "a.db", "")).err().unwrap();
    assert_eq!(missing.code & 255, CANTOPEN);
    assert!(sqlite.last_error().contains("syncline mkfs"), "{}", sqlite.last_error());
}

#[test]
fn an_image_that_may_not_be_written_is_read() {
    let Some(sqlite) = sqlite() else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("app.img");
    let image = path.display().to_string();
    let connection = sqlite.open_in(&image, "a.db", "&create=64MiB");
    connection.run("create table t(a); insert into t values(1)");
    drop(connection);
    let mut permissions = std::fs::metadata(&path).unwrap().permissions();
    permissions.set_readonly(true);
    std::fs::set_permissions(&path, permissions).unwrap();
    if std::fs::OpenOptions::new().write(true).open(&path).is_ok() {
        eprintln!("SKIPPED: root may write to every file");
        return;
    }
    let connection = sqlite.open_in(&image, "a.db", "");
    assert_eq!(connection.number("select a from t"), 1);
    let failed = connection.try_run("insert into t values(2)").unwrap_err();
    assert_eq!(failed.text, "attempt to write a readonly database");
}

#[test]
fn compression_is_a_pragma() {
    let Some(sqlite) = sqlite() else { return };
    let (fs, _served, image) = image(64 << 20);
    let connection = sqlite.open_in(&image, "a.db", "&memory=4MiB");
    connection.run("create table t(b)");
    assert_eq!(connection.one("pragma syncline_compression"), "none");
    assert_eq!(connection.one("pragma syncline_compression = zstd"), "zstd");
    connection.run(
        "with recursive n(i) as (select 1 union all select i + 1 from n where i < 10000)
         insert into t select zeroblob(1000) from n;",
    );
    connection.run("select syncline_sync()");
    let metadata = fs.metadata("/a.db").unwrap();
    assert!(
        metadata.blocks() * 512 < metadata.len() / 4,
        "{} blocks of {} bytes",
        metadata.blocks(),
        metadata.len()
    );
    connection.require_sound();
}
