//! Transactions at their limits, and beside others that are being applied.

use super::super::plan::Plan;
use super::*;
use crate::QuotaLimits;
use crate::receipt::{Call, Draft, Inodes, Submitted};
use crate::tests::Setup;
use std::thread;
use std::time::Duration;

const LARGEST: usize = TRANSACTION_BYTES_MAX as usize;

fn large_image() -> Mount {
    Mount::with(Setup { size_bytes: 256 << 20, ..Setup::default() })
}

/// Block 0 leaves the inode item, and is one more than the largest transaction writes.
#[test]
fn the_largest_one_may_push_contents_out_of_an_inode_item() {
    let mount = large_image();
    let file = mount.create(ROOT, "file");
    block_on(mount.fs.write(file, 0, Bytes::from_static(b"small"), false)).unwrap();
    block_on(mount.fs.fsync(file, false)).unwrap();
    mount.transact(&[write("/file", 4096, &vec![7; LARGEST])]).unwrap();
    let after = mount.crash().contents(&["file"]);
    assert_eq!(after.len(), 4096 + LARGEST);
    assert!(after.starts_with(b"small\0") && after[4096..].iter().all(|&byte| byte == 7));
}

/// Blocks that are in the log and have no place yet are submitted along.
#[test]
fn the_largest_one_may_meet_logged_blocks() {
    let mount = large_image();
    let file = mount.create(ROOT, "file");
    block_on(mount.fs.write(file, 0, Bytes::from(vec![1; 8192]), false)).unwrap();
    block_on(mount.fs.fsync(file, false)).unwrap();
    assert!(mount.fs.counters().blocks_in_log > 0);
    mount.transact(&[write("/file", 8192, &vec![7; LARGEST])]).unwrap();
    let after = mount.crash().contents(&["file"]);
    assert_eq!(after.len(), 8192 + LARGEST);
    assert!(after[..8192].iter().all(|&byte| byte == 1) && after[8192..].iter().all(|&byte| byte == 7));
}

/// While a transaction is applied, no caller is refused room. Another transaction that looks for
/// its room meanwhile has to wait, or it would be let in without room, and break off half-way.
#[test]
fn room_is_not_found_while_another_one_is_applied() {
    let mount = Mount::new();
    let fill = mount.create(ROOT, "fill");
    for piece in 0..10 {
        block_on(mount.fs.write(fill, piece << 22, Bytes::from(vec![8; 4 << 20]), false)).unwrap();
    }
    block_on(mount.fs.syncfs()).unwrap();
    let (alone, quiet) = block_on(mount.fs.alone());
    let fs = mount.fs.clone();
    let steps = [create("/large"), write("/large", 0, &vec![7; 40 << 20])];
    let other = thread::spawn(move || block_on(fs.transact(CALLER, &steps)));
    thread::sleep(Duration::from_millis(100));
    drop(quiet);
    drop(alone);
    match other.join().unwrap() {
        Err(NotCommitted::Unchanged(error)) => assert_eq!(error.errno(), 28, "{error}"),
        other => panic!("there is no room for it: {other:?}"),
    }
    mount.transact(&[create("/small"), write("/small", 0, b"data")]).unwrap();
    assert_eq!(mount.names(ROOT), ["fill", "small"]);
}

/// Others go on while the data of a file that gets its first name is written, however much it is.
#[test]
fn a_file_without_a_name_is_written_before_others_are_held_off() {
    let mount = Mount::new();
    let file = block_on(mount.fs.tmpfile(CALLER, ROOT, 0o600, true)).unwrap().ino;
    block_on(mount.fs.write(file, 0, Bytes::from(vec![5; 8 << 20]), false)).unwrap();
    let (fs, beside) = (mount.fs.clone(), block_on(mount.fs.beside_transactions()));
    let steps = [step("/file", Action::Link { ino: file, exclusive: true })];
    let linking = thread::spawn(move || block_on(fs.transact(CALLER, &steps)));
    let inode = block_on(mount.fs.inode(file)).unwrap();
    for _ in 0..500 {
        if !inode.state.lock().data.has_unlogged() {
            break;
        }
        thread::sleep(Duration::from_millis(10));
    }
    assert!(!inode.state.lock().data.has_unlogged(), "it waits for the others");
    drop(beside);
    linking.join().unwrap().unwrap();
    assert_eq!(mount.crash().contents(&["file"]), vec![5; 8 << 20]);
}

/// Lists of many entries count in a quota, and every new file has its own.
#[test]
fn a_long_access_list_that_is_inherited_breaks_nothing() {
    let mount = Mount::new();
    let dir = mount.mkdir(ROOT, "dir");
    let mut list = 2_u32.to_le_bytes().to_vec();
    let mut add = |tag: u16, id: u32| {
        list.extend(tag.to_le_bytes());
        list.extend(6_u16.to_le_bytes());
        list.extend(id.to_le_bytes());
    };
    add(1, u32::MAX);
    (0..4000).for_each(|user| add(2, user));
    [4, 16, 32].into_iter().for_each(|tag| add(tag, u32::MAX));
    block_on(mount.fs.setxattr(dir, b"system.posix_acl_default", &list, XattrMode::Set)).unwrap();
    let steps = [create("/other"), create("/dir/file"), mkdir("/dir/sub"), create("/dir/sub/file")];
    for limit_bytes in [60_000, 100_000, 1 << 20] {
        let limits = QuotaLimits { bytes: limit_bytes, inodes: 0 };
        block_on(mount.fs.set_quota(dir, limits)).unwrap();
        match mount.transact(&steps) {
            Ok(()) => assert_eq!(mount.names(dir), ["file", "sub"]),
            Err(NotCommitted::Refused { error, .. }) => {
                assert!([95, 122].contains(&error.errno()), "{error}");
                assert!(mount.names(dir).is_empty());
            }
            Err(other) => panic!("{limit_bytes}: {other:?}"),
        }
    }
    mount.transact(&[create("/last")]).unwrap();
}

/// A program closes the file while it is given its name.
#[test]
fn a_file_without_a_name_that_is_closed_meanwhile_gets_it() {
    let mount = Mount::new();
    let file = block_on(mount.fs.tmpfile(CALLER, ROOT, 0o600, true)).unwrap().ino;
    block_on(mount.fs.write(file, 0, Bytes::from_static(b"contents"), false)).unwrap();
    let steps = [create("/other"), step("/file", Action::Link { ino: file, exclusive: true })];
    let (alone, quiet) = block_on(mount.fs.alone());
    let planned = block_on(Plan::make(&mount.fs, &steps)).unwrap();
    mount.fs.release_file(file);
    mount.fs.forget(file, 1);
    mount.settle();
    let bracket = block_on(quiet.open()).unwrap();
    block_on(mount.fs.apply(CALLER, &planned, &bracket, &mut Submitted::default())).map(drop).unwrap();
    bracket.close();
    drop((planned, alone));
    assert_eq!(mount.names(ROOT), ["file", "other"]);
    assert_eq!(mount.contents(&["file"]), b"contents");
}

/// A write takes the capabilities of a file away, as a step of its own would.
#[test]
fn a_write_takes_capabilities_away_for_the_steps_that_follow() {
    let mount = Mount::new();
    let file = mount.create(ROOT, "file");
    let name = "security.capability";
    block_on(mount.fs.setxattr(file, name.as_bytes(), b"x", XattrMode::Set)).unwrap();
    let remove = step("/file", Action::RemoveXattr { name: name.into() });
    let cut = step("/file", Action::SetLen { size: 10 });
    let replace =
        step("/file", Action::SetXattr { name: name.into(), value: b"y".to_vec(), mode: XattrMode::Replace });
    for (change, then) in [(write("/file", 0, b"x"), &remove), (cut.clone(), &remove), (cut, &replace)] {
        assert_eq!(refused(mount.transact(&[change.clone(), then.clone()])), (1, 61));
        assert_eq!(refused(mount.transact(&[set_xattr("/file", name, b"z"), change, then.clone()])), (2, 61));
    }
    assert_eq!(block_on(mount.fs.listxattr(file)).unwrap(), b"security.capability\0");
    mount.transact(&[write("/file", 0, b"x"), set_xattr("/file", name, b"new")]).unwrap();
    assert_eq!(block_on(mount.fs.getxattr(file, name.as_bytes())).unwrap(), &b"new"[..]);
}

/// Other programs may write to the transaction's files once it lets them on. The transaction does
/// not sync these writes.
#[test]
fn a_commit_is_durable_whatever_others_write_then() {
    let mount = large_image();
    let file = mount.create(ROOT, "file");
    mount.transact(&[write("/file", 0, b"x")]).unwrap();
    let inode = block_on(mount.fs.inode(file)).unwrap();
    for piece in 0..17 {
        block_on(mount.fs.write(file, piece << 22, Bytes::from(vec![8; 4 << 20]), false)).unwrap();
    }
    let draft = Draft::begin(Call::Transaction, Inodes::default());
    block_on(crate::data::sync_submitted(&mount.fs, &[inode], 0, draft)).unwrap();
}

#[test]
fn a_receipt_tells_what_the_transaction_wrote() {
    let mount = Mount::new();
    let steps =
        [create("/small"), write("/small", 0, b"small"), create("/large"), write("/large", 0, &[7; 300_000])];
    mount.transact(&steps).unwrap();
    let receipt = mount.fs.last_receipt().unwrap();
    assert_eq!((receipt.call, receipt.files), (Call::Transaction, 3));
    assert_eq!(receipt.inodes.listed()[0], ROOT);
    let submitted = receipt.submitted;
    assert_eq!((submitted.blocks, submitted.inline_bytes, submitted.extents), (74, 5, 3));
    assert!(submitted.log_bytes > 0);
    assert_eq!(receipt.target_op, mount.fs.store().last_op().0);
    // Nothing was made durable.
    refused(mount.transact(&[create("/small")]));
    assert_eq!(mount.fs.last_receipt().unwrap().serial, receipt.serial);
}

/// Only a block of which a part stays has to be readable.
#[test]
fn blocks_that_are_replaced_are_not_read() {
    let mount = Mount::new();
    let file = mount.create(ROOT, "file");
    block_on(mount.fs.write(file, 0, Bytes::from(vec![1; 64 << 10]), false)).unwrap();
    block_on(mount.fs.syncfs()).unwrap();
    let read = || mount.fs.store().counters().data_bytes_read;
    let before = read();
    mount.transact(&[write("/file", 8192, &[2; 8192])]).unwrap();
    assert_eq!(read(), before);
    mount.transact(&[write("/file", 32768, &[3; 100])]).unwrap();
    assert!(read() > before);
    let after = mount.crash().contents(&["file"]);
    assert!(after[8192..16384].iter().all(|&byte| byte == 2) && after[32768 + 100] == 1);
}
