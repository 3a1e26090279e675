//! The changes that are durable after a request, by the mount's option and the class of the files.

use super::*;
use crate::control::wire::{COMMAND, ControlIn, MESSAGE_BYTES, Question};
use crate::options::{SyncObserver, Synced, Synchronous};
use parking_lot::Mutex;
use std::mem::ManuallyDrop;
use syncline_fs::Durability;
use syncline_fs::types::Caller;

const ORDERED: Durability = Durability::Ordered(255);

fn set(bench: &Bench, ino: u64, class: Durability) {
    block_on(bench.session.fs().set_durability(ino, Some(class))).unwrap();
}

fn is_durable(bench: &Bench) -> bool {
    let store = bench.session.fs().store();
    store.is_durable(store.last_op())
}

#[test]
fn a_synchronous_mount_keeps_its_word_in_ordered_trees() {
    let bench = Bench::of(MountOptions { synchronous: Synchronous::Everything, ..MountOptions::new("test") });
    set(&bench, ROOT_NODE, ORDERED);
    let ino = bench.create(ROOT_NODE, b"file", libc::O_RDWR).entry.node;
    assert!(is_durable(&bench), "the name");
    assert_eq!(bench.write(ino, 0, b"contents").errno(), 0);
    assert!(is_durable(&bench), "the contents");
    let receipt = bench.session.fs().last_receipt().unwrap();
    assert_eq!((receipt.inodes.listed(), receipt.durability), (&[ino][..], Durability::Fsync));
}

#[test]
fn only_syncs_that_made_something_durable_are_observed() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let observed = seen.clone();
    let observer = SyncObserver::new(move |synced| observed.lock().push(synced));
    let bench = Bench::of(MountOptions { sync_observer: Some(observer), ..MountOptions::new("test") });
    let [ordered, plain] =
        ["ordered", "plain"].map(|name| bench.create(ROOT_NODE, name.as_bytes(), libc::O_RDWR).entry.node);
    set(&bench, ordered, ORDERED);
    for ino in [ordered, plain] {
        assert_eq!(bench.errno(Opcode::FSync, ino, &[FSyncIn::default().as_bytes()]), 0);
    }
    assert_eq!(*seen.lock(), [Synced::Fsync(plain)]);
}

/// Another open may have made the file in between, and given it its class.
#[test]
fn a_create_that_truncates_a_strict_file_settles_that() {
    let bench = Bench::new();
    let ino = bench.create(ROOT_NODE, b"file", libc::O_RDWR).entry.node;
    assert_eq!(bench.write(ino, 0, b"contents").errno(), 0);
    set(&bench, ino, Durability::Strict);
    assert_eq!(bench.errno(Opcode::FSync, ino, &[FSyncIn::default().as_bytes()]), 0);
    bench.create(ROOT_NODE, b"file", libc::O_RDWR);
    bench.create(ROOT_NODE, b"file", libc::O_RDWR | libc::O_TRUNC);
    assert!(is_durable(&bench), "its size");
    bench.create(ROOT_NODE, b"another", libc::O_RDWR | libc::O_TRUNC);
    assert!(!is_durable(&bench), "the directory is not strict");
}

/// Why nothing can be written is asked over the control channel.
#[test]
fn a_strict_filesystem_that_gave_up_writing_still_answers() {
    // It can't be closed any more.
    let bench = ManuallyDrop::new(Bench::new());
    set(&bench, ROOT_NODE, Durability::Strict);
    bench.session.control().register("why", || "it is a test".into());
    let somebody = Caller { uid: 0, gid: 0 };
    block_on(bench.session.fs().mkdir(somebody, ROOT_NODE, b"not durable", 0o755)).unwrap();
    bench.session.fs().store().shut_down("the test wants it");
    let question = ControlIn::new(Question::Text, "why", 0, 0).unwrap();
    let mut message = question.as_bytes().to_vec();
    message.resize(MESSAGE_BYTES, 0);
    let (size, command) = (MESSAGE_BYTES as u32, COMMAND);
    let input = IoctlIn { command, in_size: size, out_size: size, ..IoctlIn::default() };
    assert_eq!(bench.errno(Opcode::Ioctl, ROOT_NODE, &[input.as_bytes(), &message]), 0);
}
