//! The NBD client against a server of the laboratory, and against real ones where they are
//! installed. Every wait has a limit: a test that hangs fails.

mod basics;
mod breaks;
mod counts;
mod crashes;
mod ended;
mod enlarging;
mod fences;
mod hostile;
mod real;
mod silence;
mod tcp;
mod urgent;

use bytes::Bytes;
use server::{BLOCK, Lab, Pace, Spec};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, channel};
use std::time::{Duration, Instant};
use syncline_device::{AlignedBuf, Completion, Device, DeviceError};
use syncline_nbdlab as server;
use syncline_net::{NbdDevice, NbdOptions, Wait};

/// Nothing in these tests takes this long.
const LIMIT: Duration = Duration::from_secs(120);

/// An operation that was started.
struct Pending<T>(Receiver<Result<T, DeviceError>>);

impl<T> Pending<T> {
    fn wait(self) -> Result<T, DeviceError> {
        match self.0.recv_timeout(LIMIT) {
            Ok(result) => result,
            Err(RecvTimeoutError::Timeout) => panic!("an operation hangs"),
            Err(RecvTimeoutError::Disconnected) => panic!("a completion was lost"),
        }
    }

    fn result(&self) -> Option<Result<T, DeviceError>> {
        match self.0.try_recv() {
            Ok(result) => Some(result),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => panic!("a completion was lost"),
        }
    }
}

/// Starts an operation.
fn ask<T: Send + 'static>(start: impl FnOnce(Completion<T>)) -> Pending<T> {
    let (sender, receiver) = channel();
    start(Box::new(move |result| {
        let _ = sender.send(result);
    }));
    Pending(receiver)
}

fn filled(fill: u8, len: usize) -> Bytes {
    Bytes::from(vec![fill; len])
}

fn write(device: &NbdDevice, offset: u64, fill: u8, len: usize) -> Pending<()> {
    ask(|done| device.write(offset, vec![filled(fill, len)], done))
}

fn write_through(device: &NbdDevice, offset: u64, fill: u8) -> Pending<()> {
    ask(|done| device.write_through(offset, vec![filled(fill, BLOCK)], done))
}

fn read(device: &NbdDevice, offset: u64, len: usize) -> Pending<AlignedBuf> {
    ask(|done| device.read(offset, AlignedBuf::for_read(len), done))
}

fn flush(device: &NbdDevice) -> Pending<()> {
    ask(|done| device.flush(done))
}

fn assert_filled(device: &NbdDevice, offset: u64, fill: u8, len: usize) {
    let bytes = read(device, offset, len).wait().unwrap();
    let wrong = bytes.iter().position(|&byte| byte != fill);
    assert!(
        wrong.is_none(),
        "byte {} of {offset}+{len} is {}, not {fill}",
        wrong.unwrap(),
        bytes[wrong.unwrap()]
    );
}

fn eventually(what: &str, condition: impl Fn() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < LIMIT, "not within {LIMIT:?}: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn open(lab: &Lab) -> Arc<NbdDevice> {
    open_with(lab, Wait::Seconds(60), NbdOptions::default())
}

fn open_with(lab: &Lab, wait: Wait, options: NbdOptions) -> Arc<NbdDevice> {
    NbdDevice::open(&lab.location(wait), options).unwrap()
}

/// A server of every kind that the client must get along with.
fn specs() -> Vec<Spec> {
    let plain = Spec { flags: server::FLUSH, blocks: None, structured: false, ..Spec::default() };
    let one =
        Spec { flags: server::FLUSH | server::FUA | server::TRIM, structured: false, ..Spec::default() };
    let fast = Spec { flags: server::FLUSH | server::WRITE_ZEROES | server::FAST_ZERO, ..Spec::default() };
    vec![Spec::default(), Spec { structured: false, ..Spec::default() }, plain, one, fast]
}
