//! A search over schedules: small lives of the real store and the real filesystem, in which a seed decides at every lock, atomic,
//! event and await who goes on, when the device ends what, and when time passes; and where the power fails then.
//!
//! One seed is one life: whoever lives it again sees each step again. See docs/lab/schedules.md.

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
