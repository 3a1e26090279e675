//! A child of fork(2) has none of the threads that serve an image, and shares its file with the parent. So
//! the child uses no image once the parent has opened one.

use crate::failure::{Failure, Result, code};
use std::ffi::c_int;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

static IN_CHILD: AtomicBool = AtomicBool::new(false);

unsafe extern "C" {
    fn pthread_atfork(
        prepare: Option<extern "C" fn()>,
        parent: Option<extern "C" fn()>,
        child: Option<extern "C" fn()>,
    ) -> c_int;
}

extern "C" fn note() {
    IN_CHILD.store(true, Ordering::Relaxed);
}

/// Called before an image is opened. SQLite never unloads the extension.
pub(crate) fn watch() {
    static ONCE: Once = Once::new();
    // SAFETY: the handler only stores into a static. If it can't be registered, nothing is worse than without.
    ONCE.call_once(|| _ = unsafe { pthread_atfork(None, None, Some(note)) });
}

/// True in a child of a process that had opened an image.
pub(crate) fn is_child() -> bool {
    IN_CHILD.load(Ordering::Relaxed)
}

/// Fails in such a child.
pub(crate) fn require_parent() -> Result<()> {
    match is_child() {
        true => Err(Failure::new(
            code::IOERR,
            "this process was forked from one that had opened an image, and can't use images: fork before, or \
             start another program",
        )),
        false => Ok(()),
    }
}
