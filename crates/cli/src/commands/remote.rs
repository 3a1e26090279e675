//! The daemon's account of an image on a network, or with a device lease: the sections `network`,
//! `lease` and `lost` of `stats`, and the end of a mount whose image was lost.

use crate::failure::{Cause, Failure};
use serde_json::{Map, Value, json};
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;
use syncline_fs::Filesystem;
use syncline_fuse::Session;
use syncline_fuse::control;
use syncline_image::{Figures, Image, Latency, LeaseStatus, Location, Lost, NetCounters};
use syncline_store::Distribution;

/// The text that tells whether the image was lost: `null`, or the section `lost`.
pub const LOST: &str = "lost";

/// Adds the sections of an image to the statistics, where it has them.
pub fn add_to(stats: &mut Value, image: &Figures, name: &Path) {
    if let Some(counters) = image.net_counters() {
        stats["network"] = network(&counters, name);
    }
    if let Some(status) = image.lease() {
        stats["lease"] = lease(&status);
    }
    stats["lost"] = lost(image);
}

/// Adds the distributions of an image's requests.
pub fn add_distributions(distributions: &mut Value, image: &Figures) {
    let Some(counters) = image.net_counters() else { return };
    for (name, latency) in [
        ("net_read_ns", &counters.read_latency),
        ("net_write_ns", &counters.write_latency),
        ("net_flush_ns", &counters.flush_latency),
    ] {
        distributions[name] = json!(Distribution::of(|take| latency.each(take)));
    }
}

pub fn network(counters: &NetCounters, name: &Path) -> Value {
    let kind = match Location::parse(name.as_os_str()) {
        Ok(Location::Rbd(_)) => "rbd",
        _ => "nbd",
    };
    let now = counters.now;
    let mut told = json!({
        "kind": kind,
        "connections": now.connections,
        "in_flight": now.in_flight,
        "in_flight_bytes": now.in_flight_bytes,
        "kept_bytes": now.kept_bytes,
        "reconnects": counters.reconnects,
        "rewritten": counters.replayed,
        "rewritten_bytes": counters.replayed_bytes,
        "reads": counters.reads,
        "read_bytes": counters.read_bytes,
        "writes": counters.writes,
        "written_bytes": counters.written_bytes,
        "durable_writes": counters.durable_writes,
        "discards": counters.discards,
        "flushes": counters.flushes,
        "own_flushes": counters.own_flushes,
    });
    let since_1970 = |time: SystemTime| {
        time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
    };
    let outages =
        counters.outages.iter().map(|it| json!([since_1970(it.began), it.lasted.as_nanos() as u64]));
    // Each when it began and how long it lasted, in nanoseconds.
    told["outages_ns"] = outages.collect();
    told["read_ns"] = summary(&counters.read_latency);
    told["write_ns"] = summary(&counters.write_latency);
    told["flush_ns"] = summary(&counters.flush_latency);
    told
}

/// In the form of the store's summaries.
fn summary(latency: &Latency) -> Value {
    let at = |part| latency.at(part).as_nanos() as u64;
    let mut told = Map::new();
    told.insert("count".into(), latency.count().into());
    told.insert("mean".into(), (latency.mean().as_nanos() as f64).into());
    for (name, part) in [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p999", 0.999)] {
        told.insert(name.into(), at(part).into());
    }
    told.insert("max".into(), (latency.max().as_nanos() as u64).into());
    told.into()
}

pub fn lease(status: &LeaseStatus) -> Value {
    let ms = |time: std::time::Duration| time.as_millis() as u64;
    json!({
        "state": if status.lost.is_some() { "lost" } else { "held" },
        "term": status.term,
        "valid_ms": ms(status.valid),
        "left_ms": ms(status.left),
        "age_ms": ms(status.age),
        "renewals": status.renewals,
        "late": status.late,
        "failed": status.failed,
        "slowest_ms": ms(status.slowest),
    })
}

/// How the image was lost; `null` if it was not.
pub fn lost(image: &Figures) -> Value {
    image.lost().map_or(Value::Null, |how| told(&how))
}

fn told(how: &Lost) -> Value {
    let at = humantime::format_rfc3339_seconds(how.at).to_string();
    json!({ "to": how.to, "at": at, "why": &*how.why })
}

/// In a few words: `lost its image to db2 (process 7) at 2026-11-26T07:00:00Z`
pub fn in_words(lost: &Value) -> Option<String> {
    let at = lost["at"].as_str()?;
    let to = lost["to"].as_str().map(|to| format!(" to {to}")).unwrap_or_default();
    Some(format!("lost its image{to} at {at}"))
}

/// The failure of asking a mount for something when it has lost its image.
pub fn lost_by(path: &Path) -> Option<Failure> {
    // The file itself may not open any more.
    let asked = super::ask::mount_point(path);
    let lost = serde_json::from_str(&control::text(asked.as_deref().unwrap_or(path), LOST).ok()?).ok()?;
    let text = format!("{}: it {}", path.display(), in_words(&lost)?);
    Some(Failure::of(Cause::Device, text).next("unmount it, and mount it again"))
}

/// Shuts the mount down when its image is lost. It stays, and answers EIO: otherwise programs would
/// write to the directory below it.
pub fn shut_down_when_lost(image: &Image, name: &Path, session: &Arc<Session>, fs: &Arc<Filesystem>) {
    let (session, fs, name) = (Arc::downgrade(session), Arc::downgrade(fs), name.display().to_string());
    image.on_lost(move |how| {
        tracing::error!("{name}: {}; until then everything on the mount fails with EIO", how.why);
        if let Some(session) = session.upgrade() {
            session.shut_down();
        }
        if let Some(fs) = fs.upgrade() {
            let words = in_words(&told(how)).unwrap_or_default();
            fs.store().shut_down_untold(&format!("it {words}; unmount it, and mount it again"));
        }
    });
}
