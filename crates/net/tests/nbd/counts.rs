//! How many requests a write and its flush are: the device's first figure.

use super::*;
use server::command::{FLUSH, WRITE};

#[test]
fn a_write_and_a_flush_are_two_requests_and_one_with_fua() {
    let lab = Lab::new(1, Spec { blocks: None, ..Spec::default() });
    let device = open(&lab);
    let counts = || (lab.count(WRITE), lab.count(FLUSH));
    write(&device, 0, 1, 64 << 10).wait().unwrap();
    flush(&device).wait().unwrap();
    assert_eq!(counts(), (1, 1));
    assert!(device.writes_through());
    write_through(&device, 4096, 2).wait().unwrap();
    assert_eq!(counts(), (2, 1), "FUA alone is enough: nothing else waits for a flush");
    write(&device, 8192, 3, 4096).wait().unwrap();
    write_through(&device, 4096, 4).wait().unwrap();
    assert_eq!(counts(), (4, 2), "FUA would leave the other write in the cache");
    assert_eq!(lab.store(|store| store.durable(4096, 8192)), [[4; 4096], [3; 4096]].concat());
    ask(|done| device.discard(0, 4096, done)).wait().unwrap();
    write_through(&device, 4096, 5).wait().unwrap();
    assert_eq!(counts(), (5, 3), "a discard waits for a flush too");
    let counters = device.counters();
    assert_eq!((counters.writes, counters.flushes, counters.durable_writes), (5, 3, 1));
    assert_eq!(counters.written_bytes, (64 << 10) + 4 * 4096);
    assert_eq!((counters.write_ns.count, counters.flush_ns.count), (2, 4));
    assert_eq!(counters.now.kept_bytes, 0);
}

#[test]
fn without_fua_a_write_through_is_two_requests() {
    let lab = Lab::new(2, Spec { flags: server::FLUSH, ..Spec::default() });
    let device = open(&lab);
    assert!(!device.writes_through());
    write_through(&device, 0, 1).wait().unwrap();
    assert_eq!((lab.count(WRITE), lab.count(FLUSH)), (1, 1));
    assert_eq!(lab.store(|store| store.durable(0, 4096)), [1; 4096]);
}

#[test]
fn flushes_asked_for_meanwhile_share_the_next_one() {
    let lab = Lab::new(3, Spec::default());
    let device = open(&lab);
    lab.faults(|faults| faults.stalled_command = Some(FLUSH));
    let first = flush(&device);
    eventually("the first one is at the server", || lab.count(FLUSH) == 1);
    let others: Vec<_> = (0..9).map(|_| flush(&device)).collect();
    lab.faults(|faults| faults.stalled_command = None);
    others.into_iter().chain([first]).for_each(|flush| flush.wait().unwrap());
    assert_eq!(lab.count(FLUSH), 2);
}

/// Otherwise, after the restart of a slow server, writing everything again takes longer than a lease
/// lasts.
#[test]
fn much_that_was_written_seconds_ago_is_flushed_unasked() {
    const LEN: usize = 4 << 20;
    let spec = Spec { size: 64 << 20, blocks: Some((512, 4096, LEN as u32)), ..Spec::default() };
    let lab = Lab::new(7, spec);
    let device = open(&lab);
    // Again where the machine is so busy that seconds are over meanwhile.
    let counts = || (lab.count(FLUSH), device.counters().own_flushes);
    let (flushes, own) = loop {
        let begun = Instant::now();
        flush(&device).wait().unwrap();
        let before = counts();
        for index in 0..3 {
            write(&device, (index * LEN) as u64, 1, LEN).wait().unwrap();
        }
        if counts() == before {
            break before;
        }
        assert!(begun.elapsed() >= Duration::from_secs(2), "it flushes too early");
    };
    std::thread::sleep(Duration::from_secs(2));
    write(&device, 0, 2, BLOCK).wait().unwrap();
    eventually("it flushes by itself", || lab.count(FLUSH) == flushes + 1);
    eventually("the last one alone is kept", || device.counters().now.kept_bytes < LEN as u64);
    std::thread::sleep(Duration::from_secs(2));
    write(&device, 0, 2, BLOCK).wait().unwrap();
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(counts(), (flushes + 1, own + 1), "little is not worth one");
}
