//! Figures of the network and the device lease, in a few lines.

use super::summary::latency;
use crate::live::Sample;
use crate::printed::several;
use indicatif::{HumanBytes, HumanCount};

/// The lines of an image on a network, or with a device lease: each a name and a text.
pub fn lines(sample: &Sample) -> Vec<(&'static str, String)> {
    let mut lines = Vec::new();
    if sample.stats["network"].is_object() {
        lines.push(("network", connection(sample)));
        lines.push(("net writes", times(sample, "net_write_ns", "/network/write_ns/max")));
        lines.push(("net flushes", times(sample, "net_flush_ns", "/network/flush_ns/max")));
    }
    lines.extend(lease(sample).map(|lease| ("lease", lease)));
    lines
}

/// `4 connections, 1 reconnect; 12.0 KiB written again, 0 B under way, 0 B without a flush`
fn connection(sample: &Sample) -> String {
    let number = |name: &str| sample.number(&format!("/network/{name}"));
    let bytes = |name: &str| HumanBytes(number(name));
    format!(
        "{}, {}; {} written again, {} under way, {} without a flush",
        several(number("connections"), "connection", "connections"),
        several(number("reconnects"), "reconnect", "reconnects"),
        bytes("rewritten_bytes"),
        bytes("in_flight_bytes"),
        bytes("kept_bytes"),
    )
}

fn times(sample: &Sample, name: &str, longest: &str) -> String {
    let what = if name == "net_flush_ns" { "flushes" } else { "writes" };
    let count = HumanCount(sample.number(&format!("/network/{what}")));
    format!(
        "{count} {what}, {}, at most {:.1} ms",
        latency(sample, name),
        sample.number(longest) as f64 / 1e6
    )
}

/// `held for 7.5 s more, renewed 1.2 s ago; 12 renewals, 0 late, 0 failed`
pub fn lease(sample: &Sample) -> Option<String> {
    let number = |name: &str| sample.number(&format!("/lease/{name}"));
    let seconds = |name: &str| number(name) as f64 / 1e3;
    let counts = format!(
        "{}, {} late, {} failed",
        several(number("renewals"), "renewal", "renewals"),
        number("late"),
        number("failed")
    );
    match sample.text("/lease/state") {
        "held" => Some(format!(
            "held for {:.1} s more, renewed {:.1} s ago; {counts}",
            seconds("left_ms"),
            seconds("age_ms")
        )),
        "lost" => Some(format!("lost, last renewed {:.0} s ago; {counts}", seconds("age_ms"))),
        _ => None,
    }
}
