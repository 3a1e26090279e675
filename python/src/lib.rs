//! Syncline for Python: the part in Rust. The interface for Python programs is in `syncline/__init__.py`; this module is `_syncline`.
//!
//! Every call that may wait for the device lets other Python threads run meanwhile.

mod change;
mod failure;
mod file;
mod handle;
mod image;
mod inside;
mod keys;
mod stat;

use pyo3::prelude::*;

#[pymodule]
fn _syncline(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_function(wrap_pyfunction!(keys::add_key, module)?)?;
    module.add_function(wrap_pyfunction!(keys::forget_keys, module)?)?;
    module.add_class::<image::Image>()?;
    module.add_class::<file::RawFile>()?;
    module.add_class::<stat::Stat>()?;
    module.add_class::<stat::Snapshot>()?;
    module.add_class::<stat::Fork>()?;
    Ok(())
}
