//! `syncline fork`: writable images that begin as a snapshot of another image.

use super::image::progress_bar;
use super::place::Place;
use super::snapshot::{ReadyBase, delete_one, image_of, place_hold};
use crate::failure::{Cause, Failure, Outcome};
use crate::printed;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use syncline::{Detached, Error, Filesystem, Fork};
use syncline_image::{ForkError, How, Image, Location};
use syncline_store::{Hold, StoreError};

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
        _ if args.remove => remove(&fork)?,
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
    let (made_there, others): (Vec<_>, Vec<_>) = forks.into_iter().partition(|fork| fork.was_made_at(path));
    if made_there.is_empty() {
        return forget_listed(image, path, &others);
    }
    let gone: Vec<_> = made_there.into_iter().filter(|fork| !fork.may_be_at(path)).collect();
    for fork in &gone {
        delete_one(image, fork.hold())?;
    }
    if gone.is_empty() {
        return Err(still_there(path));
    }
    Ok(())
}

/// Forgets a fork that is named as 'snapshot list' shows it: by the end of a long path, or without the odd
/// characters of its path.
fn forget_listed(image: &Path, path: &Path, forks: &[Fork]) -> Result<(), Failure> {
    let text = path.to_string_lossy();
    let is_it = |fork: &&Fork| fork.path == text || printed::one_line(&fork.path) == text;
    let found: Vec<&Fork> = forks.iter().filter(is_it).collect();
    let [fork] = found[..] else {
        let (image, path) = (image.display(), path.display());
        return Err(match found.is_empty() {
            true => Failure::new(format!("{image} knows of no fork {path}"))
                .next("'syncline snapshot list' names the forks of each snapshot"),
            false => Failure::new(format!("{image} knows of {} forks that are shown as {path}", found.len()))
                .next("name the one by the whole path where it was made"),
        });
    };
    let place = fork.place();
    if let Some(place) = place.as_ref().filter(|place| fork.may_be_at(place)) {
        return Err(still_there(place));
    }
    delete_one(image, fork.hold())?;
    if place.is_none() {
        note!(
            "syncline: the path of {text} is not known in full, so nobody has looked whether the fork is still there; if it is, \
             'syncline fork --base' makes a new hold for it"
        );
    }
    Ok(())
}

fn still_there(fork: &Path) -> Failure {
    Failure::of(Cause::InUse, format!("{} is still there, and needs its base", fork.display()))
        .next("'syncline fork --remove' removes it; --detach keeps it, and makes it independent")
}

fn rebase(fork: &Path, base: &Path) -> Result<(), Failure> {
    let release = |hold: &Hold| drop(delete_one(base, &hold.name()));
    let place = |hold: &Hold| place_hold(base, hold);
    let other = Image::rebase_fork(fork, &image_of(base)?, &How::default(), place, release)?;
    tell_other(base, other.as_deref());
    Ok(())
}

/// Says that a hold was not released.
fn tell_other(base: &Path, other: Option<&str>) {
    if let Some(other) = other {
        note!("syncline: the hold in {} stays for the fork at {other}", base.display());
    }
}

fn remove(fork: &Path) -> Result<(), Failure> {
    let mut ready = None;
    let removed = Filesystem::remove_fork_when(fork, |left| {
        if left.hold.is_some() {
            ready = Some(
                ReadyBase::of(&left.base)
                    .map_err(|failure| Refused::Base(Box::new((left.clone(), failure))))?,
            );
        }
        Ok(())
    });
    let removed = removed.map_err(|refused: Refused| refused.failure(fork))?;
    release(&removed, "removed", |hold| ready.map_or(Ok(()), |base| base.release(hold)))
}

/// Why a fork was not removed.
enum Refused {
    Fork(Error),
    /// The base could not release the hold.
    Base(Box<(Detached, Failure)>),
}

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        Self::Fork(error)
    }
}

impl Refused {
    fn failure(self, fork: &Path) -> Failure {
        match self {
            Self::Base(refused) => {
                let (Detached { fork, base, .. }, failure) = *refused;
                let (fork, base) = (fork.display(), base.display());
                let text = format!("{fork} stays, since {base} would keep its snapshot for it: {failure}");
                Failure::new(text).with_code(failure.code()).next(format!(
                    "or remove it with 'rm', and use 'syncline fork --forget {base} {fork}' once that is mended"
                ))
            }
            Self::Fork(error) => {
                let next = without_remove(&error, fork);
                let failure = of_no_fork(error, fork);
                match next {
                    Some(next) => failure.next(next),
                    None => failure,
                }
            }
        }
    }
}

/// How to be rid of a fork that can't be opened.
fn without_remove(error: &Error, fork: &Path) -> Option<String> {
    let rm_and_forget =
        || format!("remove it with 'rm', and then use 'syncline fork --forget BASE {}'", fork.display());
    match error {
        Error::Device(error) => match syncline_image::fork_error(error) {
            Some(ForkError::Released { .. } | ForkError::NoSnapshot { .. }) => {
                Some("'rm' is enough to remove it".to_owned())
            }
            Some(ForkError::Base { .. }) => {
                Some(format!("if the base is gone for good, 'rm' is enough; otherwise {}", rm_and_forget()))
            }
            Some(ForkError::Record(_) | ForkError::Unreadable { .. } | ForkError::Depth(_)) => {
                Some(rm_and_forget())
            }
            Some(_) => None,
            None if fork.try_exists().is_ok_and(|it| !it) => Some(format!(
                "if its file was removed, 'syncline fork --forget BASE {}' lets its base delete the snapshot",
                fork.display()
            )),
            None => None,
        },
        Error::Store(StoreError::Corrupt { .. } | StoreError::Damaged(_)) => Some(rm_and_forget()),
        _ => None,
    }
}

fn detach(fork: &Path) -> Result<(), Failure> {
    let bar = progress_bar(0, "copying the blocks of the base");
    let detached = Filesystem::detach(fork, &mut |bytes, total| {
        bar.set_length(total);
        bar.set_position(bytes);
    });
    bar.finish_and_clear();
    let detached = detached.map_err(|error| of_no_fork(error, fork))?;
    release(&detached, "independent", |hold| delete_one(&detached.base, hold))
}

fn of_no_fork(error: Error, fork: &Path) -> Failure {
    match error {
        Error::Invalid(why) => Failure::usage(why).about(fork),
        error @ Error::HardLinks { .. } => Failure::of(Cause::InUse, error).about(fork),
        error => Failure::from(error).about(fork),
    }
}

/// Releases the hold of a fork that is `what` by now.
fn release(
    detached: &Detached,
    what: &str,
    delete: impl FnOnce(&str) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let Detached { fork, base, hold, other } = detached;
    tell_other(base, other.as_deref());
    let Some(hold) = hold else { return Ok(()) };
    delete(hold).map_err(|failure| {
        let (fork, base) = (fork.display(), base.display());
        let text = format!("{fork} is {what}, but {base} still keeps its snapshot for it: {failure}");
        let next = format!("'syncline fork --forget {base} {fork}' releases it");
        Failure::new(text).with_code(failure.code()).next(next)
    })
}
