//! SIGINT and SIGTERM end a demo in an orderly way: everything it made is removed.

use crate::failure::Failure;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Raised by these signals, checked by every loop.
#[derive(Clone, Default)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// An interrupt that the signals raise.
    pub fn watch() -> Result<Self, Failure> {
        let interrupt = Self::default();
        for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
            signal_hook::flag::register(signal, interrupt.0.clone())?;
        }
        Ok(interrupt)
    }

    /// True once it has been raised.
    pub fn raised(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Fails once it has been raised.
    pub fn check(&self) -> Result<(), Failure> {
        if self.raised() {
            Err(Failure::new("interrupted; the mount and the image are removed"))
        } else {
            Ok(())
        }
    }
}
