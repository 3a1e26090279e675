//! Copies of many files that one call makes.

use super::TestMount;
use super::files::Mapping;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use syncline_fuse::control::{Clones, clone_files, show_clones};

/// Makes copies of files in a directory, under the same names.
fn clone_all(files: &[(u64, String)], directory: &Path) -> Clones {
    let folder = File::open(directory).unwrap();
    clone_files(&folder, files.iter().map(|(ino, name)| (*ino, OsStr::new(name)))).unwrap()
}

#[test]
fn copies_are_seen_where_somebody_has_missed_them() {
    let Some(mount) = TestMount::or_skip() else { return };
    let (from, to) = (mount.path().join("from"), mount.path().join("to"));
    [&from, &to].into_iter().for_each(|directory| fs::create_dir(directory).unwrap());
    let name = |index: usize| format!("{index} {}", "x".repeat(150));
    let make = |index| {
        let path = from.join(name(index));
        fs::write(&path, name(index)).unwrap();
        assert!(!to.join(name(index)).exists(), "the kernel remembers this");
        (path.metadata().unwrap().ino(), name(index))
    };
    let files: Vec<_> = (0..300).map(make).collect();
    let mut made = 0;
    while made < files.len() {
        let clones = clone_all(&files[made..], &to);
        assert!(clones.error.is_none() && clones.made > 0, "{clones:?}");
        made += clones.made;
    }
    show_clones(&to).unwrap();
    assert_eq!(to.metadata().unwrap().size(), 300);
    for (_, name) in &files {
        assert_eq!(fs::read_to_string(to.join(name)).unwrap(), *name);
    }
    // The first file that can't be copied ends a call.
    let mut more = [(files[0].0, "new".into()), files[1].clone(), (files[2].0, "other".into())];
    let clones = clone_all(&more, &to);
    assert_eq!((clones.made, clones.error.unwrap().raw_os_error()), (1, Some(libc::EEXIST)));
    more[1] = (1 << 40, "another".into());
    let clones = clone_all(&more[1..], &to);
    assert_eq!(clones.made, 0);
    assert!(matches!(clones.error.unwrap().raw_os_error(), Some(libc::ENOENT | libc::ESTALE)));
    assert!(!to.join("other").exists());
    mount.unmount();
}

#[test]
fn stores_through_a_mapping_are_in_the_copy() {
    let Some(mount) = TestMount::or_skip() else { return };
    let path = mount.path().join("file");
    fs::write(&path, vec![1; 100_000]).unwrap();
    let file = File::options().read(true).write(true).open(&path).unwrap();
    let mapping = Mapping::new(&file, 100_000, libc::MAP_SHARED);
    mapping.set(70_000, 2);
    drop(mapping);
    syncline_fuse::control::sync(&mount.path()).unwrap();
    let copies = clone_all(&[(file.metadata().unwrap().ino(), "copy".into())], &mount.path());
    assert_eq!((copies.made, copies.bytes), (1, 100_000));
    drop(file);
    show_clones(&mount.path()).unwrap();
    assert_eq!(fs::read(mount.path().join("copy")).unwrap()[70_000], 2);
    mount.unmount();
}
