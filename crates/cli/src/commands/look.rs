//! `syncline ls` and `syncline cat`: show the contents of an image or a snapshot without mounting
//! it. Nothing is written.

use super::place::{self, Place};
use crate::failure::{Failure, Outcome};
use crate::printed;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};
use syncline::{FileType, Filesystem, Metadata};

/// The most bytes of a file in memory at a time.
const PIECE: usize = 1 << 20;

/// The end of the year 9999.
const LAST_TIME: Duration = Duration::from_secs(253_402_300_799);

/// Arguments of `ls`.
#[derive(clap::Args)]
pub struct LsArgs {
    /// Image, or a snapshot of it, and a path in it; without a path its root directory. For a
    /// snapshot of a mounted filesystem, any directory of the mount names the image
    #[arg(value_name = "IMAGE[@SNAPSHOT][:PATH]")]
    place: OsString,
    /// Also print type and permissions, links, owner, group, size and time
    #[arg(short)]
    long: bool,
}

/// Arguments of `cat`.
#[derive(clap::Args)]
pub struct CatArgs {
    /// Image, or a snapshot of it, and the path of a file in it. For a snapshot of a mounted
    /// filesystem, any directory of the mount names the image
    #[arg(value_name = "IMAGE[@SNAPSHOT]:PATH")]
    place: OsString,
}

/// Lists a directory, or names a file.
pub fn ls(args: LsArgs) -> Outcome {
    let place = Place::of(&args.place);
    let fs = place.open()?;
    let path = place.inside();
    let metadata = fs.symlink_metadata(&path)?;
    let mut output = io::BufWriter::new(printed::stdout());
    let mut code = 0;
    if !metadata.is_dir() {
        let line = line(&fs, &path, path.as_os_str().as_bytes(), args.long.then_some(Ok(metadata)))?;
        printed::written(output.write_all(&line))?;
    } else {
        let mut entries = fs.read_dir(&path)?.collect::<syncline::Result<Vec<_>>>()?;
        entries.sort_by_key(|entry| entry.file_name());
        for entry in entries {
            let metadata = args.long.then(|| entry.metadata());
            match line(&fs, &entry.path(), entry.file_name().as_bytes(), metadata) {
                Ok(line) => printed::written(output.write_all(&line))?,
                // The others can be listed.
                Err(error) => {
                    let failure = Failure::from(error).about(&entry.path()).of_reading_only();
                    printed::written(output.flush())?;
                    note!("syncline: {failure}");
                    code = if code == 0 { failure.code() } else { code };
                }
            }
        }
    }
    printed::written(output.flush())?;
    drop(output);
    let closed = place::close(fs)?;
    Ok(if code == 0 { closed } else { ExitCode::from(code) })
}

/// The line of an entry, with its details if their metadata is given.
fn line(
    fs: &Filesystem,
    path: &Path,
    name: &[u8],
    metadata: Option<syncline::Result<Metadata>>,
) -> syncline::Result<Vec<u8>> {
    let metadata = metadata.transpose()?;
    let mut line = metadata.as_ref().map(details).unwrap_or_default().into_bytes();
    line.extend(printed::name(name));
    if metadata.is_some_and(|metadata| metadata.is_symlink()) {
        line.extend(b" -> ");
        line.extend(printed::name(fs.read_link(path)?.as_os_str().as_bytes()));
    }
    line.push(b'\n');
    Ok(line)
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
    // humantime can't show times before 1970, or after 9999.
    let modified = metadata.modified().clamp(SystemTime::UNIX_EPOCH, SystemTime::UNIX_EPOCH + LAST_TIME);
    let modified = humantime::format_rfc3339_seconds(modified);
    let _ = write!(text, " {links:3} {uid:5} {gid:5} {bytes:12} {modified} ");
    text
}

/// Writes a file's contents to standard output, as they are.
pub fn cat(args: CatArgs) -> Outcome {
    let place = Place::of(&args.place);
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
    place::close(fs)
}
