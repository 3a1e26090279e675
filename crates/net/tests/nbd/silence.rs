//! Servers that are connected and do not answer.

use super::*;
use server::command::{FLUSH, READ, WRITE};

#[test]
fn a_server_that_answers_nothing_is_given_up_after_its_time() {
    let lab = Lab::new(1, Spec::default());
    let device = open_with(&lab, Wait::Seconds(1), NbdOptions::default());
    lab.faults(|faults| faults.stalled = true);
    let pace = Pace::start();
    let error = flush(&device).wait().unwrap_err().to_string();
    assert!(error.contains("has not answered for 1 s"), "{error}");
    pace.assert_within(Duration::from_secs(4));
    assert!(write(&device, 0, 1, 4096).wait().is_err());
}

#[test]
fn one_that_is_slow_with_a_flush_but_answers_a_read_is_waited_for() {
    let lab = Lab::new(2, Spec::default());
    // The laboratory's threads have three seconds for an answer, also on a busy machine.
    let device = open_with(&lab, Wait::Seconds(3), NbdOptions::default());
    lab.faults(|faults| faults.stalled_command = Some(FLUSH));
    let flushed = flush(&device);
    std::thread::sleep(Duration::from_millis(4500));
    assert!(flushed.result().is_none());
    // Three to see that all connections are alive, and more.
    eventually("it asks again and again", || lab.count(READ) >= 4);
    lab.faults(|faults| faults.stalled_command = None);
    flushed.wait().unwrap();
    assert_eq!(device.counters().reconnects, 0);
}

#[test]
fn an_idle_server_owes_no_answer_and_for_ever_is_for_ever() {
    let lab = Lab::new(3, Spec::default());
    let device = open_with(&lab, Wait::Seconds(3), NbdOptions::default());
    let patient = open_with(&lab, Wait::Forever, NbdOptions::default());
    lab.faults(|faults| faults.stalled = true);
    let written = write(&patient, 0, 1, 4096);
    std::thread::sleep(Duration::from_millis(4500));
    assert!(written.result().is_none());
    lab.faults(|faults| faults.stalled = false);
    written.wait().unwrap();
    flush(&device).wait().unwrap();
    lab.faults(|faults| faults.away = true);
    lab.crash();
    let written = write(&patient, 0, 1, 4096);
    std::thread::sleep(Duration::from_millis(1500));
    assert!(written.result().is_none());
    lab.faults(|faults| faults.away = false);
    written.wait().unwrap();
    assert_eq!(lab.count(WRITE), 3, "two calls, and one that is written again");
}

/// A handshake that has no end is given up in time too.
#[test]
fn a_server_that_is_silent_at_the_reconnect_is_away() {
    let lab = Lab::new(4, Spec::default());
    let device = open_with(&lab, Wait::Seconds(1), NbdOptions::default());
    lab.faults(|faults| faults.handshake = Some(server::Handshake::Silent));
    lab.crash();
    let pace = Pace::start();
    let error = flush(&device).wait().unwrap_err().to_string();
    assert!(error.contains("away for 1 s (the server does not answer)"), "{error}");
    pace.assert_within(Duration::from_secs(4));
}

/// A process that is stopped still has a queue for connections, until that is full.
#[test]
fn a_server_that_accepts_nobody_is_given_up_in_time() {
    use rustix::net;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let listener = net::socket(net::AddressFamily::UNIX, net::SocketType::STREAM, None).unwrap();
    net::bind(&listener, &net::SocketAddrUnix::new(&path).unwrap()).unwrap();
    net::listen(&listener, 0).unwrap();
    let _queued = std::os::unix::net::UnixStream::connect(&path).unwrap();
    let address = syncline_net::NbdAddress::Unix(path);
    let location =
        syncline_net::NbdLocation { address, export: String::new(), tls: None, wait: Some(Wait::Seconds(1)) };
    let pace = Pace::start();
    let error = NbdDevice::open(&location, NbdOptions::default()).map(drop).unwrap_err().to_string();
    assert!(error.contains("the server does not accept connections"), "{error}");
    pace.assert_within(Duration::from_secs(4));
}

/// The owner has lost the image, and nobody waits any longer for a server that may take for ever. When
/// the server is back, it gets none of the operations that were under way.
#[test]
fn a_device_that_is_ended_ends_all_that_waits_at_once() {
    // Silent, and away.
    for away in [false, true] {
        let lab = Lab::new(5, Spec::default());
        let device = open_with(&lab, Wait::Forever, NbdOptions::default());
        write(&device, 0, 1, 4096).wait().unwrap();
        lab.faults(|faults| (faults.away, faults.stalled) = (away, true));
        let (written, flushed) = (write(&device, 4096, 1, 4096), flush(&device));
        eventually("both are at the server", || lab.count(WRITE) == 2 && lab.count(FLUSH) == 1);
        let again = write(&device, 4096, 2, 4096);
        if away {
            lab.crash();
            eventually("it is missed", || device.connections() == 0);
        }
        device.end(std::io::Error::other("another host has it"));
        device.end(std::io::Error::other("the second reason"));
        for answer in [written, flushed, again, write(&device, 0, 3, 4096)] {
            let error = answer.wait().unwrap_err().to_string();
            assert!(error.contains("another host has it"), "{error}");
        }
        lab.faults(|faults| (faults.away, faults.stalled) = (false, false));
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!((lab.count(WRITE), device.connections()), (2, 0));
        drop(device);
    }
}
