//! Published vectors, and properties.

use super::*;
use proptest::prelude::*;

/// Keys of the vectors 10 to 14 of IEEE 1619-2007 (AES-256).
fn published() -> Cipher {
    let digits = "2718281828459045235360287471352662497757247093699959574966967627\
                  3141592653589793238462643383279502884197169399375105820974944592";
    Cipher::new(&MasterKey::from_bytes(&hex(digits).try_into().unwrap()))
}

fn hex(digits: &str) -> Vec<u8> {
    (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap()).collect()
}

/// A shorter data unit begins as a longer one does.
#[test]
fn the_published_vectors_come_out() {
    let vectors = [
        (
            0xff,
            "1c3b3a102f770386e4836c99e370cf9bea00803f5e482357a4ae12d414a3e63b5d31e276f8fe4a8d66b317f9ac683f44",
        ),
        (
            0xffff,
            "77a31251618a15e6b92d1d66dffe7b50b50bad552305ba0217a610688eff7e11e1d0225438e093242d6db274fde801d4",
        ),
        (
            0xff_ffff_ffff,
            "64497e5a831e4a932c09be3e5393376daa599548b816031d224bbf50a818ed2350eae7e96087c8a0db51ad290bd00c1a",
        ),
    ];
    let plain: Vec<u8> = (0..BLOCK_BYTES).map(|at| at as u8).collect();
    for (number, digits) in vectors {
        let (mut block, expected) = (plain.clone(), hex(digits));
        published().encrypt(number, &mut block);
        assert_eq!(block[..expected.len()], expected, "data unit {number:x}");
        published().decrypt(number, &mut block);
        assert_eq!(block, plain);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn a_run_is_encrypted_block_by_block(first in 0u64..1 << 60, blocks in 1usize..5, seed in 1u8..) {
        let plain: Vec<u8> = (0..blocks * BLOCK_BYTES).map(|at| (at as u8).wrapping_mul(seed)).collect();
        let cipher = published();
        let mut run = plain.clone();
        cipher.encrypt(first, &mut run);
        let mut alone = plain.clone();
        for (number, block) in (first..).zip(alone.chunks_mut(BLOCK_BYTES)) {
            cipher.encrypt(number, block);
        }
        prop_assert_eq!(&run, &alone);
        prop_assert_ne!(&run, &plain);
        cipher.decrypt(first, &mut run);
        prop_assert_eq!(run, plain);
    }
}
