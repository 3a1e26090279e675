//! Log lines on standard error; `SYNCLINE_LOG=debug` shows more.

use tracing_subscriber::EnvFilter;

/// Starts logging.
pub fn start() {
    let filter = EnvFilter::try_from_env("SYNCLINE_LOG").unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(false).init();
}
