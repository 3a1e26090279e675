//! The map of blocks.

mod copies;
mod hostile;
mod kept;
mod large;
mod model;
mod replayed;
mod scarce;

use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// The processor time of this thread, which does not depend on how busy the machine is.
fn computed() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
