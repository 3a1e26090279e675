//! Connections that break, servers that go away, flushes that fail.

use super::*;
use server::command::{FLUSH, READ, WRITE};

/// At every byte of a write, a flush and a read, in both directions.
#[test]
fn a_connection_may_be_cut_at_any_byte() {
    for (seed, spec) in (0..).zip(specs()) {
        let lab = Lab::new(seed, spec);
        let device = open_with(&lab, Wait::Seconds(60), NbdOptions { connections: 2, ..Default::default() });
        let mut fill = 0u8;
        let steps = (0..150).step_by(if seed == 0 { 1 } else { 7 }).chain((150..9000).step_by(211));
        for (after, sending) in steps.flat_map(|after| [(after, true), (after, false)]) {
            fill = fill % 250 + 1;
            lab.faults(|faults| match sending {
                true => faults.cut_sending = Some(after),
                false => faults.cut_receiving = Some(after),
            });
            write(&device, 4096, fill, 8192).wait().unwrap();
            flush(&device).wait().unwrap();
            assert_filled(&device, 4096, fill, 8192);
            assert_eq!(lab.store(|store| store.durable(4096, 8192)), vec![fill; 8192], "{after} {sending}");
            lab.faults(|faults| (faults.cut_sending, faults.cut_receiving) = (None, None));
        }
        assert!(device.counters().reconnects > 50, "{spec:?}: {}", device.counters().reconnects);
    }
}

#[test]
fn a_server_that_forgets_is_told_again_in_order() {
    let lab = Lab::new(1, Spec { size: 4 << 20, ..Spec::default() });
    let device = open(&lab);
    for fill in 1..=100u8 {
        write(&device, u64::from(fill % 7) * 4096, fill, 8192).wait().unwrap();
        if fill == 50 {
            flush(&device).wait().unwrap();
        }
    }
    // Everything that no flush covered is gone.
    lab.crash();
    for (block, fill) in [(0, 98), (1, 99), (2, 100), (3, 100), (4, 95), (5, 96), (6, 97), (7, 97)] {
        assert_filled(&device, block * 4096, fill, 4096);
    }
    let counters = device.counters();
    assert_eq!((counters.reconnects, counters.rewritten, counters.rewritten_bytes), (1, 50, 50 * 8192));
    flush(&device).wait().unwrap();
    assert_eq!(lab.store(|store| store.durable(8192, 8192)), [100; 8192]);
    lab.crash();
    assert_filled(&device, 8192, 100, 8192);
    assert_eq!(device.counters().rewritten, 50, "a flush covered the rest");
}

#[test]
fn a_flush_in_flight_is_sent_again_after_the_replay() {
    let lab = Lab::new(2, Spec::default());
    let device = open(&lab);
    write(&device, 0, 7, 65536).wait().unwrap();
    lab.faults(|faults| faults.stalled_command = Some(FLUSH));
    let flushed = flush(&device);
    let later = write_through(&device, 65536, 8);
    eventually("the flush is at the server", || lab.count(FLUSH) == 1);
    assert!(flushed.result().is_none());
    lab.crash();
    lab.faults(|faults| faults.stalled_command = None);
    flushed.wait().unwrap();
    later.wait().unwrap();
    assert_eq!(lab.store(|store| store.durable(0, 65536)), [7; 65536]);
    assert_eq!(lab.store(|store| store.durable(65536, 4096)), [8; 4096]);
}

/// Rule R4: a flush does not cover a change that completes while the flush is on its way.
#[test]
fn a_write_that_completes_during_a_flush_is_still_kept() {
    let lab = Lab::new(13, Spec::default());
    let device = open(&lab);
    write(&device, 0, 1, 4096).wait().unwrap();
    lab.faults(|faults| faults.held_answer = Some(FLUSH));
    let flushed = flush(&device);
    eventually("the flush is at the server", || lab.count(FLUSH) == 1);
    std::thread::sleep(Duration::from_millis(50));
    // One after the other, over the connections that the flush leaves free.
    (1..17).for_each(|index| write(&device, index * 4096, 2, 4096).wait().unwrap());
    lab.faults(|faults| faults.held_answer = None);
    flushed.wait().unwrap();
    lab.crash();
    assert_filled(&device, 4096, 2, 65536);
    assert_eq!(device.counters().rewritten, 16);
}

#[test]
fn operations_wait_for_a_server_that_comes_back() {
    let lab = Lab::new(3, Spec::default());
    let device = open(&lab);
    write(&device, 0, 1, 4096).wait().unwrap();
    lab.faults(|faults| faults.away = true);
    lab.crash();
    let (written, found, flushed) = (write(&device, 4096, 2, 4096), read(&device, 0, 4096), flush(&device));
    std::thread::sleep(Duration::from_millis(150));
    assert!(written.result().is_none() && found.result().is_none() && flushed.result().is_none());
    assert_eq!(device.connections(), 0);
    lab.faults(|faults| faults.away = false);
    written.wait().unwrap();
    flushed.wait().unwrap();
    assert!(found.wait().unwrap().iter().all(|&byte| byte == 1));
    assert_eq!(lab.store(|store| store.durable(0, 4096)), [1; 4096]);
}

#[test]
fn after_its_time_everything_fails_and_stays_so() {
    let lab = Lab::new(4, Spec::default());
    let device = open_with(&lab, Wait::Seconds(1), NbdOptions::default());
    lab.faults(|faults| faults.stalled_command = Some(WRITE));
    let written = write(&device, 0, 1, 4096);
    eventually("the write is at the server", || lab.count(WRITE) == 1);
    let (begun, pace) = (Instant::now(), Pace::start());
    lab.faults(|faults| faults.away = true);
    lab.cut();
    let (found, flushed, enlarged) =
        (read(&device, 0, 4096), flush(&device), ask(|done| device.enlarge(0, done)));
    let errors = [
        written.wait().unwrap_err(),
        found.wait().map(drop).unwrap_err(),
        flushed.wait().unwrap_err(),
        enlarged.wait().map(drop).unwrap_err(),
    ];
    assert!(begun.elapsed() > Duration::from_millis(900), "{:?}", begun.elapsed());
    pace.assert_within(Duration::from_secs(4));
    for error in errors {
        let text = error.to_string();
        assert!(text.contains("nbd+unix:///disk") && text.contains("has been away for 1 s"), "{text}");
        assert!(text.contains("start the server and mount again") && !text.contains('\n'), "{text}");
    }
    // The server is back, but the device has given up the changes that it kept.
    lab.faults(|faults| *faults = Default::default());
    std::thread::sleep(Duration::from_millis(100));
    let pace = Pace::start();
    assert!(write(&device, 0, 1, 4096).wait().unwrap_err().to_string().contains("away for 1 s"));
    assert!(write_through(&device, 0, 1).wait().is_err());
    assert!(read(&device, 0, 4096).wait().is_err());
    assert!(flush(&device).wait().is_err());
    assert!(ask(|done| device.enlarge(0, done)).wait().is_err());
    pace.assert_within(Duration::from_millis(500));
}

#[test]
fn a_server_that_ends_at_each_flush_is_not_waited_for_longer_than_told() {
    let lab = Lab::new(5, Spec::default());
    let device = open_with(&lab, Wait::Seconds(1), NbdOptions::default());
    write(&device, 0, 1, 4096).wait().unwrap();
    lab.faults(|faults| {
        faults.hostile = Some((FLUSH, server::Hostile::Magic));
        faults.hostile_for_ever = true;
    });
    let pace = Pace::start();
    let error = flush(&device).wait().unwrap_err().to_string();
    assert!(error.contains("away for 1 s (the server broke the protocol"), "{error}");
    pace.assert_within(Duration::from_secs(5));
}

#[test]
fn a_server_that_shuts_down_is_waited_for() {
    let lab = Lab::new(6, Spec::default());
    let device = open(&lab);
    for command in [WRITE, READ, FLUSH] {
        lab.faults(|faults| faults.errors.push((command, 108)));
        write(&device, 0, 3, 4096).wait().unwrap();
        assert_filled(&device, 0, 3, 4096);
        flush(&device).wait().unwrap();
    }
    assert_eq!(device.counters().reconnects, 3);
}

#[test]
fn an_export_that_comes_back_changed_is_not_written_to() {
    let good = Spec::default();
    for (changed, part) in [
        (
            Spec { size: good.size / 2, ..good },
            "came back changed: it has 524288 bytes, and 1048576 are needed",
        ),
        (
            Spec { flags: good.flags | server::READ_ONLY, ..good },
            "came back changed: it is exported read-only",
        ),
        (
            Spec { flags: good.flags & !server::FLUSH, ..good },
            "came back changed: the server offers no flush",
        ),
        (Spec { blocks: Some((8192, 8192, 65536)), ..good }, "came back changed: its smallest block"),
    ] {
        let lab = Lab::new(7, good);
        let device = open(&lab);
        write(&device, 0, 1, 4096).wait().unwrap();
        lab.spec(|spec| *spec = changed);
        lab.crash();
        let error = flush(&device).wait().unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
        assert_eq!(lab.count(WRITE), 1, "nothing was written again");
        assert!(read(&device, 0, 4096).wait().unwrap_err().to_string().contains(part));
    }
}

/// The export comes back with fewer connections, without FUA, with smaller requests: the device goes on
/// with these.
#[test]
fn an_export_that_can_less_is_used_as_it_is() {
    let lab = Lab::new(8, Spec::default());
    let device = open(&lab);
    write(&device, 0, 1, 65536).wait().unwrap();
    ask(|done| device.discard(65536, 65536, done)).wait().unwrap();
    lab.spec(|spec| {
        spec.flags = server::FLUSH;
        spec.blocks = Some((512, 4096, 4096));
        spec.structured = false;
    });
    lab.crash();
    assert_filled(&device, 0, 1, 65536);
    assert_eq!((device.connections(), device.discards(), device.writes_through()), (1, false, false));
    write_through(&device, 0, 2).wait().unwrap();
    assert!(ask(|done| device.discard(0, 4096, done)).wait().is_err());
}

#[test]
fn what_the_server_does_not_take_again_is_tried_until_the_time_is_over() {
    let lab = Lab::new(9, Spec::default());
    let device = open_with(&lab, Wait::Seconds(4), NbdOptions::default());
    // Once: the next attempt succeeds. Error 95 is no exception, though it is none for a discard. (Not
    // every crash forgets the write.)
    for (fill, error) in (2..18).zip([28, 95].into_iter().cycle()) {
        write(&device, 0, fill, 4096).wait().unwrap();
        lab.faults(|faults| faults.errors.push((WRITE, error)));
        lab.crash();
        flush(&device).wait().unwrap();
        assert!(lab.store(|store| store.durable(0, 4096)) == [fill; 4096], "error {error}");
    }
    write(&device, 0, 1, 4096).wait().unwrap();
    lab.faults(|faults| faults.errors = vec![(WRITE, 28); 10_000]);
    lab.crash();
    let error = flush(&device).wait().unwrap_err().to_string();
    assert!(error.contains("away for 4 s (it does not take 4096 bytes at 0 again: No space left"), "{error}");
}

/// Rule R6: an error of a flush is told, and no later success takes it back; a crash after it
/// brings back neither less nor something older.
#[test]
fn a_flush_that_fails_is_told_and_newer_writes_stay_newer() {
    let lab = Lab::new(10, Spec::default());
    let device = open(&lab);
    write(&device, 0, 1, 8192).wait().unwrap();
    lab.faults(|faults| faults.errors.push((FLUSH, 5)));
    assert!(flush(&device).wait().is_err());
    // The store writes something else at a part of it, and the rest nowhere.
    write(&device, 0, 2, 4096).wait().unwrap();
    lab.crash();
    assert_filled(&device, 0, 2, 4096);
    assert_filled(&device, 4096, 1, 4096);
    flush(&device).wait().unwrap();
    write(&device, 4096, 3, 4096).wait().unwrap();
    flush(&device).wait().unwrap();
    assert_eq!(device.counters().now.kept_bytes, 0);
    lab.crash();
    assert_filled(&device, 0, 2, 4096);
    assert_filled(&device, 4096, 3, 4096);
}

#[test]
fn too_much_without_a_flush_is_flushed_by_the_device_itself() {
    let lab = Lab::new(11, Spec::default());
    let options = NbdOptions { kept_bytes: 256 << 10, ..Default::default() };
    let device = open_with(&lab, Wait::Seconds(60), options);
    lab.faults(|faults| faults.reorder = true);
    let writes: Vec<_> =
        (0..200u64).map(|index| write(&device, index % 64 * 16384, index as u8, 16384)).collect();
    writes.into_iter().for_each(|write| write.wait().unwrap());
    let counters = device.counters();
    assert!(counters.own_flushes >= 8, "{counters:?}");
    assert!(counters.now.kept_bytes <= 256 << 10, "{counters:?}");
    // One that is larger than all there may be.
    write(&device, 0, 9, 1 << 20).wait().unwrap();
    write(&device, 0, 8, 1 << 20).wait().unwrap();
    lab.crash();
    assert_filled(&device, 0, 8, 1 << 20);
}

#[test]
fn where_nothing_may_be_kept_each_write_is_flushed_and_idleness_is_not() {
    let lab = Lab::new(14, Spec::default());
    let device = open_with(&lab, Wait::Seconds(60), NbdOptions { kept_bytes: 0, ..Default::default() });
    let writes: Vec<_> = (0..10).map(|index| write(&device, index * 4096, 1, 4096)).collect();
    writes.into_iter().for_each(|write| write.wait().unwrap());
    eventually("nothing is kept", || device.counters().now.kept_bytes == 0);
    let flushes = lab.count(FLUSH);
    assert!((1..=10).contains(&flushes), "{flushes}");
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(lab.count(FLUSH), flushes);
    assert_eq!(lab.store(|store| store.durable(0, 40960)), [1; 40960]);
}

#[test]
fn an_own_flush_that_fails_is_the_next_caller_s_error() {
    let lab = Lab::new(12, Spec { flags: server::FLUSH | server::FUA, ..Spec::default() });
    let options = NbdOptions { kept_bytes: 64 << 10, ..Default::default() };
    for through in [false, true] {
        let device = open_with(&lab, Wait::Seconds(60), options);
        lab.faults(|faults| faults.errors.push((FLUSH, 5)));
        write(&device, 0, 1, 32 << 10).wait().unwrap();
        eventually("the device has flushed", || lab.faults(|faults| faults.errors.is_empty()));
        // However much is written meanwhile, and flushed by the device itself.
        for index in 0..20 {
            write(&device, 65536 + index * 16384, 2, 16384).wait().unwrap();
        }
        let told = if through { write_through(&device, 65536, 3).wait() } else { flush(&device).wait() };
        assert_eq!(told.unwrap_err().io_error().unwrap().raw_os_error(), Some(5));
        flush(&device).wait().unwrap();
        write_through(&device, 65536, 3).wait().unwrap();
    }
}
