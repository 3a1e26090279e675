//! `IMAGE[@SNAPSHOT]:PATH`: a file in an image that is not mounted, or in a snapshot of it.

use super::recovered;
use crate::failure::{Cause, Failure, Outcome};
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use syncline::{Filesystem, ImageOptions};

/// An image, perhaps a snapshot of it, and a path in it.
#[derive(PartialEq, Eq, Debug)]
pub struct Place {
    pub image: PathBuf,
    pub snapshot: Option<String>,
    pub path: PathBuf,
}

impl Place {
    /// The place that a word of the command line stands for.
    pub fn of(text: &OsString) -> Self {
        Self::parse(text, Path::exists)
    }

    /// Image and snapshot end at the first colon before which there is a file of that name. (So a
    /// snapshot whose own name has a colon can't be named here.)
    fn parse(text: &OsString, exists: impl Fn(&Path) -> bool) -> Self {
        let bytes = text.as_bytes();
        let path_of = |bytes: &[u8]| PathBuf::from(OsString::from_vec(bytes.to_vec()));
        let colons = bytes.iter().enumerate().filter(|(_, byte)| **byte == b':').map(|(at, _)| at);
        for end in colons.chain([bytes.len()]) {
            let (whole, path) = (&bytes[..end], path_of(bytes.get(end + 1..).unwrap_or_default()));
            if exists(&path_of(whole)) {
                return Self { image: path_of(whole), snapshot: None, path };
            }
            for at in (0..end).filter(|at| bytes[*at] == b'@') {
                let name = std::str::from_utf8(&whole[at + 1..]).ok().filter(|name| !name.is_empty());
                if let Some(name) = name.filter(|_| exists(&path_of(&whole[..at]))) {
                    return Self { image: path_of(&whole[..at]), snapshot: Some(name.to_owned()), path };
                }
            }
        }
        // No such file: opening it will report the error.
        let end = bytes.iter().position(|byte| *byte == b':').unwrap_or(bytes.len());
        Self { image: path_of(&bytes[..end]), snapshot: None, path: PathBuf::new() }
    }

    /// Opens it for reading, and tells what is damaged: then older contents, or none, may be all that is
    /// left of a file.
    pub fn open(&self) -> Result<Filesystem, Failure> {
        let opened = match &self.snapshot {
            Some(name) => Filesystem::open_snapshot(&self.image, name, ImageOptions::read_only()),
            None => Filesystem::open(&self.image, ImageOptions::read_only()),
        };
        let opened = opened.map_err(|error| {
            let failure = Failure::from(error).about(&self.image).of_reading_only();
            match failure.code() == Cause::InUse as u8 && self.snapshot.is_none() {
                true => failure.next("or name a snapshot, which can be read meanwhile: IMAGE@SNAPSHOT:PATH"),
                false => failure,
            }
        })?;
        recovered::tell(&self.image, opened.recovery());
        Ok(opened)
    }

    /// The path in the image, starting at its root.
    pub fn inside(&self) -> PathBuf {
        Path::new("/").join(&self.path)
    }
}

/// The end of a command that has read what it should: it fails if that may not be what was synced.
pub fn close(fs: Filesystem) -> Outcome {
    let code = recovered::code(fs.recovery());
    fs.close()?;
    Ok(ExitCode::from(code))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(text: &str, there: &[&str]) -> (String, Option<String>, String) {
        let place = Place::parse(&text.into(), |path| there.iter().any(|name| Path::new(name) == path));
        let text = |path: PathBuf| path.display().to_string();
        (text(place.image), place.snapshot, text(place.path))
    }

    #[test]
    fn a_place_is_an_image_a_snapshot_and_a_path() {
        let told = |image: &str, snapshot: Option<&str>, path: &str| {
            (image.to_owned(), snapshot.map(str::to_owned), path.to_owned())
        };
        assert_eq!(place("a.img", &["a.img"]), told("a.img", None, ""));
        assert_eq!(place("a.img:/b:c", &["a.img"]), told("a.img", None, "/b:c"));
        assert_eq!(place("a.img@monday:b@c", &["a.img"]), told("a.img", Some("monday"), "b@c"));
        assert_eq!(place("a@b.img:c", &["a@b.img"]), told("a@b.img", None, "c"));
        assert_eq!(place("a@b.img@monday", &["a@b.img"]), told("a@b.img", Some("monday"), ""));
        assert_eq!(place("a.img@b@c:d", &["a.img"]), told("a.img", Some("b@c"), "d"));
        assert_eq!(place("x:y.img:c", &["x:y.img"]), told("x:y.img", None, "c"));
        assert_eq!(place("none.img:c", &[]), told("none.img", None, ""));
    }
}
