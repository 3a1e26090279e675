//! `syncline fork`: writable images that begin as a snapshot of another image.

use super::image::progress_bar;
use super::place::Place;
use super::snapshot::{delete_one, image_of, place_hold};
use crate::failure::{Cause, Failure, Outcome};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use syncline::{Detached, Error, Filesystem};
use syncline_image::{How, Image, Location};
use syncline_store::Hold;

/// The ways to call it.
const USAGE: &str = "syncline fork IMAGE@SNAPSHOT NEW
       syncline fork --remove FORK
       syncline fork --detach FORK
       syncline fork --base BASE FORK
       syncline fork --forget BASE FORK";

/// Arguments of `fork`.
#[derive(clap::Args)]
#[command(override_usage = USAGE)]
pub struct Args {
    /// IMAGE@SNAPSHOT or DIR@SNAPSHOT to make a fork of; with an option, the fork
    #[arg(value_name = "IMAGE@SNAPSHOT|FORK")]
    image: OsString,
    /// Image file to make, which must not exist
    #[arg(value_name = "NEW", conflicts_with_all = ["remove", "detach", "base", "forget"])]
    new: Option<PathBuf>,
    /// Remove the fork, so that its base need not keep the snapshot for it
    #[arg(long, conflicts_with_all = ["detach", "base", "forget"])]
    remove: bool,
    /// Make the fork an image like any other: copies the blocks that it shares, and needs room for them
    #[arg(long, conflicts_with_all = ["base", "forget"])]
    detach: bool,
    /// Use this image, or the filesystem mounted at this directory, as the fork's base: after the base or the
    /// fork was moved, after the fork was copied, or after it was forgotten. BASE must have the snapshot
    #[arg(long, value_name = "BASE", conflicts_with = "forget")]
    base: Option<PathBuf>,
    /// Let this image, or the filesystem mounted at this directory, forget a fork whose file is gone. A
    /// fork that was only moved can't be opened until --base is used
    #[arg(long, value_name = "BASE")]
    forget: Option<PathBuf>,
}

/// Runs the command.
pub fn run(args: Args) -> Outcome {
    let fork = PathBuf::from(&args.image);
    match (&args.new, &args.base, &args.forget) {
        (Some(new), ..) => make(&Place::of(&args.image), new)?,
        (_, Some(base), _) => rebase(&fork, base)?,
        (.., Some(base)) => forget(base, &fork)?,
        _ if args.remove => {
            let removed = Filesystem::remove_fork(&fork);
            release(removed.map_err(|error| of_no_fork(error, &fork))?, &fork, "removed")?;
        }
        _ if args.detach => detach(&fork)?,
        _ => return Err(Failure::usage("name the image to make: 'syncline fork IMAGE@SNAPSHOT NEW'")),
    }
    Ok(ExitCode::SUCCESS)
}

fn make(from: &Place, new: &Path) -> Result<(), Failure> {
    let Some(snapshot) = &from.snapshot else {
        return Err(Failure::usage(format!("{} names no snapshot", from.image.display()))
            .next("make one with 'syncline snapshot create', and fork IMAGE@SNAPSHOT"));
    };
    let release = |hold: &Hold| drop(delete_one(&from.image, &hold.name()));
    let image = image_of(&from.image)?;
    if from.image.is_dir() && matches!(Location::parse(image.as_os_str()), Ok(Location::Nbd(_))) {
        let text =
            format!("{} is an NBD export, which serves one at a time, and is mounted", image.display());
        return Err(Failure::of(Cause::InUse, text).next("unmount it, and make the fork then"));
    }
    let place = |hold: &Hold| place_hold(&from.image, hold);
    Image::make_fork(&image, snapshot, new, &How::default(), place, release)
}

fn forget(image: &Path, path: &Path) -> Result<(), Failure> {
    let base = image_of(image)?;
    let forks = Filesystem::forks_of(&base).map_err(|error| Failure::from(error).about(&base))?;
    let forks: Vec<_> = forks.into_iter().filter(|fork| fork.was_made_at(path)).collect();
    if forks.is_empty() {
        let text = format!("{} knows of no fork {}", image.display(), path.display());
        return Err(Failure::new(text).next("'syncline snapshot list' names the forks of each snapshot"));
    }
    let gone: Vec<_> = forks.into_iter().filter(|fork| !fork.may_be_at(path)).collect();
    for fork in &gone {
        delete_one(image, fork.hold())?;
    }
    if gone.is_empty() {
        let text = format!("{} is still there, and needs its base", path.display());
        return Err(Failure::of(Cause::InUse, text)
            .next("'syncline fork --remove' removes it; --detach keeps it, and makes it independent"));
    }
    Ok(())
}

fn rebase(fork: &Path, base: &Path) -> Result<(), Failure> {
    let release = |hold: &Hold| drop(delete_one(base, &hold.name()));
    Image::rebase_fork(fork, &image_of(base)?, &How::default(), |hold| place_hold(base, hold), release)
}

fn detach(fork: &Path) -> Result<(), Failure> {
    let bar = progress_bar(0, "copying the blocks of the base");
    let detached = Filesystem::detach(fork, &mut |bytes, total| {
        bar.set_length(total);
        bar.set_position(bytes);
    });
    bar.finish_and_clear();
    release(detached.map_err(|error| of_no_fork(error, fork))?, fork, "independent")
}

fn of_no_fork(error: Error, fork: &Path) -> Failure {
    match error {
        Error::Invalid(why) => Failure::usage(why).about(fork),
        error => Failure::from(error).about(fork),
    }
}

/// Releases the hold of a fork that is `what` by now.
fn release(detached: Detached, fork: &Path, what: &str) -> Result<(), Failure> {
    let Detached { base, hold: Some(hold), .. } = detached else { return Ok(()) };
    delete_one(&base, &hold).map_err(|failure| {
        let (fork, base) = (fork.display(), base.display());
        let text = format!("{fork} is {what}, but {base} still keeps its snapshot for it: {failure}");
        let failure = Failure::new(text).with_code(failure.code());
        failure.next(format!("'syncline fork --forget {base} {fork}' releases it"))
    })
}
