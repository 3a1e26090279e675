//! `syncline crashlab`: records what a program does on a mount, and examines every state that a
//! power cut could leave.

mod checker;
mod explore;
mod list;
mod mount;
mod record;
mod report;

use super::figures::namespace_of_processes;
use crate::examples;
use crate::failure::Outcome;
use serde_json::json;
use std::sync::Arc;
use syncline_fs::Filesystem;
use syncline_fuse::Mounted;

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
    /// List the moments at which something became durable or was told
    #[command(after_help = examples::LIST)]
    List(list::Args),
    /// Recover the states that a power cut could have left, and have each checked
    #[command(after_help = examples::EXPLORE)]
    Explore(explore::Args),
    /// Mount one of those states
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

/// Makes a laboratory mount answer `stats`, and also `umount`, which must not check whether an
/// image has become clean: there is none.
fn register(mounted: &Mounted, fs: &Arc<Filesystem>) {
    // No image: the filesystem is in memory.
    let daemon = json!({
        "pid": std::process::id(),
        "pid_namespace": namespace_of_processes(),
        "version": env!("CARGO_PKG_VERSION"),
    });
    let control = mounted.session().control();
    let text = daemon.to_string();
    control.register("daemon", move || text.clone());
    let fs = Arc::downgrade(fs);
    control.register("stats", move || match fs.upgrade() {
        Some(fs) => {
            json!({ "daemon": daemon, "files": fs.counters(), "store": fs.store().counters() }).to_string()
        }
        None => "{}".to_owned(),
    });
}
