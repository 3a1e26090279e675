//! `crashlab validate`, for those who work on crashlab.

use super::{interrupt, note, print};
use crate::Error;
use crate::leftovers::Guard;
use crate::model::Model;
use crate::real::{Compared, Filesystem, Validation};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Arguments of `crashlab validate`.
#[derive(clap::Args)]
#[command(
    after_help = "Needs root. Prints a line of a table: filesystem, programs, states mounted, different trees, those that \
                        the program itself never went through, moments skipped, and trees outside the model. Each of \
                        the last is printed with its program, and the exit code is 1."
)]
pub struct Args {
    /// Filesystem, and model
    #[arg(value_parser = super::explore::filesystem)]
    filesystem: &'static Filesystem,
    /// Compare with the model of this name instead
    #[arg(long, value_parser = super::explore::model)]
    model: Option<&'static Model>,
    /// Programs
    #[arg(long, value_name = "N", default_value_t = 100)]
    programs: u64,
    /// Seconds after which no further program is begun
    #[arg(long, value_name = "N", default_value_t = 60)]
    seconds: u64,
    /// Seed of the first program
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

/// Runs the command.
pub fn run(args: Args) -> Result<ExitCode, Error> {
    let Args { filesystem, model, programs, seconds, seed } = args;
    let Some(model) = model.or_else(|| Model::named(filesystem.name)) else {
        return Err(Error::Usage(format!("there is no model of {}", filesystem.name)));
    };
    let stop = interrupt(&[SIGINT, SIGTERM, SIGHUP]);
    let until = Instant::now() + Duration::from_secs(seconds);
    let _guard = Guard::start();
    let mut told = 0;
    let compared = Validation { filesystem, model, seed, stop: &stop, until }.run(programs, |compared| {
        compared.outside[told..].iter().for_each(|outside| note(outside));
        told = compared.outside.len();
    })?;
    let heading = "| filesystem | programs | states mounted | different trees | not in the program | skipped | outside |";
    print(&format!("{heading}\n|---|---|---|---|---|---|---|\n"))?;
    let Compared { programs, states, trees, out_of_order, skipped, outside } = compared;
    print(&format!(
        "| {} | {programs} | {states} | {trees} | {out_of_order} | {skipped} | {} |\n",
        filesystem.name,
        outside.len()
    ))?;
    if stop.load(Ordering::Relaxed) {
        return Err(Error::Interrupted);
    }
    Ok(ExitCode::from(u8::from(!outside.is_empty())))
}
