//! Exports that become larger.

use super::*;
use server::command::{DISC, WRITE};

#[test]
fn a_larger_export_is_seen_when_it_is_asked_for() {
    for (seed, spec) in (0..).zip(specs()) {
        let lab = Lab::new(seed, spec);
        let device = open(&lab);
        let enlarge = |size| ask(|done| device.enlarge(size, done)).wait();
        assert_eq!(enlarge(0).unwrap(), 1 << 20);
        assert_eq!(enlarge(1 << 20).unwrap(), 1 << 20);
        let error = enlarge(2 << 20).unwrap_err().to_string();
        assert!(error.contains("has 1048576 bytes: enlarge it there to 2097152, and try again"), "{error}");
        write(&device, 0, 1, 4096).wait().unwrap();
        lab.spec(|spec| spec.size = 3 << 20);
        assert_eq!(device.size_bytes(), 1 << 20);
        lab.crash();
        assert_filled(&device, 0, 1, 4096);
        assert_eq!(device.size_bytes(), 1 << 20, "nobody asked");
        assert_eq!(enlarge(2 << 20).unwrap(), 3 << 20);
        assert_eq!(device.size_bytes(), 3 << 20);
        write(&device, (3 << 20) - 4096, 2, 4096).wait().unwrap();
        assert_filled(&device, (3 << 20) - 4096, 2, 4096);
        assert_eq!(lab.count(DISC) % device.connections(), 0, "old connections end softly");
    }
}

/// The old connections end when what is in flight on them has been answered, and what comes
/// meanwhile waits.
#[test]
fn nothing_is_lost_or_done_twice_meanwhile() {
    let lab = Lab::new(1, Spec::default());
    let device = open(&lab);
    lab.faults(|faults| faults.delay = Duration::from_millis(20));
    let before: Vec<_> = (0..8).map(|index| write(&device, index * 4096, 1, 4096)).collect();
    let flushed = flush(&device);
    let enlarged = ask(|done| device.enlarge(0, done));
    let after: Vec<_> = (8..16).map(|index| write(&device, index * 4096, 1, 4096)).collect();
    before.into_iter().chain(after).chain([flushed]).for_each(|pending| pending.wait().unwrap());
    assert_eq!(enlarged.wait().unwrap(), 1 << 20);
    assert_eq!(device.counters().reconnects, 1);
    assert_eq!(lab.count(WRITE) as u64, 16 + device.counters().replayed);
    assert_filled(&device, 0, 1, 65536);
}

#[test]
fn a_server_that_does_not_come_back_is_away() {
    let lab = Lab::new(2, Spec::default());
    let device = open_with(&lab, Wait::Seconds(1), NbdOptions::default());
    lab.faults(|faults| faults.away = true);
    let error = ask(|done| device.enlarge(0, done)).wait().unwrap_err().to_string();
    assert!(error.contains("away for 1 s"), "{error}");
    assert!(write(&device, 0, 1, 4096).wait().is_err());
}
