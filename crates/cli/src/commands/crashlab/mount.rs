//! `syncline crashlab mount`: mounts one state of a recording at a directory. It is in memory;
//! changes are lost.

use crate::commands::{figures, image, mount, signals};
use crate::failure::{Failure, Outcome};
use std::fs::File;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use syncline_cuts::State;
use syncline_device::block_on;
use syncline_fs::Filesystem;
use syncline_fuse::{MountOptions, Mounted, Session};
use syncline_store::{Store, StoreOptions};

/// Arguments of `crashlab mount`.
#[derive(clap::Args)]
pub struct Args {
    /// Recording
    recording: PathBuf,
    /// State, as 'explore' prints it
    state: String,
    /// Empty directory to mount it at
    directory: PathBuf,
    /// Stay in the foreground and serve until it is unmounted
    #[arg(long, short)]
    foreground: bool,
    /// The daemon's end of a mount in the background
    #[arg(long, hide = true)]
    daemon: bool,
}

/// Runs the command.
pub fn run(args: Args) -> Outcome {
    if args.foreground || args.daemon {
        return serve(&args);
    }
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["crashlab", "mount", "--daemon", "--"]);
    command.arg(&args.recording).arg(&args.state).arg(&args.directory);
    mount::start_daemon(command)
}

fn serve(args: &Args) -> Outcome {
    if args.daemon {
        rustix::process::setsid()?;
    }
    let (fs, mounted) = open(args)?;
    let last = fs.clone();
    let signals = signals::unmount(signals::catch()?, mounted.unmounter(), move || image::close(&last))?;
    if args.daemon {
        mount::detach_from_terminal(&File::options().append(true).open("/dev/null")?)?;
        crate::logging::serve_into_syslog(mounted.path());
    } else {
        crate::logging::serve();
    }
    let served = mounted.run_until_unmounted();
    signals.close();
    image::close(&fs)?;
    served?;
    Ok(ExitCode::SUCCESS)
}

fn open(args: &Args) -> Result<(Arc<Filesystem>, Mounted), Failure> {
    let recording = syncline_cuts::read(&args.recording)?;
    let (state, cut) = State::parse(&args.state, &recording)?;
    let device = cut.image(&state.fates(&cut));
    let spawn = image::background()?;
    let (store, _) = block_on(Store::open(device, StoreOptions::default(), spawn.clone()))?;
    let fs = block_on(Filesystem::open(store, spawn.clone(), syncline_fs::Options::default()))?;
    let source = format!("{} {}", args.recording.display(), state);
    let mounted = Session::mount(fs.clone(), &args.directory, &MountOptions::new(source))?;
    figures::register_without_image(mounted.session(), &fs, spawn);
    Ok((fs, mounted))
}
