//! `syncline fork`: writable images that begin as a snapshot of another image.

use super::image::progress_bar;
use super::place::Place;
use super::snapshot::{create_one, delete_one, image_of};
use crate::failure::{Cause, Failure, Outcome};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use syncline::{Detached, Error, Filesystem};
use syncline_image::{How, Image};

/// Arguments of `fork`.
#[derive(clap::Args)]
pub struct Args {
    /// IMAGE@SNAPSHOT or DIR@SNAPSHOT to make a fork of; with an option, the image that it says
    #[arg(value_name = "IMAGE@SNAPSHOT")]
    image: OsString,
    /// Image file to make, which must not exist
    #[arg(value_name = "NEW")]
    new: Option<PathBuf>,
    /// Release the fork NEW of the base IMAGE, or of the filesystem mounted at DIR: it was removed
    #[arg(long, requires = "new", conflicts_with_all = ["detach", "base"])]
    forget: bool,
    /// Make the fork IMAGE independent: copy the blocks that lie in its base
    #[arg(long, conflicts_with_all = ["new", "base"])]
    detach: bool,
    /// Tell the fork IMAGE that its base was moved here
    #[arg(long, value_name = "BASE", conflicts_with = "new")]
    base: Option<PathBuf>,
}

/// Runs the command.
pub fn run(args: Args) -> Outcome {
    let image = PathBuf::from(&args.image);
    match (&args.new, &args.base) {
        (Some(fork), _) if args.forget => forget(&image, fork)?,
        (Some(new), _) => make(&Place::of(&args.image), new)?,
        (None, Some(base)) => {
            let about = |error: Error| Failure::from(error).about(&image);
            Filesystem::move_base(&image, base).map_err(about)?;
        }
        (None, None) if args.detach => detach(&image)?,
        (None, None) => {
            return Err(Failure::usage("name the image to make: 'syncline fork IMAGE@SNAPSHOT NEW'"));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn make(from: &Place, new: &Path) -> Result<(), Failure> {
    let Some(snapshot) = &from.snapshot else {
        return Err(Failure::usage(format!("{} names no snapshot", from.image.display()))
            .next("make one with 'syncline snapshot create', and fork IMAGE@SNAPSHOT"));
    };
    let release = |hold: &str| drop(delete_one(&from.image, hold));
    let image = image_of(&from.image)?;
    let place = |hold: &str| create_one(&from.image, hold);
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
    for fork in forks {
        if fork.may_be_at(path) {
            let text = format!("{} is still there, and needs its base", path.display());
            return Err(Failure::of(Cause::InUse, text)
                .next("remove it first; or keep it, and make it independent with 'syncline fork --detach'"));
        }
        delete_one(image, fork.hold())?;
    }
    Ok(())
}

fn detach(fork: &Path) -> Result<(), Failure> {
    let bar = progress_bar(0, "copying the blocks of the base");
    let detached = Filesystem::detach(fork, &mut |bytes, total| {
        bar.set_length(total);
        bar.set_position(bytes);
    });
    bar.finish_and_clear();
    let Detached { base, hold } = detached.map_err(|error| match error {
        Error::Invalid(why) => Failure::usage(why).about(fork),
        error => Failure::from(error).about(fork),
    })?;
    let Some(hold) = hold else { return Ok(()) };
    delete_one(&base, &hold).map_err(|failure| {
        let text = format!(
            "{} is independent, but {} still keeps its snapshot for it: {failure}",
            fork.display(),
            base.display()
        );
        Failure::new(text).with_code(failure.code()).next(format!(
            "'syncline fork --forget {} {}' releases it",
            base.display(),
            fork.display()
        ))
    })
}
