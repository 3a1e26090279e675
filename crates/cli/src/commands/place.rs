//! `IMAGE[@SNAPSHOT]:PATH`: a file in an image that is not mounted, or in a snapshot of it.

use super::recovered;
use super::snapshot::image_of;
use crate::failure::{Cause, Failure, Outcome};
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use syncline::{Filesystem, ImageOptions};

/// An image or a mounted filesystem, perhaps a snapshot of it, and a path in it.
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
        if syncline_image::is_remote(Path::new(text)) {
            return Self::on_network(bytes);
        }
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

    /// On a network nothing tells where an image's name ends. So the path in it begins with a slash,
    /// and the image ends at the first `:/` behind that of its scheme, or at a colon at the end. A
    /// snapshot follows the last `@` before that, if no slash does. Where an image's own name has
    /// such characters, they are written as `%3A` and `%40`.
    fn on_network(text: &[u8]) -> Self {
        let scheme = text.iter().position(|byte| *byte == b':').map_or(0, |colon| colon + 1);
        let begin = if text[scheme..].starts_with(b"//") { scheme + 2 } else { scheme };
        let colon = text[begin..].windows(2).position(|pair| pair == b":/").map(|at| begin + at);
        let at_end = || (text.len() > begin && text.ends_with(b":")).then(|| text.len() - 1);
        let end = colon.or_else(at_end).unwrap_or(text.len());
        let (whole, path) = (&text[..end], text.get(end + 1..).unwrap_or_default());
        let at = whole.iter().rposition(|byte| *byte == b'@').filter(|at| *at > begin);
        let snapshot = at.and_then(|at| {
            let name = std::str::from_utf8(&whole[at + 1..]).ok()?;
            (!name.is_empty() && !name.contains('/')).then(|| (at, name.to_owned()))
        });
        let image = path_of(snapshot.as_ref().map_or(whole, |(at, _)| &whole[..*at]));
        Self { image, snapshot: snapshot.map(|(_, name)| name), path: path_of(path) }
    }

    /// Opens it for reading, and reports damage: then files may have older contents, or none.
    pub fn open(&self) -> Result<Filesystem, Failure> {
        let image = self.image_file()?;
        let opened = match &self.snapshot {
            Some(name) => Filesystem::open_snapshot(&image, name, ImageOptions::read_only()),
            None => Filesystem::open(&image, ImageOptions::read_only()),
        };
        let opened = opened.map_err(|error| {
            let failure = Failure::from(error).about(&image).of_reading_only();
            // Of an NBD export even a reader of snapshots needs the lease.
            let beside = self.snapshot.is_none() && !syncline_image::is_remote(&self.image);
            match failure.code() == Cause::InUse as u8 && beside {
                true => failure.next("or name a snapshot, which can be read meanwhile: IMAGE@SNAPSHOT:PATH"),
                false => failure,
            }
        })?;
        recovered::tell(&image, opened.recovery());
        Ok(opened)
    }

    /// The image itself. A directory stands for the image that is mounted there, for its snapshots only:
    /// the present state is in the directory.
    fn image_file(&self) -> Result<PathBuf, Failure> {
        if !self.image.is_dir() {
            return Ok(self.image.clone());
        }
        if self.snapshot.is_some() {
            return image_of(&self.image);
        }
        let text = format!("{} is a directory, and no image", self.image.display());
        Err(Failure::of(Cause::NotAnImage, text)
            .next("look into it as into any other, or name a snapshot of a mount: DIRECTORY@SNAPSHOT:PATH"))
    }

    /// The path in the image, starting at its root.
    pub fn inside(&self) -> PathBuf {
        Path::new("/").join(&self.path)
    }
}

fn path_of(bytes: &[u8]) -> PathBuf {
    PathBuf::from(OsString::from_vec(bytes.to_vec()))
}

/// The end of a command that has read files: it fails if they may lack synced changes.
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

    #[test]
    fn on_a_network_the_path_begins_with_a_slash() {
        let told = |image: &str, snapshot: Option<&str>, path: &str| {
            (image.to_owned(), snapshot.map(str::to_owned), path.to_owned())
        };
        let is = |text: &str, image: &str, snapshot, path: &str| {
            assert_eq!(place(text, &[]), told(image, snapshot, path), "{text}");
        };
        is("nbd://host/disk", "nbd://host/disk", None, "");
        is("nbd://host:10810/disk:/a:/b", "nbd://host:10810/disk", None, "/a:/b");
        is("nbd://[::1]:10810/disk@monday:/a@b", "nbd://[::1]:10810/disk", Some("monday"), "/a@b");
        is("nbd://host/:", "nbd://host/", None, "");
        is("nbd+unix:///?socket=/run/nbd:/etc", "nbd+unix:///?socket=/run/nbd", None, "/etc");
        is("nbd+unix:///?socket=/run/u@1/nbd:/etc", "nbd+unix:///?socket=/run/u@1/nbd", None, "/etc");
        is("nbds://host/disk?cafile=/a%3A/b:/c", "nbds://host/disk?cafile=/a%3A/b", None, "/c");
        is("rbd:pool/disk@monday", "rbd:pool/disk", Some("monday"), "");
        is("rbd:pool/disk?conf=/etc/c.conf@x:/a", "rbd:pool/disk?conf=/etc/c.conf", Some("x"), "/a");
        is("rbd:pool/disk:", "rbd:pool/disk", None, "");
        is("rbd:", "rbd:", None, "");
    }
}
