//! `syncline crashlab`: records a program's work on a mount, and examines every state that a power
//! cut could leave.

mod checker;
mod explore;
mod list;
mod mount;
mod record;
mod report;

use crate::examples;
use crate::failure::Outcome;

/// Arguments of `crashlab`.
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Run a command on a copy of an image, and record all that reaches the device
    #[command(after_help = examples::RECORD)]
    Record(record::Args),
    /// List the moments at which something became durable or a line was printed
    #[command(after_help = examples::LIST)]
    List(list::Args),
    /// Recover the states that a power cut could have left, and have each checked
    #[command(after_help = examples::EXPLORE)]
    Explore(explore::Args),
    /// Mount a state that a power cut could have left
    #[command(after_help = examples::STATE)]
    Mount(mount::Args),
}

/// Runs the command.
pub fn run(args: Args) -> Outcome {
    match args.command {
        Command::Record(args) => record::run(args),
        Command::List(args) => list::run(args),
        Command::Explore(args) => explore::run(args),
        Command::Mount(args) => mount::run(args),
    }
}
