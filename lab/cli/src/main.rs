//! `syncline-lab`: measures Syncline beside other filesystems.
//!
//! The program `syncline` is the one in the same folder, or else the one in PATH. A failure of it
//! has its exit code.
#![forbid(unsafe_code)]

mod bench;
mod disk;
mod null;

use clap::{Parser, Subcommand};
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use syncline_bench::{BenchError, command};

/// The same as in `syncline`: the engine is measured in this process as well.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[derive(Parser)]
#[command(name = "syncline-lab", version, about, max_term_width = 100, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Measure Syncline beside ext4, xfs and btrfs
    #[command(after_help = bench::HELP)]
    Bench(Box<bench::Args>),
    /// Serve a disk whose flushes take a chosen time
    Disk(disk::Args),
    /// Serve the filesystem that keeps nothing, which `bench` compares with
    #[command(hide = true)]
    BenchNull(null::Args),
}

fn main() -> ExitCode {
    let ended = match Cli::parse().command {
        Command::Bench(args) => bench::run(*args),
        Command::Disk(args) => disk::run(&args),
        Command::BenchNull(args) => null::run(&args),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("syncline-lab: {}", error.to_string().replace('\n', " "));
            ExitCode::from(exit_code(&error))
        }
    }
}

/// The program that is measured.
fn syncline() -> Result<PathBuf, BenchError> {
    let beside = std::env::current_exe()?.with_file_name("syncline");
    if beside.is_file() { Ok(beside) } else { command::require("syncline", "syncline") }
}

/// The exit codes of `syncline`, for failures that it has as well.
fn exit_code(error: &BenchError) -> u8 {
    match error {
        BenchError::Usage(_) => 2,
        BenchError::NotRoot { .. } => 9,
        BenchError::NoRoom { .. } => 10,
        BenchError::Program { code, .. } => *code,
        BenchError::Io { source, .. } => match source.kind() {
            io::ErrorKind::PermissionDenied => 9,
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => 10,
            _ => 1,
        },
        _ => 1,
    }
}
