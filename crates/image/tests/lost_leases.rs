//! A host whose way to an NBD server is blocked, and another one that takes the image over meanwhile.
//! Writes that the first one had begun must not arrive when its way is free again.

use crate::support::relay::relay;
use crate::support::{Server, image};
use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};
use syncline_device::{Device, DeviceExt, block_on};
use syncline_image::{How, Image, TakeOver};

/// All connections are blocked together.
fn way(blocked: &Arc<AtomicBool>) -> impl Fn() -> Box<dyn Fn() -> bool + Send> + Send + use<> {
    let blocked = blocked.clone();
    move || {
        let blocked = blocked.clone();
        Box::new(move || blocked.load(Ordering::SeqCst))
    }
}

const LEN: usize = 4 << 20;
const COUNT: u64 = 16;

#[test]
fn what_was_begun_before_a_take_over_does_not_come_after_it() {
    // A renewal that was on its way may arrive, too, and end the second lease before anything is read.
    assert!((0..3).any(|_| a_take_over_meets_writes_that_were_begun()));
}

/// False if nothing could be read at the end.
fn a_take_over_meets_writes_that_were_begun() -> bool {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("socket");
    let Some(_server) = Server::start(&socket, &[], &[]) else {
        eprintln!("skipped: nbdkit is not installed");
        return true;
    };
    let blocked = Arc::new(AtomicBool::new(false));
    let far = image(&relay(&socket, way(&blocked)));
    let first = Image::create(&far, None, false, false, &How::default(), &mut |_| {}).unwrap();
    blocked.store(true, Ordering::SeqCst);
    let (sender, answers) = channel();
    for index in 0..COUNT {
        let sender = sender.clone();
        let done = Box::new(move |answer| sender.send(answer).unwrap());
        first.device().write(LEN as u64 * (1 + index), vec![Bytes::from(vec![1; LEN])], done);
    }
    let begun = Instant::now();

    let how = How { take_over: Some(TakeOver::WhenExpired), ..How::default() };
    let second = Image::open(image(&socket), &how).unwrap();
    // Its lease is over, so nobody waits any longer, though the server is waited for for ever.
    for _ in 0..COUNT {
        let answer = answers.recv_timeout(Duration::from_secs(300)).expect("an operation hangs");
        let error = answer.unwrap_err().to_string();
        assert!(error.contains("could not renew the lease"), "{error}");
    }
    assert!(begun.elapsed() > Duration::from_secs(8), "a lease lasts longer");
    let device: Arc<dyn Device> = second.device();
    for index in 0..COUNT {
        let bytes = vec![Bytes::from(vec![2; LEN])];
        block_on(device.write_at(LEN as u64 * (1 + index), bytes)).unwrap();
    }
    block_on(device.flush_all()).unwrap();

    blocked.store(false, Ordering::SeqCst);
    std::thread::sleep(Duration::from_secs(1));
    for index in 0..COUNT {
        let read = match block_on(device.read_at(LEN as u64 * (1 + index), LEN)) {
            Err(error) if format!("{error:?}").contains("TakenBy") => return false,
            read => read.unwrap(),
        };
        assert!(read.iter().all(|byte| *byte == 2), "write {index} of the former holder arrived");
    }
    true
}

/// A reader of an export that can't be written has no lease. It waits for a holder as a writer does,
/// and does not call one alive that died long ago.
#[test]
fn a_reader_is_refused_by_a_holder_that_lives_and_outlives_one_that_died() {
    let directory = tempfile::tempdir().unwrap();
    let (socket, for_reading) = (directory.path().join("socket"), directory.path().join("reading"));
    let servers = [Server::start(&socket, &[], &[]), Server::start(&for_reading, &["--readonly"], &[])];
    if servers.iter().any(Option::is_none) {
        return eprintln!("skipped: nbdkit is not installed");
    }
    let blocked = Arc::new(AtomicBool::new(false));
    let far = image(&relay(&socket, way(&blocked)));
    let holder = Image::create(&far, None, false, false, &How::default(), &mut |_| {}).unwrap();
    let renewals = || holder.figures().lease().unwrap().renewals;
    let before = renewals();
    let Err(refused) = Image::open(image(&for_reading), &How::reading()) else { panic!("the holder lives") };
    assert!(refused.to_string().contains("in use by"), "{refused}");
    assert!(renewals() - before < 4, "the next renewal shows it, and a lease would last for four");

    blocked.store(true, Ordering::SeqCst);
    let begun = Instant::now();
    Image::open(image(&for_reading), &How::reading()).unwrap();
    assert!(begun.elapsed() > Duration::from_secs(9), "its lease was valid");
    assert!(holder.figures().lease().unwrap().lost.is_some());
}
