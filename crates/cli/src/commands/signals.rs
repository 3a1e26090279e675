//! SIGINT, SIGTERM and SIGHUP unmount, so that the image is left clean.

use crate::failure::Failure;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};
use syncline_fuse::Mounted;

/// Unmounts at the first signal; files that are open keep the mount alive, out of sight, until they are closed.
pub fn unmount_on_signal(mounted: &Mounted) -> Result<Handle, Failure> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    let handle = signals.handle();
    let unmounter = mounted.unmounter();
    std::thread::Builder::new().name("syncline-signals".into()).spawn(move || {
        for _ in signals.forever() {
            if unmounter.unmount().is_err()
                && let Err(error) = unmounter.detach()
            {
                tracing::error!("cannot unmount: {error}");
            }
        }
    })?;
    Ok(handle)
}
