//! Streams that an earlier program made: every program receives them, and finds in them what was
//! found then. `SYNCLINE_WRITE_GOLDEN=1` makes new ones where there are none.

use crate::describe::{describe, text};
use crate::stream;
use crate::world::{World, spawn};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use std::fs;
use std::path::{Path, PathBuf};
use syncline_device::block_on;
use syncline_stream::receive;

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
        let received = text(&describe(&target.snapshot(name).0));
        let expected = fs::read_to_string(path.with_extension("txt")).unwrap();
        let lines = expected.lines().zip(received.lines());
        let differs =
            lines.clone().find(|(old, new)| old != new && !old.contains("Part") && !old.contains("Packed"));
        assert_eq!(differs, None, "{name}");
        assert_eq!(expected.lines().count(), received.lines().count(), "{name}");
    }
}
