//! The end of a mount: everything is written back, the image is left clean, and others may have it.

use super::image;
use super::systemd;
use super::transfers::Transfers;
use crate::failure::{Cause, Failure};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};
use syncline_check::Scrub;
use syncline_device::MountDevice;
use syncline_fs::Filesystem;
use syncline_image::Image;

/// How long to try to claim a block device that the kernel had claimed for the mount.
const CLAIM_WAIT: Duration = Duration::from_secs(1);

/// The parts of a daemon that are closed at its end.
pub struct Closing {
    pub image: PathBuf,
    /// The image is a fork that nobody needs afterwards.
    pub temporary: bool,
    pub fs: Arc<Filesystem>,
    pub scrub: Arc<Scrub>,
    pub transfers: Arc<Transfers>,
    pub storage: Image,
    /// The block device of the mount.
    pub device: Option<Arc<MountDevice>>,
    pub state: Mutex<State>,
}

/// How far it is.
#[derive(Default)]
pub enum State {
    #[default]
    Open,
    Closed(Result<(), Failure>),
    /// And how it went has been asked for.
    Told,
}

/// Whether the kernel waits for the end, with its claim on the block device.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kernel {
    Waits,
    HasGone,
}

impl Closing {
    /// Closes everything, once. A second caller waits until the first has done it.
    pub fn close(&self, kernel: Kernel) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(*state, State::Open) {
            *state = State::Closed(self.close_all(kernel));
            if self.temporary {
                // Somebody may have removed it already.
                let _ = std::fs::remove_file(&self.image);
            }
        }
    }

    /// Closes everything, if that is still to be done, and returns how it went.
    pub fn finish(&self) -> Result<(), Failure> {
        self.close(Kernel::HasGone);
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match std::mem::replace(&mut *state, State::Told) {
            State::Closed(outcome) => outcome,
            State::Open | State::Told => Ok(()),
        }
    }

    fn close_all(&self, kernel: Kernel) -> Result<(), Failure> {
        systemd::tell("STOPPING=1");
        let image = self.image.display();
        self.scrub.cancel();
        if self.storage.lost().is_some() {
            // Nothing can be written back or given back, and saying good-bye to storage that may be
            // away takes time. Why was told when it was lost.
            std::mem::forget(self.storage.clone());
            tracing::info!(%image, "unmounted; the image was lost before");
            return Err(Failure::told(Cause::Device as u8));
        }
        if kernel == Kernel::HasGone {
            self.claim_again();
        }
        // Saves the received part of a stream, if that was asked for.
        self.transfers.close();
        tracing::info!(%image, "unmounted; writing everything back");
        let closed = image::close(&self.fs);
        self.storage.release();
        closed
    }

    /// After an end of the mount for which the kernel did not wait (an abort, `umount -f`): its claim
    /// on the block device is gone, or goes with the dead mount, and there is something left to write.
    fn claim_again(&self) {
        let Some(device) = self.device.as_ref().filter(|device| device.is_image()) else { return };
        let started = Instant::now();
        while let Err(error) = device.take_back() {
            if started.elapsed() > CLAIM_WAIT {
                // As a rule the dead mount itself has it, because files are still open there.
                tracing::warn!(%error, "the block device can't be claimed again");
                return;
            }
            sleep(Duration::from_millis(10));
        }
    }
}
