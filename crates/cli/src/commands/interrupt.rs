//! SIGINT and SIGTERM end a measurement in an orderly way: everything it made is removed.

use crate::failure::Failure;
use syncline_bench::Interrupt;

/// An interrupt that these signals raise.
pub fn watch() -> Result<Interrupt, Failure> {
    let interrupt = Interrupt::default();
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, interrupt.flag())?;
    }
    Ok(interrupt)
}
