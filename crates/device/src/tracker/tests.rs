//! The tracker over a device whose completions the test calls by hand, in any order.

use super::*;
use crate::MemoryDevice;
use futures_lite::future::{block_on, poll_once};
use proptest::prelude::*;
use std::collections::VecDeque;
use std::io;

/// Holds every operation until the test ends it.
#[derive(Default)]
struct HandDevice {
    writes: Mutex<VecDeque<crate::Completion<()>>>,
    flushes: Mutex<VecDeque<crate::Completion<()>>>,
    through: Mutex<VecDeque<crate::Completion<()>>>,
}

impl Device for HandDevice {
    fn size_bytes(&self) -> u64 {
        1 << 20
    }
    fn read(&self, _offset: u64, buf: AlignedBuf, done: crate::Completion<AlignedBuf>) {
        done(Ok(buf));
    }
    fn write(&self, _offset: u64, _bufs: Vec<Bytes>, done: crate::Completion<()>) {
        self.writes.lock().push_back(done);
    }
    fn writes_through(&self) -> bool {
        true
    }
    fn write_through(&self, _offset: u64, _bufs: Vec<Bytes>, done: crate::Completion<()>) {
        self.through.lock().push_back(done);
    }
    fn flush(&self, done: crate::Completion<()>) {
        self.flushes.lock().push_back(done);
    }
    fn discard(&self, _offset: u64, _len_bytes: u64, done: crate::Completion<()>) {
        done(Ok(()));
    }
}

fn broken(operation: Operation) -> DeviceError {
    DeviceError::io(operation, 0, 4096, io::Error::from_raw_os_error(libc::EIO))
}

struct Bench {
    device: Arc<HandDevice>,
    tracker: Arc<FlushTracker>,
}

impl Bench {
    fn new() -> Self {
        let device = Arc::new(HandDevice::default());
        Self { tracker: FlushTracker::new(device.clone()), device }
    }

    fn start_write(&self) -> WriteHandle {
        self.tracker.write(0, vec![Bytes::from_static(&[0; 4096])])
    }

    /// Ends the oldest write.
    fn end_write(&self, result: Result<(), DeviceError>) {
        let done = self.device.writes.lock().pop_front().expect("a write is on its way");
        done(result);
    }

    /// A write from start to end.
    fn write(&self) -> Ticket {
        let handle = self.start_write();
        self.end_write(Ok(()));
        block_on(handle.wait()).unwrap()
    }

    fn end_flush(&self, result: Result<(), DeviceError>) {
        let done = self.device.flushes.lock().pop_front().expect("a flush is on its way");
        done(result);
    }

    fn start_through(&self) -> (WriteHandle, Option<Durability>) {
        self.tracker.write_through(0, vec![Bytes::from_static(&[0; 4096])])
    }

    /// Ends the oldest write-through.
    fn end_through(&self, result: Result<(), DeviceError>) {
        let done = self.device.through.lock().pop_front().expect("a write-through is on its way");
        done(result);
    }

    fn flushes_in_flight(&self) -> usize {
        self.device.flushes.lock().len()
    }
}

fn pending(durability: &mut Durability) -> bool {
    block_on(poll_once(durability)).is_none()
}

#[test]
fn issued_then_elided() {
    let bench = Bench::new();
    let ticket = bench.write();
    assert_eq!(ticket, Ticket(1));
    assert!(!bench.tracker.is_durable(ticket));
    let mut durability = bench.tracker.make_durable(ticket);
    assert!(pending(&mut durability));
    assert_eq!(bench.flushes_in_flight(), 1, "the flush starts at the call, not at the first poll");
    bench.end_flush(Ok(()));
    assert_eq!(block_on(durability).unwrap().cover, FlushCover::Issued);
    assert_eq!(block_on(bench.tracker.make_durable(ticket)).unwrap().cover, FlushCover::Elided);
    assert_eq!(bench.flushes_in_flight(), 0);
    let counters = bench.tracker.counters();
    assert_eq!((counters.flushes_issued, counters.flushes_joined, counters.flushes_elided), (1, 0, 1));
    assert_eq!((counters.writes, counters.write_bytes), (1, 4096));
}

#[test]
fn an_answer_names_the_flush_and_all_that_it_covers() {
    let bench = Bench::new();
    let flushed = |cover, flush, through| Flushed { cover, flush, through: Ticket(through) };
    let (first, second) = (bench.write(), bench.write());
    let issued = bench.tracker.make_durable(first);
    let joined = bench.tracker.make_durable(second);
    bench.end_flush(Ok(()));
    assert_eq!(block_on(issued).unwrap(), flushed(FlushCover::Issued, 1, 2));
    assert_eq!(block_on(joined).unwrap(), flushed(FlushCover::Joined, 1, 2));
    // A failed flush is counted and covers nothing: what was durable before is so by the earlier
    // flush.
    let third = bench.write();
    let lost = bench.tracker.make_durable(third);
    bench.end_flush(Err(broken(Operation::Flush)));
    assert!(block_on(lost).is_err());
    let elided = block_on(bench.tracker.make_durable(first)).unwrap();
    assert_eq!(elided, flushed(FlushCover::Elided, 1, 2));
    let fourth = bench.tracker.make_durable(bench.write());
    bench.end_flush(Ok(()));
    assert_eq!(block_on(fourth).unwrap(), flushed(FlushCover::Issued, 3, 4));
}

#[test]
fn nothing_written_is_durable() {
    let bench = Bench::new();
    assert!(bench.tracker.is_durable(Ticket::default()));
    assert_eq!(
        block_on(bench.tracker.make_durable(bench.tracker.newest_ticket())).unwrap(),
        Flushed { cover: FlushCover::Elided, flush: 0, through: Ticket(0) }
    );
    assert_eq!(bench.flushes_in_flight(), 0);
}

#[test]
fn one_that_the_flush_on_its_way_covers_joins_it() {
    let bench = Bench::new();
    let (first, second) = (bench.write(), bench.write());
    let issued = bench.tracker.make_durable(second);
    let joined = bench.tracker.make_durable(first);
    assert_eq!(bench.flushes_in_flight(), 1);
    bench.end_flush(Ok(()));
    assert_eq!(block_on(issued).unwrap().cover, FlushCover::Issued);
    assert_eq!(block_on(joined).unwrap().cover, FlushCover::Joined);
    let counters = bench.tracker.counters();
    assert_eq!((counters.flushes_issued, counters.flushes_joined), (1, 1));
}

/// Rule R4.
#[test]
fn a_write_that_completes_after_the_flush_was_submitted_is_not_covered() {
    let bench = Bench::new();
    let first = bench.write();
    let late = bench.start_write();
    let durability = bench.tracker.make_durable(first);
    // The flush is in flight; now the other write completes.
    bench.end_write(Ok(()));
    let late = block_on(late.wait()).unwrap();
    let mut late_durability = bench.tracker.make_durable(late);
    assert_eq!(bench.flushes_in_flight(), 1, "one flush at a time");
    bench.end_flush(Ok(()));
    assert_eq!(block_on(durability).unwrap().cover, FlushCover::Issued);
    assert!(!bench.tracker.is_durable(late), "the flush was submitted before the write completed");
    assert!(pending(&mut late_durability));
    assert_eq!(bench.flushes_in_flight(), 1, "the next flush starts from the completion of the one before");
    bench.end_flush(Ok(()));
    assert_eq!(block_on(late_durability).unwrap().cover, FlushCover::Issued);
    assert!(bench.tracker.is_durable(late));
}

#[test]
fn those_who_come_during_a_flush_share_the_next_one() {
    let bench = Bench::new();
    let first = bench.write();
    let leading = bench.tracker.make_durable(first);
    let gathered: Vec<Durability> = (0..5)
        .map(|_| {
            let ticket = bench.write();
            bench.tracker.make_durable(ticket)
        })
        .collect();
    bench.end_flush(Ok(()));
    bench.end_flush(Ok(()));
    assert_eq!(bench.flushes_in_flight(), 0);
    assert_eq!(block_on(leading).unwrap().cover, FlushCover::Issued);
    let covers: Vec<FlushCover> = gathered.into_iter().map(|one| block_on(one).unwrap().cover).collect();
    assert_eq!(covers[0], FlushCover::Issued);
    assert!(covers[1..].iter().all(|&cover| cover == FlushCover::Joined));
    let counters = bench.tracker.counters();
    assert_eq!((counters.flushes_issued, counters.flushes_joined), (2, 4));
}

/// Rule R4.
#[test]
fn a_write_through_covers_itself_and_what_had_completed_before_it() {
    let bench = Bench::new();
    let before = bench.write();
    let late = bench.start_write();
    let (handle, durability) = bench.start_through();
    let mut durability = durability.expect("no flush is on its way");
    // A write that had completed is covered; one that completes now is not, and its waiter gathers
    // for the next flush.
    let rider = bench.tracker.make_durable(before);
    bench.end_write(Ok(()));
    let late = block_on(late.wait()).unwrap();
    let mut next = bench.tracker.make_durable(late);
    assert!(pending(&mut durability) && pending(&mut next));
    assert_eq!(bench.flushes_in_flight(), 0);
    bench.end_through(Ok(()));
    let ticket = block_on(handle.wait()).unwrap();
    assert!(before < ticket && ticket < late);
    assert_eq!(
        block_on(durability).unwrap(),
        Flushed { cover: FlushCover::Issued, flush: 1, through: ticket }
    );
    assert_eq!(block_on(rider).unwrap().cover, FlushCover::Joined);
    assert!(bench.tracker.is_durable(ticket) && !bench.tracker.is_durable(late));
    assert_eq!(bench.flushes_in_flight(), 1, "its end submits the next flush");
    bench.end_flush(Ok(()));
    assert_eq!(block_on(next).unwrap().flush, 2);
    let counters = bench.tracker.counters();
    assert_eq!((counters.writes, counters.writes_through, counters.flushes_issued), (3, 1, 2));
}

#[test]
fn a_write_through_beside_a_flush_is_a_write() {
    let bench = Bench::new();
    let flush = bench.tracker.make_durable(bench.write());
    let (handle, durability) = bench.start_through();
    assert!(durability.is_none());
    bench.end_write(Ok(()));
    bench.end_flush(Ok(()));
    block_on(flush).unwrap();
    let ticket = block_on(handle.wait()).unwrap();
    assert!(!bench.tracker.is_durable(ticket));
    assert_eq!(bench.tracker.counters().writes_through, 0);
}

/// Rule R6: it is unknown which part of it failed.
#[test]
fn a_write_through_that_fails_is_a_flush_that_failed() {
    let bench = Bench::new();
    let before = bench.write();
    let meanwhile = bench.start_write();
    let (handle, durability) = bench.start_through();
    bench.end_through(Err(broken(Operation::Write)));
    assert!(block_on(handle.wait()).is_err());
    assert!(block_on(durability.unwrap()).is_err());
    assert!(!bench.tracker.is_durable(before));
    assert!(block_on(bench.tracker.make_durable(before)).is_err(), "a later flush does not redeem it");
    bench.end_write(Ok(()));
    assert!(matches!(block_on(meanwhile.wait()), Err(DeviceError::Poisoned { .. })));
    // Later writes need a flush of their own.
    let durability = bench.tracker.make_durable(bench.write());
    bench.end_flush(Ok(()));
    block_on(durability).unwrap();
    // If the device drops a write-through, it fails.
    let (handle, durability) = bench.start_through();
    bench.device.through.lock().clear();
    assert!(block_on(handle.wait()).is_err() && block_on(durability.unwrap()).is_err());
}

/// Rule R6.
#[test]
fn a_failed_flush_poisons_what_is_not_durable_for_ever() {
    let bench = Bench::new();
    let durable = bench.write();
    let durability = bench.tracker.make_durable(durable);
    bench.end_flush(Ok(()));
    block_on(durability).unwrap();

    let covered = bench.write();
    let rider = bench.tracker.make_durable(covered);
    // Completed while the flush is in flight: lost with it, and its waiter, which gathered for the
    // next flush, fails too.
    let meanwhile = bench.write();
    let gathered = bench.tracker.make_durable(meanwhile);
    bench.end_flush(Err(broken(Operation::Flush)));
    assert!(matches!(block_on(rider), Err(DeviceError::Poisoned { .. })));
    assert!(matches!(block_on(gathered), Err(DeviceError::Poisoned { .. })));
    assert_eq!(bench.flushes_in_flight(), 0, "a flush can't redeem them");

    // A new write needs a flush of its own, and that one recovers no lost ticket.
    let rewritten = bench.write();
    assert!(rewritten > meanwhile);
    let durability = bench.tracker.make_durable(rewritten);
    bench.end_flush(Ok(()));
    assert_eq!(block_on(durability).unwrap().cover, FlushCover::Issued);
    assert!(bench.tracker.is_durable(durable));
    for lost in [covered, meanwhile] {
        assert!(!bench.tracker.is_durable(lost));
        let answer = block_on(bench.tracker.make_durable(lost));
        assert!(
            matches!(answer, Err(DeviceError::Poisoned { source }) if source.raw_os_error() == Some(libc::EIO))
        );
    }
    let counters = bench.tracker.counters();
    assert_eq!((counters.flushes_issued, counters.flushes_failed), (3, 1));
}

/// Rule R6 in its subtlest form: the kernel may have taken such a write into its cache, and dropped
/// it with the failed flush, before we learn that it completed.
#[test]
fn a_write_on_its_way_during_a_failure_counts_as_failed() {
    let bench = Bench::new();
    let first = bench.write();
    let on_its_way = bench.start_write();
    let durability = bench.tracker.make_durable(first);
    bench.end_flush(Err(broken(Operation::Flush)));
    bench.end_write(Ok(()));
    assert!(block_on(durability).is_err());
    assert!(matches!(block_on(on_its_way.wait()), Err(DeviceError::Poisoned { .. })));
    assert_eq!(bench.tracker.newest_ticket(), first);
    assert_eq!(bench.tracker.counters().writes_failed, 1);
}

#[test]
fn a_failed_write_takes_no_ticket() {
    let bench = Bench::new();
    let handle = bench.start_write();
    bench.end_write(Err(broken(Operation::Write)));
    assert!(matches!(block_on(handle.wait()), Err(DeviceError::Io { operation: Operation::Write, .. })));
    assert_eq!(bench.tracker.newest_ticket(), Ticket(0));
    assert_eq!(bench.tracker.counters().writes_failed, 1);
}

#[test]
fn a_dropped_waiter_drops_no_flush() {
    let bench = Bench::new();
    let first = bench.write();
    drop(bench.tracker.make_durable(first));
    let second = bench.write();
    let gathered = bench.tracker.make_durable(second);
    let third = bench.write();
    let last = bench.tracker.make_durable(third);
    drop(gathered);
    bench.end_flush(Ok(()));
    assert!(bench.tracker.is_durable(first));
    bench.end_flush(Ok(()));
    assert_eq!(block_on(last).unwrap().cover, FlushCover::Joined);
    assert!(bench.tracker.is_durable(second));
}

#[test]
fn operations_that_the_device_forgets_resolve_their_waiters() {
    let bench = Bench::new();
    let first = bench.write();
    let forgotten = bench.start_write();
    let durability = bench.tracker.make_durable(first);
    bench.device.writes.lock().clear();
    bench.device.flushes.lock().clear();
    assert!(matches!(
        block_on(forgotten.wait()),
        Err(DeviceError::Abandoned { operation: Operation::Write })
    ));
    assert!(matches!(block_on(durability), Err(DeviceError::Poisoned { .. })));
    let next = bench.write();
    let durability = bench.tracker.make_durable(next);
    bench.end_flush(Ok(()));
    assert!(block_on(durability).is_ok());
}

#[test]
fn a_fresh_flush_is_real_even_when_everything_is_durable() {
    let bench = Bench::new();
    let durability = bench.tracker.flush_now();
    assert_eq!(bench.flushes_in_flight(), 1);
    // A flush requested meanwhile can't join this one, which was submitted before.
    let second = bench.tracker.flush_now();
    bench.end_flush(Err(broken(Operation::Flush)));
    assert!(block_on(durability).is_err());
    assert_eq!(bench.flushes_in_flight(), 1);
    bench.end_flush(Ok(()));
    assert_eq!(block_on(second).unwrap().cover, FlushCover::Issued);
}

#[test]
fn hooks_run_once_and_late_ones_at_once() {
    let bench = Bench::new();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let hook = |name: &'static str| -> WriteHook {
        let seen = seen.clone();
        Box::new(move |outcome| seen.lock().push((name, outcome.clone().unwrap())))
    };
    let handle = bench.start_write();
    handle.on_end(hook("early"));
    assert!(seen.lock().is_empty());
    bench.end_write(Ok(()));
    handle.on_end(hook("late"));
    assert_eq!(*seen.lock(), [("early", Ticket(1)), ("late", Ticket(1))]);
    assert_eq!(handle.outcome().unwrap().unwrap(), Ticket(1));
}

#[test]
fn a_device_that_completes_at_once_needs_no_stack() {
    let tracker = FlushTracker::new(MemoryDevice::new(1 << 20));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..2000 {
                    let write = tracker.write(0, vec![Bytes::from_static(&[1; 4096])]);
                    let ticket = block_on(write.wait()).unwrap();
                    block_on(tracker.make_durable(ticket)).unwrap();
                    assert!(tracker.is_durable(ticket));
                }
            });
        }
    });
    let counters = tracker.counters();
    assert_eq!(counters.flushes_issued + counters.flushes_joined + counters.flushes_elided, 8000);
    assert_eq!(block_on(tracker.read(0, 4096)).unwrap()[0], 1);
    assert_eq!(tracker.counters().read_bytes, 4096);
}

/// The events in the random histories below.
#[derive(Clone, Copy, Debug)]
enum Happening {
    StartWrite,
    EndWrite { place: usize, fails: bool },
    MakeDurable { place: usize },
    EndFlush { fails: bool },
    StartThrough,
    EndThrough { fails: bool },
}

fn happening() -> impl Strategy<Value = Happening> {
    prop_oneof![
        3 => Just(Happening::StartWrite),
        3 => (any::<usize>(), prop::bool::weighted(0.1)).prop_map(|(place, fails)| Happening::EndWrite { place, fails }),
        3 => any::<usize>().prop_map(|place| Happening::MakeDurable { place }),
        2 => prop::bool::weighted(0.3).prop_map(|fails| Happening::EndFlush { fails }),
        1 => Just(Happening::StartThrough),
        2 => prop::bool::weighted(0.3).prop_map(|fails| Happening::EndThrough { fails }),
    ]
}

/// A device as docs/DURABILITY.md assumes it: a completed write is in a volatile cache; a
/// successful flush makes persistent what was there when it was submitted; a failed one may drop
/// everything that is there when it ends, and everything in flight.
#[derive(Default)]
struct Model {
    /// Writes by number: in the cache, persistent, or neither.
    cached: Vec<u64>,
    persistent: Vec<u64>,
    on_its_way: Vec<(u64, WriteHandle)>,
    flush_covers: Vec<u64>,
    /// A write-through in flight, and what was in the cache when it was submitted.
    through: Option<(u64, WriteHandle, Vec<u64>)>,
    completed: Vec<(u64, Ticket)>,
    dropped: Vec<u64>,
}

impl Model {
    /// A flush, or the one behind a write, fails.
    fn drop_all(&mut self) {
        self.dropped.append(&mut self.cached);
        self.dropped.extend(self.on_its_way.iter().map(|(number, _)| *number));
    }

    /// A flush that covers these succeeds.
    fn persist(&mut self, covers: Vec<u64>) {
        self.cached.retain(|number| !covers.contains(number));
        self.persistent.extend(covers);
    }

    /// Ends the write-through in flight.
    fn end_through(&mut self, bench: &Bench, fails: bool) {
        let Some((number, handle, covers)) = self.through.take() else { return };
        if fails {
            self.drop_all();
            return bench.end_through(Err(broken(Operation::Write)));
        }
        self.persist(covers);
        self.persistent.push(number);
        bench.end_through(Ok(()));
        self.completed.push((number, handle.outcome().expect("it has ended").expect("it succeeded")));
    }
}

proptest! {
    /// Whatever happens in whatever order: what the tracker calls durable is persistent on the
    /// worst device that keeps the promise, and every waiter gets an answer.
    #[test]
    fn what_it_calls_durable_is_persistent(history in prop::collection::vec(happening(), 1..200)) {
        let bench = Bench::new();
        let mut model = Model::default();
        let mut waiting: Vec<(u64, Durability)> = Vec::new();
        let mut next_write = 0;
        for happening in history {
            let flying_before = bench.flushes_in_flight();
            match happening {
                Happening::StartWrite => {
                    model.on_its_way.push((next_write, bench.start_write()));
                    next_write += 1;
                }
                Happening::EndWrite { place, fails } if !model.on_its_way.is_empty() => {
                    let place = place % model.on_its_way.len();
                    let done = bench.device.writes.lock().remove(place).expect("in step with the model");
                    let (number, handle) = model.on_its_way.remove(place);
                    done(if fails { Err(broken(Operation::Write)) } else { Ok(()) });
                    let outcome = handle.outcome().expect("it has ended");
                    if !fails && !model.dropped.contains(&number) {
                        model.cached.push(number);
                    }
                    if let Ok(ticket) = outcome {
                        prop_assert!(!fails);
                        model.completed.push((number, ticket));
                    }
                }
                Happening::MakeDurable { place } if !model.completed.is_empty() => {
                    let (number, ticket) = model.completed[place % model.completed.len()];
                    waiting.push((number, bench.tracker.make_durable(ticket)));
                }
                Happening::EndFlush { fails } if flying_before > 0 => {
                    if fails {
                        model.drop_all();
                        bench.end_flush(Err(broken(Operation::Flush)));
                    } else {
                        let covers = std::mem::take(&mut model.flush_covers);
                        model.persist(covers);
                        bench.end_flush(Ok(()));
                    }
                }
                Happening::StartThrough => {
                    let (handle, durability) = bench.start_through();
                    match durability {
                        Some(durability) => {
                            model.through = Some((next_write, handle, model.cached.clone()));
                            waiting.push((next_write, durability));
                        }
                        None => model.on_its_way.push((next_write, handle)),
                    }
                    next_write += 1;
                }
                Happening::EndThrough { fails } => model.end_through(&bench, fails),
                _ => {}
            }
            let submitted = (flying_before == 0 || matches!(happening, Happening::EndFlush { .. }))
                && bench.flushes_in_flight() > 0;
            prop_assert!(bench.flushes_in_flight() == 0 || model.through.is_none());
            if submitted {
                model.flush_covers = model.cached.clone();
            }
            prop_assert!(bench.flushes_in_flight() <= 1);
            for &(number, ticket) in &model.completed {
                if bench.tracker.is_durable(ticket) {
                    prop_assert!(model.persistent.contains(&number), "write {number} is called durable and is not");
                }
            }
        }
        model.end_through(&bench, false);
        while bench.flushes_in_flight() > 0 {
            model.persistent.extend(model.cached.iter());
            bench.end_flush(Ok(()));
        }
        for (number, durability) in waiting {
            match block_on(poll_once(durability)) {
                Some(Ok(_)) => prop_assert!(model.persistent.contains(&number)),
                Some(Err(_)) => prop_assert!(!model.persistent.contains(&number)),
                None => prop_assert!(false, "a waiter was forgotten"),
            }
        }
    }
}
