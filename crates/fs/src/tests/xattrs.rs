//! Extended attributes in every possible place.

use super::{Mount, Setup, errno};
use crate::FsError;
use crate::types::{Ino, ROOT, XattrMode};
use std::collections::BTreeMap;
use syncline_device::block_on;
use syncline_format::{Key, Kind};

fn set(mount: &Mount, ino: Ino, name: &str, value: &[u8], mode: XattrMode) -> Result<(), FsError> {
    block_on(mount.fs.setxattr(ino, name.as_bytes(), value, mode))
}

fn get(mount: &Mount, ino: Ino, name: &str) -> Result<Vec<u8>, FsError> {
    block_on(mount.fs.getxattr(ino, name.as_bytes())).map(Vec::from)
}

fn list(mount: &Mount, ino: Ino) -> Vec<String> {
    let names = block_on(mount.fs.listxattr(ino)).unwrap();
    let mut names: Vec<String> =
        names.split(|&byte| byte == 0).map(|name| String::from_utf8(name.to_vec()).unwrap()).collect();
    assert_eq!(names.pop().as_deref(), Some(""), "every name ends with a NUL");
    names.sort();
    names
}

fn items(mount: &Mount, ino: Ino, kind: Kind) -> usize {
    let scan = mount.fs.store().scan(Key::new(ino, kind, 0), Key::new(ino, kind, u64::MAX), 1000);
    block_on(scan).unwrap().items.len()
}

#[test]
fn values_of_every_length_replace_each_other() {
    for node_bytes in [4096, 16384] {
        let mount = Mount::with(Setup { node_bytes, hashes: Some(1), ..Setup::default() });
        let file = mount.create(ROOT, "file");
        let lengths = [0, 10, 65536, 200, 900, 961, 4000, 5000, 0, 65535, 1];
        set(&mount, file, "user.other", &[9; 700], XattrMode::Set).unwrap();
        for len in lengths {
            let value = vec![len as u8; len];
            set(&mount, file, "user.name", &value, XattrMode::Set).unwrap();
            assert_eq!(get(&mount, file, "user.name").unwrap(), value, "{len} bytes");
            assert_eq!(list(&mount, file), ["user.name", "user.other"]);
        }
        assert_eq!(items(&mount, file, Kind::Chunk), 0, "chunks of replaced values are gone");
        set(&mount, file, "user.name", &[3; 65536], XattrMode::Replace).unwrap();
        let mount = mount.reopen();
        assert_eq!(get(&mount, file, "user.name").unwrap(), vec![3; 65536]);
        assert_eq!(get(&mount, file, "user.other").unwrap(), vec![9; 700]);
        block_on(mount.fs.removexattr(file, b"user.name")).unwrap();
        block_on(mount.fs.removexattr(file, b"user.other")).unwrap();
        assert_eq!((items(&mount, file, Kind::Xattr), items(&mount, file, Kind::Chunk)), (0, 0));
        assert!(block_on(mount.fs.listxattr(file)).unwrap().is_empty());
    }
}

#[test]
fn modes_and_limits_are_kept() {
    let mount = Mount::new();
    let file = mount.create(ROOT, "file");
    assert_eq!(errno(set(&mount, file, "user.a", b"1", XattrMode::Replace)), 61);
    set(&mount, file, "user.a", b"1", XattrMode::Create).unwrap();
    assert_eq!(errno(set(&mount, file, "user.a", b"2", XattrMode::Create)), 17);
    assert_eq!(errno(get(&mount, file, "user.b")), 61);
    assert_eq!(errno(block_on(mount.fs.removexattr(file, b"user.b"))), 61);
    assert_eq!(errno(set(&mount, file, &"n".repeat(256), b"", XattrMode::Set)), 34);
    assert_eq!(errno(set(&mount, file, "", b"", XattrMode::Set)), 34);
    assert_eq!(errno(set(&mount, file, "user.big", &[0; 65537], XattrMode::Set)), 7);
    assert_eq!(get(&mount, file, "user.a").unwrap(), b"1");
}

#[test]
fn small_ones_stay_in_the_inode_item_and_many_move_out() {
    let mount = Mount::new();
    let file = mount.create(ROOT, "file");
    set(&mount, file, "user.small", b"value", XattrMode::Set).unwrap();
    assert_eq!(items(&mount, file, Kind::Xattr), 0);
    let mut model = BTreeMap::from([("user.small".to_owned(), b"value".to_vec())]);
    for index in 0..100 {
        let (name, value) = (format!("user.{index}"), vec![index as u8; 30]);
        set(&mount, file, &name, &value, XattrMode::Set).unwrap();
        model.insert(name, value);
    }
    assert!(items(&mount, file, Kind::Xattr) > 50);
    let now = mount.tick();
    block_on(mount.fs.removexattr(file, b"user.7")).unwrap();
    assert_eq!(mount.getattr(file).ctime, now);
    model.remove("user.7");
    let mount = mount.reopen();
    assert_eq!(list(&mount, file), model.keys().cloned().collect::<Vec<_>>());
    for (name, value) in &model {
        assert_eq!(&get(&mount, file, name).unwrap(), value);
    }
}

#[test]
fn a_listing_has_a_bound() {
    let mount = Mount::new();
    let file = mount.create(ROOT, "file");
    let mut error = None;
    for index in 0..300 {
        let name = format!("user.{}{index:03}", "n".repeat(247));
        error = set(&mount, file, &name, b"", XattrMode::Set).err();
        if error.is_some() {
            break;
        }
    }
    assert_eq!(error.unwrap().errno(), 28);
    assert!(block_on(mount.fs.listxattr(file)).unwrap().len() <= 65536);
}
