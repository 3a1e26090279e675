//! Moments at which a test lets others go first: between two steps that follow each other so closely that hardly anybody comes between.

use crate::Store;
use std::fmt;
use std::panic::Location;
use std::sync::Arc;

/// What is called with each such place in the program, if anything.
#[derive(Clone, Default)]
#[doc(hidden)]
pub struct GiveWay(Option<Arc<Call>>);

type Call = dyn Fn(&'static Location<'static>) + Send + Sync;

impl GiveWay {
    /// Calls this, on the thread that is about to go on; of locks that others spin or sleep for it holds at most that of the quotas.
    pub fn calling(call: impl Fn(&'static Location<'static>) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(call)))
    }
}

impl fmt::Debug for GiveWay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "GiveWay" } else { "None" })
    }
}

impl Store {
    /// A test may let others go first here.
    #[doc(hidden)]
    #[track_caller]
    pub fn give_way(&self) {
        if let Some(call) = &self.options.give_way.0 {
            call(Location::caller());
        }
    }
}
