//! A search over schedules: small lives of the real store and the real filesystem. A seed decides
//! at every lock, atomic, event and await which task continues, when the device ends each
//! operation, and when time passes; and then where the power fails.
//!
//! A seed determines a life: running it again repeats each step. See docs/lab/searches.md.

mod control;
mod device;
mod scheduler;
mod search;
pub mod store;
mod time;

pub use control::Control;
pub use device::{LateDevice, Pace};
pub use search::{Found, Search, Violation};
pub use time::{Spawner, Time};
