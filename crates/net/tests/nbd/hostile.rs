//! Servers that break the protocol.

use super::*;
use server::command::{READ, WRITE};
use server::{Handshake, Hostile};

const OF_READS: [Hostile; 13] = [
    Hostile::Magic,
    Hostile::UnknownCookie,
    Hostile::HugeChunk,
    Hostile::HugeError,
    Hostile::Overlap,
    Hostile::Missing,
    Hostile::Outside,
    Hostile::SimpleForStructured,
    Hostile::OtherConnection,
    Hostile::UnknownChunk,
    Hostile::EmptyChunk,
    Hostile::Twice,
    Hostile::Crumbs,
];
const OF_WRITES: [Hostile; 7] = [
    Hostile::Magic,
    Hostile::UnknownCookie,
    Hostile::HugeChunk,
    Hostile::HugeError,
    Hostile::DataForWrite,
    Hostile::Twice,
    Hostile::UnknownChunk,
];

/// The connection is given up, and the next one is used: the caller gets the right data.
#[test]
fn a_broken_reply_ends_the_connection_and_not_the_operation() {
    let lab = Lab::new(1, Spec::default());
    let device = open(&lab);
    write(&device, 0, 5, 65536).wait().unwrap();
    let reads = OF_READS.map(|hostile| (READ, hostile));
    let writes = OF_WRITES.map(|hostile| (WRITE, hostile));
    for (index, (command, hostile)) in (1..).zip(reads.into_iter().chain(writes)) {
        lab.faults(|faults| faults.hostile = Some((command, hostile)));
        if command == READ {
            assert_filled(&device, 0, 5, 65536);
        } else {
            write(&device, 8192, 5, 8192).wait().unwrap();
        }
        eventually("it reconnects", || device.counters().reconnects == index);
        flush(&device).wait().unwrap_or_else(|error| panic!("{hostile:?}: {error}"));
    }
    assert_filled(&device, 0, 5, 65536);
}

#[test]
fn structured_parts_that_were_not_agreed_upon_are_refused() {
    let lab = Lab::new(2, Spec { structured: false, ..Spec::default() });
    let device = open(&lab);
    for hostile in [Hostile::Overlap, Hostile::EmptyChunk, Hostile::Magic] {
        lab.faults(|faults| faults.hostile = Some((READ, hostile)));
        assert_filled(&device, 0, 0, 16384);
    }
    assert_eq!(device.counters().reconnects, 3);
}

#[test]
fn one_that_does_it_for_ever_is_given_up() {
    for hostile in [Hostile::Overlap, Hostile::UnknownCookie] {
        let lab = Lab::new(3, Spec::default());
        let device = open_with(&lab, Wait::Seconds(1), NbdOptions { connections: 1, ..Default::default() });
        lab.faults(|faults| {
            faults.hostile = Some((READ, hostile));
            faults.hostile_for_ever = true;
        });
        let pace = Pace::start();
        let error = read(&device, 0, 4096).wait().map(drop).unwrap_err().to_string();
        // A machine so busy that the last reconnect takes too long blames the server for silence.
        let whys = ["the server broke the protocol", "the server does not answer"];
        assert!(whys.iter().any(|why| error.contains(&format!("away for 1 s ({why}"))), "{error}");
        pace.assert_within(Duration::from_secs(5));
    }
}

#[test]
fn a_handshake_that_goes_wrong_is_an_error_in_one_line() {
    for (fault, part) in [
        (Handshake::NotNbd, "no NBD server listens there"),
        (Handshake::OldStyle, "too old"),
        (Handshake::CutShort, "the server ended the connection before both had agreed"),
        (Handshake::HugeReply, "an answer to an option has 4294967295 bytes"),
        (Handshake::WrongOption, "an answer to another option"),
        (Handshake::NoSize, "an export without a size"),
        (Handshake::Endless, "has no end"),
        (
            Handshake::UnknownExport,
            "the server refused the export 'disk': there is none of that name (no such disk)",
        ),
        (Handshake::TlsRequired, "it must be encrypted: use nbds://"),
    ] {
        let lab = Lab::new(4, Spec::default());
        lab.faults(|faults| faults.handshake = Some(fault));
        let pace = Pace::start();
        let refused = NbdDevice::open(&lab.location(Wait::Seconds(1)), NbdOptions::default()).map(drop);
        let text = refused.unwrap_err().to_string();
        assert!(text.contains(part) && !text.contains('\n'), "{fault:?}: {text}");
        pace.assert_within(Duration::from_secs(5));
    }
}
