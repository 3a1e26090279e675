//! How much of a sync was the way to the server and back.

use super::text::{Receipt, micros};
use serde_json::Value;

/// The share of a sync's time on the way to the server, in words, from its receipt and the
/// network's figures.
pub fn told(receipt: &Receipt<'_>, network: &Value) -> String {
    let time = |stage: &str| receipt.number(&format!("/times_ns/{stage}"));
    let (write, flush, total) = (time("write"), time("flush"), time("total"));
    let way = match write + flush {
        0 => "no way to the server: nothing was sent for it, or another call did that".to_owned(),
        // In one request where the server can write and flush at once.
        sum => format!(
            "{} of {} µs were on the way to the server, there and back ({} %)",
            micros(sum),
            micros(total),
            sum.saturating_mul(100) / total.max(1)
        ),
    };
    match outage_ns(receipt, network) {
        0 => way,
        outage => format!("{way}; {:.1} s of them without a connection", outage as f64 / 1e9),
    }
}

/// For how long there was no connection during a sync. A receipt has the time of its end.
fn outage_ns(receipt: &Receipt<'_>, network: &Value) -> u64 {
    let ended = receipt.number("/time_ns");
    let began = ended.saturating_sub(receipt.number("/times_ns/total"));
    let outages = network["outages_ns"].as_array().into_iter().flatten();
    let overlaps = outages.filter_map(|outage| {
        let (from, lasted) = (outage[0].as_u64()?, outage[1].as_u64()?);
        Some(from.saturating_add(lasted).min(ended).saturating_sub(from.max(began)))
    });
    overlaps.sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn receipt(write: u64, flush: u64) -> Value {
        let times = json!({ "write": write, "flush": flush, "total": 2_000_000_000u64 });
        json!({ "time_ns": 10_000_000_000u64, "times_ns": times })
    }

    #[test]
    fn the_way_and_what_there_was_no_way_are_told() {
        let told = |receipt: &Value, network: &Value| told(&Receipt(receipt), network);
        let slow = receipt(500_000_000, 1_000_000_000);
        let never = json!({ "outages_ns": [] });
        assert_eq!(
            told(&slow, &never),
            "1500000 of 2000000 µs were on the way to the server, there and back (75 %)"
        );
        assert!(told(&receipt(0, 0), &never).starts_with("no way to the server"));
        // One before it, one that reaches into it, one within it, one after it.
        let outages = json!({ "outages_ns": [
            [1_000_000_000u64, 500_000_000u64],
            [7_500_000_000u64, 1_000_000_000u64],
            [9_000_000_000u64, 200_000_000u64],
            [10_000_000_000u64, 900_000_000u64],
        ] });
        assert!(told(&slow, &outages).ends_with("(75 %); 0.7 s of them without a connection"));
    }
}
