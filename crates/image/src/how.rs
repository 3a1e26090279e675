//! How an image is opened.

use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;
use syncline_device::OpenOptions;
use syncline_lease::{LeaseOptions, Progress, TakeOver};

/// Told what opening waits for; may end the waiting.
pub type Waiting = dyn Fn(&Progress<'_>) -> ControlFlow<()> + Send + Sync;

/// How to open an image.
#[derive(Clone, Default)]
pub struct How {
    /// How to use the device.
    pub device: OpenOptions,
    /// Take the image from another host that has it. It can never write to it again.
    pub take_over: Option<TakeOver>,
    /// Take the device lease of a file or block device even if its superblocks do not demand it.
    pub shared: bool,
    /// How the device lease is held, where there is one.
    pub lease: LeaseOptions,
    /// Told what opening waits for; may end the waiting.
    pub waiting: Option<Arc<Waiting>>,
    /// Nobody waits who could be asked for the key of an encrypted image.
    pub unattended: bool,
}

impl How {
    /// For reading and writing.
    pub fn new(device: OpenOptions) -> Self {
        Self { device, ..Self::default() }
    }

    /// For reading.
    pub fn reading() -> Self {
        Self::new(OpenOptions { read_only: true, ..OpenOptions::default() })
    }

    /// True if nothing is to be changed.
    pub(crate) fn reads(&self) -> bool {
        self.device.read_only || self.device.beside_writer
    }

    /// How long a TCP connection may be without a sign of its server: what it still holds by then
    /// never arrives. In whole seconds, as TCP's own limits are.
    pub(crate) fn dead_after(&self) -> Duration {
        Duration::from_secs(self.lease.send_timeout().as_secs().max(1))
    }
}

impl fmt::Debug for How {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = out.debug_struct("How");
        out.field("device", &self.device).field("take_over", &self.take_over).field("lease", &self.lease);
        out.finish_non_exhaustive()
    }
}
