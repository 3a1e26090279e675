//! Transactions on a real store.

mod edges;
mod random;

use super::{Action, NotCommitted, STEPS_MAX, Step, TRANSACTION_BYTES_MAX};
use crate::tests::{CALLER, Mount};
use crate::types::{ROOT, XattrMode};
use bytes::Bytes;
use syncline_device::block_on;

pub(super) fn step(path: &str, action: Action) -> Step {
    Step { path: path.as_bytes().to_vec(), action }
}

pub(super) fn create(path: &str) -> Step {
    step(path, Action::Create { permissions: 0o644, exclusive: true })
}

pub(super) fn mkdir(path: &str) -> Step {
    step(path, Action::Mkdir { permissions: 0o755 })
}

pub(super) fn write(path: &str, offset: u64, data: &[u8]) -> Step {
    step(path, Action::Write { offset, data: Bytes::copy_from_slice(data) })
}

pub(super) fn rename(from: &str, to: &str) -> Step {
    step(from, Action::Rename { to: to.as_bytes().to_vec() })
}

fn set_xattr(path: &str, name: &str, value: &[u8]) -> Step {
    let (name, value) = (name.as_bytes().to_vec(), value.to_vec());
    step(path, Action::SetXattr { name, value, mode: XattrMode::Set })
}

impl Mount {
    fn transact(&self, steps: &[Step]) -> Result<(), NotCommitted> {
        block_on(self.fs.transact(CALLER, steps))
    }

    fn contents(&self, path: &[&str]) -> Vec<u8> {
        let ino = path.iter().fold(ROOT, |dir, name| self.lookup(dir, name).unwrap().ino);
        block_on(self.fs.read(ino, 0, 1 << 30)).unwrap().concat()
    }

    fn flushes(&self) -> u64 {
        self.fs.store().device_counters().flushes_issued
    }
}

/// The step that was refused, and its errno.
#[track_caller]
fn refused(result: Result<(), NotCommitted>) -> (usize, i32) {
    match result {
        Err(NotCommitted::Refused { step, error }) => (step, error.errno()),
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn all_kinds_of_steps_come_together_and_survive_a_crash() {
    let mount = Mount::new();
    let old = mount.create(ROOT, "old");
    mount.create(ROOT, "gone");
    mount.mkdir(ROOT, "empty");
    block_on(mount.fs.write(old, 0, Bytes::from(vec![1; 9000]), false)).unwrap();
    block_on(mount.fs.setxattr(old, b"user.old", b"x", XattrMode::Set)).unwrap();
    mount.sync();
    let flushes = mount.flushes();
    mount
        .transact(&[
            mkdir("/dir"),
            create("dir/new"),
            write("/dir/new", 0, b"small"),
            create("/large"),
            write("/large", 100, &vec![7; 300_000]),
            write("/old", 4000, &[2; 3000]),
            step("/old", Action::SetLen { size: 8000 }),
            step("/old", Action::SetPermissions { permissions: 0o600 }),
            set_xattr("/old", "user.new", &vec![9; 5000]),
            step("/old", Action::RemoveXattr { name: b"user.old".to_vec() }),
            step("/link", Action::Symlink { target: b"dir/moved".to_vec() }),
            rename("/dir/new", "/dir/moved"),
            // Through the link, whose target has its name from this transaction.
            write("/link", 5, b" and more"),
            step("/gone", Action::RemoveFile),
            step("/empty", Action::RemoveDir),
            create("/short-lived"),
            write("/short-lived", 0, &[3; 10_000]),
            step("/short-lived", Action::RemoveFile),
        ])
        .unwrap();
    assert_eq!(mount.flushes() - flushes, 1);
    let after = mount.crash();
    assert_eq!(after.names(ROOT), ["dir", "large", "link", "old"]);
    assert_eq!(after.contents(&["dir", "moved"]), b"small and more");
    assert_eq!(after.contents(&["large"]), [vec![0; 100], vec![7; 300_000]].concat());
    let expected = [vec![1; 4000], vec![2; 3000], vec![1; 1000]].concat();
    assert_eq!(after.contents(&["old"]), expected);
    let old = after.lookup(ROOT, "old").unwrap();
    assert_eq!(old.permissions, 0o600);
    assert_eq!(block_on(after.fs.listxattr(old.ino)).unwrap(), b"user.new\0");
    assert_eq!(block_on(after.fs.getxattr(old.ino, b"user.new")).unwrap(), vec![9; 5000]);
}

#[test]
fn a_step_that_is_refused_leaves_everything_as_it_was() {
    let mount = Mount::new();
    let dir = mount.mkdir(ROOT, "dir");
    mount.create(dir, "file");
    mount.mkdir(dir, "sub");
    let op = mount.fs.store().last_op();
    let first = [create("/new"), write("/new", 0, b"data"), rename("/dir/file", "/file")];
    let cases = [
        (create("/file"), 17),
        (create("/dir/file/below"), 2),
        (create("/nowhere/file"), 2),
        (create("/file/below"), 20),
        (create(&format!("/{}", "n".repeat(256))), 36),
        (mkdir("/dir"), 17),
        (step("/dir", Action::RemoveDir), 39),
        (step("/dir", Action::RemoveFile), 21),
        (step("/file", Action::RemoveDir), 20),
        (step("/dir/file", Action::RemoveFile), 2),
        (rename("/dir/file", "/elsewhere"), 2),
        (rename("/dir", "/dir/sub/dir"), 22),
        (rename("/dir", "/file"), 20),
        (rename("/file", "/dir"), 21),
        (rename("/dir/sub", "/"), 22),
        (write("/dir", 0, b"x"), 21),
        (write("/new", u64::MAX, b"x"), 27),
        (write("", 0, b"x"), 2),
        (step("/dir", Action::SetLen { size: 0 }), 21),
        (step("/file", Action::RemoveXattr { name: b"user.x".to_vec() }), 61),
        (set_xattr("/file", "", b""), 34),
        (set_xattr("/file", "user.x", &vec![0; 65_537]), 7),
        (set_xattr("/file", "system.posix_acl_access", b""), 95),
        (step("/link", Action::Symlink { target: Vec::new() }), 2),
        (step("/file", Action::Symlink { target: b"x".to_vec() }), 17),
    ];
    for (last, errno) in cases {
        let steps = [&first[..], std::slice::from_ref(&last)].concat();
        assert_eq!(refused(mount.transact(&steps)), (3, errno), "{last:?}");
    }
    assert_eq!(mount.fs.store().last_op(), op, "nothing was committed");
    assert_eq!(
        (mount.names(ROOT), mount.names(dir)),
        (vec!["dir".into()], vec!["file".into(), "sub".into()])
    );
    mount.transact(&first).unwrap();
    assert_eq!(mount.names(ROOT), ["dir", "file", "new"]);
}

#[test]
fn flags_and_links_that_lead_in_circles_are_found_before() {
    let mount = Mount::new();
    let file = mount.create(ROOT, "file");
    let flags = crate::types::FileFlags { immutable: true, ..Default::default() };
    block_on(mount.fs.set_file_flags(file, flags)).unwrap();
    for last in [write("/file", 0, b"x"), rename("/file", "/other"), step("/file", Action::RemoveFile)] {
        assert_eq!(refused(mount.transact(&[create("/new"), last])), (1, 1));
    }
    let circle = step("/circle", Action::Symlink { target: b"circle".to_vec() });
    assert_eq!(refused(mount.transact(&[circle, write("/circle", 0, b"x")])), (1, 40));
    assert_eq!(mount.names(ROOT), ["file"]);
}

#[test]
fn the_limits_are_told_before_any_effect() {
    let mount = Mount::new();
    let many: Vec<Step> = (0..=STEPS_MAX).map(|index| create(&format!("/{index}"))).collect();
    let half = vec![0; (TRANSACTION_BYTES_MAX / 2) as usize];
    let large =
        [create("/f"), write("/f", 0, &half), write("/f", half.len() as u64, &half), write("/f", 1, b"x")];
    for steps in [&many[..], &large[..]] {
        let Err(NotCommitted::Unchanged(error)) = mount.transact(steps) else { panic!("it is too large") };
        assert_eq!(error.errno(), 27, "{error}");
    }
    assert!(mount.names(ROOT).is_empty());
}

/// Data of any size is written before the transaction is applied.
#[test]
fn a_file_without_a_name_gets_one_with_its_data() {
    let mount = Mount::new();
    mount.create(ROOT, "old");
    let file = block_on(mount.fs.tmpfile(CALLER, ROOT, 0o600, true)).unwrap().ino;
    block_on(mount.fs.write(file, 0, Bytes::from(vec![5; 3 << 20]), false)).unwrap();
    let link = |path: &str, exclusive| step(path, Action::Link { ino: file, exclusive });
    assert_eq!(refused(mount.transact(&[create("/new"), link("/old", true)])), (1, 17));
    assert_eq!(refused(mount.transact(&[link("/old", false), link("/other", false)])), (1, 2));
    mount.transact(&[create("/new"), link("/old", false), write("/old", 10, b"more")]).unwrap();
    assert_eq!(mount.names(ROOT), ["new", "old"]);
    assert_eq!(mount.getattr(file).nlink, 1);
    mount.fs.release_file(file);
    mount.fs.forget(file, 1);
    let after = mount.crash();
    assert_eq!(after.contents(&["old"]), [&[5; 10][..], b"more", &[5; (3 << 20) - 14]].concat());
    assert_eq!(after.names(ROOT), ["new", "old"]);
}

/// A directory that is moved takes its place in the tree for the steps that follow.
#[test]
fn later_steps_see_what_earlier_ones_did() {
    let mount = Mount::new();
    let a = mount.mkdir(ROOT, "a");
    mount.mkdir(a, "b");
    mount
        .transact(&[rename("/a/b", "/b"), rename("/a", "/b/a"), create("/b/a/../f"), mkdir("/b/a/c")])
        .unwrap();
    let b = mount.lookup(ROOT, "b").unwrap().ino;
    assert_eq!((mount.names(ROOT), mount.names(b)), (vec!["b".into()], vec!["a".into(), "f".into()]));
    assert_eq!((mount.getattr(b).nlink, mount.getattr(ROOT).nlink), (3, 3));
    assert_eq!(
        refused(mount.transact(&[rename("/b/a", "/a"), rename("/b", "/a/c/b"), rename("/a", "/a/c/b/a")])),
        (2, 22)
    );
}

#[test]
fn a_class_decides_about_the_flush() {
    let mount = Mount::new();
    let dir = mount.mkdir(ROOT, "dir");
    block_on(mount.fs.set_durability(dir, Some(crate::Durability::Ordered(60)))).unwrap();
    mount.sync();
    let flushes = mount.flushes();
    mount.transact(&[create("/dir/file"), write("/dir/file", 0, b"x")]).unwrap();
    assert_eq!(mount.flushes(), flushes, "all of it is of class ordered");
    mount.transact(&[create("/dir/other"), create("/outside")]).unwrap();
    assert_eq!(mount.flushes(), flushes + 1);
}

/// The state after a device fails in the midst of a transaction, or the caller goes away: memory
/// has a part of the transaction, and nothing of it ever reaches the device.
#[test]
fn a_bracket_that_does_not_close_leaves_nothing_on_the_device() {
    let mount = Mount::new();
    mount.create(ROOT, "before");
    mount.sync();
    let store = mount.fs.store().clone();
    let bracket = block_on(block_on(store.quiet()).open()).unwrap();
    mount.create(ROOT, "part");
    drop(bracket);
    assert_eq!(mount.names(ROOT), ["before", "part"]);
    assert_eq!(crate::tests::errno(block_on(mount.fs.fsync(ROOT, false))), 30);
    assert_eq!(crate::tests::errno(mount.try_create(ROOT, "after")), 30);
    assert!(block_on(mount.fs.store().checkpoint()).is_err());
    assert!(block_on(mount.fs.store().close()).is_err());
    assert_eq!(mount.crash().names(ROOT), ["before"]);
}

/// While a bracket is open, no commit of another caller reaches the device either, and the syncs of
/// other callers are answered after it.
#[test]
fn a_sync_waits_for_an_open_bracket() {
    let mount = Mount::new();
    mount.sync();
    let bracket = block_on(block_on(mount.fs.store().quiet()).open()).unwrap();
    mount.create(ROOT, "file");
    let fs = mount.fs.clone();
    let syncing = std::thread::spawn(move || block_on(fs.fsync(ROOT, false)));
    std::thread::sleep(std::time::Duration::from_millis(50));
    assert!(!syncing.is_finished());
    let open = Mount::names(&mount.snapshot(), ROOT);
    assert!(open.is_empty(), "{open:?}");
    bracket.close();
    syncing.join().unwrap().unwrap();
    assert_eq!(mount.crash().names(ROOT), ["file"]);
}
