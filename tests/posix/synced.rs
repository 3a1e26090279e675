//! Files opened for synced writing, which bypass the kernel's page cache.

use super::Ground;
use crate::skip_if;
use crate::support::no_fuse;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

const BLOCK: u64 = 4096;

fn open_synced(path: &Path) -> File {
    OpenOptions::new().write(true).custom_flags(rustix::fs::OFlags::DSYNC.bits() as i32).open(path).unwrap()
}

/// The kernel before 6.18 is not trusted with this: see `DirectIo::Synced`.
fn old_kernel() -> Option<String> {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(['.', '-']).map_while(|number| number.trim().parse::<u32>().ok());
    let version = (numbers.next()?, numbers.next()?);
    (version < (6, 18)).then(|| format!("Linux {release}"))
}

#[test]
fn synced_writers_of_one_file_share_flushes() {
    const WRITERS: u64 = 16;
    const WRITES: u64 = 40;
    skip_if!(no_fuse());
    skip_if!(old_kernel());
    let ground = Ground::with(&["-o", "direct_io=synced"]);
    let path = ground.path("one");
    fs::write(&path, vec![1; (WRITERS * BLOCK) as usize]).unwrap();
    File::open(&path).unwrap().sync_all().unwrap();
    let flushes = || ground.mount.as_ref().unwrap().stats()["store"]["flushes_issued"].as_u64().unwrap();
    let before = flushes();
    thread::scope(|scope| {
        for writer in 0..WRITERS {
            let path = &path;
            scope.spawn(move || {
                let file = open_synced(path);
                for write in 0..WRITES {
                    file.write_all_at(&[write as u8; BLOCK as usize], writer * BLOCK).unwrap();
                }
            });
        }
    });
    let used = flushes() - before;
    assert!(used <= WRITERS * WRITES / 2, "{used} flushes for {} synced writes", WRITERS * WRITES);
    assert_eq!(fs::read(&path).unwrap(), vec![(WRITES - 1) as u8; (WRITERS * BLOCK) as usize]);
    ground.end();
}

/// A page that is read while it is being replaced must not stay in the cache with its old contents.
#[test]
fn cached_readers_see_what_a_synced_write_has_written() {
    skip_if!(no_fuse());
    skip_if!(old_kernel());
    let ground = Ground::with(&["-o", "direct_io=synced"]);
    let path = ground.path("shared");
    fs::write(&path, vec![0; 4 * BLOCK as usize]).unwrap();
    let written = AtomicU64::new(0);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let file = File::open(&path).unwrap();
                loop {
                    let least = written.load(Ordering::SeqCst);
                    if least == u64::MAX {
                        break;
                    }
                    let mut number = [0; 8];
                    file.read_exact_at(&mut number, BLOCK).unwrap();
                    assert!(
                        u64::from_le_bytes(number) >= least,
                        "a read after a write shows what was before"
                    );
                }
            });
        }
        let file = open_synced(&path);
        let outcome = (1..300u64).try_for_each(|number| {
            file.write_all_at(&number.to_le_bytes().repeat(512), BLOCK)?;
            written.store(number, Ordering::SeqCst);
            std::io::Result::Ok(())
        });
        // The readers end in any case.
        written.store(u64::MAX, Ordering::SeqCst);
        outcome.unwrap();
    });
    ground.end();
}
