use super::*;
use proptest::prelude::*;
use syncline_format::lease::{DURATION_MS, GUARD_MS_MAX, LeaseHolder};

const NONCE: [u8; 16] = [1; 16];

fn options() -> LeaseOptions {
    LeaseOptions::default()
}

fn of_another(state: LeaseState) -> Lease {
    Lease {
        state,
        term: 41,
        sequence: 7,
        nonce: [2; 16],
        duration_ms: 60_000,
        guard_ms: 2_000,
        interval_ms: 20_000,
        held_ms: 300_000,
        began_ns: 0,
        holder: LeaseHolder { host: LeaseHolder::encode_host("beta"), ..this_process() },
    }
}

/// The result of a run of the machine.
struct Ended {
    result: Result<Claimed, LeaseError>,
    took: Duration,
    written: Vec<Lease>,
    /// The block was read unchanged behind the newest write, after its flush.
    read_back: bool,
}

type Block = Result<Option<Lease>, FormatError>;

/// Drives the machine. Each operation takes `each`; `next` gives the result of a read, from the number
/// of the read and the block that was written last.
fn drive(
    options: &LeaseOptions,
    how: How,
    each: Duration,
    mut next: impl FnMut(usize, Option<&Lease>) -> Block,
) -> Ended {
    let mut claim = Claim::new(options, how, NONCE, 0);
    let (mut now, mut reads) = (Duration::from_secs(1000), 0);
    let begun = now;
    let mut ended = Ended {
        result: Err(LeaseError::Interrupted),
        took: Duration::ZERO,
        written: Vec::new(),
        read_back: false,
    };
    let (mut event, mut flushed) = (Event::Begin, false);
    for _ in 0..100_000 {
        let step = claim.step(now, event);
        now += if let Step::Pause(time) = step { time } else { each };
        ended.took = now - begun;
        event = match step {
            Step::Read => {
                let found = next(reads, ended.written.last());
                reads += 1;
                ended.read_back =
                    flushed && found.as_ref().is_ok_and(|found| found.as_ref() == ended.written.last());
                Event::Read(found)
            }
            Step::Write(lease) => {
                assert_eq!(Lease::decode(&lease.encode()), Ok(Some((*lease).clone())), "it can be read");
                ended.written.push(*lease);
                flushed = false;
                Event::Done
            }
            Step::Flush => {
                flushed = true;
                Event::Done
            }
            Step::Pause(_) => Event::Done,
            Step::Done(claimed) => return Ended { result: Ok(*claimed), ..ended },
            Step::Refused(error) => return Ended { result: Err(error), ..ended },
        };
    }
    panic!("it never ends");
}

/// The block is `first` until something is written.
fn drive_over(how: How, each_ms: u64, first: Block) -> Ended {
    drive(&options(), how, Duration::from_millis(each_ms), |_, written| match written {
        Some(lease) => Ok(Some(lease.clone())),
        None => first.clone(),
    })
}

#[test]
fn a_free_block_is_claimed_within_a_pause() {
    for first in [Ok(None), Ok(Some(of_another(LeaseState::Released)))] {
        let term = first.clone().unwrap().map_or(1, |lease| lease.term + 1);
        let ended = drive_over(How::Wait, 10, first);
        let claimed = ended.result.unwrap();
        assert_eq!(
            (claimed.lease.term, claimed.lease.nonce, claimed.lease.state),
            (term, NONCE, LeaseState::Held)
        );
        assert_eq!(ended.written, [claimed.lease]);
        assert!(ended.took > Duration::from_millis(1285) && ended.took < Duration::from_millis(1400));
        // From before the write: the first read took 10 ms.
        assert_eq!(claimed.valid_until, Duration::from_millis(1_000_000 + 10 + 8_750));
    }
}

/// D3: the holder's times count if they are longer, and the own ones otherwise.
#[test]
fn a_silent_holder_is_waited_out_by_the_longer_times() {
    for (ms, whole) in [(60_000, 62_000), (4_000, 12_000)] {
        let held = Lease { duration_ms: ms, interval_ms: 1000, ..of_another(LeaseState::Held) };
        for (how, writes) in [(How::Wait, 1), (How::TakeOver, 2)] {
            let ended = drive_over(how, 5, Ok(Some(held.clone())));
            assert_eq!(ended.result.unwrap().lease.term, 42);
            assert_eq!(ended.written.len(), writes);
            let least = Duration::from_millis(whole) * 9 / 8 + Duration::from_millis(1285);
            assert!(
                ended.took >= least && ended.took < least + Duration::from_secs(2),
                "{how:?} {:?}",
                ended.took
            );
        }
        let ended = drive_over(How::AtOnce, 5, Ok(Some(held)));
        assert!(ended.result.is_ok() && ended.took < Duration::from_millis(1400));
    }
}

#[test]
fn a_damaged_block_is_waited_for_as_long_as_any_holder_may_need() {
    let error = || Err(FormatError::Checksum { structure: "device lease" });
    assert!(matches!(drive_over(How::Wait, 5, error()).result, Err(LeaseError::Damaged(_))));
    let ended = drive_over(How::TakeOver, 5, error());
    assert_eq!(ended.result.unwrap().lease.term, 1);
    let longest = u64::from(DURATION_MS.1) + u64::from(GUARD_MS_MAX);
    assert!(ended.took >= Duration::from_millis(longest) * 9 / 8);
}

#[test]
fn a_slow_device_is_refused_after_it_was_tried_again() {
    let ended = drive_over(How::Wait, 400, Ok(None));
    let refused = ended.result.unwrap_err();
    assert!(matches!(refused, LeaseError::TooSlow(took) if took == Duration::from_millis(1200)), "{refused}");
    assert_eq!(ended.written.len(), 3);
    assert!(
        ended.took > options().times().wait(Duration::from_secs(12)) * 2,
        "each time the own claim is waited out"
    );
    assert!(refused.to_string().starts_with("the device took 1.2 s to read, write and flush"), "{refused}");
    // Only at first: the second try counts.
    let mut slow = true;
    let mut claim = Claim::new(&options(), How::Wait, NONCE, 0);
    let (mut now, mut event, mut block) = (Duration::ZERO, Event::Begin, None);
    let claimed = loop {
        event = match claim.step(now, event) {
            Step::Read => Event::Read(Ok(block.clone())),
            Step::Write(lease) => {
                block = Some(*lease);
                now += if std::mem::take(&mut slow) { Duration::from_secs(2) } else { Duration::ZERO };
                Event::Done
            }
            Step::Flush => Event::Done,
            Step::Pause(time) => {
                now += time;
                Event::Done
            }
            Step::Done(claimed) => break claimed,
            Step::Refused(error) => panic!("{error}"),
        };
    };
    assert_eq!(claimed.lease.term, 2);
}

#[test]
fn a_claim_that_is_overwritten_is_no_lease() {
    for (at, wanted) in [(1, "beta"), (0, "beta")] {
        let ended = drive(&options(), How::Wait, Duration::from_millis(5), |read, _| match read {
            0 => Ok((at == 0).then(|| of_another(LeaseState::Held))),
            _ => Ok(Some(Lease { sequence: 8, ..of_another(LeaseState::Held) })),
        });
        let error = ended.result.unwrap_err();
        assert!(matches!(error, LeaseError::TakenMeanwhile(_) | LeaseError::InUse(_)), "{error}");
        assert!(error.to_string().contains(wanted), "{error}");
    }
    let error = LeaseError::InUse(Box::new(of_another(LeaseState::Held)));
    assert_eq!(
        error.to_string(),
        format!(
            "the image is in use by beta (process {}) for 5 min now, renewed just now: unmount it there, or take it over: \
             'syncline mount --takeover'",
            std::process::id()
        )
    );
}

/// A holder that does not look before it writes is not taken over for ever.
#[test]
fn a_holder_that_never_yields_is_reported() {
    let mut sequence = 0;
    let ended = drive(&options(), How::TakeOver, Duration::from_millis(5), |_, _| {
        sequence += 1;
        Ok(Some(Lease { sequence, ..of_another(LeaseState::Held) }))
    });
    assert!(matches!(ended.result, Err(LeaseError::Resists(_))));
    assert_eq!(ended.written.len(), 9);
}

#[test]
fn terms_begin_anew_at_the_end_of_their_range() {
    let last = Lease { term: u64::MAX / 2, ..of_another(LeaseState::Released) };
    assert_eq!(drive_over(How::Wait, 5, Ok(Some(last.clone()))).result.unwrap().lease.term, 1);
    let held = Lease { state: LeaseState::Held, ..last };
    assert_eq!(drive_over(How::TakeOver, 5, Ok(Some(held))).result.unwrap().lease.term, 1);
}

fn blocks() -> impl Strategy<Value = Block> {
    let state = prop_oneof![Just(LeaseState::Held), Just(LeaseState::Claimed), Just(LeaseState::Released)];
    let term = prop_oneof![1..4_u64, Just(u64::MAX / 2)];
    let lease = (state, term, 0..3_u64, 1..4_u8, DURATION_MS.0..=DURATION_MS.1, 0..=GUARD_MS_MAX).prop_map(
        |(state, term, sequence, nonce, duration_ms, guard_ms)| {
            let nonce = [nonce; 16];
            Lease { state, term, sequence, nonce, duration_ms, guard_ms, interval_ms: 1, ..of_another(state) }
        },
    );
    prop_oneof![
        6 => lease.prop_map(|lease| Ok(Some(lease))),
        1 => Just(Ok(None)),
        1 => Just(Err(FormatError::Magic { structure: "device lease" })),
        1 => Just(Err(FormatError::Checksum { structure: "device lease" })),
    ]
}

proptest! {
    /// With any blocks on the device, also blocks with this host's own nonce: the claim ends in bounded
    /// time, and the lease is only held after its own block, flushed, was read back.
    #[test]
    fn whatever_is_read_it_ends_and_holds_only_what_was_read_back(
        how in prop_oneof![Just(How::Wait), Just(How::TakeOver), Just(How::AtOnce)],
        over_unknown: bool,
        found in prop::collection::vec((blocks(), any::<bool>()), 1..40),
        each_ms in 0..500_u64,
    ) {
        let options = LeaseOptions { over_unknown, ..options() };
        let ended = drive(&options, how, Duration::from_millis(each_ms), |read, written| {
            match (found.get(read), written) {
                (Some((block, true)), _) | (Some((block, _)), None) => block.clone(),
                (_, Some(lease)) => Ok(Some(lease.clone())),
                (None, None) => found[found.len() - 1].0.clone(),
            }
        });
        // At most nine marks and three claims, each waited for.
        prop_assert!(ended.took < Duration::from_secs(13 * 205));
        if let Ok(claimed) = ended.result {
            prop_assert!(ended.read_back);
            prop_assert_eq!(Some(&claimed.lease), ended.written.last());
            prop_assert_eq!(claimed.lease.nonce, NONCE);
        }
    }
}
