//! `syncline crashlab`: runs `crashlab`, a program of its own, which is installed beside this one.

use crate::failure::{Failure, Outcome};
use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
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
    // The directory of this program comes first: 'crashlab explore --on syncline' runs this one.
    let own = std::env::current_exe().ok().and_then(|path| path.parent().map(Path::to_owned));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths(own.into_iter().chain(std::env::split_paths(&path)));
    let path = path.map_err(|error| Failure::usage(format!("PATH: {error}")))?;
    let error = Command::new(PROGRAM).args(args.arguments).env("PATH", path).exec();
    let failure = Failure::new(format!("cannot run {PROGRAM}: {error}"));
    Err(match error.kind() {
        io::ErrorKind::NotFound => failure.next("install it: cargo install crashlab"),
        _ => failure,
    })
}
