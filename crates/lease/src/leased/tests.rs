use super::*;
use crate::LEASE_BLOCK;
use crate::lab::{Claim, How};
use crate::{Clock, LeaseOptions};
use parking_lot::Mutex;
use syncline_device::{DeviceExt, MemoryDevice, block_on};
use syncline_format::lease::Lease;

/// A clock that stands still until it is told.
#[derive(Default)]
struct Hand(Mutex<Duration>);

impl Hand {
    fn goes_on(&self, time: Duration) {
        *self.0.lock() += time;
    }
}

impl Clock for Hand {
    fn now(&self) -> Duration {
        *self.0.lock()
    }
}

type Kept = Box<dyn FnOnce(&dyn Device) + Send>;

/// A device that keeps its operations until it is told to carry them out.
struct Slow {
    inner: Arc<dyn Device>,
    waiting: Mutex<Vec<Kept>>,
}

impl Slow {
    fn carry_out(&self) {
        let waiting: Vec<_> = self.waiting.lock().drain(..).collect();
        waiting.into_iter().for_each(|operation| operation(&*self.inner));
    }

    fn keep(&self, operation: impl FnOnce(&dyn Device) + Send + 'static) {
        self.waiting.lock().push(Box::new(operation));
    }
}

impl Device for Slow {
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }
    fn read(&self, offset: u64, buf: AlignedBuf, done: Completion<AlignedBuf>) {
        self.keep(move |inner| inner.read(offset, buf, done));
    }
    fn write(&self, offset: u64, bufs: Vec<Bytes>, done: Completion<()>) {
        self.keep(move |inner| inner.write(offset, bufs, done));
    }
    fn flush(&self, done: Completion<()>) {
        self.keep(move |inner| inner.flush(done));
    }
    fn writes_through(&self) -> bool {
        true
    }
    fn write_through(&self, offset: u64, bufs: Vec<Bytes>, done: Completion<()>) {
        self.keep(move |inner| inner.write(offset, bufs, done));
    }
    fn discard(&self, offset: u64, len_bytes: u64, done: Completion<()>) {
        self.keep(move |inner| inner.discard(offset, len_bytes, done));
    }
}

struct Bench {
    clock: Arc<Hand>,
    memory: Arc<MemoryDevice>,
    slow: Arc<Slow>,
    leased: Leased,
    lease: Lease,
}

/// A leased device over a slow one; its lease was taken at the time zero.
fn bench() -> Bench {
    let clock = Arc::<Hand>::default();
    let options = LeaseOptions { clock: clock.clone(), ..LeaseOptions::default() };
    let memory = MemoryDevice::new(1 << 20);
    let slow = Arc::new(Slow { inner: memory.clone(), waiting: Mutex::default() });
    let claimed = claimed(&options);
    let gate = Claim::gate(&options, &claimed);
    let leased = Leased::without_thread(slow.clone(), gate, Arc::default());
    Bench { clock, memory, slow, leased, lease: claimed.lease }
}

/// The claim of a device that answers at once.
fn claimed(options: &LeaseOptions) -> crate::lab::Claimed {
    use crate::lab::{ClaimEvent, ClaimStep};
    let mut claim = Claim::new(options, How::Wait, [7; 16], 0);
    let (mut block, mut event) = (None, ClaimEvent::Begin);
    loop {
        event = match claim.step(Duration::ZERO, event) {
            ClaimStep::Read => ClaimEvent::Read(Ok(block.clone())),
            ClaimStep::Write(lease) => {
                block = Some(*lease);
                ClaimEvent::Done
            }
            ClaimStep::Flush | ClaimStep::Pause(_) => ClaimEvent::Done,
            ClaimStep::Done(claimed) => return *claimed,
            ClaimStep::Refused(error) => panic!("{error}"),
        };
    }
}

const VALID: Duration = Duration::from_millis(8_750);
const BLOCK: u64 = BLOCK_BYTES as u64;

fn block(fill: u8) -> Bytes {
    AlignedBuf::copy_from(&[fill; BLOCK_BYTES]).into_bytes()
}

fn lost(result: Result<(), DeviceError>) -> Option<LeaseLost> {
    LeaseLost::of(&result.unwrap_err()).cloned()
}

#[test]
fn while_it_is_valid_everything_passes() {
    let bench = bench();
    let write = bench.leased.write_at(0, vec![block(1)]);
    let through = bench.leased.discard_at(BLOCK, BLOCK);
    bench.slow.carry_out();
    block_on(write).unwrap();
    block_on(through).unwrap();
    bench.clock.goes_on(VALID - Duration::from_millis(1));
    let flush = bench.leased.flush_all();
    let read = bench.leased.read_at(0, BLOCK_BYTES);
    bench.slow.carry_out();
    block_on(flush).unwrap();
    assert_eq!(block_on(read).unwrap()[0], 1);
    assert!(bench.leased.traffic.is_over());
    let status = bench.leased.status();
    assert_eq!((status.term, status.left), (1, Duration::from_millis(1)));
    assert_eq!((status.age, status.valid, status.lost), (VALID - Duration::from_millis(1), VALID, None));
}

#[test]
fn who_is_late_writes_nothing_and_gets_nothing_acknowledged() {
    let bench = bench();
    let (late_flush, late_write) = (bench.leased.flush_all(), bench.leased.write_at(0, vec![block(1)]));
    let answer = Arc::new(Mutex::new(None));
    let told = answer.clone();
    let done = Box::new(move |result| *told.lock() = Some(result));
    bench.leased.write_through(BLOCK, vec![block(2)], done);
    bench.clock.goes_on(VALID);
    // The device does it all, but nobody may rely on it.
    bench.slow.carry_out();
    let expired = lost(block_on(late_flush)).unwrap();
    assert!(matches!(&expired, LeaseLost::Expired { within, .. } if *within == VALID), "{expired}");
    assert_eq!(lost(answer.lock().take().unwrap()), Some(expired.clone()));
    // A write is no promise.
    block_on(late_write).unwrap();

    for again in [
        bench.leased.write_at(0, vec![block(3)]),
        bench.leased.flush_all(),
        bench.leased.discard_at(0, BLOCK),
    ] {
        assert_eq!(lost(block_on(again)), Some(expired.clone()));
    }
    assert_eq!(lost(block_on(bench.leased.enlarge_to(2 << 20)).map(|_| ())), Some(expired.clone()));
    assert_eq!(lost(block_on(bench.leased.read_at(0, BLOCK_BYTES)).map(|_| ())), Some(expired.clone()));
    assert!(bench.slow.waiting.lock().is_empty(), "nothing reached the device");
    assert_eq!(bench.memory.image()[0], 1);
    // A renewal that is answered now changes nothing.
    assert_eq!(bench.leased.gate.extend(Duration::ZERO), Err(expired.clone()));
    assert_eq!(bench.leased.check(), Err(expired));
    assert_eq!(bench.leased.status().left, Duration::ZERO);
}

#[test]
fn an_expired_lease_is_not_revived_by_a_renewal_that_nobody_has_noticed_to_be_late() {
    let bench = bench();
    bench.clock.goes_on(VALID);
    assert!(bench.leased.gate.extend(VALID / 2).is_err());
    assert!(bench.leased.check().is_err());
}

#[test]
fn after_a_reconnect_the_block_decides() {
    let bench = bench();
    let permit = bench.leased.permit();
    permit.check_block(&bench.lease.encode()).unwrap();
    permit.check().unwrap();
    let told = Arc::new(Mutex::new(None));
    let hears = told.clone();
    bench.leased.on_lost(move |why| *hears.lock() = Some(why.clone()));
    let mut other = bench.lease.clone();
    (other.nonce, other.term) = ([9; 16], 2);
    other.holder.host = crate::LeaseHolder::encode_host("beta");
    let why = permit.check_block(&other.encode()).unwrap_err();
    assert!(why.to_string().starts_with("lost the lease to beta (process "), "{why}");
    // The first reason stays.
    assert_eq!(permit.check_block(&[0; BLOCK_BYTES]), Err(why.clone()));
    assert_eq!(permit.check(), Err(why.clone()));
    assert_eq!(LeaseLost::of(&DeviceError::from(why.clone())), Some(&why));
    assert_eq!(lost(block_on(bench.leased.flush_all())), Some(why.clone()));
    // Listeners hear of it on the thread that renews, and late ones at once.
    assert_eq!(*told.lock(), None);
    bench.leased.gate.tell_listeners();
    assert_eq!(told.lock().take(), Some(why.clone()));
    let hears = told.clone();
    bench.leased.on_lost(move |why| *hears.lock() = Some(why.clone()));
    assert_eq!(told.lock().take(), Some(why));
}

#[test]
fn an_expired_lease_is_not_replayed_even_if_the_block_is_its_own() {
    let bench = bench();
    bench.clock.goes_on(VALID);
    assert!(matches!(
        bench.leased.permit().check_block(&bench.lease.encode()),
        Err(LeaseLost::Expired { .. })
    ));
}

/// The release is itself a write that the client of a network sends.
#[test]
fn what_was_begun_is_sent_while_the_lease_is_released_and_not_when_it_is_lost() {
    let Bench { clock, leased, .. } = bench();
    let permit = leased.permit();
    assert_eq!(permit.check_begun(), Ok(()));
    leased.gate.lose(LeaseLost::Released);
    assert_eq!((permit.check(), permit.check_begun()), (Err(LeaseLost::Released), Ok(())));
    clock.goes_on(leased.gate.valid_until());
    assert_eq!(permit.check_begun(), Err(LeaseLost::Released));
    let Bench { leased, .. } = bench();
    let why = leased.gate.lose(LeaseLost::Overwritten("zeros".into()));
    assert_eq!(leased.permit().check_begun(), Err(why));
}

#[test]
fn the_block_of_the_lease_is_left_out_of_every_write() {
    for (first, blocks) in [(0, 64), (47, 2), (48, 1), (48, 3), (40, 9), (49, 5), (10, 38)] {
        let bench = bench();
        // In pieces of one block and of three.
        for each in [1, 3] {
            let fill = each as u8;
            let mut bufs = vec![Bytes::from(vec![fill; each * BLOCK_BYTES]); blocks / each];
            bufs.extend(vec![block(fill); blocks % each]);
            let written = bench.leased.write_at(first * BLOCK, bufs);
            bench.slow.carry_out();
            bench.slow.carry_out();
            block_on(written).unwrap();
            for (number, bytes) in (0..).zip(bench.memory.image().chunks(BLOCK_BYTES)) {
                let written = (first..first + blocks as u64).contains(&number) && number != LEASE_BLOCK;
                let wanted = if written { fill } else { 0 };
                assert!(bytes.iter().all(|&byte| byte == wanted), "block {number} of {first}+{blocks}");
            }
        }
        assert!(bench.leased.traffic.is_over());
    }
    let bench = bench();
    assert!(block_on(bench.leased.discard_at(0, 64 * BLOCK)).is_err());
    assert!(bench.leased.check().is_ok());
}

/// A write that began before the lease ended, and has its second half behind the lease's block.
#[test]
fn the_rest_of_a_divided_write_is_checked_too() {
    let bench = bench();
    let written = bench.leased.write_at(47 * BLOCK, vec![block(1); 3]);
    bench.clock.goes_on(VALID);
    bench.slow.carry_out();
    assert!(lost(block_on(written)).is_some());
    assert_eq!(bench.memory.image()[49 * BLOCK_BYTES], 0);
}

#[test]
fn what_failed_or_was_never_answered_is_remembered() {
    let bench = bench();
    let write = bench.leased.write_at(0, vec![block(1)]);
    assert!(!bench.leased.traffic.is_over());
    bench.slow.waiting.lock().clear();
    assert!(block_on(write).is_err());
    assert!(bench.leased.traffic.is_unclear());

    let bench = self::bench();
    let write = bench.leased.write_at(1 << 20, vec![block(1)]);
    bench.slow.carry_out();
    assert!(block_on(write).is_err());
    assert!(bench.leased.traffic.is_unclear());
}
