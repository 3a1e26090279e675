//! Presenting the results: a table for the terminal, JSON with everything, and a standalone page.

mod chart;
mod html;
mod json;
mod numbers;
mod table;

pub use html::html;
pub use json::json;
pub use table::table;

/// The note on the columns that count writes.
pub const WRITES_NOTE: &str = "Writes and flushes are the block layer's, for everybody alike. It counts a flush that is a request of \
its own as a write as well, which all of Syncline's are (in brackets: what its daemon asks for, without flushes, before writes are \
merged); those of journals mostly ride on a write.";

/// The note used instead if the daemon itself counts.
pub const DAEMON_NOTE: &str = "Writes and flushes are those that Syncline's daemon counts itself.";

/// The note on what the CPU column leaves out.
pub const CPU_NOTE: &str =
    "CPU time is that of the load and of the daemon, without the kernel's own threads.";
