//! A server that is slow, and not away: the lease is renewed beside all that it has to do.

mod support;

use bytes::Bytes;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};
use support::{Server, image};
use syncline_device::{DeviceExt, block_on};
use syncline_image::{How, Image};

/// Twenty seconds' work in its queues, and in ours.
#[test]
fn a_lease_outlives_all_that_is_asked_of_a_slow_server_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("socket");
    let Some(_server) = Server::start(&socket, &["--filter=rate"], &["rate=80M"]) else {
        return eprintln!("skipped: nbdkit is not installed");
    };
    let opened = Image::create(image(&socket), None, false, false, &How::default(), &mut |_| {}).unwrap();
    let (sender, answers) = channel();
    let begun = Instant::now();
    for index in 0..240 {
        let sender = sender.clone();
        let done = Box::new(move |answer| sender.send(answer).unwrap());
        opened.device().write((1 + index) << 20, vec![Bytes::from(vec![1; 1 << 20])], done);
    }
    for _ in 0..240 {
        answers.recv_timeout(Duration::from_secs(60)).expect("an operation hangs").unwrap();
    }
    block_on(opened.device().flush_all()).unwrap();
    assert!(begun.elapsed() > Duration::from_secs(10), "the server is not slow");
    assert_eq!(opened.lease().unwrap().lost, None);
}
