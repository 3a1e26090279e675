//! Log lines on standard error. A command tells its outcome in one line of its own, so only a daemon logs, once it serves;
//! `SYNCLINE_LOG=debug` shows everything from the start.

use std::sync::OnceLock;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Registry, fmt, reload};

static FILTER: OnceLock<reload::Handle<EnvFilter, Registry>> = OnceLock::new();

/// Starts logging as the environment says, else without a word.
pub fn start() {
    let filter = EnvFilter::try_from_env("SYNCLINE_LOG").unwrap_or_else(|_| EnvFilter::new("off"));
    let (filter, handle) = reload::Layer::new(filter);
    let lines = fmt::layer().with_writer(std::io::stderr).with_ansi(false);
    tracing_subscriber::registry().with(filter).with(lines).init();
    let _ = FILTER.set(handle);
}

/// From now on warnings and errors are logged, unless the environment says something else.
pub fn serve() {
    if std::env::var_os("SYNCLINE_LOG").is_none()
        && let Some(handle) = FILTER.get()
    {
        // Fails only after the subscriber is gone.
        let _ = handle.reload(EnvFilter::new("warn"));
    }
}
