//! The counters of mounts for Prometheus (OpenMetrics text).

mod asked;
mod export;
mod server;
mod table;

pub use asked::{Asked, ask};
pub use export::{CONTENT_TYPE, Mounted, text};
pub use server::Server;
pub use table::NET;
