//! The handle that a Python object holds: until it is closed, and only in the process that opened it.

use crate::failure::closed;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use std::sync::{Mutex, PoisonError};

/// A handle of the library. A child that the process forked has it too, but not the threads that serve it: there it refuses, and is
/// never dropped, which would wait for them.
pub struct Handle<T: Clone> {
    what: &'static str,
    process: u32,
    value: Mutex<Option<T>>,
}

impl<T: Clone> Handle<T> {
    pub fn new(what: &'static str, value: T) -> Self {
        Self { what, process: std::process::id(), value: Mutex::new(Some(value)) }
    }

    fn is_here(&self) -> bool {
        self.process == std::process::id()
    }

    /// The handle. The lock is held for no longer than that.
    pub fn get(&self) -> PyResult<T> {
        if !self.is_here() {
            let text = format!("the {} was opened before os.fork, and is the parent's", self.what);
            return Err(PyRuntimeError::new_err(text));
        }
        let value = self.value.lock().unwrap_or_else(PoisonError::into_inner).clone();
        value.ok_or_else(|| closed(self.what))
    }

    /// The handle, which is closed from now on; nothing the second time, or in a child.
    pub fn take(&self) -> Option<T> {
        if !self.is_here() {
            return None;
        }
        self.value.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl<T: Clone> Drop for Handle<T> {
    fn drop(&mut self) {
        let value = self.value.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if self.process != std::process::id() {
            std::mem::forget(value);
        }
    }
}
