//! A server that is slow, and not away: the lease is renewed beside all that it has to do.

use crate::support::{Server, image};
use bytes::Bytes;
use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use syncline_device::{DeviceError, DeviceExt, block_on};
use syncline_image::{How, Image};

/// Starts to write this many MiB, all at once.
fn begin(opened: &Image, count: u64) -> Receiver<Result<(), DeviceError>> {
    let (sender, answers) = channel();
    for index in 0..count {
        let sender = sender.clone();
        let done = Box::new(move |answer| sender.send(answer).unwrap());
        opened.device().write((1 + index) << 20, vec![Bytes::from(vec![1; 1 << 20])], done);
    }
    answers
}

fn end(opened: &Image, answers: &Receiver<Result<(), DeviceError>>, count: u64) {
    for _ in 0..count {
        answers.recv_timeout(Duration::from_secs(300)).expect("an operation hangs").unwrap();
    }
    block_on(opened.device().flush_all()).unwrap();
    assert_eq!(opened.figures().lease().unwrap().lost, None);
}

/// A server for ten megabytes each second, and its export.
fn slow(socket: &Path) -> Option<Server> {
    Server::start(socket, &["--filter=rate"], &["rate=80M"])
}

/// Twenty seconds' work in its queues, and in ours.
#[test]
fn a_lease_outlives_all_that_is_asked_of_a_slow_server_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("socket");
    let Some(_server) = slow(&socket) else {
        return eprintln!("skipped: nbdkit is not installed");
    };
    let opened = Image::create(image(&socket), None, false, false, &How::default(), &mut |_| {}).unwrap();
    let begun = Instant::now();
    end(&opened, &begin(&opened, 240), 240);
    assert!(begun.elapsed() > Duration::from_secs(10), "the server is not slow");
}

/// It is busy then with what no flush had covered.
#[test]
fn a_lease_outlives_the_end_of_a_slow_server() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("socket");
    let Some(server) = slow(&socket) else {
        return eprintln!("skipped: nbdkit is not installed");
    };
    let opened = Image::create(image(&socket), None, false, false, &How::default(), &mut |_| {}).unwrap();
    let answers = begin(&opened, 200);
    std::thread::sleep(Duration::from_secs(12));
    drop(server);
    std::fs::remove_file(&socket).unwrap();
    let _server = slow(&socket);
    end(&opened, &answers, 200);
    assert_eq!(opened.figures().net_counters().unwrap().reconnects, 1);
}
