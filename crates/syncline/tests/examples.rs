//! The examples do what they say: each runs here, on an image of its own, twice where it keeps something.

use std::path::PathBuf;
use syncline::{Filesystem, ImageOptions};

#[path = "../examples/config.rs"]
mod config;
#[path = "../examples/import.rs"]
mod import;
#[path = "../examples/journal.rs"]
mod journal;
#[path = "../examples/keys.rs"]
mod keys;
#[path = "../examples/migration.rs"]
mod migration;

#[test]
fn a_migration_that_fails_is_taken_back() {
    let (_folder, image) = image();
    let options = ImageOptions::default;
    assert!(migration::run(&image).unwrap(), "nothing to migrate");
    let fs = Filesystem::open(&image, options()).unwrap();
    for index in 0..20 {
        fs.write(format!("/customers/{index}.txt"), format!("customer {index},Ulm")).unwrap();
    }
    fs.write("/customers/bad.txt", "no comma").unwrap();
    fs.close().unwrap();
    assert!(!migration::run(&image).unwrap());
    let fs = Filesystem::open(&image, options()).unwrap();
    assert_eq!(fs.read_dir("/customers").unwrap().count(), 21);
    assert_eq!(fs.read_to_string("/customers/7.txt").unwrap(), "customer 7,Ulm");
    fs.write("/customers/bad.txt", "mended,Bonn").unwrap();
    fs.close().unwrap();
    assert!(migration::run(&image).unwrap());
    let fs = Filesystem::open(&image, options()).unwrap();
    let mended = fs.read_to_string("/customers/bad.json").unwrap();
    assert_eq!(mended, r#"{"city":"Bonn","name":"mended"}"#);
    assert!(!fs.exists("/customers/7.txt"));
    assert!(fs.snapshots().unwrap().is_empty());
}

fn image() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    (folder, image)
}

#[test]
fn the_journal_grows_by_one_flush_for_two_files() {
    let (_folder, image) = image();
    assert_eq!(journal::run(&image).unwrap().len(), 3);
    let again = journal::run(&image).unwrap();
    assert_eq!(again.len(), 6);
    assert_eq!((&*again[1], &*again[5]), ("sold a loaf", "closed the shop"));
    let journal = journal::Journal::open(&image).unwrap();
    let before = journal.flushes();
    journal.append(&["one", "two"]).unwrap();
    assert_eq!(journal.flushes() - before, 1);
}

#[test]
fn settings_are_kept() {
    let (_folder, image) = image();
    config::run(&image, "colour", "blue").unwrap();
    let settings = config::run(&image, "size", "5").unwrap();
    assert_eq!(
        settings.into_iter().collect::<Vec<_>>(),
        [("colour".to_owned(), "blue".to_owned()), ("size".to_owned(), "5".to_owned()),]
    );
    let fs = Filesystem::open(&image, ImageOptions::read_only()).unwrap();
    assert!(!fs.exists("/settings.new"));
}

#[test]
fn keys_are_set_removed_and_compacted() {
    let (_folder, image) = image();
    keys::run(&image, &["set", "city", "Ulm"]).unwrap();
    keys::run(&image, &["set", "river", "Donau"]).unwrap();
    keys::run(&image, &["remove", "city"]).unwrap();
    assert_eq!(keys::run(&image, &["get", "city"]).unwrap(), None);
    assert_eq!(keys::run(&image, &["get", "river"]).unwrap().as_deref(), Some("Donau"));
    assert!(keys::run(&image, &["give", "river"]).is_err());
    let mut store = keys::Keys::open(&image).unwrap();
    for index in 0..500 {
        store.set("counter", Some(&index.to_string())).unwrap();
    }
    drop(store);
    let fs = Filesystem::open(&image, ImageOptions::read_only()).unwrap();
    assert!(fs.read_to_string("/log").unwrap().lines().count() < 200, "rewritten");
    drop(fs);
    assert_eq!(keys::run(&image, &["get", "counter"]).unwrap().as_deref(), Some("499"));
}

#[test]
fn a_directory_is_imported_as_it_was() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let (folder, image) = image();
    let from = folder.path().join("from");
    std::fs::create_dir_all(from.join("deep/deeper")).unwrap();
    std::fs::write(from.join("deep/deeper/large"), vec![7; 3_000_001]).unwrap();
    std::fs::write(from.join("script"), "#!/bin/sh").unwrap();
    std::fs::set_permissions(from.join("script"), PermissionsExt::from_mode(0o750)).unwrap();
    symlink("deep/deeper", from.join("link")).unwrap();
    assert_eq!(import::run(&image, &from).unwrap(), 2);
    let fs = Filesystem::open(&image, ImageOptions::read_only()).unwrap();
    assert_eq!(fs.read("link/large").unwrap(), vec![7; 3_000_001]);
    let script = fs.metadata("script").unwrap();
    assert_eq!(script.permissions(), 0o750);
    assert_eq!(script.modified(), std::fs::metadata(from.join("script")).unwrap().modified().unwrap());
    assert!(fs.symlink_metadata("link").unwrap().is_symlink());
}
