//! `syncline ls` and `syncline cat`: show the contents of an image or a snapshot without mounting
//! it. Nothing is written.

use crate::failure::{Failure, Outcome};
use crate::printed;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::{self, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::SystemTime;
use syncline::{FileType, Filesystem, ImageOptions, Metadata};

/// The most bytes of a file in memory at a time.
const PIECE: usize = 1 << 20;

/// Arguments of `ls`.
#[derive(clap::Args)]
pub struct LsArgs {
    /// Image, perhaps a snapshot of it, and a path in it; without a path its root directory
    #[arg(value_name = "IMAGE[@SNAPSHOT][:PATH]")]
    place: OsString,
    /// Type and permissions, links, owner, group, size and time as well
    #[arg(short)]
    long: bool,
}

/// Arguments of `cat`.
#[derive(clap::Args)]
pub struct CatArgs {
    /// Image, perhaps a snapshot of it, and the path of a file in it
    #[arg(value_name = "IMAGE[@SNAPSHOT]:PATH")]
    place: OsString,
}

/// An image, perhaps a snapshot of it, and a path in it.
#[derive(PartialEq, Eq, Debug)]
struct Place {
    image: PathBuf,
    snapshot: Option<String>,
    path: PathBuf,
}

impl Place {
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

    fn open(&self) -> Result<Filesystem, Failure> {
        let opened = match &self.snapshot {
            Some(name) => Filesystem::open_snapshot(&self.image, name, ImageOptions::read_only()),
            None => Filesystem::open(&self.image, ImageOptions::read_only()),
        };
        opened.map_err(|error| Failure::from(error).about(&self.image).of_reading_only())
    }

    /// The path in the image, starting at its root.
    fn inside(&self) -> PathBuf {
        Path::new("/").join(&self.path)
    }
}

/// Lists a directory, or names a file.
pub fn ls(args: LsArgs) -> Outcome {
    let place = Place::parse(&args.place, Path::exists);
    let fs = place.open()?;
    let path = place.inside();
    let metadata = fs.symlink_metadata(&path)?;
    let mut output = io::BufWriter::new(printed::stdout());
    if !metadata.is_dir() {
        write_entry(&mut output, &fs, &path, path.as_os_str().as_bytes(), &metadata, args.long)?;
    } else {
        let mut entries = fs.read_dir(&path)?.collect::<syncline::Result<Vec<_>>>()?;
        entries.sort_by_key(|entry| entry.file_name());
        for entry in entries {
            let metadata = entry.metadata()?;
            let name = entry.file_name();
            write_entry(&mut output, &fs, &entry.path(), name.as_bytes(), &metadata, args.long)?;
        }
    }
    printed::written(output.flush())?;
    drop(output);
    fs.close()?;
    Ok(ExitCode::SUCCESS)
}

fn write_entry(
    output: &mut impl Write,
    fs: &Filesystem,
    path: &Path,
    name: &[u8],
    metadata: &Metadata,
    long: bool,
) -> Result<(), Failure> {
    let mut line = if long { details(metadata) } else { String::new() }.into_bytes();
    line.extend(printed::name(name));
    if long && metadata.is_symlink() {
        line.extend(b" -> ");
        line.extend(printed::name(fs.read_link(path)?.as_os_str().as_bytes()));
    }
    line.push(b'\n');
    printed::written(output.write_all(&line))
}

/// The part of an `ls -l` line before the name; times are in UTC.
fn details(metadata: &Metadata) -> String {
    let kind = match metadata.file_type() {
        FileType::Directory => 'd',
        FileType::Symlink => 'l',
        FileType::BlockDevice => 'b',
        FileType::CharDevice => 'c',
        FileType::Fifo => 'p',
        FileType::Socket => 's',
        FileType::Regular => '-',
    };
    let mut text = String::from(kind);
    let bits = metadata.permissions();
    for (shift, special, letter) in [(6, 0o4000, 's'), (3, 0o2000, 's'), (0, 0o1000, 't')] {
        let bits_here = bits >> shift;
        text.push(if bits_here & 4 != 0 { 'r' } else { '-' });
        text.push(if bits_here & 2 != 0 { 'w' } else { '-' });
        text.push(match (bits_here & 1 != 0, bits & special != 0) {
            (true, true) => letter,
            (false, true) => letter.to_ascii_uppercase(),
            (true, false) => 'x',
            (false, false) => '-',
        });
    }
    let (links, uid, gid, bytes) = (metadata.nlink(), metadata.uid(), metadata.gid(), metadata.len());
    // humantime can't show times before 1970.
    let modified = metadata.modified().max(SystemTime::UNIX_EPOCH);
    let modified = humantime::format_rfc3339_seconds(modified);
    let _ = write!(text, " {links:3} {uid:5} {gid:5} {bytes:12} {modified} ");
    text
}

/// Writes a file's contents to standard output, as they are.
pub fn cat(args: CatArgs) -> Outcome {
    let place = Place::parse(&args.place, Path::exists);
    if place.path.as_os_str().is_empty() {
        return Err(Failure::usage(format!("{}: no path", Path::new(&args.place).display()))
            .next("name a file in the image: IMAGE:PATH"));
    }
    let fs = place.open()?;
    let file = fs.open_file(place.inside())?;
    if file.metadata()?.is_dir() {
        return Err(Failure::new(format!("{}: it is a directory", place.inside().display()))
            .next("'syncline ls' lists it"));
    }
    let mut output = io::stdout().lock();
    let (mut buffer, mut offset) = (vec![0; PIECE], 0);
    loop {
        let read = file.read_at(&mut buffer, offset)?;
        if read == 0 {
            break;
        }
        printed::written(output.write_all(&buffer[..read]))?;
        offset += read as u64;
    }
    printed::written(output.flush())?;
    drop(file);
    fs.close()?;
    Ok(ExitCode::SUCCESS)
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
