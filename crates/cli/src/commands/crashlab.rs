//! `syncline crashlab`: runs `crashlab`, a program of its own: the one beside this program, or else in the PATH.

use crate::failure::{Failure, Outcome};
use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

const PROGRAM: &str = "crashlab";

/// Arguments of `crashlab`.
#[derive(clap::Args)]
pub struct Args {
    /// Arguments of 'crashlab': its --help lists them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENTS")]
    arguments: Vec<OsString>,
}

/// Runs the command; returns only if it can't.
pub fn run(args: Args) -> Outcome {
    let beside = std::env::current_exe().ok().map(|path| path.with_file_name(PROGRAM));
    let program = beside.filter(|path| path.is_file()).unwrap_or_else(|| PROGRAM.into());
    let error = Command::new(&program).args(args.arguments).exec();
    let failure = Failure::new(format!("cannot run {}: {error}", program.display()));
    Err(match error.kind() {
        io::ErrorKind::NotFound => failure.next("install it: cargo install crashlab"),
        _ => failure,
    })
}
