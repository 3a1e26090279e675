//! A device whose operations other threads carry out, in real time.

use crate::Simulation;
use crate::device::Latency;
use crate::executor::Shared;
use bytes::Bytes;
use std::sync::mpsc::channel;
use std::sync::{Arc, Weak};
use std::time::Duration;
use syncline_device::{AlignedBuf, Completion, Device};

/// Passes operations on to a device that answers from its own threads. The simulation picks when each
/// begins and when its answer is told; meanwhile the device has several in flight. A pick waits in real
/// time until the answer is there. So the order that the engine sees depends on the seed, and not on the
/// threads.
pub struct AwaitedDevice {
    inner: Arc<dyn Device>,
    run: Weak<Shared>,
    latency: Latency,
    limit: Duration,
}

impl AwaitedDevice {
    /// Puts `inner` behind the simulation. An answer that does not come within `limit` of real time
    /// is a panic.
    pub fn new(
        simulation: &Simulation,
        inner: Arc<dyn Device>,
        latency: Latency,
        limit: Duration,
    ) -> Arc<Self> {
        Arc::new(Self { inner, run: Arc::downgrade(simulation.shared()), latency, limit })
    }

    fn later<T: Send + 'static>(
        &self,
        (least_ns, most_ns): (u64, u64),
        start: impl FnOnce(&dyn Device, Completion<T>) + Send + 'static,
        done: Completion<T>,
    ) {
        // Once the run is over nothing begins any more, as at a power cut.
        let Some(run) = self.run.upgrade() else { return };
        let (inner, limit, weak) = (self.inner.clone(), self.limit, self.run.clone());
        let begin = move || {
            let (sender, answer) = channel();
            start(&*inner, Box::new(move |result| drop(sender.send(result))));
            let Some(run) = weak.upgrade() else { return };
            let end = move || match answer.recv_timeout(limit) {
                Ok(result) => done(result),
                Err(error) => panic!("a device operation has no answer: {error}"),
            };
            run.schedule(least_ns / 2, most_ns / 2, Box::new(end));
        };
        run.schedule(least_ns / 2, most_ns / 2, Box::new(begin));
    }
}

impl Device for AwaitedDevice {
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }

    fn reads_bypass_caches(&self) -> bool {
        self.inner.reads_bypass_caches()
    }

    fn read(&self, offset: u64, buf: AlignedBuf, done: Completion<AlignedBuf>) {
        self.later(self.latency.read_ns, move |inner, done| inner.read(offset, buf, done), done);
    }

    fn write(&self, offset: u64, bufs: Vec<Bytes>, done: Completion<()>) {
        self.later(self.latency.write_ns, move |inner, done| inner.write(offset, bufs, done), done);
    }

    fn flush(&self, done: Completion<()>) {
        self.later(self.latency.flush_ns, |inner, done| inner.flush(done), done);
    }

    fn writes_through(&self) -> bool {
        self.inner.writes_through()
    }

    fn write_through(&self, offset: u64, bufs: Vec<Bytes>, done: Completion<()>) {
        self.later(self.latency.flush_ns, move |inner, done| inner.write_through(offset, bufs, done), done);
    }

    fn discards(&self) -> bool {
        self.inner.discards()
    }

    fn discard(&self, offset: u64, len_bytes: u64, done: Completion<()>) {
        self.later(self.latency.write_ns, move |inner, done| inner.discard(offset, len_bytes, done), done);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use syncline_device::{DeviceExt, MemoryDevice};

    /// Answers each write from a thread of its own.
    struct Threaded(Arc<MemoryDevice>);

    impl Device for Threaded {
        fn size_bytes(&self) -> u64 {
            self.0.size_bytes()
        }
        fn read(&self, offset: u64, buf: AlignedBuf, done: Completion<AlignedBuf>) {
            self.0.read(offset, buf, done);
        }
        fn write(&self, offset: u64, bufs: Vec<Bytes>, done: Completion<()>) {
            let inner = self.0.clone();
            std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(2));
                inner.write(offset, bufs, done);
            });
        }
        fn flush(&self, done: Completion<()>) {
            self.0.flush(done);
        }
        fn discard(&self, offset: u64, len_bytes: u64, done: Completion<()>) {
            self.0.discard(offset, len_bytes, done);
        }
    }

    #[test]
    fn answers_of_other_threads_are_waited_for() {
        let simulation = Simulation::new(3);
        let memory = MemoryDevice::new(1 << 20);
        let threaded = Arc::new(Threaded(memory.clone()));
        let device = AwaitedDevice::new(&simulation, threaded, Latency::default(), Duration::from_secs(20));
        let work = async move {
            let writes: Vec<_> = (0..8_u8)
                .map(|at| device.write_at(u64::from(at) * 4096, vec![Bytes::from(vec![at; 4096])]))
                .collect();
            for write in writes {
                write.await.unwrap();
            }
            device.read_at(7 * 4096, 4096).await.unwrap()[0]
        };
        assert_eq!(simulation.run(work), Ok(7));
        assert_eq!(memory.image()[3 * 4096], 3);
    }
}
