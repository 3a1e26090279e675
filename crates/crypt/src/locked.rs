//! Memory for secrets that the kernel does not swap.

use std::ops::{Deref, DerefMut};

/// A page of its own: the kernel locks whole pages.
#[repr(align(4096))]
struct Page<T>(T);

/// A value that wipes itself when it is dropped, in memory that is not written to a swap device, where this process may
/// lock memory (`RLIMIT_MEMLOCK`).
pub(crate) struct Locked<T> {
    // Dropped, and so wiped, before the lock.
    value: Box<Page<T>>,
    _lock: Option<region::LockGuard>,
}

impl<T> Locked<T> {
    /// The value that `fill` makes of `empty`, which holds no secret.
    pub(crate) fn filled(empty: T, fill: impl FnOnce(&mut T)) -> Self {
        let mut value = Box::new(Page(empty));
        let lock = region::lock(&raw const *value, size_of::<Page<T>>());
        if let Err(error) = &lock {
            tracing::debug!("memory for keys can't be locked, and may be written to a swap device: {error}");
        }
        fill(&mut value.0);
        Self { value, _lock: lock.ok() }
    }
}

impl<T> Deref for Locked<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.value.0
    }
}

impl<T> DerefMut for Locked<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value.0
    }
}
