//! The user's wish to stop: raised by a signal, checked by every loop.

use crate::BenchError;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Raised by SIGINT and SIGTERM, so that everything can be cleaned up.
#[derive(Clone, Debug, Default)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// The flag to raise, for a signal handler.
    pub fn flag(&self) -> Arc<AtomicBool> {
        self.0.clone()
    }

    /// True once it has been raised.
    pub fn raised(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Fails once it has been raised.
    pub fn check(&self) -> Result<(), BenchError> {
        if self.raised() { Err(BenchError::Interrupted) } else { Ok(()) }
    }
}
