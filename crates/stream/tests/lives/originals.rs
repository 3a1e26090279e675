//! Streams that come back to the image whose snapshots the copies are of, and snapshots whose times are
//! not in their order.

use crate::describe::{describe, require_same};
use crate::world::{ROOT_USER, World, spawn};
use crate::{require_sound, stream};
use bytes::Bytes;
use syncline_device::block_on;
use syncline_fs::QuotaLimits;
use syncline_fs::types::ROOT;
use syncline_stream::{Source, StreamError, receive, send};

/// The original of a snapshot has inodes that no copy has: those without names.
#[test]
fn what_was_lost_comes_back_from_a_copy_though_files_had_no_names() {
    let spawn = spawn();
    let source = World::new(&spawn, 64 << 20, 16384);
    let gone = block_on(source.fs.mkdir(ROOT_USER, ROOT, b"gone", 0o755)).unwrap().ino;
    block_on(source.fs.set_quota(gone, QuotaLimits { bytes: 1 << 30, inodes: 9 })).unwrap();
    block_on(source.fs.rmdir(ROOT, b"gone")).unwrap();
    let nameless: Vec<u64> = (0..100u8)
        .map(|number| {
            let made = block_on(source.fs.tmpfile(ROOT_USER, ROOT, 0o600, true)).unwrap();
            let data = Bytes::from(vec![number; 200_000]);
            block_on(source.fs.write(made.ino, 0, data, false)).unwrap();
            made.ino
        })
        .collect();
    block_on(source.fs.create_snapshot("old")).unwrap();
    for (number, ino) in nameless.iter().enumerate() {
        block_on(source.fs.link(*ino, ROOT, format!("linked-{number}").as_bytes())).unwrap();
    }
    block_on(source.fs.create_snapshot("new")).unwrap();
    let copies = World::new(&spawn, 64 << 20, 16384);
    for (name, from) in [("old", None), ("new", Some("old"))] {
        block_on(receive(&copies.fs, &stream(&source, name, from)[..], None)).unwrap();
    }
    let sent = describe(&source.snapshot("new").0);
    block_on(source.fs.delete_snapshot("new")).unwrap();
    block_on(receive(&source.fs, &stream(&copies, "new", Some("old"))[..], None)).unwrap();
    require_same(&sent, &describe(&source.snapshot("new").0), "come back");
    source.close();
    require_sound(&source.device, &spawn, "come back");
}

#[test]
fn a_clock_that_was_set_back_does_not_end_the_series() {
    let spawn = spawn();
    let mut source = World::new(&spawn, 64 << 20, 16384);
    let target = World::new(&spawn, 64 << 20, 16384);
    let (mut names, times) = (Vec::new(), [5000, 6000, 1000, 1000, 7000]);
    for (number, created_ns) in times.into_iter().enumerate() {
        source.live(&mut rand::SeedableRng::seed_from_u64(number as u64), 20);
        block_on(source.fs.syncfs()).unwrap();
        let name = format!("s{number}");
        let made = block_on(source.fs.store().create_snapshot(&name, created_ns)).unwrap();
        assert_eq!(made.created_ns, created_ns + u64::from(number == 3), "no two have the same time");
        let from = names.last().map(String::as_str);
        block_on(receive(&target.fs, &stream(&source, &name, from)[..], None)).unwrap();
        require_same(&describe(&source.snapshot(&name).0), &describe(&target.snapshot(&name).0), &name);
        names.push(name);
    }
    // The newer one by both is refused.
    let (old, new) = (source.snapshot("s0"), source.snapshot("s4"));
    let (old, new) = (Source { fs: &old.0, snapshot: old.1 }, Source { fs: &new.0, snapshot: new.1 });
    let error = block_on(send(&old, Some(&new), Vec::new())).unwrap_err();
    assert!(matches!(error, StreamError::Order { .. }), "{error}");
}
