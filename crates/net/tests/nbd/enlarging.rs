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
    }
}

/// The old connections end when the requests in flight on them have been answered. Requests that come
/// meanwhile wait.
#[test]
fn nothing_is_lost_or_done_twice_meanwhile() {
    let lab = Lab::new(1, Spec::default());
    let device = open(&lab);
    lab.faults(|faults| faults.delay = Duration::from_millis(20));
    lab.spec(|spec| spec.size = 2 << 20);
    let before: Vec<_> = (0..40).map(|index| write(&device, index * 4096, 1, 4096)).collect();
    let flushed = flush(&device);
    let enlarged = ask(|done| device.enlarge(0, done));
    let after: Vec<_> = (40..80).map(|index| write(&device, index * 4096, 1, 4096)).collect();
    before.into_iter().chain(after).chain([flushed]).for_each(|pending| pending.wait().unwrap());
    assert_eq!(enlarged.wait().unwrap(), 2 << 20);
    assert_eq!(device.counters().reconnects, 1);
    assert_eq!(lab.count(DISC), 4, "the old connections end softly");
    assert_eq!(lab.count(WRITE) as u64, 80 + device.counters().rewritten);
    assert_filled(&device, 0, 1, 80 * 4096);
    assert_eq!(device.size_bytes(), 2 << 20);
}

/// Some servers end with their last client, and some take only one.
#[test]
fn the_connections_in_use_stay_where_the_size_has_not_changed_or_can_t_be_asked_for() {
    let lab = Lab::new(2, Spec::default());
    let device = open_with(&lab, Wait::Seconds(20), NbdOptions::default());
    assert_eq!(ask(|done| device.enlarge(0, done)).wait().unwrap(), 1 << 20);
    lab.faults(|faults| faults.away = true);
    let error = ask(|done| device.enlarge(0, done)).wait().unwrap_err().to_string();
    assert!(error.contains("can't be asked for its size during the connection in use"), "{error}");
    lab.faults(|faults| faults.away = false);
    lab.spec(|spec| spec.size = 1 << 19);
    let error = ask(|done| device.enlarge(0, done)).wait().unwrap_err().to_string();
    assert!(error.contains("has 524288 bytes now, 1048576 before: it must not shrink"), "{error}");
    write(&device, 0, 1, 4096).wait().unwrap();
    assert_filled(&device, 0, 1, 4096);
    assert_eq!((device.counters().reconnects, lab.count(DISC)), (0, 0));
}
