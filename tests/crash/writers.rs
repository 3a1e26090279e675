//! Programs that overwrite and create files with fsync, and remember the acknowledgements.

use rustix::fs::{Mode, OFlags};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// Writers at the same time.
pub const WRITERS: u64 = 4;
const BLOCK: usize = 16 << 10;
const PLACES: u64 = 32;

/// The acknowledged versions of a writer: for each place in its file the newest durable version;
/// and the newest version begun.
pub struct History {
    pub acknowledged: Vec<Option<u64>>,
    begun: Vec<Option<u64>>,
    /// Files that were created and fsynced, so they must exist.
    created: Vec<u64>,
}

fn contents(writer: u64, place: u64, version: u64) -> Vec<u8> {
    let word = (writer << 56 | place << 48 | version).to_le_bytes();
    word.iter().copied().cycle().take(BLOCK).collect()
}

fn create(directory: &File, name: &str) -> std::io::Result<File> {
    let flags = OFlags::CREATE | OFlags::TRUNC | OFlags::WRONLY | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(directory, name, flags, Mode::from_raw_mode(0o644))?.into())
}

/// Overwrites and creates until the mount is gone or the writer is told to stop.
pub fn write(mount: &Path, round: u64, writer: u64, stop: &AtomicBool) -> History {
    let none = || vec![None; PLACES as usize];
    let mut history = History { acknowledged: none(), begun: none(), created: Vec::new() };
    // By descriptor: after the mount is gone, a path would lead to the folder below it.
    let Ok(mount) = File::open(mount) else { return history };
    let Ok(file) = create(&mount, &format!("{round}-{writer}")) else { return history };
    for version in 1.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let place = (version * 7 + writer) % PLACES;
        history.begun[place as usize] = Some(version);
        let written = file.write_all_at(&contents(writer, place, version), place * BLOCK as u64);
        if written.and_then(|()| file.sync_all()).is_err() {
            break;
        }
        history.acknowledged[place as usize] = Some(version);
        if version % 8 == 0 {
            let made = create(&mount, &format!("{round}-{writer}-{version}")).and_then(|file| {
                file.write_all_at(&contents(writer, 0, version)[..1000], 0)?;
                file.sync_all()
            });
            if made.is_err() {
                break;
            }
            history.created.push(version);
        }
    }
    history
}

/// Runs all writers of a round while `meanwhile` acts on the daemon.
pub fn write_during(mount: &Path, round: u64, meanwhile: impl FnOnce()) -> Vec<History> {
    let stop = AtomicBool::new(false);
    let histories = std::thread::scope(|scope| {
        let stop = &stop;
        let writers: Vec<_> =
            (0..WRITERS).map(|writer| scope.spawn(move || write(mount, round, writer, stop))).collect();
        meanwhile();
        stop.store(true, Ordering::Relaxed);
        writers.into_iter().map(|writer| writer.join().unwrap()).collect::<Vec<_>>()
    });
    let acknowledged = histories.iter().flat_map(|history| &history.acknowledged).flatten().count();
    assert!(acknowledged > 0, "the writers got somewhere");
    histories
}

/// Compares the mount with the versions acknowledged to the writers of all rounds.
pub fn verify_all(mount: &Path, rounds: &[Vec<History>]) {
    for (round, writers) in (0..).zip(rounds) {
        for (writer, history) in (0..).zip(writers) {
            verify(mount, round, writer, history);
        }
    }
}

fn verify(mount: &Path, round: u64, writer: u64, history: &History) {
    let file = File::open(mount.join(format!("{round}-{writer}")));
    for place in 0..PLACES {
        let index = place as usize;
        let Some(acknowledged) = history.acknowledged[index] else { continue };
        let mut found = vec![0; BLOCK];
        file.as_ref().unwrap().read_exact_at(&mut found, place * BLOCK as u64).unwrap();
        let allowed = [Some(acknowledged), history.begun[index]];
        for (piece, block) in found.chunks(4096).enumerate() {
            let matches = |version| contents(writer, place, version)[piece * 4096..][..4096] == *block;
            assert!(
                allowed.into_iter().flatten().any(matches),
                "round {round}, writer {writer}, place {place}: version {acknowledged} is lost"
            );
        }
    }
    for &version in &history.created {
        let found = fs::read(mount.join(format!("{round}-{writer}-{version}"))).unwrap();
        assert_eq!(found, contents(writer, 0, version)[..1000]);
    }
}
