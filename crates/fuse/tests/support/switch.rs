//! The kernel's switch for FUSE over io_uring. It applies to the whole machine, so a test holds it
//! only while mounting, one test at a time, and then restores it: an existing mount keeps its
//! transport.

use rustix::fs::{FlockOperation, flock};
use std::fs::{self, File};

const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

/// The switch in a chosen state, restored when this is dropped.
pub struct Switch {
    before: String,
    /// Unlocked when closed, after the state was restored.
    _lock: File,
}

impl Switch {
    /// Sets the switch, or returns why that is not possible.
    pub fn set(on: bool) -> Result<Self, String> {
        let path = std::env::temp_dir().join("syncline-test-enable-uring.lock");
        let failed = |error: std::io::Error| format!("{SWITCH} cannot be set: {error}");
        let lock = File::options().create(true).append(true).open(path).map_err(failed)?;
        flock(&lock, FlockOperation::LockExclusive).map_err(|error| failed(error.into()))?;
        let before = fs::read_to_string(SWITCH).map_err(failed)?;
        let switch = Self { before, _lock: lock };
        fs::write(SWITCH, if on { "Y" } else { "N" }).map_err(failed)?;
        Ok(switch)
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        let _ = fs::write(SWITCH, self.before.trim());
    }
}
