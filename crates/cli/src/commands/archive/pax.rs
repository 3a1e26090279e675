//! What a tar header has no room for: records of the extended header, as POSIX calls it (pax), with
//! extended attributes as star, GNU tar and bsdtar write them.

use syncline::Timestamp;

/// Prefix of the records that are extended attributes.
pub(super) const XATTR: &str = "SCHILY.xattr.";

/// Most bytes that the records of an entry, or those for all entries, take in memory.
pub(super) const RECORDS_BYTES_MAX: usize = 64 << 20;

/// Bytes that a record with a key and a value of these lengths takes in memory, and at most in a
/// header.
pub(super) const fn cost(key: usize, value: usize) -> usize {
    key + value + 128
}

const NANOSECONDS: i128 = 1_000_000_000;

/// A time as a record has it: seconds, and a fraction if there is one.
pub(super) fn time_text(time: Timestamp) -> String {
    let nanoseconds = i128::from(time.seconds) * NANOSECONDS + i128::from(time.nanoseconds);
    let sign = if nanoseconds < 0 { "-" } else { "" };
    let (seconds, fraction) = (nanoseconds.abs() / NANOSECONDS, nanoseconds.abs() % NANOSECONDS);
    let text = format!("{sign}{seconds}.{fraction:09}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// The time of a record; `None` for what is no time that a file can have.
pub(super) fn time_of(text: &str) -> Option<Timestamp> {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text),
    };
    let (seconds, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    if !seconds.bytes().chain(fraction.bytes()).all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let fraction: String = fraction.chars().chain("000000000".chars()).take(9).collect();
    let nanoseconds =
        i128::from(seconds.parse::<u64>().ok()?) * NANOSECONDS + fraction.parse::<i128>().ok()?;
    let nanoseconds = if negative { -nanoseconds } else { nanoseconds };
    Some(Timestamp {
        seconds: i64::try_from(nanoseconds.div_euclid(NANOSECONDS)).ok()?,
        nanoseconds: u32::try_from(nanoseconds.rem_euclid(NANOSECONDS)).ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_come_back() {
        let texts = [
            ((0, 0), "0"),
            ((1_700_000_000, 0), "1700000000"),
            ((1, 500_000_000), "1.5"),
            ((1, 1), "1.000000001"),
            ((-2, 500_000_000), "-1.5"),
            ((-1, 0), "-1"),
        ];
        for ((seconds, nanoseconds), text) in texts {
            let time = Timestamp { seconds, nanoseconds };
            assert_eq!(time_text(time), text);
            assert_eq!(time_of(text), Some(time));
        }
        assert_eq!(time_of("3.1234567891"), Some(Timestamp { seconds: 3, nanoseconds: 123_456_789 }));
        for nonsense in ["", "-", "1.x", "+1", "99999999999999999999", "1e9", "9223372036854775808"] {
            assert_eq!(time_of(nonsense), None, "{nonsense}");
        }
    }
}
