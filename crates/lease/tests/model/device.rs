//! The device of one host: it hands operations to the world, which carries them out later.

use bytes::Bytes;
use std::sync::{Arc, Mutex};
use syncline_device::{AlignedBuf, Completion, Device};

/// An operation that a holder has begun.
pub enum Begun {
    Write(Completion<()>),
    Flush(Completion<()>),
}

/// A queue between the device and the world.
#[derive(Default)]
pub struct HostDevice {
    pub begun: Mutex<Vec<Begun>>,
}

impl HostDevice {
    pub fn new() -> Arc<Self> {
        Arc::default()
    }
}

impl Device for HostDevice {
    fn size_bytes(&self) -> u64 {
        1 << 24
    }

    fn read(&self, _: u64, _: AlignedBuf, _: Completion<AlignedBuf>) {
        unreachable!("the model's holders read nothing");
    }

    fn write(&self, _: u64, _: Vec<Bytes>, done: Completion<()>) {
        self.begun.lock().unwrap().push(Begun::Write(done));
    }

    fn flush(&self, done: Completion<()>) {
        self.begun.lock().unwrap().push(Begun::Flush(done));
    }

    fn discard(&self, _: u64, _: u64, _: Completion<()>) {
        unreachable!("the model's holders discard nothing");
    }
}
