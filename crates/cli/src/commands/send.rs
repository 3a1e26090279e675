//! `syncline send`: a snapshot as a stream.

use super::place::Place;
use super::snapshot::{base_of, image_of};
use super::whole_file::{WholeFile, there_already};
use crate::failure::{Cause, Failure, Outcome};
use std::io::{BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use syncline::{Filesystem, ImageOptions};
use syncline_device::block_on;
use syncline_stream::{Source, StreamError, Token};

/// Bytes gathered before they are written.
const BUFFER_BYTES: usize = 1 << 20;

/// Arguments of `send`.
#[derive(clap::Args)]
pub struct Args {
    /// Image file or block device, or any directory of a mounted filesystem
    #[arg(value_name = "IMAGE|DIR")]
    source: PathBuf,
    /// Name of the snapshot
    snapshot: String,
    /// Name of an older snapshot that the receiver has: send only the changes since then. In a fork,
    /// also BASE@SNAPSHOT, of which it was made
    #[arg(long, value_name = "OLDER")]
    from: Option<String>,
    /// Send only the rest of a stream that was cut off. TOKEN is printed by 'syncline receive IMAGE
    /// --token' at the receiver
    #[arg(long, value_name = "TOKEN")]
    resume: Option<Token>,
    /// File to write the stream to, which must not exist yet; `-`, the default, is standard output
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// A snapshot that is open.
struct Open {
    fs: Filesystem,
    snapshot: syncline_store::Snapshot,
}

/// Sends the snapshot.
pub fn run(args: &Args) -> Outcome {
    let output = args.output.as_deref().filter(|path| *path != Path::new("-"));
    if output.is_none() && std::io::stdout().is_terminal() {
        return Err(Failure::usage("a stream is not for a terminal")
            .next("name a file with -o, or let another program read it: 'syncline send … | ssh …'"));
    }
    let image = image_of(&args.source)?;
    let snapshot = Open::snapshot(&image, &args.snapshot)?;
    let from = args.from.as_ref().map(|name| Open::snapshot(&image, &in_fork(&image, name)?)).transpose()?;
    match output {
        Some(path) => {
            there_already(path)?;
            let refused = |error: std::io::Error| WholeFile::refused(path, error);
            let whole = WholeFile::new(path).map_err(refused)?;
            write(&image, &snapshot, from.as_ref(), args, &mut whole.file())?;
            whole.finish(path).map_err(refused)?;
        }
        None => write(&image, &snapshot, from.as_ref(), args, &mut std::io::stdout().lock())?,
    }
    Ok(ExitCode::SUCCESS)
}

/// The name that the snapshot to compare with has in the image: BASE@SNAPSHOT is the base of a fork.
fn in_fork(image: &Path, name: &str) -> Result<String, Failure> {
    let place = Place::of(&name.into());
    let Some(snapshot) = place.snapshot else { return Ok(name.to_owned()) };
    let base = image_of(&place.image)?;
    match base_of(image)? {
        Some(it) if it.snapshot == snapshot && base.canonicalize().is_ok_and(|base| base == it.image) => {
            Ok(snapshot)
        }
        _ => {
            let text = format!("{} is no fork of {name}", image.display());
            Err(Failure::usage(text).next("name an older snapshot of the image itself"))
        }
    }
}

impl Open {
    fn snapshot(image: &Path, name: &str) -> Result<Self, Failure> {
        let about = |failure: Failure| failure.about(image);
        let fs = Filesystem::open_snapshot(image, name, ImageOptions::default());
        let fs = fs.map_err(|error| about(error.into()))?;
        let read = block_on(syncline_store::read_snapshots(fs.engine().store().device()));
        let (_, all) = read.map_err(|error| about(error.into()))?;
        // It is open, so nobody has deleted it.
        let snapshot = all.into_iter().find(|snapshot| snapshot.name == name);
        let snapshot = snapshot.ok_or_else(|| about(Failure::new(format!("snapshot {name:?} has gone"))))?;
        Ok(Self { fs, snapshot })
    }

    fn source(&self) -> Source<'_> {
        Source { fs: self.fs.engine(), snapshot: self.snapshot.clone() }
    }
}

fn write(
    image: &Path,
    snapshot: &Open,
    from: Option<&Open>,
    args: &Args,
    output: &mut impl Write,
) -> Result<(), Failure> {
    let (source, from) = (snapshot.source(), from.map(Open::source));
    let output = BufWriter::with_capacity(BUFFER_BYTES, output);
    let sent = match &args.resume {
        None => block_on(syncline_stream::send(&source, from.as_ref(), output)),
        Some(token) => block_on(syncline_stream::resume(&source, from.as_ref(), token, output)),
    };
    match sent {
        Ok(_) => Ok(()),
        Err(StreamError::Io(error)) => {
            let failure = Failure::of(Cause::from(&*error), format!("the stream: {error}"));
            Err(failure.next(
                "send it again; or send the rest with --resume, if it was received with 'syncline receive --resume'",
            ))
        }
        Err(error) => Err(Failure::from(error).about(image)),
    }
}
