//! Streams that an earlier program made, and an image in which it kept part of one: every program
//! receives them and goes on, and finds the same contents in them as then. `SYNCLINE_WRITE_GOLDEN=1`
//! makes new ones where there are none.

use crate::describe::{describe, text};
use crate::pieces::{ONE_PIECE, cut, ends, kept};
use crate::world::{World, spawn};
use crate::{require_sound, stream};
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use syncline_device::{MemoryDevice, block_on};
use syncline_stream::{receive, receive_in_pieces};

/// The image that keeps part of a stream.
const PART: &str = "version-1-part-of-stream.img.gz";

fn place(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/compat").join(name)
}

fn make() {
    let mut rng = ChaCha8Rng::seed_from_u64(31);
    let mut source = World::new(&spawn(), 32 << 20, 16384);
    for (name, from, steps) in [("whole", None, 90), ("changes", Some("whole"), 60)] {
        source.live(&mut rng, steps);
        block_on(source.fs.create_snapshot(name)).unwrap();
        let path = place(&format!("stream-1-{name}"));
        if !path.exists() {
            fs::write(&path, stream(&source, name, from)).unwrap();
            fs::write(path.with_extension("txt"), text(&describe(&source.snapshot(name).0))).unwrap();
        }
    }
}

#[test]
fn streams_of_version_1_are_received() {
    if std::env::var_os("SYNCLINE_WRITE_GOLDEN").is_some() {
        make();
    }
    let target = World::new(&spawn(), 64 << 20, 16384);
    for name in ["whole", "changes"] {
        let path = place(&format!("stream-1-{name}"));
        let bytes = fs::read(&path).unwrap();
        block_on(receive(&target.fs, &bytes[..], None)).unwrap();
        require_as_then(&target, name);
    }
}

fn require_as_then(target: &World, name: &str) {
    let received = text(&describe(&target.snapshot(name).0));
    let expected = fs::read_to_string(place(&format!("stream-1-{name}")).with_extension("txt")).unwrap();
    let mut lines = expected.lines().zip(received.lines());
    let differs = lines.find(|(old, new)| old != new && !old.contains("Part") && !old.contains("Packed"));
    assert_eq!(differs, None, "{name}");
    assert_eq!(expected.lines().count(), received.lines().count(), "{name}");
}

fn make_part(bytes: &[u8]) {
    let target = World::new(&spawn(), 16 << 20, 16384);
    let ends = ends(bytes);
    let end = ends[ends.len() / 3];
    assert!(cut(&target, &bytes[..end], ONE_PIECE).kept.is_some());
    target.close();
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(&target.device.image()).unwrap();
    fs::write(place(PART), encoder.finish().unwrap()).unwrap();
}

#[test]
fn a_part_that_an_earlier_program_kept_goes_on() {
    let bytes = fs::read(place("stream-1-whole")).unwrap();
    if std::env::var_os("SYNCLINE_WRITE_GOLDEN").is_some() && !place(PART).exists() {
        make_part(&bytes);
    }
    let mut image = Vec::new();
    GzDecoder::new(&fs::read(place(PART)).unwrap()[..]).read_to_end(&mut image).unwrap();
    let target = World::open(MemoryDevice::from_image(&image), &spawn());
    let token = kept(&target.fs).unwrap();
    assert_eq!(token.position.records as usize, ends(&bytes).len() / 3);
    block_on(receive_in_pieces(&target.fs, &bytes[..], None, ONE_PIECE)).unwrap();
    require_as_then(&target, "whole");
    assert_eq!(kept(&target.fs), None);
    target.close();
    require_sound(&target.device, &target.spawn, "an earlier program's part");
}
