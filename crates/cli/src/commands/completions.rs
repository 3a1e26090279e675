//! `syncline completions`: what a shell needs to complete command lines.

use crate::failure::Outcome;
use crate::printed;
use clap_complete::Shell;
use std::io::Write;
use std::process::ExitCode;

/// Arguments of `completions`.
#[derive(clap::Args)]
pub struct Args {
    /// bash, zsh, fish, elvish or powershell
    shell: Shell,
}

/// Runs the command.
pub fn run(args: &Args) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut crate::definition(), "syncline", &mut script);
    printed::written(std::io::stdout().write_all(&script))?;
    Ok(ExitCode::SUCCESS)
}
