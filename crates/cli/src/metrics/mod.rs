//! The counters of mounts as Prometheus reads them (OpenMetrics text).

mod export;
mod table;

pub use export::{CONTENT_TYPE, Mounted, text};
