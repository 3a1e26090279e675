use super::*;
use proptest::prelude::*;

/// Every field has another value, so that two that change places are noticed.
fn sample() -> Lease {
    Lease {
        state: LeaseState::Held,
        term: 0x0102_0304_0506_0708,
        sequence: 0x1112_1314_1516_1718,
        nonce: *b"sixteen random b",
        duration_ms: 10_000,
        guard_ms: 2_000,
        interval_ms: 3_333,
        held_ms: 0x2122_2324_2526_2728,
        began_ns: 1_700_000_000_123_456_789,
        holder: LeaseHolder {
            host: LeaseHolder::encode_host("alpha.example"),
            machine_id: [0xa5; 16],
            boot_id: [0x5a; 16],
            pid: 4711,
            process_start_ticks: 123_456,
        },
    }
}

fn with_checksum(mut block: [u8; BLOCK_BYTES]) -> [u8; BLOCK_BYTES] {
    let checksum = crc(&block[STATE..]);
    block[CHECKSUM..STATE].copy_from_slice(&checksum.to_le_bytes());
    block
}

/// The bytes as docs/FORMAT.md has them. If this fails, the format has changed: that needs a
/// feature flag and golden images.
#[test]
fn the_golden_bytes() {
    let golden = "53594e4c45415345\
        e235f0f401000000\
        0807060504030201\
        1817161514131211\
        7369787465656e2072616e646f6d2062\
        10270000d0070000050d000067120000\
        2827262524232221\
        15cd853dfe9c9717\
        40e2010000000000\
        5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a\
        a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5\
        616c7068612e6578616d706c65";
    let block = sample().encode();
    let hex: String = block[..133].iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, golden);
    assert!(block[133..].iter().all(|&byte| byte == 0));
}

#[test]
fn what_is_encoded_decodes_to_itself() {
    for state in [LeaseState::Held, LeaseState::Claimed, LeaseState::Released] {
        let lease = Lease { state, ..sample() };
        assert_eq!(Lease::decode(&lease.encode()), Ok(Some(lease)));
    }
    assert_eq!(Lease::decode(&[0; BLOCK_BYTES]), Ok(None));
}

#[test]
fn any_flipped_bit_is_noticed() {
    let block = sample().encode();
    for bit in (0..FIXED_END * 8).chain([511 * 8, 512 * 8 + 3, BLOCK_BYTES * 8 - 1]) {
        let mut bad = block;
        bad[bit / 8] ^= 1 << (bit % 8);
        assert!(Lease::decode(&bad).is_err(), "bit {bit}");
    }
}

/// Sectors of two writes in any mixture: the block is one of the two, never a third.
#[test]
fn a_torn_block_is_the_old_or_the_new_one() {
    let old = sample();
    let new = Lease { term: 9, sequence: 0, nonce: [1; 16], held_ms: 0, ..sample() };
    for sectors in 0_u32..256 {
        let mut torn = old.encode();
        for sector in (0..8).filter(|sector| sectors & 1 << sector != 0) {
            let range = sector * 512..(sector + 1) * 512;
            torn[range.clone()].copy_from_slice(&new.encode()[range]);
        }
        let wanted = if sectors & 1 != 0 { &new } else { &old };
        assert_eq!(Lease::decode(&torn).unwrap().as_ref(), Some(wanted));
    }
}

#[test]
fn impossible_values_are_refused_even_with_a_right_checksum() {
    let wrong = [
        Lease { term: 0, ..sample() },
        Lease { term: u64::MAX, ..sample() },
        Lease { sequence: u64::MAX, ..sample() },
        Lease { duration_ms: DURATION_MS.0 - 1, ..sample() },
        Lease { duration_ms: DURATION_MS.1 + 1, ..sample() },
        Lease { guard_ms: GUARD_MS_MAX + 1, ..sample() },
        Lease { interval_ms: 0, ..sample() },
        Lease { interval_ms: 5_001, ..sample() },
    ];
    for lease in wrong {
        let refused = Lease::decode(&lease.encode());
        assert!(matches!(refused, Err(FormatError::Field { .. })), "{lease:?}");
    }
    for (at, what) in [(STATE, "state"), (FIXED_END, "contents behind the fields")] {
        let mut block = sample().encode();
        block[at] = 0x77;
        assert_eq!(Lease::decode(&with_checksum(block)), Err(field(what)));
    }
    assert!(matches!(Lease::decode(&[0; 512]), Err(FormatError::Truncated { .. })));
    assert!(matches!(Lease::decode(&[7; BLOCK_BYTES]), Err(FormatError::Magic { .. })));
}

#[test]
fn names_of_hosts_are_cut_and_made_printable() {
    let named =
        |name: &str| LeaseHolder { host: LeaseHolder::encode_host(name), ..sample().holder }.host_text();
    assert_eq!(named("beta"), "beta");
    assert_eq!(named(""), "an unnamed host");
    assert_eq!(named(&"x".repeat(80)), "x".repeat(64));
    assert_eq!(named(&"\u{20ac}".repeat(30)), "\u{20ac}".repeat(21));
    assert_eq!(named("a\u{1b}[31m"), "a\u{fffd}[31m");
}

proptest! {
    /// Hostile blocks: nothing panics, and whatever is accepted is in bounds and comes back as the
    /// same bytes.
    #[test]
    fn hostile_blocks_are_refused_or_mean_what_they_say(
        head in prop::collection::vec(any::<u8>(), FIXED_END - STATE),
        state in 0_u32..5,
        small in any::<bool>(),
    ) {
        let mut block = [0; BLOCK_BYTES];
        block[..CHECKSUM].copy_from_slice(&LEASE_MAGIC);
        block[STATE..FIXED_END].copy_from_slice(&head);
        block[STATE..STATE + 4].copy_from_slice(&state.to_le_bytes());
        if small {
            // Plausible numbers, so that not all are refused.
            for (at, most) in [(16, 8), (24, 8), (48, 0), (52, 0), (56, 0)] {
                let len = if most == 8 { 8 } else { 4 };
                block[at + 2..at + len].fill(0);
            }
        }
        let block = with_checksum(block);
        if let Ok(Some(lease)) = Lease::decode(&block) {
            prop_assert!(lease.duration_ms <= DURATION_MS.1 && lease.guard_ms <= GUARD_MS_MAX);
            prop_assert!(lease.interval_ms > 0 && lease.interval_ms <= lease.duration_ms / 2);
            prop_assert!(lease.term > 0 && lease.term < u64::MAX / 2 + 1);
            prop_assert_eq!(lease.encode(), block);
            let _ = lease.holder.host_text();
        }
    }

    #[test]
    fn random_bytes_are_no_lease(block in prop::collection::vec(any::<u8>(), 0..5000)) {
        prop_assert!(!matches!(Lease::decode(&block), Ok(Some(_))));
    }
}
