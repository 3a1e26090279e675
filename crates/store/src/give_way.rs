//! Points at which a test can let other tasks run first: between two steps so close together that
//! another task hardly ever gets in between.

use crate::Store;
use std::fmt;
use std::panic::Location;
use std::sync::Arc;

/// The function called at each such point, if any.
#[derive(Clone, Default)]
#[doc(hidden)]
pub struct GiveWay(Option<Arc<Call>>);

type Call = dyn Fn(&'static Location<'static>) + Send + Sync;

impl GiveWay {
    /// Sets the function to call. It runs on the thread that reaches the point; of the spin and
    /// sleep locks, that thread holds at most the quota lock.
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
    /// Lets a test run other tasks first.
    #[doc(hidden)]
    #[track_caller]
    pub fn give_way(&self) {
        if let Some(call) = &self.options.give_way.0 {
            call(Location::caller());
        }
    }
}
