//! Requests that no honest kernel sends.
//!
//! Whatever comes: no panic; exactly one answer, and none to FORGET; no more data than was asked
//! for; and the filesystem still works afterwards.

use super::serve;
use super::tests::{Bench, bytes_of};
use crate::abi::*;
use crate::request::Request;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use syncline_device::block_on;
use zerocopy::IntoBytes;

/// Sizes and offsets, with edge values more likely than by chance.
fn number() -> impl Strategy<Value = u64> {
    let edges =
        vec![0, 1, 2, 4095, 4096, 65536, 1 << 20, (1 << 20) + 1, i64::MAX as u64, u64::MAX - 1, u64::MAX];
    prop_oneof![prop::sample::select(edges), 0..40u64, any::<u64>()]
}

/// Possible contents after a header: noise, or something that begins like the real thing.
fn arguments() -> impl Strategy<Value = Vec<u8>> {
    let noise = prop::collection::vec(any::<u8>(), 0..200);
    let numbers = prop::collection::vec(number(), 0..12)
        .prop_map(|numbers| numbers.iter().flat_map(|number| number.to_ne_bytes()).collect::<Vec<u8>>());
    let names = prop::collection::vec(prop::sample::select(vec!["a", "b", "..", "", "x/y", "user.x"]), 0..3)
        .prop_map(|names| names.iter().flat_map(|name| name.bytes().chain([0])).collect::<Vec<u8>>());
    let read = (number(), number())
        .prop_map(|(offset, size)| bytes_of(&ReadIn { offset, size: size as u32, ..ReadIn::default() }));
    let write = (0..1u64 << 24, prop::collection::vec(any::<u8>(), 0..9000), any::<u32>()).prop_map(
        |(offset, data, flags)| {
            let input =
                WriteIn { offset, size: data.len() as u32, write_flags: flags, flags, ..WriteIn::default() };
            [input.as_bytes(), &data].concat()
        },
    );
    let numbers_and_names = (numbers, names).prop_map(|(numbers, names)| [numbers, names].concat());
    prop_oneof![noise, numbers_and_names, read, write]
}

fn message() -> impl Strategy<Value = Vec<u8>> {
    let opcode = prop_oneof![
        9 => prop::sample::select(Opcode::ALL.to_vec()).prop_map(|opcode| opcode as u32),
        1 => any::<u32>(),
    ];
    let node = prop_oneof![4 => Just(ROOT_NODE), 4 => 14..30u64, 1 => number()];
    (opcode, node, any::<u16>(), arguments()).prop_map(|(opcode, node, extensions, arguments)| {
        let header = InHeader {
            len: (IN_HEADER_BYTES + arguments.len()) as u32,
            opcode,
            unique: 6,
            node,
            // Mostly zero, as from an honest kernel.
            extensions_len: if extensions % 8 == 0 { extensions } else { 0 },
            ..InHeader::default()
        };
        [header.as_bytes(), &arguments].concat()
    })
}

/// The most data an answer to this request may carry.
fn room(request: &Request, opcode: Opcode) -> usize {
    let size_of_read = || request.arguments().take::<ReadIn>().map_or(0, |input| input.size as usize);
    match opcode {
        Opcode::Read | Opcode::ReadDir | Opcode::ReadDirPlus => size_of_read(),
        // A fixed structure, a symbolic link's target, an attribute, an answer of the control
        // channel.
        _ => 1 << 17,
    }
}

#[test]
fn strange_requests_do_no_harm() {
    let bench = Bench::new();
    let mut runner = TestRunner::new(Config { cases: 3000, failure_persistence: None, ..Config::default() });
    runner
        .run(&message(), |message| {
            let request = Request::parse(&message).expect("the length is right");
            let reply = block_on(serve(&bench.session, &request));
            let opcode = request.opcode();
            prop_assert_eq!(reply.is_silent(), matches!(opcode, Some(Opcode::Forget | Opcode::BatchForget)));
            prop_assert!((0..4096).contains(&reply.errno()));
            let header = reply.header(6);
            let sent: usize = reply.slices(&header).iter().map(|slice| slice.len()).sum();
            prop_assert_eq!(header.len as usize, sent);
            let data = sent - OUT_HEADER_BYTES;
            prop_assert!(reply.errno() == 0 || data == 0);
            if let Some(opcode) = opcode {
                prop_assert!(data <= room(&request, opcode), "{:?}: {} bytes", opcode, data);
            }
            Ok(())
        })
        .unwrap();
    let root = bench.session.fs().getattr(ROOT_NODE);
    assert_eq!(block_on(root).unwrap().ino, ROOT_NODE);
    block_on(bench.session.fs().syncfs()).unwrap();
}
