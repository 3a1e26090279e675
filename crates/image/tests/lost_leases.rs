//! A host whose way to an NBD server is blocked, and another one that takes the image over meanwhile.
//! What the first one had begun must not arrive when its way is free again.

mod support;

use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};
use support::{Server, image, relay};
use syncline_device::{Device, DeviceExt, block_on};
use syncline_image::{How, Image, TakeOver};

const LEN: usize = 4 << 20;
const COUNT: u64 = 16;

#[test]
fn what_was_begun_before_a_take_over_does_not_come_after_it() {
    let directory = tempfile::tempdir().unwrap();
    let Some(_server) = Server::start(directory.path(), &[], &[]) else {
        return eprintln!("skipped: nbdkit is not installed");
    };
    let blocked = Arc::new(AtomicBool::new(false));
    let is_blocked = blocked.clone();
    let way = move || {
        let blocked = is_blocked.clone();
        move || blocked.load(Ordering::SeqCst)
    };
    let far = image(&relay(directory.path(), way));
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
    let second = Image::open(image(&directory.path().join("socket")), &how).unwrap();
    // Its lease is over, so nobody waits any longer, though the server is waited for for ever.
    for _ in 0..COUNT {
        let answer = answers.recv_timeout(Duration::from_secs(5)).expect("an operation hangs");
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
        let read = block_on(device.read_at(LEN as u64 * (1 + index), LEN)).unwrap();
        assert!(read.iter().all(|byte| *byte == 2), "write {index} of the former holder arrived");
    }
}
