use super::*;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::thread;

const FENCED: Errno = Errno(libc::ESHUTDOWN);
const FAR: Duration = Duration::from_secs(60);

fn flights() -> Arc<Flights> {
    Flights::new("rbd:p/i".into(), "p".into(), 1 << 20)
}

/// An operation that tells its answers.
fn operation(operation: Operation) -> (Pending, Receiver<Result<(), DeviceError>>) {
    let (sender, receiver) = channel();
    let done = Done::Other(operation, Box::new(move |result| sender.send(result).unwrap()));
    (Pending { started: Instant::now(), offset: 4096, len_bytes: 8192, done }, receiver)
}

/// A write that was sent.
fn write(flights: &Flights) -> (u64, Receiver<Result<(), DeviceError>>) {
    let (pending, answer) = operation(Operation::Write);
    match flights.begin(pending) {
        Begun::Send(number) => (number, answer),
        Begun::Answered => panic!("not sent"),
    }
}

fn error(answer: &Receiver<Result<(), DeviceError>>) -> String {
    answer.try_recv().expect("an answer").expect_err("an error").to_string()
}

fn is_unanswered(answer: &Receiver<Result<(), DeviceError>>) -> bool {
    matches!(answer.try_recv(), Err(TryRecvError::Empty))
}

#[test]
fn an_operation_is_answered_by_its_result() {
    let flights = flights();
    let (first, first_answer) = write(&flights);
    let (second, second_answer) = write(&flights);
    flights.end(second, Ok(None));
    assert!(second_answer.try_recv().unwrap().is_ok());
    assert!(is_unanswered(&first_answer));
    flights.end(first, Err(Failure::Errno(Errno(libc::EDQUOT))));
    let error = error(&first_answer);
    assert!(error.contains("the quota of pool 'p' is used up"), "{error}");
    assert!(flights.broken().is_none(), "one failed write is no end");
    let counters = flights.counters.snapshot(flights.now());
    assert_eq!((counters.writes, counters.written_bytes, counters.write_ns.count), (2, 16384, 1));
}

#[test]
fn nothing_is_acknowledged_after_a_sign_of_a_fence() {
    for errno in [libc::EROFS, libc::ESHUTDOWN, libc::ETIMEDOUT].map(Errno) {
        let flights = flights();
        let (first, first_answer) = write(&flights);
        let (second, second_answer) = write(&flights);
        let (flush, flush_answer) = operation(Operation::Flush);
        let Begun::Send(flush) = flights.begin(flush) else { panic!("not sent") };
        flights.end(first, Err(Failure::Errno(errno)));
        // librbd says that these succeeded; and one more comes, which is not even sent.
        flights.end(second, Ok(None));
        flights.end(flush, Ok(None));
        let (late, late_answer) = operation(Operation::Flush);
        assert_eq!(flights.begin(late), Begun::Answered);
        let answers = [&first_answer, &second_answer, &flush_answer, &late_answer];
        assert!(answers.iter().all(|answer| is_unanswered(answer)), "answered before it is known why");
        assert!(matches!(flights.next_task(Some(FAR)), Task::Explain(Some(found)) if found == errno));
        flights.break_off(&Broken::Fenced { errno: Some(errno), holder: None });
        for answer in answers {
            let error = error(answer);
            assert!(error.contains("this host was fenced from rbd:p/i"), "{error}");
            assert!(matches!(answer.try_recv(), Err(TryRecvError::Disconnected)), "answered twice");
        }
        // At once, and for good.
        let (later, later_answer) = operation(Operation::Write);
        assert_eq!(flights.begin(later), Begun::Answered);
        assert!(error_kind(&later_answer) == io::ErrorKind::StaleNetworkFileHandle);
        assert!(matches!(flights.next_task(Some(FAR)), Task::End));
    }
}

fn error_kind(answer: &Receiver<Result<(), DeviceError>>) -> io::ErrorKind {
    answer.try_recv().unwrap().unwrap_err().io_error().unwrap().kind()
}

#[test]
fn the_first_reason_stays() {
    let flights = flights();
    flights.break_off(&Broken::Away { seconds: 7.0 });
    flights.break_off(&Broken::Fenced { errno: Some(FENCED), holder: None });
    flights.doubt(Some(FENCED));
    assert!(flights.broken().unwrap().to_string().contains("for 7 s"));
}

#[test]
fn an_operation_that_takes_too_long_ends_everything() {
    let flights = flights();
    let wait = Duration::from_millis(50);
    let (slow, slow_answer) = write(&flights);
    let started = Instant::now();
    assert!(matches!(flights.next_task(Some(wait)), Task::End));
    assert!(started.elapsed() >= Duration::from_millis(40), "{:?}", started.elapsed());
    assert!(error(&slow_answer).contains("gave no answer"));
    // It ends in librbd some time, and nobody hears of that.
    flights.end(slow, Ok(None));
    assert!(matches!(slow_answer.try_recv(), Err(TryRecvError::Disconnected)));
}

#[test]
fn the_sentinel_stays_until_all_is_answered() {
    for wait in [None, Some(FAR)] {
        let flights = flights();
        let (number, answer) = write(&flights);
        thread::scope(|scope| {
            let watching = scope.spawn(|| matches!(flights.next_task(wait), Task::End));
            flights.close();
            thread::sleep(Duration::from_millis(50));
            assert!(!watching.is_finished(), "an operation is under way");
            flights.end(number, Ok(None));
            assert!(watching.join().unwrap());
        });
        assert!(answer.try_recv().unwrap().is_ok());
    }
}

#[test]
fn the_watchman_stops_when_the_device_does() {
    let flights = flights();
    assert!(flights.works_after(Duration::from_millis(1)));
    thread::scope(|scope| {
        let waiting = scope.spawn(|| flights.works_after(FAR));
        flights.break_off(&Broken::Shrunk { before_bytes: 2, now_bytes: 1 });
        assert!(!waiting.join().unwrap());
    });
    let closed = super::tests::flights();
    closed.close();
    assert!(!closed.works_after(FAR));
}

#[test]
fn the_size_only_grows() {
    let flights = flights();
    assert_eq!(flights.grown(1 << 10), 1 << 20);
    assert_eq!(flights.grown(1 << 21), 1 << 21);
    assert_eq!(flights.size_bytes(), 1 << 21);
}

#[test]
fn listeners_are_told_once_and_before_those_who_wait() {
    let flights = flights();
    let (_, answer) = write(&flights);
    let now = flights.now();
    assert_eq!((now.connections, now.in_flight, now.in_flight_bytes), (1, 1, 8192));
    let (sender, told) = channel();
    let late = sender.clone();
    // Told while the write is not answered yet.
    flights.on_broken(Box::new(move |why| {
        sender.send((is_unanswered(&answer), why.to_string())).unwrap();
    }));
    let broken = || Broken::Away { seconds: 60.0 };
    flights.break_off(&broken());
    flights.break_off(&broken());
    let (unanswered, why) = told.try_recv().unwrap();
    assert!(unanswered && why.contains("no answer for 60 s"), "{why}");
    assert!(told.try_recv().is_err());
    flights.on_broken(Box::new(move |why| late.send((false, why.to_string())).unwrap()));
    assert_eq!(told.try_recv().unwrap().1, why);
    assert_eq!(flights.now(), NetGauges::default());
}
