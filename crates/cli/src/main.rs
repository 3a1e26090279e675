//! `syncline`: make, mount, check and measure Syncline images.
//!
//! Exit codes: 0 success; 1 the operation failed; 2 wrong usage. `check` follows fsck(8): 0 clean, 4 errors found, 8
//! the check could not be done, 16 wrong usage.
#![forbid(unsafe_code)]

mod commands;
mod failure;
mod logging;
mod size;

use clap::{Parser, Subcommand};
use failure::Outcome;
use std::process::ExitCode;

#[derive(Parser)]
#[command(name = "syncline", version, about, max_term_width = 100, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Make a filesystem in an image file or on a block device
    Mkfs(commands::mkfs::Args),
    /// Mount an image
    Mount(commands::mount::Args),
    /// Unmount, and wait until the image is clean
    Umount(commands::umount::Args),
    /// Show what an image says about itself
    Info(commands::info::Args),
    /// Show what a mounted filesystem has counted
    Stats(commands::stats::Args),
}

fn run(command: Command) -> Outcome {
    match command {
        Command::Mkfs(args) => commands::mkfs::run(args),
        Command::Mount(args) => commands::mount::run(args),
        Command::Umount(args) => commands::umount::run(args),
        Command::Info(args) => commands::info::run(args),
        Command::Stats(args) => commands::stats::run(args),
    }
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    logging::start();
    match run(cli.command) {
        Ok(code) => code,
        Err(failure) => {
            eprintln!("syncline: {failure}");
            failure.exit_code()
        }
    }
}
