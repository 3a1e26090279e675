//! `syncline cp`: copies files and trees out of an image or a snapshot that is not mounted.
//!
//! Existing files and directories are treated as by cp(1). An entry that can't be copied is
//! reported, and the others are copied: so a damaged image gives all readable files.

mod attributes;
mod tree;

use super::image::{known_contents, spinner};
use super::missing;
use super::place::Place;
use super::recovered;
use crate::failure::{Cause, Failure, Outcome};
use crate::printed::several;
use indicatif::ProgressBar;
use std::collections::HashMap;
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use syncline::{Error, Filesystem};
use tree::Copier;

/// Arguments of `cp`.
#[derive(clap::Args)]
pub struct Args {
    /// Source: an image, or a snapshot of it, and a path in it. For a snapshot of a mounted
    /// filesystem, any directory of the mount names the image
    #[arg(required = true, value_name = "IMAGE[@SNAPSHOT]:PATH")]
    sources: Vec<OsString>,
    /// Directory to copy into, or the name of the copy of a single source
    #[arg(value_name = "DEST")]
    destination: PathBuf,
    /// Directories too, with everything below them
    #[arg(long, short, short_alias = 'R')]
    recursive: bool,
    /// Like -r, with owners, permissions, times, extended attributes, access control lists and hard
    /// links; without it the copies get those of new files
    #[arg(long, short)]
    archive: bool,
}

/// An open image, and what identifies it.
struct Source {
    image: PathBuf,
    snapshot: Option<String>,
    fs: Filesystem,
}

/// The reported failures, and the entries that were left out.
struct Told {
    bar: ProgressBar,
    code: u8,
    left_out: u64,
    /// Device and inode number of every copy but directories, none of which another overwrites;
    /// and its name, if the file had others there before.
    made: HashMap<(u64, u64), Option<PathBuf>>,
}

impl Told {
    /// Tells a failure. The first one decides the exit code.
    fn failure(&mut self, failure: &Failure) {
        self.bar.suspend(|| note!("syncline: {failure}"));
        if self.code == 0 {
            self.code = failure.code();
        }
    }
}

/// Runs the command.
pub fn run(args: Args) -> Outcome {
    let places = args.sources.iter().map(Place::of).collect::<Vec<_>>();
    refuse_impossible(&args, &places)?;
    let mut sources: Vec<Source> = Vec::new();
    for place in &places {
        if !sources.iter().any(|source| source.is_of(place)) {
            let fs = place.open()?;
            sources.push(Source { image: place.image.clone(), snapshot: place.snapshot.clone(), fs });
        }
    }
    let images = sources.iter().filter_map(|source| source.image.metadata().ok());
    let images = images.map(|metadata| (metadata.dev(), metadata.ino())).collect::<Vec<_>>();
    let into = args.destination.is_dir();
    let mut told = Told { bar: spinner("copying"), code: 0, left_out: 0, made: HashMap::new() };
    for source in &sources {
        let shown = source.shown();
        let mut copier = Copier::new(&source.fs, &shown, &images, args.archive, &mut told);
        for place in places.iter().filter(|place| source.is_of(place)) {
            if let Err(failure) = copy_one(&args, place, into, &mut copier) {
                copier.told.failure(&failure);
            }
        }
    }
    told.bar.finish_and_clear();
    if told.left_out > 0 {
        let what = several(told.left_out, "owner or attribute was", "owners or attributes were");
        note!(
            "syncline: {what} left out: only root may set them, or there is no room for them at {}",
            args.destination.display()
        );
    }
    let incomplete =
        sources.iter().map(|source| recovered::code(source.fs.recovery())).find(|code| *code != 0);
    sources.into_iter().try_for_each(|source| source.fs.close())?;
    let code = if told.code == 0 { incomplete.unwrap_or(0) } else { told.code };
    Ok(ExitCode::from(code))
}

impl Source {
    /// The image, and the snapshot if it is one, as the command line names them.
    fn shown(&self) -> String {
        match &self.snapshot {
            Some(snapshot) => format!("{}@{snapshot}", self.image.display()),
            None => self.image.display().to_string(),
        }
    }

    fn is_of(&self, place: &Place) -> bool {
        (&self.image, &self.snapshot) == (&place.image, &place.snapshot)
    }
}

/// Refuses impossible arguments, before any image is opened.
fn refuse_impossible(args: &Args, places: &[Place]) -> Result<(), Failure> {
    let destination = args.destination.display();
    let no_path = |(text, place): &(&OsString, &Place)| {
        place.path.as_os_str().is_empty() && !text.as_bytes().ends_with(b":")
    };
    let without_path = args.sources.iter().zip(places).find(no_path);
    let into = Place::of(&args.destination.clone().into_os_string());
    let has_colon = args.destination.as_os_str().as_bytes().contains(&b':');
    let is_meant = || without_path.is_some() || (has_colon && known_contents(&into.image).is_some());
    let remote = syncline_image::is_remote(&args.destination);
    if remote || (!exists(&args.destination) && into.image.is_file() && is_meant()) {
        let failure = Failure::usage(format!("{destination}: nothing is copied into an image"));
        return Err(failure.next("mount it, and copy with cp"));
    }
    if let Some((text, _)) = without_path {
        // For a missing one, opening it reports that.
        if Path::new(text).exists() || syncline_image::is_remote(Path::new(text)) {
            let text = format!("{}: no path in an image", Path::new(text).display());
            return Err(Failure::usage(text).next("name one: IMAGE:PATH, or 'IMAGE:' for everything"));
        }
    }
    if places.len() > 1 && !args.destination.is_dir() {
        let text = format!("{destination} is not a directory, and takes one copy only");
        return Err(Failure::of(Cause::MountPoint, text).next("name a directory"));
    }
    Ok(())
}

/// Copies what one word of the command line names.
fn copy_one(args: &Args, place: &Place, into: bool, copier: &mut Copier) -> Result<(), Failure> {
    let (path, recursive) = (place.inside(), args.recursive || args.archive);
    let found = if recursive { copier.fs.symlink_metadata(&path) } else { copier.fs.metadata(&path) };
    let metadata = found.map_err(|error| copier.failure(&path, error))?;
    if metadata.is_dir() && !recursive {
        let text = format!("{}: it is a directory", copier.shown(&path));
        return Err(Failure::new(text).next("add -r, or -a"));
    }
    // The contents of the root directory, and of a path that ends in `.` or `..`, go right there.
    let name = path.file_name().filter(|_| !path.as_os_str().as_bytes().ends_with(b"/."));
    let target = match name {
        Some(name) if into => args.destination.join(name),
        _ => followed(&args.destination)?,
    };
    copier.tree(&path, &metadata, &target);
    Ok(())
}

/// True if there is something of that name, be it a link that leads nowhere.
fn exists(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
}

/// A destination that is a link to a file means the file. (Names below are never followed.)
fn followed(destination: &Path) -> Result<PathBuf, Failure> {
    match destination.symlink_metadata() {
        Ok(metadata) if metadata.is_symlink() => {
            let resolved = destination.canonicalize();
            resolved.map_err(|error| missing(destination, error).next("it is a link that leads nowhere"))
        }
        Ok(_) => Ok(destination.to_owned()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(destination.to_owned()),
        Err(error) => Err(missing(destination, error)),
    }
}

/// The failure of reading in an image.
fn cannot_read(shown: &str, error: Error) -> Failure {
    let error = match error {
        Error::At { cause, .. } => *cause,
        error => error,
    };
    Failure::from(error).about(Path::new(shown)).of_reading_only()
}
