//! Limits of trees and lists of directories that the receiver must not apply to the inodes that it
//! makes itself.

use crate::describe::{describe, require_same};
use crate::pieces::{ONE_PIECE, cut, ends, kept, rest};
use crate::world::{ROOT_USER, World, acl, spawn};
use crate::{require_sound, stream};
use bytes::Bytes;
use syncline_device::block_on;
use syncline_fs::QuotaLimits;
use syncline_fs::types::{FileType, Ino, ROOT, XattrMode};
use syncline_stream::{receive, receive_in_pieces};

fn file(world: &World, dir: Ino, name: &[u8], bytes: usize) -> Ino {
    let made = block_on(world.fs.mknod(ROOT_USER, dir, name, FileType::Regular, 0o644, 0)).unwrap();
    if bytes > 0 {
        block_on(world.fs.write(made.ino, 0, Bytes::from(vec![7; bytes]), false)).unwrap();
    }
    world.fs.forget(made.ino, 1);
    made.ino
}

fn directory(world: &World, name: &[u8]) -> Ino {
    let made = block_on(world.fs.mkdir(ROOT_USER, ROOT, name, 0o755)).unwrap();
    world.fs.forget(made.ino, 1);
    made.ino
}

fn require_received(source: &World, target: &World, name: &str) {
    require_same(&describe(&source.snapshot(name).0), &describe(&target.snapshot(name).0), name);
}

/// The state that a receiver keeps to go on is no part of the snapshot: it needs room where the
/// snapshot has none left.
#[test]
fn a_limit_of_the_whole_filesystem_is_not_for_what_the_receiver_keeps() {
    let spawn = spawn();
    for (bytes, inodes) in [(4096, 0), (0, 1), (4096, 1)] {
        let source = World::new(&spawn, 32 << 20, 16384);
        file(&source, ROOT, b"large", 1 << 20);
        block_on(source.fs.set_quota(ROOT, QuotaLimits { bytes, inodes })).unwrap();
        block_on(source.fs.create_snapshot("full")).unwrap();
        let bytes = stream(&source, "full", None);
        let ends = ends(&bytes);
        // In the attributes, which come last, and before them.
        for records in (ends.len() - 5)..(ends.len() - 1) {
            let target = World::new(&spawn, 32 << 20, 16384);
            let found = cut(&target, &bytes[..ends[records]], ONE_PIECE);
            let token = found.kept.unwrap_or_else(|| panic!("after record {records}: {}", found.error));
            assert_eq!(kept(&target.fs), Some(token));
            // Once more, with a part that is kept already.
            let again = cut(&target, &bytes[..ends[records] + 30], ONE_PIECE);
            assert!(again.kept.is_some(), "{}", again.error);
            let rest = rest(&source, "full", None, &token).unwrap();
            block_on(receive_in_pieces(&target.fs, &rest[..], None, ONE_PIECE)).unwrap();
            require_received(&source, &target, "full");
            target.close();
            require_sound(&target.device, &spawn, "with a limit");
        }
    }
}

/// A directory that was removed, and in which somebody still is, keeps its limit until he leaves.
#[test]
fn the_limit_of_a_removed_directory_is_not_sent() {
    let spawn = spawn();
    let source = World::new(&spawn, 32 << 20, 16384);
    let limits = QuotaLimits { bytes: 1 << 20, inodes: 100 };
    let gone = block_on(source.fs.mkdir(ROOT_USER, ROOT, b"gone", 0o755)).unwrap().ino;
    let stays = directory(&source, b"stays");
    block_on(source.fs.set_quota(gone, limits)).unwrap();
    block_on(source.fs.set_quota(stays, limits)).unwrap();
    block_on(source.fs.create_snapshot("there")).unwrap();
    block_on(source.fs.rmdir(ROOT, b"gone")).unwrap();
    block_on(source.fs.create_snapshot("removed")).unwrap();
    assert_eq!(source.snapshot("removed").0.quotas().len(), 2, "it tests nothing");
    for from in [None, Some("there")] {
        let target = World::new(&spawn, 32 << 20, 16384);
        if let Some(from) = from {
            block_on(receive(&target.fs, &stream(&source, from, None)[..], None)).unwrap();
        }
        block_on(receive(&target.fs, &stream(&source, "removed", from)[..], None)).unwrap();
        require_received(&source, &target, "removed");
        assert_eq!(target.snapshot("removed").0.quotas().len(), 1);
    }
}

/// New inodes are made in a directory of the receiver's own, below the root directory.
#[test]
fn a_list_of_the_root_directory_is_not_passed_on_to_what_is_received() {
    let spawn = spawn();
    let source = World::new(&spawn, 32 << 20, 16384);
    let dir = directory(&source, b"dir");
    let list = acl(7, 1000);
    block_on(source.fs.setxattr(ROOT, b"system.posix_acl_default", &list, XattrMode::Set)).unwrap();
    block_on(source.fs.create_snapshot("old")).unwrap();
    file(&source, dir, b"file", 5000);
    let below = block_on(source.fs.mkdir(ROOT_USER, dir, b"below", 0o755)).unwrap().ino;
    source.fs.forget(below, 1);
    block_on(source.fs.create_snapshot("new")).unwrap();
    let target = World::new(&spawn, 32 << 20, 16384);
    for (name, from) in [("old", None), ("new", Some("old"))] {
        block_on(receive(&target.fs, &stream(&source, name, from)[..], None)).unwrap();
        require_received(&source, &target, name);
    }
}
