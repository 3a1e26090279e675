//! A scrub beside programs that use the filesystem.

use crate::common::spawn;
use std::time::{Duration, Instant};
use syncline::Filesystem;
use syncline_check::Scrub;
use syncline_device::block_on;

const MIB: usize = 1 << 20;

/// Otherwise freed blocks could not be reused, and a full filesystem would have no room, for as
/// long as a piece takes.
#[test]
fn a_scrub_that_waits_for_its_rate_keeps_nothing_from_being_used_anew() {
    let fs = Filesystem::in_memory(64 << 20).unwrap();
    fs.write("large", vec![1; 16 * MIB]).unwrap();
    fs.write("gone", vec![2; 4 * MIB]).unwrap();
    fs.sync().unwrap();
    let store = fs.engine().store();
    let scrub = Scrub::new(store, spawn());
    assert!(scrub.start(MIB as u64));
    let waits = |what: &dyn Fn() -> bool| {
        let begun = Instant::now();
        while !what() {
            assert!(begun.elapsed() < Duration::from_secs(5), "{:?}, {:?}", scrub.report(), store.space());
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    waits(&|| scrub.report().data_blocks > 0);
    let before = store.space().free;
    fs.remove_file("gone").unwrap();
    waits(&|| {
        fs.write("small", b"something to write").unwrap();
        block_on(store.checkpoint()).unwrap();
        store.space().free > before + 900
    });
    assert!(scrub.report().running, "it is not through with the large file");
    scrub.cancel();
    waits(&|| !scrub.report().running);
}
