//! The daemon's account of an image on a network, or with a device lease: the sections `network`,
//! `lease` and `lost` of `stats`, and the end of a mount whose image was lost.

use crate::failure::{Cause, Failure};
use crate::metrics::NET;
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;
use syncline_fs::Filesystem;
use syncline_fuse::Session;
use syncline_fuse::control;
use syncline_image::{Figures, Image, LeaseStatus, Location, Lost, NetCounters};

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
    for (name, distribution) in counters.distributions {
        distributions[format!("{NET}{name}")] = json!(distribution);
    }
}

pub fn network(counters: &NetCounters, name: &Path) -> Value {
    let kind = match Location::parse(name.as_os_str()) {
        Ok(Location::Rbd(_)) => "rbd",
        _ => "nbd",
    };
    let since_1970 = |time: SystemTime| {
        time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
    };
    let outages =
        counters.outages.iter().map(|it| json!([since_1970(it.began), it.lasted.as_nanos() as u64]));
    // Each when it began and how long it lasted, in nanoseconds.
    let outages: Value = outages.collect();
    joined(json!(counters), json!({ "kind": kind, "outages_ns": outages }))
}

/// One object of two.
pub fn joined(mut object: Value, other: Value) -> Value {
    if let (Value::Object(object), Value::Object(other)) = (&mut object, other) {
        object.extend(other);
    }
    object
}

syncline_counters::figures! {
    /// The device lease.
    #[derive(serde::Serialize)]
    pub struct Lease {
        /// Number of this holder of the device lease.
        term: gauge("lease_term"),
        /// How long a renewal of the device lease is valid.
        valid_ms: gauge("lease_valid").milliseconds(),
        /// How long the device lease is valid still.
        left_ms: gauge("lease_left").milliseconds(),
        /// Time since the device lease was renewed.
        age_ms: gauge("lease_age").milliseconds(),
        /// Renewals of the device lease.
        renewals: total("lease_renewals"),
        /// Renewals answered when less than half of the time was left.
        late: total("lease_renewals_late"),
        /// Renewals that the device refused.
        failed: total("lease_renewals_failed"),
        /// The longest renewal of the device lease.
        slowest_ms: gauge("lease_slowest").milliseconds(),
    }
}

pub fn lease(status: &LeaseStatus) -> Value {
    let ms = |time: std::time::Duration| time.as_millis() as u64;
    let lease = json!(Lease {
        term: status.term,
        valid_ms: ms(status.valid),
        left_ms: ms(status.left),
        age_ms: ms(status.age),
        renewals: status.renewals,
        late: status.late,
        failed: status.failed,
        slowest_ms: ms(status.slowest),
    });
    joined(lease, json!({ "state": if status.lost.is_some() { "lost" } else { "held" } }))
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
