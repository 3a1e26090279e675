//! `crashlab`: finds the power cut that breaks a program, on any filesystem.
#![forbid(unsafe_code)]

use clap::Parser;
use crashlab::commands::{Command, run};
use std::process::ExitCode;

/// Finds the power cut that breaks your program, on any filesystem
#[derive(Parser)]
#[command(
    version,
    after_help = "In short:\n  crashlab record -- ./my-program          # in the folder that it works in, or a copy\n  \
                  crashlab explore --check ./my-checker    # runs it in the files that each power cut leaves\n\n\
                  Exit codes: 0 no state fails, 1 a state fails, 2 wrong use, 3 crashlab could not do it"
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

fn main() -> ExitCode {
    run(Arguments::parse().command)
}
