//! `syncline`: make, mount and check Syncline images.
//!
//! Exit codes are those of [`failure::Cause`]; `check` has those of fsck(8).
#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

// Its macros are for all modules that follow.
#[macro_use]
mod printed;

mod commands;
mod examples;
mod failure;
mod groups;
mod helper;
mod keys;
mod known;
mod live;
mod log_limit;
mod log_thread;
mod logging;
mod metrics;
mod near;
mod permission;
mod size;
mod suggestions;
mod syslog;
mod utab;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use failure::{Failure, Outcome};
use helper::{Asked, Role};
use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::Arc;

/// Memory allocated by one thread is often freed by another: requests, batches, buffers. The C
/// library's allocator took 5% of a busy mount's CPU time for that.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const EXIT_CODES: &str = "\
Exit codes:
   0  success
   1  failed
   2  wrong usage
   3  the image, the device or the mount point is in use
   4  a block does not match its checksum
   5  no image that this program can use: none, truncated, of a newer format, without superblock
   6  a path is missing or on no mount; a mount point is not empty or no directory
   7  FUSE can't be used here
   8  the device failed
   9  not permitted
  10  no space
  11  a stream is damaged or cut off, or does not fit the image
'check' has those of fsck(8): 0 no errors, 1 errors repaired, 4 errors left, 8 not done, 16 wrong usage.

'crashlab' has its own.
-v, or SYNCLINE_LOG=debug, logs more.";

#[derive(Parser)]
#[command(
    name = "syncline",
    version,
    about,
    max_term_width = 100,
    arg_required_else_help = true,
    after_help = EXIT_CODES
)]
struct Cli {
    #[command(flatten)]
    logging: logging::Choices,
    #[command(flatten)]
    keys: keys::KeyChoices,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Make a filesystem in an image file or on a block device
    #[command(after_help = examples::MKFS)]
    Mkfs(commands::mkfs::Args),
    /// Mount an image
    #[command(after_help = examples::MOUNT)]
    Mount(commands::mount::Args),
    /// Unmount, and wait until the image is clean
    #[command(after_help = examples::UMOUNT)]
    Umount(commands::umount::Args),
    /// Take an image from another host that has it, without mounting it
    #[command(after_help = examples::TAKEOVER)]
    Takeover(commands::takeover::Args),
    /// Mount an image, run a command in it, and unmount
    #[command(after_help = examples::RUN)]
    Run(commands::run::Args),
    /// Show all mounts of this machine: image, space, state, fsyncs a second, errors
    #[command(after_help = examples::STATUS)]
    Status(commands::status::Args),
    /// Verify a whole image, report its damage, and repair it with --repair
    #[command(alias = "fsck", after_help = examples::CHECK)]
    Check(commands::check::Args),
    /// Verify a mounted filesystem in the background
    #[command(after_help = examples::SCRUB)]
    Scrub(commands::scrub::Args),
    /// Make many files durable with at most one flush, all or nothing; with --all, everything
    #[command(after_help = examples::SYNC)]
    Sync(commands::sync::SyncArgs),
    /// Order the data written to files before everything later, without a flush
    #[command(after_help = examples::BARRIER)]
    Barrier(commands::sync::BarrierArgs),
    /// Show the exclusive and the shared space of files
    #[command(after_help = examples::DU)]
    Du(commands::du::Args),
    /// Copy a file or a whole tree, sharing all data
    #[command(after_help = examples::CLONE)]
    Clone(commands::clone::Args),
    /// Join the scattered extents of files
    #[command(after_help = examples::DEFRAGMENT)]
    Defragment(commands::defragment::Args),
    /// Make a writable image of a snapshot, instantly: it shares all blocks with its base
    #[command(after_help = examples::FORK)]
    Fork(commands::fork::Args),
    /// Show, add, change and remove the keys of an encrypted image
    Key(commands::key::Args),
    /// Make snapshots of the whole filesystem, mount them, compare them, and return to them
    Snapshot(commands::snapshot::Args),
    /// Write a snapshot as a stream, or the changes since an older one: a backup that travels
    #[command(after_help = examples::SEND)]
    Send(commands::send::Args),
    /// Read a stream, and make its snapshot in another image
    #[command(after_help = examples::RECEIVE)]
    Receive(commands::receive::Args),
    /// Compress the new or the present contents of files
    #[command(after_help = examples::COMPRESS)]
    Compress(commands::compress::Args),
    /// Choose when changes of directory trees become durable
    Durability(commands::durability::Args),
    /// Limit the bytes and files of directory trees
    Quota(commands::quota::Args),
    /// Show the size, usage, features and state of an image
    #[command(after_help = examples::INFO)]
    Info(commands::info::Args),
    /// Show the label of a filesystem, or set it
    #[command(after_help = examples::LABEL)]
    Label(commands::identity::LabelArgs),
    /// Show the UUID of a filesystem, or set it
    #[command(after_help = examples::UUID)]
    Uuid(commands::identity::UuidArgs),
    /// Make a filesystem larger, or smaller
    #[command(after_help = examples::RESIZE)]
    Resize(commands::resize::Args),
    /// Tell the device which blocks are free
    #[command(after_help = examples::TRIM)]
    Trim(commands::trim::Args),
    /// Look into an image, structure by structure, without writing
    Inspect(commands::inspect::Args),
    /// List a directory of an image or a snapshot that is not mounted
    #[command(after_help = examples::LS)]
    Ls(commands::look::LsArgs),
    /// Print a file of an image or a snapshot that is not mounted
    #[command(after_help = examples::CAT)]
    Cat(commands::look::CatArgs),
    /// Copy files out of an image or a snapshot that is not mounted
    #[command(after_help = examples::CP)]
    Cp(commands::cp::Args),
    /// Show every path of an inode, without searching
    #[command(after_help = examples::PATH)]
    Path(commands::path::Args),
    /// Show the counters of a mounted filesystem
    Stats(commands::stats::Args),
    /// Serve the counters of mounted filesystems to Prometheus
    Metrics(commands::metrics::Args),
    /// Watch the activity of a mounted filesystem
    Top(commands::top::Args),
    /// Explain the last fsyncs: their work, their reasons, the flush that covered each, and their
    /// time
    #[command(after_help = examples::EXPLAIN)]
    Explain(commands::explain::Args),
    /// Run 'crashlab', which finds the power cut that breaks a program, on any filesystem
    #[command(after_help = examples::CRASHLAB, disable_help_flag = true)]
    Crashlab(commands::crashlab::Args),
    /// Ask a mount's daemon, in a process that a caller can give up on
    #[command(hide = true)]
    Ask(commands::ask::Args),
    /// Make an image, mount it, measure fsync, cut the power, and get everything back
    #[command(after_help = examples::DEMO)]
    Demo(commands::demo::Args),
    /// Add the manual, completions and the helpers of mount(8) to a 'cargo install'
    #[command(after_help = examples::SETUP)]
    Setup(commands::setup::Args),
    /// Print a shell's completions of command lines
    #[command(after_help = examples::COMPLETIONS)]
    Completions(commands::completions::Args),
    /// Write the manual's pages
    #[command(hide = true)]
    Manual(commands::manual::Args),
}

/// The command line's definition.
fn definition() -> clap::Command {
    groups::grouped(Cli::command())
}

/// Parses the command line.
fn parse(words: impl Iterator<Item = OsString>) -> Result<(Cli, Named), clap::Error> {
    let mut definition = definition();
    let matches = definition.try_get_matches_from_mut(words)?;
    let cli = Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut definition))?;
    Ok((cli, Named::of(&matches)))
}

/// The command by its name, and everything that it was given.
struct Named {
    command: String,
    arguments: Vec<OsString>,
}

impl Named {
    fn of(matches: &clap::ArgMatches) -> Self {
        let Some((command, given)) = matches.subcommand() else {
            return Self { command: String::new(), arguments: Vec::new() };
        };
        // Of 'durability show' what 'show' was given.
        let given = given.subcommand().map_or(given, |(_, below)| below);
        let values = given.ids().filter_map(|id| given.try_get_raw(id.as_str()).ok().flatten());
        Self { command: command.to_owned(), arguments: values.flatten().map(OsString::from).collect() }
    }
}

fn run(command: Command) -> Outcome {
    match command {
        Command::Mkfs(args) => commands::mkfs::run(args),
        Command::Mount(args) => commands::mount::run(args),
        Command::Umount(args) => commands::umount::run(args),
        Command::Takeover(args) => commands::takeover::run(args),
        Command::Run(args) => commands::run::run(args),
        Command::Status(args) => commands::status::run(args),
        Command::Check(args) => commands::check::run(args),
        Command::Scrub(args) => commands::scrub::run(args),
        Command::Sync(args) => commands::sync::sync(args),
        Command::Barrier(args) => commands::sync::barrier(args),
        Command::Du(args) => commands::du::run(args),
        Command::Clone(args) => commands::clone::run(args),
        Command::Defragment(args) => commands::defragment::run(args),
        Command::Fork(args) => commands::fork::run(args),
        Command::Key(args) => commands::key::run(args),
        Command::Snapshot(args) => commands::snapshot::run(args),
        Command::Send(args) => commands::send::run(&args),
        Command::Receive(args) => commands::receive::run(&args),
        Command::Compress(args) => commands::compress::run(args),
        Command::Durability(args) => commands::durability::run(args),
        Command::Quota(args) => commands::quota::run(args),
        Command::Info(args) => commands::info::run(args),
        Command::Label(args) => commands::identity::label(args).map_err(Failure::or_its_directory),
        Command::Uuid(args) => commands::identity::uuid(args),
        Command::Resize(args) => commands::resize::run(args),
        Command::Trim(args) => commands::trim::run(args).map_err(Failure::or_its_directory),
        Command::Inspect(args) => commands::inspect::run(args),
        Command::Path(args) => commands::path::run(args).map_err(Failure::or_its_directory),
        Command::Ls(args) => commands::look::ls(args),
        Command::Cat(args) => commands::look::cat(args),
        Command::Cp(args) => commands::cp::run(args),
        Command::Stats(args) => commands::stats::run(args),
        Command::Metrics(args) => commands::metrics::run(args),
        Command::Top(args) => commands::top::run(args),
        Command::Explain(args) => commands::explain::run(args),
        Command::Crashlab(args) => commands::crashlab::run(args),
        Command::Ask(args) => commands::ask::run(&args),
        Command::Demo(args) => commands::demo::run(args),
        Command::Setup(args) => commands::setup::run(&args),
        Command::Completions(args) => commands::completions::run(&args),
        Command::Manual(args) => commands::manual::run(&args),
    }
}

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let role = arguments.first().map_or(Role::Program, |program| Role::of(program));
    let failed = |failure: Failure| {
        if !failure.is_told() {
            note!("syncline: {failure}");
        }
        role.exit_code(failure.code())
    };
    let arguments = match role.arguments(arguments) {
        Ok(Asked::Run(arguments)) => arguments,
        Ok(Asked::Nothing) => return ExitCode::SUCCESS,
        Ok(Asked::Unchecked(image)) => {
            return commands::boot_check::run(image.as_ref()).unwrap_or_else(failed);
        }
        Ok(Asked::Remount(directory, options)) => {
            let remounted = commands::remount::for_mount(directory.as_ref(), &options);
            return remounted.unwrap_or_else(failed);
        }
        Ok(Asked::Unmount(directory)) => {
            return commands::umount::for_umount(directory.as_ref()).unwrap_or_else(failed);
        }
        Ok(Asked::KernelUnmount(arguments)) => {
            return commands::umount::without_helper(&arguments).unwrap_or_else(failed);
        }
        Err(failure) => return failed(failure),
    };
    let words = || std::iter::once(OsString::from("syncline")).chain(arguments.iter().cloned());
    let (cli, named) = match parse(words()) {
        Ok(parsed) => parsed,
        Err(error) => {
            // Error messages repeat the wrong words, so parse them again with control characters
            // escaped.
            let harmless = parse(words().map(|word| printed::one_line(word.to_string_lossy()).into()));
            return refuse(harmless.err().unwrap_or(error), role);
        }
    };
    logging::start(cli.logging);
    keys::start(cli.keys);
    outlive_limits();
    let answered = commands::ask::require_answers(&named.command, &named.arguments);
    let ended = answered.and_then(|()| run(cli.command)).unwrap_or_else(failed);
    logging::end();
    ended
}

/// Makes a write past the file size limit (`ulimit -f`) an ordinary error instead of the end of the
/// process.
fn outlive_limits() {
    // A handler that does nothing: programs we start have the default again. Registering fails only
    // for signals that can't be caught.
    let _ = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Arc::default());
}

/// Reports an error of the command line, or prints the requested help.
fn refuse(mut error: clap::Error, role: Role) -> ExitCode {
    suggestions::mend(&mut error, &definition());
    // If not even this can be printed, there is nothing to do.
    drop(error.print());
    let check = std::env::args_os().nth(1).is_some_and(|command| command == "check" || command == "fsck");
    match error.exit_code() {
        0 => ExitCode::SUCCESS,
        _ if check => ExitCode::from(commands::check::WRONG_USAGE),
        code => role.exit_code(u8::try_from(code).unwrap_or(2)),
    }
}
