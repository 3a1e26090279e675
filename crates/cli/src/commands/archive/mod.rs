//! `syncline archive`: a snapshot as a tar archive, for those who have no Syncline, and back.

mod attributes;
mod directories;
mod entries;
mod pax;
mod records;
mod tar;
mod untar;

use super::mounted::refuse_mounted;
use super::snapshot::image_of;
use super::whole_file::{WholeFile, there_already};
use crate::examples;
use crate::failure::{Failure, Outcome};
use crate::printed::several;
use std::io::{BufReader, BufWriter, IsTerminal, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use syncline::{Filesystem, ImageOptions};

/// Bytes read or written at a time.
const BUFFER_BYTES: usize = 1 << 20;

/// Arguments of `archive`.
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Write a snapshot as a tar archive
    #[command(after_help = examples::ARCHIVE_TAR)]
    Tar(TarArgs),
    /// Unpack a tar archive into an image that is not mounted
    #[command(after_help = examples::ARCHIVE_UNTAR)]
    Untar(UntarArgs),
}

/// Arguments of `tar`.
#[derive(clap::Args)]
struct TarArgs {
    /// Image file or block device, or any directory of a mounted filesystem
    #[arg(value_name = "IMAGE|DIR")]
    source: PathBuf,
    /// Name of the snapshot
    snapshot: String,
    /// File to write the archive to, which must not be there yet; `-`, the default, is standard output
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Arguments of `untar`.
#[derive(clap::Args)]
struct UntarArgs {
    /// Image file or block device that is not mounted
    image: PathBuf,
    /// File to read the archive from; `-`, the default, is standard input
    #[arg(long, short, value_name = "FILE")]
    input: Option<PathBuf>,
    /// Directory of the image to unpack into; made if it is not there
    #[arg(long, value_name = "PATH", default_value = "/")]
    to: PathBuf,
}

/// Runs the command.
pub fn run(args: &Args) -> Outcome {
    match &args.command {
        Command::Tar(args) => write(args),
        Command::Untar(args) => read(args),
    }
}

/// A file that was named, unless it is a name for a standard stream.
fn named(file: Option<&PathBuf>) -> Option<&Path> {
    file.map(PathBuf::as_path).filter(|path| *path != Path::new("-"))
}

fn write(args: &TarArgs) -> Outcome {
    let output = named(args.output.as_ref());
    if output.is_none() && std::io::stdout().is_terminal() {
        return Err(Failure::usage("an archive is not for a terminal").next(
            "name a file with -o, or let another program read it: 'syncline archive tar … | zstd > FILE'",
        ));
    }
    let image = image_of(&args.source)?;
    let fs = Filesystem::open_snapshot(&image, &args.snapshot, ImageOptions::default());
    let fs = fs.map_err(|error| Failure::from(error).about(&image))?;
    let left_out = match output {
        None => tar::write(&fs, &image, buffered(std::io::stdout().lock()))?,
        Some(path) => {
            there_already(path)?;
            let refused = |error: std::io::Error| WholeFile::refused(path, error);
            let whole = WholeFile::new(path).map_err(refused)?;
            let left_out = tar::write(&fs, &image, buffered(whole.file()))?;
            whole.finish(path).map_err(refused)?;
            left_out
        }
    };
    if left_out > 0 {
        let what = several(left_out, "socket is", "sockets are");
        note!("syncline: {what} left out: archives have none");
    }
    Ok(ExitCode::SUCCESS)
}

fn buffered<W: Write>(output: W) -> BufWriter<W> {
    BufWriter::with_capacity(BUFFER_BYTES, output)
}

fn read(args: &UntarArgs) -> Outcome {
    let next = "unpack with tar(1) into the mount, or unmount it with 'syncline umount'";
    refuse_mounted(&args.image, next)?;
    match named(args.input.as_ref()) {
        Some(path) => {
            let file = std::fs::File::open(path).map_err(|error| Failure::from(error).about(path))?;
            unpack(args, file)
        }
        None if std::io::stdin().is_terminal() => Err(Failure::usage(
            "an archive does not come from a terminal",
        )
        .next("name a file with -i, or let another program write it: 'tar -c … | syncline archive untar …'")),
        None => unpack(args, std::io::stdin().lock()),
    }
}

fn unpack(args: &UntarArgs, input: impl Read) -> Outcome {
    let about = |failure: Failure| failure.about(&args.image);
    let fs = Filesystem::open(&args.image, ImageOptions::default()).map_err(|error| about(error.into()))?;
    let input = BufReader::with_capacity(BUFFER_BYTES, input);
    let unpacked = untar::unpack(&fs, input, &args.to);
    let closed = fs.close().map_err(|error| about(error.into()));
    let count = unpacked.map_err(about)?;
    closed?;
    say!("unpacked {}", several(count, "entry", "entries"));
    Ok(ExitCode::SUCCESS)
}
