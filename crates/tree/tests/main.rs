//! The tree, beside a model and on devices that fail, are slow or rot.

mod common;
mod copies;
mod corruption;
mod model;
mod shape;
mod slow_device;
