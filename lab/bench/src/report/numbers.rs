//! Numbers for people.

use crate::bootstrap::Interval;

/// A number with three or four significant digits.
pub fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 || size == 0.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 0.01 => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}

/// The two ends, or a dash.
pub fn interval(interval: Option<Interval>) -> String {
    interval.map_or_else(|| "–".into(), |Interval { low, high }| format!("{low:.2}..{high:.2}"))
}

/// A ratio, or a dash.
pub fn ratio(ratio: Option<f64>) -> String {
    ratio.map_or_else(|| "–".into(), |ratio| format!("{ratio:.2}"))
}

/// A number, or a dash.
pub fn optional(value: Option<f64>) -> String {
    value.map_or_else(|| "–".into(), number)
}

/// Two digits after the decimal point, for comparing counts per operation.
pub fn count(value: f64) -> String {
    if value >= 1000.0 { format!("{value:.0}") } else { format!("{value:.2}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_that_matter() {
        let texts = [12345.6, 123.4, 12.34, 1.234, 0.5, 0.00123, 0.0].map(number);
        assert_eq!(texts, ["12346", "123", "12.3", "1.23", "0.50", "0.0012", "0"]);
        assert_eq!(optional(None), "–");
        assert_eq!(count(2.0), "2.00");
    }
}
