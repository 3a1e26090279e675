//! `syncline receive`: a snapshot of a stream.

use super::image;
use super::receive_mounted;
use super::snapshot::{delete_one, image_of, is_mounted};
use crate::failure::{Cause, Failure, Outcome};
use std::io::{BufReader, IsTerminal, Read};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use syncline::{Filesystem, ImageOptions};
use syncline_device::{BLOCK_BYTES, Device, OpenOptions, block_on};
use syncline_fs::FsError;
use syncline_image::How;
use syncline_store::{RECEIVING, Snapshot, SnapshotError, Store, StoreError, StoreOptions};
use syncline_stream::{Kept, StreamError, piece_bytes};

/// Bytes read at a time.
const BUFFER_BYTES: usize = 1 << 20;

/// Arguments of `receive`.
#[derive(clap::Args)]
pub struct Args {
    /// Image file or block device that is not mounted, or any directory of a mounted filesystem
    #[arg(value_name = "IMAGE|DIR")]
    image: PathBuf,
    /// Name of the received snapshot. Default: its name in the sending image
    #[arg(long)]
    name: Option<String>,
    /// File to read the stream from. Default: standard input
    #[arg(long, short, value_name = "FILE")]
    input: Option<PathBuf>,
    /// If the stream is cut off, save the received part, and continue from it the next time. The
    /// part is durable every 64 MiB, or every 1024th of the image if that is more
    #[arg(long)]
    resume: bool,
    /// Print the token with which 'syncline send --resume' continues the saved part
    #[arg(long, conflicts_with_all = ["name", "input", "resume"])]
    token: bool,
    /// Discard the saved part of a stream that was cut off; its space is free at once
    #[arg(long, conflicts_with_all = ["name", "input", "resume", "token"])]
    abandon: bool,
}

/// Receives a stream, or prints the token of one that was cut off.
pub fn run(args: &Args) -> Outcome {
    if args.token {
        say!("{}", kept(args)?.token());
        return Ok(ExitCode::SUCCESS);
    }
    if args.abandon {
        return abandon(args);
    }
    let name = match &args.input {
        Some(path) => {
            let file = std::fs::File::open(path).map_err(|error| Failure::from(error).about(path))?;
            receive(args, file)?
        }
        None if std::io::stdin().is_terminal() => {
            return Err(Failure::usage("a stream does not come from a terminal")
                .next("name a file with -i, or let another program write it: 'syncline send … | syncline receive …'"));
        }
        None => receive(args, std::io::stdin())?,
    };
    say!("received snapshot {name:?}");
    Ok(ExitCode::SUCCESS)
}

/// Receives the stream, and returns the snapshot's name.
fn receive(args: &Args, input: impl Read + Send + 'static) -> Result<String, Failure> {
    // Before anything of the stream is read: a sender can't be asked for it again.
    if let Some(name) = args.name.as_ref().filter(|name| !Snapshot::is_free_name(name)) {
        return Err(StoreError::from(SnapshotError::Name { name: name.clone() }).into());
    }
    if is_mounted(&args.image)? {
        return receive_mounted::receive(&args.image, args.name.as_deref(), args.resume, input);
    }
    let about = |failure: Failure| failure.about(&args.image);
    let fs = Filesystem::open(&args.image, ImageOptions::default()).map_err(|error| about(error.into()))?;
    let input = BufReader::with_capacity(BUFFER_BYTES, input);
    let (engine, name) = (fs.engine(), args.name.as_deref());
    let received = match args.resume {
        false => block_on(syncline_stream::receive(engine, input, name)).map_err(Failure::from),
        true => {
            let bytes = piece_bytes(engine.store().geometry().total_blocks * BLOCK_BYTES as u64);
            block_on(syncline_stream::receive_in_pieces(engine, input, name, bytes)).map_err(Failure::from)
        }
    };
    let closed = fs.close();
    let received = received.map_err(about)?;
    closed.map_err(|error| about(error.into()))?;
    Ok(received.snapshot.name)
}

/// Opens the image, or the one behind a mount, for reading while another process writes to it.
fn beside(args: &Args) -> Result<Arc<dyn Device>, Failure> {
    let path = image_of(&args.image)?;
    let options = OpenOptions { beside_writer: true, ..OpenOptions::default() };
    let opened = image::open(&path, &How::new(options));
    Ok(opened.map_err(|error| Failure::from(error).about(&args.image))?.device())
}

/// The saved part of a stream.
fn kept(args: &Args) -> Result<Kept, Failure> {
    let about = |failure: Failure| failure.about(&args.image);
    let device = beside(args)?;
    let spawn = image::background()?;
    let read = block_on(async {
        let options = StoreOptions { read_only: true, ..StoreOptions::default() };
        let (store, snapshot) = Store::open_snapshot(device, options, spawn.clone(), RECEIVING).await?;
        let fs = syncline_fs::Filesystem::open(store, spawn, Default::default()).await?;
        let kept = Kept::read(&fs, snapshot).await;
        close_reading(&fs).await;
        kept
    });
    read.map_err(|error| about(unreadable(error)))
}

async fn close_reading(fs: &Arc<syncline_fs::Filesystem>) {
    // Nothing was changed, so nothing can be lost.
    let _ = fs.close().await;
}

fn unreadable(error: StreamError) -> Failure {
    match error {
        StreamError::Filesystem(FsError::Store(StoreError::Snapshot(SnapshotError::NotFound { .. }))) => {
            nothing_kept()
        }
        StreamError::Filesystem(FsError::Store(StoreError::Snapshot(SnapshotError::InUse { .. }))) => {
            being_received()
        }
        error => error.into(),
    }
}

fn being_received() -> Failure {
    Failure::of(Cause::InUse, "a stream is being received").next("wait for its end, then ask again")
}

fn nothing_kept() -> Failure {
    Failure::new("no part of a stream is saved").next("send it from its beginning, without --resume")
}

/// Removes the saved part.
fn abandon(args: &Args) -> Outcome {
    let about = |failure: Failure| failure.about(&args.image);
    let read = block_on(syncline_store::read_snapshots(&beside(args)?));
    let (_, snapshots) = read.map_err(|error| about(error.into()))?;
    if !snapshots.iter().any(Snapshot::is_receiving) {
        return Err(about(Failure::new("no part of a stream is saved")).next("there is nothing to abandon"));
    }
    let is_mounted = is_mounted(&args.image)?;
    delete_one(&args.image, RECEIVING).map_err(|failure| match is_mounted {
        true if failure.code() == Cause::InUse as u8 => being_received(),
        _ => failure,
    })?;
    Ok(ExitCode::SUCCESS)
}
