//! The power fails while a stream comes in pieces: the part that is kept then is durable and whole, the
//! stream goes on, and files and snapshots are as they were. Others may write and sync meanwhile.

use crate::describe::{describe, require_same};
use crate::pieces::{ends, kept, visible};
use crate::world::{self, ROOT_USER, World, open, open_snapshot};
use crate::{number, require_sound, stream};
use bytes::Bytes;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::io::Read;
use std::sync::Arc;
use syncline_device::{Device, MemoryDevice, Spawn, block_on};
use syncline_fs::Filesystem;
use syncline_fs::types::{FileType, Ino, ROOT};
use syncline_sim::{CrashImages, RecordingDevice};
use syncline_stream::{Options, receive, receive_in_pieces, receive_with};

const PIECE_BYTES: u64 = 60_000;
/// The name of the file that others write.
const OWN_NAME: &[u8] = b"own file of others";

/// Input that notes how much had been read at which position of the device's record.
struct Noted<'a> {
    bytes: &'a [u8],
    at: usize,
    record: &'a RecordingDevice,
    notes: Vec<(usize, usize)>,
    own: Option<Own>,
}

/// A file that others write and sync.
struct Own {
    fs: Arc<Filesystem>,
    ino: Ino,
    /// The number that it has all over, and the position at which that was durable.
    synced: Vec<(usize, u8)>,
}

const OWN_BYTES: usize = 20_000;
/// Bytes of the stream between two syncs of others.
const SYNCED_EACH: usize = 25_000;

impl Own {
    fn sync(&mut self, record: &RecordingDevice) {
        let number = self.synced.len() as u8 + 1;
        block_on(self.fs.write(self.ino, 0, Bytes::from(vec![number; OWN_BYTES]), false)).unwrap();
        block_on(self.fs.fsync(self.ino, false)).unwrap();
        self.synced.push((record.position(), number));
    }
}

/// The record of a receiver's device, how much had been read at which position, and the syncs of
/// others.
struct Recorded {
    log: Arc<RecordingDevice>,
    notes: Vec<(usize, usize)>,
    synced: Vec<(usize, u8)>,
}

impl Read for Noted<'_> {
    fn read(&mut self, room: &mut [u8]) -> std::io::Result<usize> {
        if let Some(own) = self.own.as_mut().filter(|own| own.synced.len() * SYNCED_EACH < self.at) {
            own.sync(self.record);
        }
        self.notes.push((self.record.position(), self.at));
        let mut rest = &self.bytes[self.at..];
        let read = rest.read(room)?;
        self.at += read;
        Ok(read)
    }
}

/// The part that was kept before each power cut, by the promise.
struct Promised {
    notes: Vec<(usize, usize)>,
    ends: Vec<usize>,
    longest: usize,
}

impl Promised {
    /// Records that are kept for certain if the power fails at this position.
    fn least(&self, position: usize) -> u64 {
        let read =
            self.notes.iter().take_while(|(at, _)| *at <= position).last().map_or(0, |(_, read)| *read);
        let behind = PIECE_BYTES as usize + self.longest;
        // The last record but one that had been read: the last one may be on its way.
        let sure = self.ends.iter().filter(|end| **end + behind <= read).count();
        sure.saturating_sub(1) as u64
    }
}

#[test]
fn a_power_cut_leaves_what_was_kept() {
    let spawn = world::spawn();
    let (mut with_part, mut without, mut whole) = (0, 0, 0);
    for seed in 0..number("SYNCLINE_ROUNDS", 2) {
        let mut rng = ChaCha8Rng::seed_from_u64(seed + 70);
        let mut source = World::new(&spawn, 64 << 20, 16384);
        let target = World::new(&spawn, 48 << 20, 16384);
        source.live(&mut rng, 60);
        block_on(source.fs.create_snapshot("old")).unwrap();
        source.live(&mut rng, 120);
        block_on(source.fs.create_snapshot("new")).unwrap();
        block_on(receive(&target.fs, &stream(&source, "old", None)[..], None)).unwrap();
        target.close();
        let base = target.device.snapshot();
        let bytes = stream(&source, "new", Some("old"));
        let is_shared = seed % 2 == 1;
        let Recorded { log, notes, synced } = recorded(&base, &bytes, &spawn, is_shared);
        assert!(!is_shared || synced.len() > 3, "{} syncs", synced.len());
        let ends = ends(&bytes);
        let longest = ends.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap();
        let promised = Promised { notes, ends, longest };
        let (old, new) = (describe(&source.snapshot("old").0), describe(&source.snapshot("new").0));
        let mut images = CrashImages::new(&base, log.events(), seed);
        let mut positions: Vec<usize> = (0..40).map(|_| rng.random_range(0..log.position())).collect();
        positions.extend([0, log.position()]);
        positions.sort_unstable();
        for position in positions {
            let what = format!("seed {seed}, cut at {position}");
            let image = images.at(position, rng.random());
            let fs = open(image.clone(), &spawn);
            let least = promised.least(position);
            match (&visible(&fs)[..], kept(&fs)) {
                ([old, new], None) if old == "old" && new == "new" => whole += 1,
                ([old], Some(token)) if old == "old" => {
                    assert!(token.position.records >= least, "{what}: {} < {least}", token.position.records);
                    with_part += 1;
                }
                ([old], None) if old == "old" => {
                    assert_eq!(least, 0, "{what}: nothing is kept");
                    without += 1;
                }
                other => panic!("{what}: {other:?}"),
            }
            if let Some((_, number)) = synced.iter().take_while(|(at, _)| *at <= position).last() {
                let ino = block_on(fs.lookup(ROOT, OWN_NAME)).unwrap().ino;
                let found = block_on(fs.read(ino, 0, OWN_BYTES)).unwrap().concat();
                let later = synced.iter().map(|(_, later)| *later).filter(|later| later >= number);
                assert!(later.map(|number| vec![number; OWN_BYTES]).any(|all| all == found), "{what}");
            }
            let there = open_snapshot(image.clone(), &spawn, "old").0;
            require_same(&old, &describe(&there), &what);
            if visible(&fs).len() == 1 {
                block_on(receive_in_pieces(&fs, &bytes[..], None, PIECE_BYTES)).unwrap();
            }
            require_same(&new, &describe(&open_snapshot(image.clone(), &spawn, "new").0), &what);
            block_on(fs.close()).unwrap();
            block_on(fs.store().close()).unwrap();
            require_sound(&image, &spawn, &what);
        }
    }
    assert!(with_part > 10 && without > 0 && whole > 0, "{with_part} {without} {whole}");
}

/// Receives a stream in pieces on a device that records, while others write if it is shared.
fn recorded(base: &MemoryDevice, bytes: &[u8], spawn: &Arc<dyn Spawn>, is_shared: bool) -> Recorded {
    let record = RecordingDevice::new(base.snapshot());
    let device: Arc<dyn Device> = record.clone();
    let fs = open(device, spawn);
    let own = is_shared.then(|| {
        let made = block_on(fs.mknod(ROOT_USER, ROOT, OWN_NAME, FileType::Regular, 0o644, 0)).unwrap();
        Own { fs: fs.clone(), ino: made.ino, synced: Vec::new() }
    });
    let mut input = Noted { bytes, at: 0, record: &record, notes: Vec::new(), own };
    let options = Options { piece_bytes: Some(PIECE_BYTES), is_shared, ..Options::default() };
    block_on(receive_with(&fs, &mut input, options)).map_err(|cut| cut.error).unwrap();
    let (notes, synced) = (input.notes, input.own.map_or(Vec::new(), |own| own.synced));
    block_on(fs.close()).unwrap();
    block_on(fs.store().close()).unwrap();
    Recorded { log: record, notes, synced }
}
