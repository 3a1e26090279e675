//! Small appends to a log, each followed by an fdatasync, as etcd writes its log: the file's room is
//! allocated before, and a full log is written again from its start.

use super::Scale;
use crate::error::During;
use crate::files::{BuiltIn, FileLoad, Files};
use crate::synced::{Pattern, SyncedWrites};
use crate::workload::{Pace, Sample, Unit};
use crate::{BenchError, Interrupt};

/// Bytes of a record: the size that etcd's documents measure disks with.
const RECORD_BYTES: u64 = 2300;
/// Bytes of a log, as etcd's segments have.
const LOG_BYTES: u64 = 64 << 20;
/// The log's name.
const NAME: &str = "log";

/// The workload.
pub struct Append {
    log_bytes: u64,
}

impl Append {
    /// For a device of this scale.
    pub fn new(scale: &Scale) -> Self {
        Self { log_bytes: LOG_BYTES.min(scale.device_bytes / 4) }
    }
}

impl BuiltIn for Append {
    fn suite(&self) -> &'static str {
        "append"
    }

    fn title(&self) -> String {
        format!("{RECORD_BYTES} bytes appended to an allocated log + fdatasync")
    }

    fn reads_back(&self) -> bool {
        true
    }

    fn measure(&self) -> (Unit, &'static str) {
        (Unit::PerSecond("fdatasyncs"), "fdatasync")
    }
}

impl FileLoad for Append {
    fn make(&self, files: &dyn Files, _interrupt: &Interrupt) -> Result<(), BenchError> {
        let log = files.create(NAME).during(|| "making the log".into())?;
        log.allocate(self.log_bytes).and_then(|()| log.sync_all()).during(|| "allocating the log".into())
    }

    fn load(&self, files: &dyn Files, pace: Pace<'_>) -> Result<Sample, BenchError> {
        let log = files.open(NAME).during(|| "opening the log".into())?;
        let (pattern, file_bytes) = (Pattern::Sequential, self.log_bytes);
        SyncedWrites { pattern, write_bytes: RECORD_BYTES, file_bytes, data_only: true }.run(vec![log], pace)
    }
}
