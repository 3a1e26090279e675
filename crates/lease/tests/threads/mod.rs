//! The lease with its thread, on a device in memory, by a clock that waits for threads that get no
//! processor.

mod clock;

use bytes::Bytes;
use clock::PatientClock;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};
use syncline_device::{
    AlignedBuf, Completion, Device, DeviceError, DeviceExt, FileDevice, MemoryDevice, OpenOptions, Operation,
    block_on,
};
use syncline_lease::{
    Clock, LEASE_OFFSET, LeaseError, LeaseHolder, LeaseLost, LeaseOptions, LeaseState, Leased, Progress,
    TakeOver, look, this_process,
};

/// A test that hangs has failed.
const LIMIT: Duration = Duration::from_secs(120);
const LEASE: Duration = Duration::from_secs(4);
const GUARD: Duration = Duration::from_millis(500);

fn options(clock: &PatientClock, host: &str) -> LeaseOptions {
    let holder = LeaseHolder { host: LeaseHolder::encode_host(host), ..this_process() };
    LeaseOptions {
        duration: LEASE,
        guard: GUARD,
        holder: Some(holder),
        clock: Arc::new(clock.clone()),
        ..LeaseOptions::default()
    }
}

fn device() -> Arc<Switch> {
    way_to(MemoryDevice::new(1 << 20), PatientClock::new())
}

fn way_to(inner: Arc<MemoryDevice>, clock: PatientClock) -> Arc<Switch> {
    Arc::new(Switch { inner, clock, mode: Mutex::new(Mode::Works), flushes: AtomicU64::new(0) })
}

/// Takes a lease; the clock waits for this thread, and then for the one that renews.
fn taken(
    clock: &PatientClock,
    take: impl FnOnce() -> Result<Arc<Leased>, LeaseError>,
) -> Result<Arc<Leased>, LeaseError> {
    let held = clock.hold();
    let leased = take()?;
    held.taken();
    Ok(leased)
}

fn acquire(device: &Arc<Switch>, host: &str) -> Result<Arc<Leased>, LeaseError> {
    acquire_with(device, &options(&device.clock, host))
}

fn acquire_with(device: &Arc<Switch>, options: &LeaseOptions) -> Result<Arc<Leased>, LeaseError> {
    let go_on = |_: Progress<'_>| ControlFlow::Continue(());
    taken(&device.clock, || Leased::acquire(device.clone(), options, go_on))
}

fn take_over(device: &Arc<Switch>, host: &str, how: TakeOver) -> Result<Arc<Leased>, LeaseError> {
    watch_take_over(device, host, how, |_| ControlFlow::Continue(()))
}

fn watch_take_over(
    device: &Arc<Switch>,
    host: &str,
    how: TakeOver,
    progress: impl FnMut(Progress<'_>) -> ControlFlow<()>,
) -> Result<Arc<Leased>, LeaseError> {
    let options = options(&device.clock, host);
    taken(&device.clock, || Leased::take_over(device.clone(), &options, how, progress))
}

#[derive(Clone, Copy, PartialEq)]
enum Mode {
    Works,
    Fails,
    Hangs,
    /// Writes are never answered; reads are.
    WritesHang,
    FlushesFail,
}

/// A device that can be made to fail or to hang.
struct Switch {
    inner: Arc<MemoryDevice>,
    clock: PatientClock,
    mode: Mutex<Mode>,
    flushes: AtomicU64,
}

impl Switch {
    fn set(&self, mode: Mode) {
        *self.mode.lock().unwrap() = mode;
    }

    fn mode(&self) -> Mode {
        *self.mode.lock().unwrap()
    }

    fn answers<T: 'static>(&self, operation: Operation, done: Completion<T>) -> Option<Completion<T>> {
        match self.mode() {
            Mode::Works => Some(done),
            Mode::WritesHang if operation == Operation::Read => Some(done),
            Mode::FlushesFail if operation != Operation::Flush => Some(done),
            Mode::Fails | Mode::FlushesFail => {
                done(Err(DeviceError::io(operation, 0, 0, std::io::Error::from_raw_os_error(5))));
                None
            }
            Mode::Hangs | Mode::WritesHang => {
                std::mem::forget(done);
                None
            }
        }
    }
}

impl Device for Switch {
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }
    fn read(&self, offset: u64, buf: AlignedBuf, done: Completion<AlignedBuf>) {
        if let Some(done) = self.answers(Operation::Read, done) {
            self.inner.read(offset, buf, done);
        }
    }
    fn write(&self, offset: u64, bufs: Vec<Bytes>, done: Completion<()>) {
        if let Some(done) = self.answers(Operation::Write, done) {
            self.inner.write(offset, bufs, done);
        }
    }
    fn flush(&self, done: Completion<()>) {
        self.flushes.fetch_add(1, Ordering::Relaxed);
        if let Some(done) = self.answers(Operation::Flush, done) {
            self.inner.flush(done);
        }
    }
    fn discard(&self, offset: u64, len_bytes: u64, done: Completion<()>) {
        self.inner.discard(offset, len_bytes, done);
    }
}

fn block(fill: u8) -> Vec<Bytes> {
    vec![AlignedBuf::copy_from(&[fill; 4096]).into_bytes()]
}

fn eventually(what: &str, condition: impl Fn() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < LIMIT, "not within {LIMIT:?}: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn hears(leased: &Leased) -> mpsc::Receiver<LeaseLost> {
    let (sender, receiver) = mpsc::channel();
    leased.on_lost(move |why| sender.send(why.clone()).unwrap());
    receiver
}

#[test]
fn a_holder_renews_without_flushes_and_another_is_refused() {
    let device = device();
    let alpha = acquire(&device, "alpha").unwrap();
    assert_eq!(alpha.term(), 1);
    let flushes = device.flushes.load(Ordering::Relaxed);
    eventually("it renews", || alpha.status().renewals >= 4);
    assert_eq!(device.flushes.load(Ordering::Relaxed), flushes, "renewals need none");
    block_on(alpha.write_at(0, block(1))).unwrap();
    block_on(alpha.flush_all()).unwrap();

    let refused = acquire(&device, "beta").err().unwrap();
    assert!(matches!(refused, LeaseError::InUse(_)));
    let text = refused.to_string();
    let said = format!("the image is in use by alpha (process {}) for ", std::process::id());
    assert!(text.starts_with(&said) && text.ends_with("take it over: 'syncline mount --takeover'"), "{text}");
    assert!(alpha.check().is_ok(), "who is refused has not disturbed it");
    let seen = block_on(look(&(device.clone() as Arc<dyn Device>))).unwrap().unwrap();
    assert_eq!((seen.state, seen.term, seen.holder.host_text().as_str()), (LeaseState::Held, 1, "alpha"));
}

#[test]
fn a_released_lease_is_taken_at_once() {
    let device = device();
    let alpha = acquire(&device, "alpha").unwrap();
    let heard = hears(&alpha);
    assert!(alpha.release());
    assert!(alpha.release(), "it is still released");
    let error = block_on(alpha.write_at(0, block(1))).unwrap_err();
    assert_eq!(LeaseLost::of(&error), Some(&LeaseLost::Released));
    drop(alpha);
    assert!(heard.recv().is_err(), "a release is no loss");
    let mut waited = false;
    let beta = taken(&device.clock, || {
        Leased::acquire(device.clone(), &options(&device.clock, "beta"), |progress| {
            waited |= matches!(progress, Progress::Holder { .. });
            ControlFlow::Continue(())
        })
    });
    assert_eq!(beta.unwrap().term(), 2, "and by dropping it, too");
    assert!(!waited);
    assert_eq!(acquire(&device, "gamma").unwrap().term(), 3);
}

#[test]
fn a_lease_is_not_released_while_a_write_may_be_under_way() {
    let device = device();
    let alpha = acquire(&device, "alpha").unwrap();
    device.set(Mode::Hangs);
    let hanging = alpha.write_at(0, block(1));
    device.set(Mode::Works);
    let begun = Instant::now();
    assert!(!alpha.release());
    assert!(begun.elapsed() < LIMIT, "it does not wait for ever");
    drop((alpha, hanging));
    let seen = block_on(look(&(device.clone() as Arc<dyn Device>))).unwrap().unwrap();
    assert_eq!(seen.state, LeaseState::Held);
    // Nobody renews it, so the next one waits and takes it.
    assert_eq!(acquire(&device, "beta").unwrap().term(), 2);
}

/// The block is an older one again if the server ends now: nobody is told that the next one need not
/// wait.
#[test]
fn a_lease_is_not_called_released_before_that_is_durable() {
    let device = device();
    let alpha = acquire(&device, "alpha").unwrap();
    device.set(Mode::FlushesFail);
    assert!(!alpha.release());
}

#[test]
fn a_device_that_does_not_answer_ends_the_lease_in_time() {
    for mode in [Mode::Hangs, Mode::Fails] {
        let device = device();
        let alpha = acquire(&device, "alpha").unwrap();
        let (sender, heard) = mpsc::channel();
        let clock = device.clock.clone();
        alpha.on_lost(move |why| sender.send((why.clone(), clock.now())).unwrap());
        let held = device.clock.between_renewals();
        device.set(mode);
        let begun = device.clock.now();
        drop(held);
        let (why, at) = heard.recv_timeout(LIMIT).unwrap();
        assert!(at - begun < LEASE, "{:?}", at - begun);
        let text = why.to_string();
        assert!(text.starts_with("could not renew the lease within 3.5 s ("), "{text}");
        assert_eq!(text.contains("Input/output error"), mode == Mode::Fails, "{text}");
        device.set(Mode::Works);
        let error = block_on(alpha.flush_all()).unwrap_err();
        assert_eq!(LeaseLost::of(&error), Some(&why));
        let status = alpha.status();
        assert_eq!((status.lost, status.failed > 0), (Some(why), mode == Mode::Fails));
        assert!(!alpha.release());
        // It has not come back when the device has.
        std::thread::sleep(Duration::from_millis(300));
        assert!(alpha.check().is_err());
        assert_eq!(acquire(&device, "beta").unwrap().term(), 2);
    }
}

#[test]
fn a_living_holder_is_taken_over_and_hears_of_it() {
    let device = device();
    let alpha = acquire(&device, "alpha").unwrap();
    let heard = hears(&alpha);
    let mut longest = Duration::ZERO;
    let beta = watch_take_over(&device, "beta", TakeOver::WhenExpired, |progress| {
        if let Progress::Holder { left, .. } = progress {
            longest = longest.max(left);
        }
        ControlFlow::Continue(())
    })
    .unwrap();
    assert_eq!(beta.term(), 2);
    let whole = (LEASE + GUARD) * 9 / 8;
    assert!(longest <= whole && longest > whole / 2, "{longest:?}");
    let why = heard.recv_timeout(LIMIT).unwrap();
    assert!(matches!(&why, LeaseLost::TakenBy { host, term: 2, .. } if host == "beta"), "{why}");
    let error = block_on(alpha.write_at(0, block(1))).unwrap_err();
    assert!(error.to_string().contains("lost the lease to beta (process "), "{error}");
    assert!(!alpha.release(), "it is not its to give back");
    drop(alpha);
    block_on(beta.write_at(0, block(2))).unwrap();
    block_on(beta.flush_all()).unwrap();
    eventually("the new holder renews", || beta.status().renewals >= 3);
    assert!(beta.check().is_ok());
}

/// A holder that was stopped, or cut off for writing, first sees that its time is over.
#[test]
fn who_has_it_now_is_named_though_the_time_was_over_first() {
    let way = device();
    let alpha = acquire(&way, "alpha").unwrap();
    let heard = hears(&alpha);
    eventually("it has renewed", || alpha.status().renewals >= 1);
    way.set(Mode::WritesHang);
    let beta =
        take_over(&way_to(way.inner.clone(), way.clock.clone()), "beta", TakeOver::WhenExpired).unwrap();
    let why = heard.recv_timeout(LIMIT).unwrap();
    assert!(matches!(&why, LeaseLost::TakenBy { host, term: 1 | 2, .. } if host == "beta"), "{why}");
    assert_eq!(alpha.status().lost, Some(why.clone()));
    assert_eq!(LeaseLost::of(&block_on(alpha.flush_all()).unwrap_err()), Some(&why));
    assert!(!alpha.release());
    assert!(beta.check().is_ok());
}

#[test]
fn a_forced_take_over_does_not_wait() {
    let device = device();
    let alpha = acquire(&device, "alpha").unwrap();
    let began = device.clock.now();
    let beta = watch_take_over(&device, "beta", TakeOver::AtOnce, |progress| {
        assert!(!matches!(progress, Progress::Holder { .. }), "it waits");
        assert!(device.clock.now() - began < LEASE);
        ControlFlow::Continue(())
    });
    let beta = beta.unwrap();
    assert_eq!(beta.term(), 2);
    eventually("the former holder finds out", || alpha.check().is_err());
    assert!(beta.check().is_ok());
}

#[test]
fn of_many_who_begin_at_once_one_gets_it() {
    for round in 0..10 {
        let device = device();
        let barrier = Arc::new(std::sync::Barrier::new(6));
        let contenders: Vec<_> = (0..6)
            .map(|number| {
                let (device, barrier) = (device.clone(), barrier.clone());
                std::thread::spawn(move || {
                    barrier.wait();
                    acquire(&device, &format!("host{number}"))
                })
            })
            .collect();
        let got: Vec<_> = contenders.into_iter().map(|contender| contender.join().unwrap()).collect();
        let holders = got.iter().filter(|result| result.is_ok()).count();
        assert_eq!(holders, 1, "round {round}");
        for error in got.iter().filter_map(|result| result.as_ref().err()) {
            assert!(matches!(error, LeaseError::TakenMeanwhile(_) | LeaseError::InUse(_)), "{error}");
        }
    }
}

#[test]
fn a_damaged_block_is_refused_and_taken_over() {
    let device = device();
    drop(acquire(&device, "alpha").unwrap());
    let mut rotten = block_on(device.read_at(LEASE_OFFSET, 4096)).unwrap();
    rotten[100] ^= 1;
    block_on(device.write_at(LEASE_OFFSET, vec![rotten.into_bytes()])).unwrap();
    let refused = acquire(&device, "beta").err().unwrap();
    assert!(matches!(refused, LeaseError::Damaged(_)));
    assert!(refused.to_string().contains("checksum mismatch"), "{refused}");
    let over_unknown = LeaseOptions { over_unknown: true, ..options(&device.clock, "beta") };
    let refused = acquire_with(&device, &over_unknown);
    assert!(matches!(refused, Err(LeaseError::Damaged(_))), "it may be a living holder's");
    assert_eq!(take_over(&device, "beta", TakeOver::AtOnce).unwrap().term(), 1);
    assert_eq!(acquire(&device, "gamma").unwrap().term(), 2);

    let foreign = self::device();
    block_on(foreign.write_at(LEASE_OFFSET, block(0xee))).unwrap();
    assert!(matches!(acquire(&foreign, "alpha"), Err(LeaseError::Damaged(_))));
    let over_unknown = LeaseOptions { over_unknown: true, ..options(&foreign.clock, "beta") };
    let leased = acquire_with(&foreign, &over_unknown).unwrap();
    assert_eq!(leased.term(), 1);
}

/// A block that rots under its holder is never written over, and costs the lease when it expires.
#[test]
fn a_block_that_rots_or_vanishes_ends_the_lease() {
    for zeros in [false, true] {
        let device = device();
        let alpha = acquire(&device, "alpha").unwrap();
        let heard = hears(&alpha);
        // A renewal that had compared the block before would make it whole again.
        let held = device.clock.between_renewals();
        let mut bad = block_on(device.read_at(LEASE_OFFSET, 4096)).unwrap();
        match zeros {
            true => bad.fill(0),
            false => bad[20] ^= 0x80,
        }
        let bad = bad.into_bytes();
        block_on(device.write_at(LEASE_OFFSET, vec![bad.clone()])).unwrap();
        drop(held);
        let why = heard.recv_timeout(LIMIT).unwrap();
        match (&why, zeros) {
            (LeaseLost::Overwritten(what), true) => assert_eq!(what, "zeros"),
            (LeaseLost::Expired { trouble, .. }, false) => assert!(trouble.contains("checksum"), "{trouble}"),
            _ => panic!("{why}"),
        }
        drop(alpha);
        assert_eq!(block_on(device.read_at(LEASE_OFFSET, 4096)).unwrap()[..], bad[..]);
    }
}

#[test]
fn waiting_can_be_interrupted() {
    let device = device();
    let alpha = acquire(&device, "alpha").unwrap();
    let interrupted = watch_take_over(&device, "beta", TakeOver::WhenExpired, |progress| match progress {
        Progress::Holder { .. } => ControlFlow::Break(()),
        Progress::Device => ControlFlow::Continue(()),
    });
    assert!(matches!(interrupted, Err(LeaseError::Interrupted)));
    eventually("the holder has seen the claim", || alpha.check().is_err());
    device.set(Mode::Hangs);
    let hangs = Leased::acquire(device.clone(), &options(&device.clock, "beta"), |_| ControlFlow::Break(()));
    assert!(matches!(hangs, Err(LeaseError::Interrupted)), "a device that hangs, too");
}

#[test]
fn what_cannot_have_a_lease_is_refused() {
    let device = device();
    let short = options(&device.clock, "alpha").lasting(Duration::from_secs(1));
    let refused = acquire_with(&device, &short);
    assert!(matches!(refused, Err(LeaseError::Options(_))));
    let small: Arc<dyn Device> = MemoryDevice::new(48 * 4096);
    let refused =
        Leased::acquire(small.clone(), &options(&device.clock, "alpha"), |_| ControlFlow::Continue(()));
    assert!(matches!(refused, Err(LeaseError::TooSmall)));
    assert!(matches!(block_on(look(&small)), Err(LeaseError::TooSmall)));
    device.set(Mode::Fails);
    assert!(matches!(acquire(&device, "alpha"), Err(LeaseError::Device(_))));
}

/// On an image file, through the device's own threads.
#[test]
fn a_file_that_is_read_directly_can_be_leased() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("image");
    let open = || OpenOptions::default();
    let device = FileDevice::create(&path, Some(1 << 20), false, open(), &mut |_| {}).unwrap();
    let direct = device.reads_bypass_caches();
    // Long, as the clock does not wait for the device's threads.
    let clock = PatientClock::new();
    let long = |host| options(&clock, host).lasting(Duration::from_secs(40));
    let acquire = |device: Arc<dyn Device>, host| {
        taken(&clock, || Leased::acquire(device.clone(), &long(host), |_| ControlFlow::Continue(())))
    };
    let alpha = acquire(device, "alpha");
    if !direct {
        assert!(matches!(alpha, Err(LeaseError::Cached)));
        return println!("no direct I/O in {}: only the refusal was tested", path.display());
    }
    let alpha = alpha.unwrap();
    block_on(alpha.write_at(0, block(1))).unwrap();
    block_on(alpha.flush_all()).unwrap();
    eventually("it renews", || alpha.status().renewals >= 2);
    let term = alpha.term();
    drop(alpha);
    // The file's own lock has gone with the device.
    let begun = Instant::now();
    let device = loop {
        match FileDevice::open(&path, open()) {
            Ok(device) => break device,
            Err(error) => assert!(begun.elapsed() < LIMIT, "{error}"),
        }
    };
    let seen = std::fs::read(&path).unwrap();
    assert_eq!(&seen[LEASE_OFFSET as usize..][..8], b"SYNLEASE");
    let beta = acquire(device, "beta").unwrap();
    assert_eq!((beta.term(), block_on(beta.read_at(0, 4096)).unwrap()[0]), (term + 1, 1));
}

/// Five hosts take the image over, one after the other, each writing as fast as it can. Data that one
/// of them was told to be durable is there when the next one begins.
#[test]
fn nothing_acknowledged_is_missing_after_take_overs() {
    let device = device();
    let acknowledged = AtomicU64::new(0);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let mut holder = acquire(&device, "host0").unwrap();
        for number in 1..5 {
            let writer = holder.clone();
            let (acknowledged, over) = (&acknowledged, &over);
            let writing = scope.spawn(move || {
                let stored = block_on(writer.read_at(0, 4096)).unwrap();
                let mut count = u64::from_le_bytes(stored[..8].try_into().unwrap());
                assert!(count >= acknowledged.load(Ordering::SeqCst), "acknowledged, and not there");
                while !over.load(Ordering::SeqCst) {
                    count += 1;
                    let bytes = AlignedBuf::copy_from(&count.to_le_bytes()).into_bytes();
                    let written = block_on(writer.write_at(0, vec![bytes]));
                    if written.and_then(|()| block_on(writer.flush_all())).is_err() {
                        return;
                    }
                    acknowledged.store(count, Ordering::SeqCst);
                }
            });
            let before = acknowledged.load(Ordering::SeqCst);
            eventually("it writes", || acknowledged.load(Ordering::SeqCst) >= before + 25);
            holder = take_over(&device, &format!("host{number}"), TakeOver::WhenExpired).unwrap();
            writing.join().unwrap();
        }
        over.store(true, Ordering::SeqCst);
        drop(holder);
    });
    assert!(acknowledged.load(Ordering::SeqCst) >= 100);
}
