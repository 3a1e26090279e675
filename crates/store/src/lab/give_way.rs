//! Points at which a test can let other tasks run first: between two steps so close together that
//! another task hardly ever gets in between.

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

    /// Calls the function, if there is one.
    #[track_caller]
    pub(crate) fn now(&self) {
        if let Some(call) = &self.0 {
            call(Location::caller());
        }
    }
}

impl fmt::Debug for GiveWay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "GiveWay" } else { "None" })
    }
}
