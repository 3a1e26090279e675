//! Streams of snapshots, received.

use super::from_bytes;
use crate::bases::{open, store_options};
use crate::hard::{examine, is_sound};
use crate::run::run;
use arbitrary::Arbitrary;
use bytes::Bytes;
use std::sync::LazyLock;
use syncline_device::MemoryDevice;
use syncline_format::items::extent::Algorithm;
use syncline_fs::types::{Ino, Timestamp};
use syncline_fs::{Filesystem, FsError};
use syncline_store::{RECEIVING, StoreError};
use syncline_stream::{
    Header, Origin, Reader, Record, Restored, StreamError, Unit, Writer, decode_kept, receive,
    receive_in_pieces,
};

/// The time by which the snapshot in the target is known.
const PARENT_NS: u64 = 77;

/// A target with a file, a directory and a snapshot.
static TARGET: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let device = MemoryDevice::new(16 << 20);
    let made = device.clone();
    let made = run(move |world| async move {
        let root = Filesystem::initial_transaction(0, 0, 0o755, Timestamp::default());
        syncline_store::format(made.clone(), Default::default(), root, world.spawn.clone()).await?;
        let fs = open(made, &world, store_options(1, false)).await?;
        let steps = [
            Step::Make { ino: 2, kind: 0, target: 0 },
            Step::Make { ino: 3, kind: 1, target: 0 },
            Step::Resize { ino: 2, size: 9000 },
            Step::Data { ino: 2, block: 0, length: 9000, value: 5 },
            Step::Place { ino: 2, dir: 1, name: 1 },
            Step::Place { ino: 3, dir: 1, name: 2 },
        ];
        let bytes = stream_of(&Input { steps: steps.into(), has_parent: false, raw: None, pieces: None });
        receive(&fs, &bytes[..], None).await.expect("the target is made");
        fs.close().await?;
        fs.store().close().await?;
        Ok::<_, FsError>(())
    });
    made.expect("the target is made");
    device.image()
});

/// A stream: records, or the bytes of one record.
#[derive(Arbitrary, Debug)]
pub(crate) struct Input {
    steps: Vec<Step>,
    /// It starts from the target's snapshot.
    has_parent: bool,
    /// A record as bytes, for the decoder.
    raw: Option<(u8, Vec<u8>)>,
    /// It is cut off, and goes on.
    pieces: Option<Pieces>,
}

/// How a stream comes in pieces.
#[derive(Arbitrary, Clone, Copy, Debug)]
struct Pieces {
    /// Where it is cut off at first.
    cut: u16,
    /// Bytes of a piece.
    bytes: u16,
}

/// A record, with numbers of which few mean something.
#[derive(Arbitrary, Clone, Debug)]
enum Step {
    Make { ino: u8, kind: u8, target: u8 },
    Resize { ino: u8, size: u32 },
    Data { ino: u8, block: u8, length: u16, value: u8 },
    Packed { ino: u8, block: u8, unit: [u8; 3], bytes: Vec<u8>, zstd: bool },
    Clone { ino: u8, block: u8, length: u16, from: u8, from_block: u8 },
    Hole { ino: u8, block: u8, length: u64 },
    Reserve { ino: u8, block: u8, length: u64 },
    Xattr { ino: u8, name: u8, length: u16 },
    NoXattr { ino: u8, name: u8 },
    Park { ino: u8, dir: u8, name: u8 },
    Unlink { dir: u8, name: u8 },
    Place { ino: u8, dir: u8, name: u8 },
    Drop { ino: u8 },
    Attributes { ino: u8, permissions: u16, flags: u32, seconds: i64 },
    Quota { dir: u8, bytes: u64, inodes: u64 },
}

/// Receives a stream.
///
/// - Decoding never panics, and a record that is decoded encodes to the bytes it was made of.
/// - A stream is refused or received, in a bounded number of steps; nothing panics or hangs.
/// - If it is refused, the target has the same snapshots as before; if not, there is one more.
/// - A stream that was cut off and goes on is refused or received as if it had not been cut off.
/// - A check of the target finds nothing afterwards, and all of the snapshot can be read.
pub fn stream(bytes: &[u8]) {
    let Some(input) = from_bytes::<Input>(bytes) else { return };
    if let Some((kind, payload)) = &input.raw {
        decode(*kind, payload);
    }
    let bytes = stream_of(&input);
    let at_once = received(bytes.clone(), None);
    let Some(pieces) = input.pieces else { return };
    let in_pieces = received(bytes, Some(pieces));
    // The part that the target keeps takes room of its own.
    let is_full = |received: &Result<(), StreamError>| {
        matches!(received, Err(StreamError::Filesystem(FsError::Store(StoreError::NoSpace))))
    };
    if !is_full(&at_once) && !is_full(&in_pieces) {
        assert_eq!(at_once.is_ok(), in_pieces.is_ok(), "{at_once:?}, in pieces {in_pieces:?}");
    }
}

/// Receives a stream in a target of its own, which is sound afterwards.
fn received(bytes: Vec<u8>, pieces: Option<Pieces>) -> Result<(), StreamError> {
    let device = MemoryDevice::from_image(&TARGET);
    let target = device.clone();
    let received = run(move |world| async move {
        let fs = open(target, &world, store_options(2, false)).await?;
        let before = fs.store().snapshots().await.len();
        let received = match pieces {
            None => receive(&fs, &bytes[..], Some("new")).await,
            Some(pieces) => {
                let (cut, piece_bytes) = (usize::from(pieces.cut) % bytes.len(), pieces.bytes.into());
                let cut = receive_in_pieces(&fs, &bytes[..cut], Some("new"), piece_bytes).await;
                assert!(cut.is_err(), "its end is missing");
                receive_in_pieces(&fs, &bytes[..], Some("new"), piece_bytes).await.map_err(|cut| cut.error)
            }
        };
        let snapshots = fs.store().snapshots().await;
        let after = snapshots.iter().filter(|snapshot| snapshot.name != RECEIVING).count();
        assert_eq!(after, before + usize::from(received.is_ok()), "{received:?}");
        assert!(received.is_err() || after == snapshots.len(), "nothing is kept of what is whole");
        if let Err(error) = &received {
            assert!(!matches!(error, StreamError::Io(_)), "memory does not fail");
            assert!(!matches!(error, StreamError::KeptDamaged(_)), "what is kept is sound");
        }
        fs.close().await?;
        fs.store().close().await?;
        Ok::<_, FsError>(received.map(drop))
    });
    let report = examine(&device).expect("the target can be checked");
    assert!(is_sound(&report), "{:#?}", report.findings);
    received.expect("the target goes on")
}

fn decode(kind: u8, payload: &[u8]) {
    let payload = Bytes::copy_from_slice(payload);
    if let Ok(record) = Record::decode(kind, &payload, 1) {
        assert_eq!((record.kind(), record.encode()), (kind, payload.to_vec()), "one record, one encoding");
    }
    // Nearly never a header, and never a panic.
    let _ = Reader::new(&payload[..]);
    if let Some(state) = decode_kept(&payload) {
        assert_eq!(state, payload, "one state, one encoding");
    }
}

fn stream_of(input: &Input) -> Vec<u8> {
    let origin = |created_ns, name: &str| Origin { created_ns, id: 1, name: name.to_owned() };
    let header = Header {
        uuid: [0; 16],
        filesystem_features: 0x7f,
        next_object: 64,
        objects: 3,
        used_bytes: 0,
        snapshot: origin(if input.has_parent { PARENT_NS + 1 } else { PARENT_NS }, "old"),
        parent: input.has_parent.then(|| origin(PARENT_NS, "old")),
        resumed: None,
    };
    let mut bytes = Vec::new();
    let mut writer = Writer::new(&mut bytes, &header).expect("memory takes it");
    let raw = input
        .raw
        .iter()
        .filter_map(|(kind, payload)| Record::decode(*kind, &Bytes::copy_from_slice(payload), 1).ok());
    let records = input.steps.iter().map(record).chain(raw);
    for record in records.filter(|record| !matches!(record, Record::End { .. })) {
        writer.put(&record).expect("memory takes it");
    }
    writer.end().expect("memory takes it");
    bytes
}

fn name(number: u8) -> Vec<u8> {
    match number {
        0 => b"..".to_vec(),
        1..200 => vec![b'a' + number % 26],
        200..220 => b"a/b".to_vec(),
        220..240 => vec![b'x'; 255],
        _ => Vec::new(),
    }
}

fn xattr(number: u8) -> Vec<u8> {
    let names: [&[u8]; 5] = [
        b"user.a",
        b"system.posix_acl_access",
        b"system.posix_acl_default",
        b"security.capability",
        b"trusted.b",
    ];
    names[usize::from(number) % names.len()].to_vec()
}

fn ino(number: u8) -> Ino {
    // Mostly one of few, sometimes one that there can't be.
    if number < 250 { Ino::from(number % 12) } else { Ino::MAX / 2 - Ino::from(255 - number) }
}

fn record(step: &Step) -> Record {
    const KINDS: [u16; 8] = [0o10, 0o04, 0o12, 0o01, 0o02, 0o06, 0o14, 0o17];
    let offset = |block: u8| u64::from(block) * 4096;
    match step.clone() {
        Step::Make { ino: number, kind, target } => {
            let mode = KINDS[usize::from(kind) % KINDS.len()] << 12;
            let target = Bytes::from(vec![b't'; usize::from(target)]);
            Record::Make { ino: ino(number), mode, rdev: 5, target }
        }
        Step::Resize { ino: number, size } => Record::Resize { ino: ino(number), size: size.into() },
        Step::Data { ino: number, block, length, value } => {
            let bytes = vec![value; length.into()].into();
            Record::Data { ino: ino(number), offset: offset(block), bytes }
        }
        Step::Packed { ino: number, block, unit: [unit_blocks, skip, blocks], bytes, zstd } => {
            let algorithm = if zstd { Algorithm::Zstd } else { Algorithm::Lz4 };
            let unit = Unit { algorithm, unit_blocks, skip, blocks, bytes: bytes.into() };
            Record::Packed { ino: ino(number), offset: offset(block), unit }
        }
        Step::Clone { ino: number, block, length, from, from_block } => Record::Clone {
            ino: ino(number),
            offset: offset(block),
            length: length.into(),
            from: ino(from),
            from_offset: offset(from_block),
        },
        Step::Hole { ino: number, block, length } => {
            Record::Hole { ino: ino(number), offset: offset(block), length }
        }
        Step::Reserve { ino: number, block, length } => {
            Record::Reserve { ino: ino(number), offset: offset(block), length }
        }
        Step::Xattr { ino: number, name, length } => {
            Record::Xattr { ino: ino(number), name: xattr(name), value: vec![1; length.into()].into() }
        }
        Step::NoXattr { ino: number, name } => Record::NoXattr { ino: ino(number), name: xattr(name) },
        Step::Park { ino: number, dir, name: word } => {
            Record::Park { ino: ino(number), dir: ino(dir), name: name(word) }
        }
        Step::Unlink { dir, name: word } => Record::Unlink { dir: ino(dir), name: name(word) },
        Step::Place { ino: number, dir, name: word } => {
            Record::Place { ino: ino(number), dir: ino(dir), name: name(word) }
        }
        Step::Drop { ino: number } => Record::Drop { ino: ino(number) },
        Step::Attributes { ino: number, permissions, flags, seconds } => {
            let times = [Timestamp { seconds, nanoseconds: 1 }; 4];
            let permissions = permissions & 0o7777;
            let restored = Restored { permissions, flags, uid: 1, gid: 2, times };
            Record::Attributes { ino: ino(number), restored }
        }
        Step::Quota { dir, bytes, inodes } => Record::Quota { dir: ino(dir), bytes, inodes },
    }
}
