//! SIGINT, SIGTERM, SIGHUP and SIGQUIT unmount, so that the image is left clean. Signals that mean
//! nothing here do nothing, instead of ending the daemon like a crash.

use crate::failure::Failure;
use signal_hook::consts::{SIGALRM, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::{Handle, Signals};
use std::sync::Arc;
use syncline_fuse::Unmounter;

/// From now on no signal that can be caught ends the process by accident; those that unmount wait for
/// [`unmount`].
pub fn catch() -> Result<Signals, Failure> {
    for signal in [SIGUSR1, SIGUSR2, SIGALRM] {
        // Handled rather than ignored: programs that we start have the default again.
        signal_hook::flag::register(signal, Arc::default())?;
    }
    Ok(Signals::new([SIGINT, SIGTERM, SIGHUP, SIGQUIT])?)
}

/// Unmounts at the first signal; open files keep the detached mount alive until they are closed. A
/// second signal does not wait for them: `close` takes over what programs have stored to mappings until
/// then and writes everything back, and the process ends.
pub fn unmount(
    mut signals: Signals,
    unmounter: Unmounter,
    close: impl FnOnce() -> Result<(), Failure> + Send + 'static,
) -> Result<Handle, Failure> {
    let handle = signals.handle();
    std::thread::Builder::new().name("syncline-signals".into()).spawn(move || {
        let mut signals = signals.forever();
        if signals.next().is_none() {
            return;
        }
        if unmounter.unmount().is_err() {
            tracing::warn!(
                "files are still open on the mount: it ends when they are closed, or at another signal"
            );
            if let Err(error) = unmounter.detach() {
                tracing::error!("cannot unmount: {error}");
            }
        }
        if signals.next().is_some() {
            let closed = close();
            if let Err(failure) = &closed {
                tracing::error!("{failure}");
            }
            std::process::exit(i32::from(closed.is_err()));
        }
    })?;
    Ok(handle)
}
