//! Making a snapshot of a stream.
//!
//! Everything is done in a branch of the target's store, so nothing of it is visible before the stream
//! has ended and all of it was as it was sent. A fault of the stream or of the target, or a crash,
//! leaves the target's files and snapshots as they were.
//!
//! A stream may come in pieces. Then after each piece the branch becomes a snapshot that nobody sees,
//! in place of the one before, and the next piece is applied to a branch of that snapshot.

mod apply;
mod contents;
mod kept;
mod names;
mod pieces;

pub use kept::{Kept, decode_kept};

use crate::{Header, Reader, StreamError, Token};
use std::io::Read;
use std::sync::Arc;
use syncline_format::superblock::FEATURES_KNOWN;
use syncline_fs::Filesystem;
use syncline_store::Snapshot;

/// The least bytes of a stream after which the received part is made durable.
const PIECE_BYTES_MIN: u64 = 64 << 20;
/// A piece is this part of the image at least: making it durable reads the space map, which is a
/// 32,000th of the image, three times.
const PIECE_SHARE: u64 = 1024;

/// A snapshot that was received.
#[derive(Clone, Debug)]
pub struct Received {
    /// The snapshot in the target.
    pub snapshot: Snapshot,
    /// The header of the stream.
    pub header: Header,
    /// Number of records.
    pub records: u64,
}

/// Why a stream was not received wholly.
#[derive(Clone, Debug)]
pub struct Cut {
    /// The reason.
    pub error: StreamError,
    /// The token of the kept part of this stream, by which the stream goes on.
    pub kept: Option<Token>,
}

impl From<StreamError> for Cut {
    fn from(error: StreamError) -> Self {
        Self { error, kept: None }
    }
}

/// Reads a stream and makes its snapshot in the filesystem `target`, under its own name or under
/// `name`. It is durable when this returns.
pub async fn receive(
    target: &Arc<Filesystem>,
    input: impl Read,
    name: Option<&str>,
) -> Result<Received, StreamError> {
    let options = Options { name, piece_bytes: None, is_shared: false };
    receive_with(target, input, options).await.map_err(|cut| cut.error)
}

/// Receives a stream that may be cut off. The received part is made durable after each `piece_bytes`
/// bytes, and when the stream is cut off. A later call goes on with the rest of that stream, or with
/// all of it.
pub async fn receive_in_pieces(
    target: &Arc<Filesystem>,
    input: impl Read,
    name: Option<&str>,
    piece_bytes: u64,
) -> Result<Received, Cut> {
    let options = Options { name, piece_bytes: Some(piece_bytes), is_shared: false };
    receive_with(target, input, options).await
}

/// How a stream is received.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options<'a> {
    /// The name of the snapshot in the target; `None` for the one that it has in the stream.
    pub name: Option<&'a str>,
    /// How much comes before it is made durable; `None` if no part of a stream is saved that is cut off.
    pub piece_bytes: Option<u64>,
    /// Others change the target meanwhile, and need free blocks, too.
    pub is_shared: bool,
}

/// Reads a stream and makes its snapshot, as the options say.
pub async fn receive_with(
    target: &Arc<Filesystem>,
    input: impl Read,
    options: Options<'_>,
) -> Result<Received, Cut> {
    let Options { name, piece_bytes, is_shared: is_sparing } = options;
    let (mut reader, header) = Reader::new(input)?;
    let kept = match (piece_bytes, header.resumed) {
        (None, Some(position)) => return Err(StreamError::Resumed(position.records).into()),
        (None, None) => None,
        (Some(_), _) => Kept::find(target).await?,
    };
    let name = require_possible(target, &header, name, kept.as_ref()).await?;
    if piece_bytes.is_some() {
        go_on(&mut reader, &header, kept.as_ref())?;
    }
    let header = header.whole();
    let mut pieces =
        pieces::Pieces { target, reader, header, name, piece_bytes, kept, is_sparing, owed: None };
    pieces.receive().await.map_err(|error| Cut { error, kept: pieces.kept.as_ref().map(Kept::token) })
}

/// The bytes of a piece, for an image of this size.
pub fn piece_bytes(image_bytes: u64) -> u64 {
    (image_bytes / PIECE_SHARE).max(PIECE_BYTES_MIN)
}

/// Refuses a stream that can't be received here, whatever follows its header. Returns the snapshot's
/// name.
async fn require_possible(
    target: &Filesystem,
    header: &Header,
    name: Option<&str>,
    kept: Option<&Kept>,
) -> Result<String, StreamError> {
    let unknown = header.filesystem_features & !FEATURES_KNOWN;
    if unknown != 0 {
        return Err(StreamError::Unknown(format!("has features of filesystems {unknown:#x}")));
    }
    let name = name.unwrap_or(&header.snapshot.name);
    target.store().require_new_name(name, kept.map(|kept| kept.snapshot.id)).await?;
    Ok(name.to_owned())
}

/// Brings a stream to the end of the kept part.
fn go_on<R: Read>(reader: &mut Reader<R>, header: &Header, kept: Option<&Kept>) -> Result<(), Cut> {
    let Some(kept) = kept else {
        return match header.resumed {
            None => Ok(()),
            Some(position) => Err(StreamError::NothingKept(position.records).into()),
        };
    };
    if *kept.header() != header.whole() {
        return Err(StreamError::KeptOther(kept.header().snapshot.name.clone()).into());
    }
    let at = kept.state.position;
    let fail = |error| Cut { error, kept: Some(kept.token()) };
    match header.resumed {
        Some(position) if position == at => Ok(()),
        Some(position) => Err(fail(StreamError::OtherPlace { from: position.records, kept: at.records })),
        None => match reader.pass(at).map_err(fail)? {
            true => Ok(()),
            false => Err(fail(StreamError::OtherStream(
                "its first records differ from the received ones".to_owned(),
            ))),
        },
    }
}
