//! Tokens and rests of streams that do not fit: refused with the reason, and nothing has changed.

use crate::pieces::{ONE_PIECE, cut, ends, kept, rest, visible};
use crate::world::{self, ROOT_USER, World};
use crate::{claiming, require_sound, stream};
use bytes::Bytes;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use std::time::Duration;
use syncline_device::block_on;
use syncline_fs::Durability;
use syncline_fs::types::FileType;
use syncline_store::RECEIVING;
use syncline_stream::{Header, Position, Reader, StreamError, Token, receive, receive_in_pieces};

struct Scene {
    source: World,
    target: World,
    bytes: Vec<u8>,
    token: Token,
}

/// A stream of which one half has come.
fn half() -> Scene {
    let spawn = world::spawn();
    let mut rng = ChaCha8Rng::seed_from_u64(3);
    let mut source = World::new(&spawn, 32 << 20, 16384);
    for name in ["old", "new", "newer"] {
        source.live(&mut rng, 25);
        block_on(source.fs.create_snapshot(name)).unwrap();
    }
    let target = World::new(&spawn, 64 << 20, 16384);
    block_on(receive(&target.fs, &stream(&source, "old", None)[..], None)).unwrap();
    let bytes = stream(&source, "new", Some("old"));
    let ends = ends(&bytes);
    let token = cut(&target, &bytes[..ends[ends.len() / 2]], ONE_PIECE).kept.unwrap();
    Scene { source, target, bytes, token }
}

#[test]
fn a_token_of_another_stream_is_refused() {
    let Scene { source, target, token, .. } = half();
    let refused = |name: &str, from: Option<&str>, token: Token, why: &str| {
        let error = rest(&source, name, from, &token).expect_err(why);
        assert!(matches!(&error, StreamError::OtherStream(_)) && error.to_string().contains(why), "{error}");
    };
    refused("newer", Some("old"), token, "another snapshot");
    refused("new", None, token, "with --from");
    refused("newer", Some("new"), Token { created_ns: token.created_ns + 1, ..token }, "another snapshot");
    refused("new", Some("old"), Token { parent_ns: 0, ..token }, "without --from");
    refused("new", Some("old"), Token { parent_ns: token.parent_ns + 1, ..token }, "from another");
    refused("new", Some("old"), Token { uuid: [1; 16], ..token }, "another image");
    refused("new", Some("old"), Token { filesystem_features: 1 << 31, ..token }, "features");
    let Position { records, checksum } = token.position;
    let at = |records, checksum| Token { position: Position { records, checksum }, ..token };
    refused("new", Some("old"), at(records, checksum ^ 1), "first");
    refused("new", Some("old"), at(records - 1, checksum), "first");
    refused("new", Some("old"), at(1 << 40, checksum), "records of it came");
    // A checksum over a header that ends with its own is always the same: the receiver compares headers.
    let other = Token { filesystem_features: 0, ..token };
    let bytes = rest(&source, "new", Some("old"), &other).unwrap();
    let cut = block_on(receive_in_pieces(&target.fs, &bytes[..], None, ONE_PIECE)).unwrap_err();
    assert!(matches!(cut.error, StreamError::KeptOther(_)), "{}", cut.error);
    rest(&source, "new", Some("old"), &token).unwrap();
}

#[test]
fn features_that_came_later_do_not_matter() {
    let Scene { source, target, token, .. } = half();
    let before = source.fs.store().superblock().features;
    let file = block_on(source.fs.mknod(ROOT_USER, 1, b"strict", FileType::Regular, 0o600, 0)).unwrap();
    block_on(source.fs.set_durability(file.ino, Some(Durability::Strict))).unwrap();
    block_on(source.fs.create_snapshot("later")).unwrap();
    assert_ne!(source.fs.store().superblock().features, before);
    let bytes = rest(&source, "new", Some("old"), &token).unwrap();
    block_on(receive_in_pieces(&target.fs, &bytes[..], None, ONE_PIECE)).unwrap();
}

#[test]
fn a_stream_that_does_not_go_on_from_what_is_kept_is_refused() {
    let Scene { source, target, bytes, token } = half();
    let spawn = target.spawn.clone();
    let rest_bytes = rest(&source, "new", Some("old"), &token).unwrap();
    let same = |what: &str| {
        assert_eq!(kept(&target.fs), Some(token), "{what}");
        assert_eq!(visible(&target.fs), ["old"], "{what}");
    };
    let refused = |bytes: &[u8]| block_on(receive_in_pieces(&target.fs, bytes, None, ONE_PIECE)).unwrap_err();
    // Another stream.
    let other = stream(&source, "newer", Some("old"));
    let error = refused(&other).error;
    assert!(matches!(&error, StreamError::KeptOther(name) if name == "new"), "{error}");
    same("another stream");
    let whole = stream(&source, "new", None);
    assert!(matches!(refused(&whole).error, StreamError::KeptOther(_)));
    same("the same snapshot, not from another");
    // Another place: the kept part has moved on, or back.
    let ends = ends(&bytes);
    let second = World::open(target.device.snapshot(), &spawn);
    let more = cut(&second, &bytes[..ends[ends.len() - 3]], ONE_PIECE).kept.unwrap();
    let beyond = rest(&source, "new", Some("old"), &more).unwrap();
    let error = refused(&beyond).error;
    assert!(matches!(error, StreamError::OtherPlace { .. }), "{error}");
    same("another place");
    // A stream of the same header that began differently.
    let mut changed = bytes.clone();
    let at = ends[0] + 24;
    changed[at] ^= 1;
    put_right(&mut changed, ends[0], ends[1]);
    let error = refused(&changed).error;
    assert!(matches!(error, StreamError::OtherStream(_)), "{error}");
    same("another beginning");
    // Without asking for it.
    let error = block_on(receive(&target.fs, &rest_bytes[..], None)).unwrap_err();
    assert!(matches!(error, StreamError::Resumed(_)), "{error}");
    same("without --resume");
    // Where nothing is kept.
    let third = World::new(&spawn, 64 << 20, 16384);
    let cut = block_on(receive_in_pieces(&third.fs, &rest_bytes[..], None, ONE_PIECE)).unwrap_err();
    assert!(matches!(cut.error, StreamError::NothingKept(_)) && cut.kept.is_none(), "{}", cut.error);
    // Its name is taken by now.
    block_on(target.fs.create_snapshot("new")).unwrap();
    assert!(refused(&rest_bytes).error.to_string().contains("already"));
    block_on(receive_in_pieces(&target.fs, &rest_bytes[..], Some("copy"), ONE_PIECE)).unwrap();
    assert_eq!(visible(&target.fs), ["old", "new", "copy"]);
    target.close();
    require_sound(&target.device, &spawn, "after all that");
}

/// Numbers that nothing can follow or that are not so: nothing is kept of such a stream, since nobody
/// could go on with it.
#[test]
fn impossible_numbers_are_refused() {
    let Scene { source, target, bytes, token } = half();
    block_on(target.fs.delete_snapshot(RECEIVING)).unwrap();
    let (_, header) = Reader::new(&bytes[..]).unwrap();
    let last = Header { resumed: Some(Position { records: u64::MAX, ..token.position }), ..header };
    let error = Reader::new(&last.encode()[..]).map(|_| ()).unwrap_err();
    assert!(matches!(error, StreamError::Damaged { record: 0, .. }), "{error}");
    // Inodes of the snapshot that it starts from have greater ones.
    let claims = claiming(&stream(&source, "new", Some("old")), 17);
    let refused = cut(&target, &claims[..], 1);
    assert!(refused.error.to_string().contains("greater numbers") && refused.kept.is_none(), "{refused:?}");
    assert_eq!(kept(&target.fs), None);
    block_on(receive(&target.fs, &bytes[..], None)).unwrap();
}

/// Makes the checksums of a record fit its changed payload.
fn put_right(bytes: &mut [u8], start: usize, end: usize) {
    let payload = crc32c::crc32c(&bytes[start + 24..end]).to_le_bytes();
    bytes[start + 16..start + 20].copy_from_slice(&payload);
    let head = crc32c::crc32c(&bytes[start..start + 20]).to_le_bytes();
    bytes[start + 20..start + 24].copy_from_slice(&head);
}

#[test]
fn a_whole_stream_beside_what_is_kept_is_received() {
    let Scene { target, bytes, token, .. } = half();
    block_on(receive(&target.fs, &bytes[..], Some("whole"))).unwrap();
    assert_eq!(kept(&target.fs), Some(token));
    block_on(target.fs.delete_snapshot(RECEIVING)).unwrap();
    assert_eq!(kept(&target.fs), None);
    assert_eq!(visible(&target.fs), ["old", "whole"]);
}

#[test]
fn what_is_kept_outlives_the_snapshot_that_it_starts_from() {
    let Scene { source, target, token, .. } = half();
    block_on(target.fs.delete_snapshot("old")).unwrap();
    let bytes = rest(&source, "new", Some("old"), &token).unwrap();
    block_on(receive_in_pieces(&target.fs, &bytes[..], None, ONE_PIECE)).unwrap();
    let (sent, received) = (source.snapshot("new").0, target.snapshot("new").0);
    crate::require_same(&crate::describe(&sent), &crate::describe(&received), "without its parent");
    assert!(rest(&source, "new", Some("old"), &token).is_ok());
}

#[test]
fn nobody_gets_the_name_and_abandoning_gives_the_room_back() {
    let Scene { source, target, token, .. } = half();
    let error = block_on(target.fs.create_snapshot(RECEIVING)).unwrap_err();
    assert!(error.to_string().contains("can't be the name"), "{error}");
    let bytes = rest(&source, "new", Some("old"), &token).unwrap();
    let cut = block_on(receive_in_pieces(&target.fs, &bytes[..], Some(RECEIVING), ONE_PIECE)).unwrap_err();
    assert!(cut.error.to_string().contains("can't be the name"), "{}", cut.error);
    let free = |target: &World| {
        block_on(target.fs.store().checkpoint()).unwrap();
        target.fs.store().space().free
    };
    let before = free(&target);
    block_on(target.fs.delete_snapshot(RECEIVING)).unwrap();
    assert!(free(&target) > before, "{before}");
    let cut = block_on(receive_in_pieces(&target.fs, &bytes[..], None, ONE_PIECE)).unwrap_err();
    assert!(matches!(cut.error, StreamError::NothingKept(_)), "{}", cut.error);
    target.close();
    require_sound(&target.device, &target.spawn, "abandoned");
}

#[test]
fn a_full_target_keeps_what_came_and_goes_on_with_more_room() {
    let spawn = world::spawn();
    let source = World::new(&spawn, 96 << 20, 16384);
    let fill = |world: &World, name: &[u8], pieces: u64| {
        let made = block_on(world.fs.mknod(ROOT_USER, 1, name, FileType::Regular, 0o644, 0)).unwrap();
        for piece in 0..pieces {
            let data = Bytes::from(vec![piece as u8 + 1; 1 << 20]);
            block_on(world.fs.write(made.ino, piece << 20, data, false)).unwrap();
        }
        world.fs.forget(made.ino, 1);
    };
    fill(&source, b"large", 24);
    block_on(source.fs.create_snapshot("large")).unwrap();
    let bytes = stream(&source, "large", None);
    let target = World::new(&spawn, 48 << 20, 16384);
    fill(&target, b"own", 20);
    block_on(target.fs.syncfs()).unwrap();
    let Err(cut) = block_on(receive_in_pieces(&target.fs, &bytes[..], None, 2 << 20)) else {
        panic!("it has no room");
    };
    assert!(cut.error.to_string().contains("no space"), "{}", cut.error);
    let token = cut.kept.expect("pieces have come");
    assert!(token.position.records > 3);
    assert_eq!(kept(&target.fs), Some(token));
    block_on(target.fs.unlink(1, b"own")).unwrap();
    // Its blocks come back when it has been removed in the background, and a checkpoint followed.
    let has_room = (0..500).any(|_| {
        std::thread::sleep(Duration::from_millis(10));
        block_on(target.fs.syncfs()).unwrap();
        target.fs.store().space().free > 5000
    });
    assert!(has_room, "{:?}", target.fs.store().space());
    let rest_bytes = rest(&source, "large", None, &token).unwrap();
    block_on(receive_in_pieces(&target.fs, &rest_bytes[..], None, 2 << 20)).unwrap();
    let (sent, received) = (source.snapshot("large").0, target.snapshot("large").0);
    crate::require_same(&crate::describe(&sent), &crate::describe(&received), "with more room");
    target.close();
    require_sound(&target.device, &spawn, "with more room");
}
