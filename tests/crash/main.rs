//! The daemon is killed in the middle of writes; mounted again, nothing acknowledged is lost.

#[path = "../support/mod.rs"]
mod support;

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use support::{Mount, Place, no_fuse};

const ROUNDS: u64 = 4;
const WRITERS: u64 = 4;
const BLOCK: usize = 16 << 10;
const PLACES: u64 = 32;

/// What a writer was told is durable: for each place of its file the newest version; and the newest begun.
struct History {
    acknowledged: Vec<Option<u64>>,
    begun: Vec<Option<u64>>,
    /// Files that were created, fsynced, and so must exist.
    created: Vec<u64>,
}

fn contents(writer: u64, place: u64, version: u64) -> Vec<u8> {
    let word = (writer << 56 | place << 48 | version).to_le_bytes();
    word.iter().copied().cycle().take(BLOCK).collect()
}

/// Overwrites and creates until the mount is gone.
fn write(mount: &Path, round: u64, writer: u64, stop: &AtomicBool) -> History {
    let none = || vec![None; PLACES as usize];
    let mut history = History { acknowledged: none(), begun: none(), created: Vec::new() };
    let Ok(file) = File::create(mount.join(format!("{round}-{writer}"))) else { return history };
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
            let name = mount.join(format!("{round}-{writer}-{version}"));
            let made = File::create(&name).and_then(|file| {
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

#[test]
fn nothing_acknowledged_is_lost_when_the_daemon_is_killed() {
    skip_if!(no_fuse());
    let place = Place::with_image("256MiB");
    let mut histories: Vec<Vec<History>> = Vec::new();
    for round in 0..ROUNDS {
        let mut mount = place.mount(&format!("mount {round}"));
        for (earlier, writers) in histories.iter().enumerate() {
            for (writer, history) in writers.iter().enumerate() {
                verify(&mount.path, earlier as u64, writer as u64, history);
            }
        }
        let stop = AtomicBool::new(false);
        let path = mount.path.clone();
        let written = std::thread::scope(|scope| {
            let (stop, path) = (&stop, &path);
            let writers: Vec<_> =
                (0..WRITERS).map(|writer| scope.spawn(move || write(path, round, writer, stop))).collect();
            std::thread::sleep(Duration::from_millis(300 + 150 * round));
            mount.kill();
            stop.store(true, Ordering::Relaxed);
            writers.into_iter().map(|writer| writer.join().unwrap()).collect::<Vec<_>>()
        });
        let acknowledged: usize =
            written.iter().map(|history| history.acknowledged.iter().flatten().count()).sum();
        assert!(acknowledged > 0, "the writers got somewhere");
        histories.push(written);
        // Takes the dead mount away.
        drop(mount);
        place.check_clean();
    }
    let mount = Mount::new(&place.image(), &place.directory("last"), &[]);
    for (round, writers) in histories.iter().enumerate() {
        for (writer, history) in writers.iter().enumerate() {
            verify(&mount.path, round as u64, writer as u64, history);
        }
    }
    mount.unmount().ok();
    place.check_clean();
}

#[test]
fn what_was_not_synced_is_a_prefix_and_never_garbage() {
    skip_if!(no_fuse());
    let place = Place::with_image("128MiB");
    let mut mount = place.mount("mount");
    for index in 0..2000 {
        fs::write(mount.path.join(format!("{index:04}")), format!("contents of {index}")).unwrap();
    }
    mount.kill();
    drop(mount);
    let mount = place.mount("again");
    let mut names: Vec<String> = fs::read_dir(&mount.path)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort_unstable();
    for (index, name) in names.iter().enumerate() {
        assert_eq!(*name, format!("{index:04}"), "names come back in the order in which they were made");
        let found = fs::read(mount.path.join(name)).unwrap();
        assert!(found.is_empty() || found == format!("contents of {index}").as_bytes(), "{name}");
    }
    mount.unmount().ok();
    place.check_clean();
}
