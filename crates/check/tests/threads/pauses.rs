//! Pauses for others: a clock that pauses when operations read it, just before they commit, and a
//! device whose operations end on other threads, late and out of order. Also between steps of the
//! program where a switch would be rare.

use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;
use syncline_device::{AlignedBuf, Completion, Device, MemoryDevice};
use syncline_fs::Clock;
use syncline_fs::types::Timestamp;
use syncline_store::GiveWay;

/// Random numbers for any thread.
struct Chance(AtomicU64);

impl Chance {
    fn next(&self) -> u64 {
        let at = self.0.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        mixed(at)
    }
}

fn mixed(number: u64) -> u64 {
    let mixed = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed ^ (mixed >> 31)
}

/// One in this many places where the program may yield does so often, and for longer than the
/// operations of others take. The seed decides which: if all were slow, none would be late.
const SLOW_PLACES: u64 = 6;

/// Yields for a moment at random, and often at some places.
pub fn giving_way(seed: u64) -> GiveWay {
    let chance = Chance(AtomicU64::new(seed));
    GiveWay::calling(move |place| {
        let name =
            place.file().bytes().fold(u64::from(place.line()), |name, byte| mixed(name + u64::from(byte)));
        let slow = mixed(name ^ seed).is_multiple_of(SLOW_PLACES);
        match chance.next() % 64 {
            0..24 if slow => std::thread::sleep(Duration::from_micros(50 + chance.next() % 300)),
            24 => std::thread::sleep(Duration::from_micros(chance.next() % 100)),
            25..28 => std::thread::yield_now(),
            _ => {}
        }
    })
}

/// A clock that advances by a microsecond each time it is read.
pub struct PausingClock {
    chance: Chance,
    now_us: AtomicU64,
    pauses: bool,
}

impl PausingClock {
    pub fn new(seed: u64, pauses: bool) -> Arc<Self> {
        Arc::new(Self { chance: Chance(AtomicU64::new(seed)), now_us: AtomicU64::new(1_000_000_000), pauses })
    }
}

impl Clock for PausingClock {
    fn now(&self) -> Timestamp {
        match self.chance.next() % 64 {
            0..4 if self.pauses => std::thread::yield_now(),
            4 if self.pauses => std::thread::sleep(Duration::from_micros(50)),
            _ => {}
        }
        let now = self.now_us.fetch_add(1, Ordering::Relaxed);
        Timestamp { seconds: (now / 1_000_000) as i64, nanoseconds: (now % 1_000_000) as u32 * 1000 }
    }

    fn uptime(&self) -> Duration {
        Duration::from_micros(self.now_us.fetch_add(1, Ordering::Relaxed))
    }
}

/// Ends some operations on the calling thread, and others on its own threads when those get to
/// them.
pub struct LateDevice {
    inner: Arc<MemoryDevice>,
    late: Vec<Sender<Box<dyn FnOnce() + Send>>>,
    chance: Arc<Chance>,
}

impl LateDevice {
    pub fn new(inner: Arc<MemoryDevice>, seed: u64) -> Arc<Self> {
        let chance = Arc::new(Chance(AtomicU64::new(seed)));
        let late = (0..2).map(|_| start(chance.clone())).collect();
        Arc::new(Self { inner, late, chance })
    }

    fn run(&self, operation: impl FnOnce(&MemoryDevice) + Send + 'static) {
        let inner = self.inner.clone();
        let chosen = self.chance.next() as usize % (self.late.len() + 1);
        match self.late.get(chosen) {
            // The thread ends only with the device.
            Some(late) => late.send(Box::new(move || operation(&inner))).expect("the thread runs"),
            None => operation(&inner),
        }
    }
}

fn start(chance: Arc<Chance>) -> Sender<Box<dyn FnOnce() + Send>> {
    let (sender, jobs): (_, Receiver<Box<dyn FnOnce() + Send>>) = channel();
    std::thread::spawn(move || {
        for job in jobs {
            if chance.next().is_multiple_of(4) {
                std::thread::sleep(Duration::from_micros(chance.next() % 300));
            }
            job();
        }
    });
    sender
}

impl Device for LateDevice {
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }

    fn read(&self, offset: u64, buf: AlignedBuf, done: Completion<AlignedBuf>) {
        self.run(move |inner| inner.read(offset, buf, done));
    }

    fn write(&self, offset: u64, bufs: Vec<Bytes>, done: Completion<()>) {
        self.run(move |inner| inner.write(offset, bufs, done));
    }

    fn flush(&self, done: Completion<()>) {
        self.run(move |inner| inner.flush(done));
    }

    fn discard(&self, offset: u64, len_bytes: u64, done: Completion<()>) {
        self.run(move |inner| inner.discard(offset, len_bytes, done));
    }
}
