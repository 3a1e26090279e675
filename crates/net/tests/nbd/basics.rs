//! The operations, while nothing goes wrong.

use super::*;
use server::command;
use std::sync::atomic::{AtomicUsize, Ordering};

#[test]
fn what_was_written_is_read_on_every_kind_of_server() {
    for (seed, spec) in (0..).zip(specs()) {
        let lab = Lab::new(seed, spec);
        let device = open(&lab);
        assert_eq!(device.size_bytes(), 1 << 20);
        let bufs = vec![filled(1, 4096), filled(2, 40960), filled(3, 8192)];
        ask(|done| device.write(4096, bufs, done)).wait().unwrap();
        flush(&device).wait().unwrap();
        let bytes = read(&device, 0, 65536).wait().unwrap();
        let expected = [(0, 4096), (1, 4096), (2, 40960), (3, 8192), (0, 8192)];
        let expected: Vec<u8> = expected.iter().flat_map(|&(fill, len)| vec![fill; len]).collect();
        assert!(bytes[..] == expected[..], "{spec:?}");
        assert_eq!(lab.store(|store| store.durable(0, 65536)), expected, "{spec:?}");
        write_through(&device, 8192, 9).wait().unwrap();
        assert_eq!(lab.store(|store| store.durable(8192, 4096)), [9; 4096], "{spec:?}");
    }
}

#[test]
fn an_empty_operation_succeeds_and_a_crooked_one_is_refused() {
    let lab = Lab::new(1, Spec { size: (1 << 20) + 1000, ..Spec::default() });
    let device = open(&lab);
    assert_eq!(device.size_bytes(), 1 << 20);
    assert_eq!(read(&device, 0, 0).wait().unwrap().len(), 0);
    ask(|done| device.write(4096, vec![], done)).wait().unwrap();
    ask(|done| device.discard(1 << 20, 0, done)).wait().unwrap();
    for (offset, len) in [(512, 4096), (1 << 20, 4096), (u64::MAX - 4095, 4096), (0, 2 << 20)] {
        assert!(read(&device, offset, len).wait().is_err());
        assert!(write(&device, offset, 1, len).wait().is_err());
        assert!(ask(|done| device.discard(offset, len as u64, done)).wait().is_err());
    }
    let halves = vec![filled(1, 2048), filled(1, 2048)];
    assert!(ask(|done| device.write(0, halves, done)).wait().is_err());
    let before = lab.count(command::WRITE);
    assert_eq!(before, 0, "nothing of it was sent");
}

#[test]
fn discards_and_zeros() {
    for (seed, spec) in (0..).zip(specs()) {
        let lab = Lab::new(seed, spec);
        let device = open(&lab);
        write(&device, 0, 5, 256 << 10).wait().unwrap();
        let discarded = ask(|done| device.discard(8192, 100 << 10, done)).wait();
        assert_eq!(discarded.is_ok(), device.discards(), "{spec:?}");
        ask(|done| device.write_zeros(128 << 10, 64 << 10, done)).wait().unwrap();
        assert_filled(&device, 0, 5, 8192);
        assert_filled(&device, (8 << 10) + (100 << 10), 5, 20 << 10);
        assert_filled(&device, 128 << 10, 0, 64 << 10);
        assert_filled(&device, 192 << 10, 5, 64 << 10);
        let sent = lab.count(command::TRIM) + lab.count(command::WRITE_ZEROES);
        assert_eq!(sent > 0, spec.flags & (server::TRIM | server::WRITE_ZEROES) != 0, "{spec:?}");
    }
}

#[test]
fn a_fast_discard_that_the_server_has_no_means_for_is_a_hint() {
    let lab = Lab::new(
        2,
        Spec { flags: server::FLUSH | server::WRITE_ZEROES | server::FAST_ZERO, ..Spec::default() },
    );
    let device = open(&lab);
    lab.faults(|faults| faults.errors.push((command::WRITE_ZEROES, 95)));
    ask(|done| device.discard(0, 4096, done)).wait().unwrap();
    lab.faults(|faults| faults.errors.push((command::WRITE_ZEROES, 5)));
    assert!(ask(|done| device.discard(0, 4096, done)).wait().is_err());
}

#[test]
fn many_threads_with_many_in_flight_each_find_their_own() {
    for reorder in [false, true] {
        let lab = Lab::new(3, Spec { size: 8 << 20, ..Spec::default() });
        lab.faults(|faults| faults.reorder = reorder);
        let device = open(&lab);
        assert_eq!(device.connections(), 4);
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let device = &device;
                scope.spawn(move || {
                    for round in 0..4u8 {
                        let fill = |index: u64| (thread as u8) << 6 | (index as u8 & 15) << 2 | round;
                        let at = |index: u64| (thread * 64 + index) * 20480;
                        let writes: Vec<_> =
                            (0..16).map(|index| write(device, at(index), fill(index), 20480)).collect();
                        writes.into_iter().for_each(|write| write.wait().unwrap());
                        let flushed = flush(device);
                        let reads: Vec<_> = (0..16).map(|index| read(device, at(index), 20480)).collect();
                        for (index, read) in (0..).zip(reads) {
                            assert!(read.wait().unwrap().iter().all(|&byte| byte == fill(index)));
                        }
                        flushed.wait().unwrap();
                    }
                });
            }
        });
    }
}

/// The server has several connections and changes the order of its requests; the later call must still
/// be the later write.
#[test]
fn of_writes_that_overlap_in_flight_the_later_call_wins() {
    let lab = Lab::new(4, Spec::default());
    lab.faults(|faults| faults.reorder = true);
    let device = open(&lab);
    for round in 0..20u8 {
        let writes: Vec<_> = (0..8u8)
            .map(|index| write(&device, u64::from(index % 3) * 4096, round * 8 + index, 12288))
            .collect();
        writes.into_iter().for_each(|write| write.wait().unwrap());
        // The last three begin at blocks 2, 0 and 1.
        assert_filled(&device, 4096, round * 8 + 7, 12288);
        assert_filled(&device, 0, round * 8 + 6, 4096);
        assert_filled(&device, 16384, round * 8 + 5, 4096);
        flush(&device).wait().unwrap();
    }
}

#[test]
fn an_error_of_the_server_is_the_operation_s_and_of_no_other() {
    for (seed, spec) in (0..).zip(specs()) {
        let lab = Lab::new(seed, spec);
        let device = open(&lab);
        write(&device, 0, 1, 4096).wait().unwrap();
        for (command, number, expected) in [
            (command::READ, 5, 5),
            (command::WRITE, 28, 28),
            (command::FLUSH, 5, 5),
            (command::WRITE, 1234, 22),
        ] {
            lab.faults(|faults| faults.errors.push((command, number)));
            let error = match command {
                command::READ => read(&device, 0, 8192).wait().map(drop),
                command::WRITE => write(&device, 4096, 2, 8192).wait(),
                _ => flush(&device).wait(),
            };
            let error = error.unwrap_err();
            assert_eq!(error.io_error().unwrap().raw_os_error(), Some(expected), "{error}");
            read(&device, 0, 4096).wait().unwrap();
            write(&device, 4096, 2, 4096).wait().unwrap();
            flush(&device).wait().unwrap();
        }
        assert_eq!(device.counters().reconnects, 0);
    }
}

#[test]
fn what_was_asked_for_ends_though_the_device_is_dropped() {
    let lab = Lab::new(5, Spec::default());
    let device = open(&lab);
    lab.faults(|faults| faults.delay = Duration::from_millis(20));
    let writes: Vec<_> = (0..8).map(|index| write(&device, index * 4096, 7, 4096)).collect();
    let flushed = flush(&device);
    drop(device);
    writes.into_iter().for_each(|write| write.wait().unwrap());
    flushed.wait().unwrap();
    eventually("it says good-bye", || lab.count(command::DISC) == 4);
}

#[test]
fn a_device_may_be_dropped_in_a_completion_and_be_opened_again() {
    let lab = Lab::new(6, Spec::default());
    let ended = Arc::new(AtomicUsize::new(0));
    for _ in 0..20 {
        let device = open(&lab);
        let (own, counting) = (device.clone(), ended.clone());
        let done = move |result: Result<(), DeviceError>| {
            result.unwrap();
            drop(own);
            counting.fetch_add(1, Ordering::SeqCst);
        };
        device.write(0, vec![filled(1, 4096)], Box::new(done));
        drop(device);
    }
    eventually("all end", || ended.load(Ordering::SeqCst) == 20);
    eventually("all say good-bye", || lab.count(command::DISC) == 80);
}

#[test]
fn a_completion_that_panics_takes_no_other_with_it() {
    let lab = Lab::new(7, Spec::default());
    let device = open(&lab);
    device.write(0, vec![filled(1, 4096)], Box::new(|_| panic!("on purpose")));
    write(&device, 4096, 2, 4096).wait().unwrap();
    flush(&device).wait().unwrap();
    assert_eq!(device.counters().reconnects, 0);
}

fn refusal(spec: Spec, options: NbdOptions) -> String {
    let lab = Lab::new(8, spec);
    let refused = NbdDevice::open(&lab.location(Wait::Seconds(1)), options).map(drop);
    let text = refused.unwrap_err().to_string();
    assert!(text.starts_with("cannot open nbd+unix:///disk?socket=") && !text.contains('\n'), "{text}");
    text
}

#[test]
fn what_can_t_be_used_is_refused_in_one_line() {
    let good = Spec::default();
    let (any, read_only) = (NbdOptions::default(), NbdOptions { read_only: true, ..Default::default() });
    let large = NbdOptions { at_least_bytes: 2 << 20, ..any };
    for (spec, options, part) in [
        (Spec { flags: server::FUA, ..good }, any, "offers no flush"),
        (Spec { flags: good.flags | server::READ_ONLY, ..good }, any, "read-only"),
        (Spec { blocks: Some((8192, 8192, 65536)), ..good }, read_only, "smallest block has 8192"),
        (Spec { blocks: Some((512, 512, 1024)), ..good }, any, "no more than 1024 bytes"),
        (good, large, "2097152 are needed"),
    ] {
        let refusal = refusal(spec, options);
        assert!(refusal.contains(part), "{refusal}");
    }
    let lab = Lab::new(9, good);
    let location = lab.location(Wait::Seconds(1));
    drop(lab);
    let gone = NbdDevice::open(&location, any).map(drop).unwrap_err().to_string();
    assert!(gone.contains("cannot open nbd+unix:///disk"), "{gone}");
}

#[test]
fn a_device_for_reading_changes_nothing_and_needs_no_flush() {
    let lab = Lab::new(10, Spec { flags: server::READ_ONLY, ..Spec::default() });
    let device = open_with(&lab, Wait::Seconds(5), NbdOptions { read_only: true, ..Default::default() });
    assert_filled(&device, 0, 0, 65536);
    flush(&device).wait().unwrap();
    for refused in [
        write(&device, 0, 1, 4096),
        ask(|done| device.write_zeros(0, 4096, done)),
        write_through(&device, 0, 1),
    ] {
        assert_eq!(refused.wait().unwrap_err().io_error().unwrap().raw_os_error(), Some(30));
    }
    assert!(ask(|done| device.enlarge(0, done)).wait().is_err());
    lab.cut();
    assert_filled(&device, 0, 0, 4096);
}
