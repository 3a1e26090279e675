//! `syncline receive`: a snapshot of a stream.

use super::mounted::refuse_mounted;
use crate::failure::{Failure, Outcome};
use std::io::{BufReader, IsTerminal, Read};
use std::path::PathBuf;
use std::process::ExitCode;
use syncline::{Filesystem, ImageOptions};
use syncline_device::block_on;
use syncline_stream::Received;

/// Bytes read at a time.
const BUFFER_BYTES: usize = 1 << 20;

/// Arguments of `receive`.
#[derive(clap::Args)]
pub struct Args {
    /// Image file or block device that is not mounted
    image: PathBuf,
    /// Name of the snapshot there. Default: the name that it has where it comes from
    #[arg(long)]
    name: Option<String>,
    /// File to read the stream from. Default: standard input
    #[arg(long, short, value_name = "FILE")]
    input: Option<PathBuf>,
}

/// Receives a stream.
pub fn run(args: &Args) -> Outcome {
    let next =
        "unmount it with 'syncline umount', then receive into the image; or receive into another image";
    refuse_mounted(&args.image, next)?;
    let received = match &args.input {
        Some(path) => {
            let file = std::fs::File::open(path).map_err(|error| Failure::from(error).about(path))?;
            receive(args, file)?
        }
        None if std::io::stdin().is_terminal() => {
            return Err(Failure::usage("a stream does not come from a terminal")
                .next("name a file with -i, or let another program write it: 'syncline send … | syncline receive …'"));
        }
        None => receive(args, std::io::stdin().lock())?,
    };
    say!("received snapshot {:?}", received.snapshot.name);
    Ok(ExitCode::SUCCESS)
}

fn receive(args: &Args, input: impl Read) -> Result<Received, Failure> {
    let about = |failure: Failure| failure.about(&args.image);
    let fs = Filesystem::open(&args.image, ImageOptions::default()).map_err(|error| about(error.into()))?;
    let input = BufReader::with_capacity(BUFFER_BYTES, input);
    let received = block_on(syncline_stream::receive(fs.engine(), input, args.name.as_deref()));
    let closed = fs.close();
    let received = received.map_err(|error| about(error.into()))?;
    closed.map_err(|error| about(error.into()))?;
    Ok(received)
}
