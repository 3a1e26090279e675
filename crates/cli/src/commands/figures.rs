//! The daemon's information about itself: the texts `daemon`, `stats` and `distributions`, and
//! those of other commands.

use super::image_file::ImageFile;
use super::remote;
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;
use syncline_check::Scrub;
use syncline_format::BLOCK_BYTES;
use syncline_format::superblock::Superblock;
use syncline_fs::{Durability, Filesystem};
use syncline_fuse::Session;
use syncline_image::Figures;
use syncline_store::{RecoveryReport, Store};

/// The text with the distributions behind the summaries of `stats`.
pub const DISTRIBUTIONS: &str = "distributions";

/// The text with the filesystem's label, UUID and size.
pub const IDENTITY: &str = "identity";

/// The kernel's name for the pid namespace in which this process has its pid.
pub fn namespace_of_processes() -> Option<String> {
    Some(std::fs::read_link("/proc/self/ns/pid").ok()?.to_string_lossy().into_owned())
}

/// The log epoch, which distinguishes the mounts of an image: each draws its own, and has it as
/// long as its log can be written.
pub fn epoch(superblock: &Superblock) -> String {
    superblock.epoch.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Makes the daemon answer `stats`, `daemon`, `identity`, `distributions`, `lost` and `explain`, and
/// scrub.
pub fn register(
    session: &Arc<Session>,
    fs: &Arc<Filesystem>,
    scrub: &Arc<Scrub>,
    (storage, image, temporary): (&Figures, &Path, bool),
    (class, synchronous): (Durability, &str),
    (sync, options): (Value, String),
    report: RecoveryReport,
) {
    let control = session.control();
    super::scrub::register(control, scrub);
    super::explain::register(control, fs);
    let daemon = json!({
        "pid": std::process::id(),
        "pid_namespace": namespace_of_processes(),
        "image": image.to_string_lossy(),
        "version": env!("CARGO_PKG_VERSION"),
        "transport": session.transport(),
        "durability": class.to_string(),
        "synchronous": synchronous,
        "sync": sync,
        "options": options,
        "base": storage.base().map(|base| base.to_string_lossy()),
        "temporary": temporary,
        "read_only": fs.store().read_only_reason().is_some(),
    });
    let daemon_text = daemon.to_string();
    control.register("daemon", move || daemon_text.clone());
    let (named, figures) = (Arc::downgrade(fs), storage.clone());
    control.register(IDENTITY, move || {
        named.upgrade().map_or("{}".into(), |fs| {
            let uuid = uuid::Uuid::from_bytes(fs.uuid());
            let size_bytes = fs.store().geometry().total_blocks * BLOCK_BYTES as u64;
            // Other hosts may write to it only by a later mount, which has another one.
            let epoch = figures.can_be_lost().then(|| epoch(&fs.store().superblock()));
            let label = fs.label();
            let part_of_stream = fs.store().keeps_part_of_stream();
            json!({ "uuid": uuid.to_string(), "label": label, "size_bytes": size_bytes, "epoch": epoch,
                "part_of_stream": part_of_stream })
            .to_string()
        })
    });
    let (distributed, figures) = (Arc::downgrade(fs), storage.clone());
    control.register(DISTRIBUTIONS, move || {
        let Some(fs) = distributed.upgrade() else { return "{}".into() };
        let mut distributions = json!(fs.store().distributions());
        remote::add_distributions(&mut distributions, &figures);
        distributions.to_string()
    });
    let figures = storage.clone();
    control.register(remote::LOST, move || remote::lost(&figures).to_string());
    let (figures, name, file) = (storage.clone(), image.to_owned(), ImageFile::of(image));
    let (fs, scrub, started) = (Arc::downgrade(fs), scrub.clone(), Instant::now());
    let weak = Arc::downgrade(session);
    control.register("stats", move || {
        let (Some(fs), Some(session)) = (fs.upgrade(), weak.upgrade()) else { return "{}".into() };
        let mut stats = of(&fs, &scrub, &report, started);
        remote::add_to(&mut stats, &figures, &name);
        let blocks = fs.store().geometry().total_blocks;
        let size_bytes = blocks * BLOCK_BYTES as u64 + figures.overhead_bytes();
        stats["image_changed"] = file.as_ref().and_then(|file| file.change(size_bytes)).into();
        stats["daemon"] = daemon.clone();
        stats["requests"] = serde_json::from_str(&session.counters().to_json()).unwrap_or_default();
        stats.to_string()
    });
}

/// The part that does not depend on how the filesystem is mounted.
fn of(fs: &Filesystem, scrub: &Scrub, report: &RecoveryReport, started: Instant) -> Value {
    let store = fs.store();
    json!({
        "process": Process::since(started),
        "recovery": Recovery::of(report),
        "read_only": store.read_only_reason().as_deref(),
        "files": fs.counters(),
        "store": store.counters(),
        "caches": store.caches(),
        "scrub": scrub.counters(),
        "space": Space::of(store),
    })
}

syncline_counters::figures! {
    /// The resources that the daemon uses.
    #[derive(serde::Serialize)]
    pub struct Process {
        /// Time since the image was mounted.
        uptime_ms: gauge("uptime").milliseconds(),
        /// Processor time of the daemon.
        cpu_ms: total("cpu").milliseconds(),
        /// Memory of the daemon.
        resident_bytes: gauge("resident_memory").bytes(),
    }
}

impl Process {
    fn since(started: Instant) -> Self {
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
        let pages = statm.split_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0);
        let cpu = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        Self {
            uptime_ms: started.elapsed().as_millis() as u64,
            cpu_ms: cpu.tv_sec as u64 * 1000 + cpu.tv_nsec as u64 / 1_000_000,
            resident_bytes: pages * rustix::param::page_size() as u64,
        }
    }
}

syncline_counters::figures! {
    /// The recovery at the mount, in figures.
    #[derive(serde::Serialize)]
    pub struct Recovery {
        /// Log batches replayed when the image was mounted.
        batches: gauge("recovery_batches"),
        /// Records in the log batches replayed when it was mounted.
        records: gauge("recovery_records"),
        /// Log read when the image was mounted.
        log_bytes: gauge("recovery_log").bytes(),
        /// Replayed batches whose data was verified.
        verified_batches: gauge("recovery_verified_batches"),
        /// Batches found incomplete, never acknowledged.
        discarded_batches: gauge("recovery_discarded_batches"),
    }
}

impl Recovery {
    fn of(report: &RecoveryReport) -> Value {
        let found = json!(Self {
            batches: report.batches,
            records: report.records,
            log_bytes: report.log_bytes,
            verified_batches: report.verified_batches,
            discarded_batches: report.discarded_batches,
        });
        remote::joined(found, json!({ "clean": report.clean }))
    }
}

syncline_counters::figures! {
    /// Space, in blocks.
    #[derive(serde::Serialize)]
    pub struct Space {
        /// Space that can be allocated at all.
        total_blocks: gauge("space_size").blocks(),
        /// Space that can be allocated now.
        free_blocks: gauge("space_free").blocks(),
        /// Space that files can get, without reserved space.
        available_blocks: gauge("space_available").blocks(),
        /// Space freed or held, not reusable yet.
        pending_free_blocks: gauge("space_pending_free").blocks(),
        /// Space that something committed uses.
        named_blocks: gauge("space_named").blocks(),
    }
}

impl Space {
    fn of(store: &Store) -> Self {
        let space = store.space();
        Self {
            total_blocks: space.total,
            free_blocks: space.free,
            available_blocks: store.available_data_blocks(),
            pending_free_blocks: space.pending_free,
            named_blocks: space.named,
        }
    }
}

/// The statistics of a new filesystem's daemon, on a network and with a lease.
#[cfg(test)]
pub fn of_new_filesystem() -> Value {
    use syncline_device::{Background, MemoryDevice, WorkerOptions, block_on};
    let device = MemoryDevice::new(32 << 20);
    syncline::format_device(device.clone(), &syncline::FormatOptions::default()).expect("there is room");
    let spawn = Arc::new(Background::start(WorkerOptions::default()).expect("a thread"));
    let (store, report) =
        block_on(Store::open(device, Default::default(), spawn.clone())).expect("it was just made");
    let fs =
        block_on(Filesystem::open(store.clone(), spawn.clone(), Default::default())).expect("it is empty");
    let scrub = Scrub::new(&store, spawn);
    let mut stats = of(&fs, &scrub, &report, Instant::now());
    block_on(async {
        fs.close().await.expect("nothing was written");
        store.close().await.expect("nothing was written");
    });
    stats["network"] = remote::network(&Default::default(), Path::new("rbd:pool/image"));
    stats["lease"] = remote::lease(&syncline_image::LeaseStatus {
        term: 1,
        valid: Default::default(),
        left: Default::default(),
        age: Default::default(),
        renewals: 0,
        late: 0,
        failed: 0,
        slowest: Default::default(),
        lost: None,
    });
    stats
}

#[cfg(test)]
mod tests {
    #[test]
    fn nothing_is_amplified_before_there_is_data() {
        let store = &super::of_new_filesystem()["store"];
        assert!(store["device_write_bytes"].as_u64().unwrap() > 0 && store["data_bytes"] == 0, "{store}");
        assert_eq!(store["write_amplification"], 0.0);
    }
}
