//! Random operations against a model.

use crate::rbd::cluster::on_the_cluster;
use bytes::Bytes;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use std::ops::Range;
use std::time::Duration;
use syncline_device::{DeviceExt, block_on};
use syncline_net::rbd::{RbdDevice, RbdOptions};

const BLOCKS: u64 = 3072;
const BLOCK: u64 = 4096;

/// Operations that are started together; their ranges do not overlap.
type Round = Vec<Step>;

#[derive(Clone, Debug)]
enum Step {
    Write { at: u64, pieces: Vec<(u64, u8)> },
    Read { at: u64, blocks: u64 },
    Discard { at: u64, blocks: u64 },
    Flush,
    Reopen,
}

impl Step {
    fn blocks(&self) -> Range<u64> {
        match self {
            Self::Write { at, pieces } => *at..at + pieces.iter().map(|(blocks, _)| blocks).sum::<u64>(),
            Self::Read { at, blocks } | Self::Discard { at, blocks } => *at..at + blocks,
            Self::Flush | Self::Reopen => 0..0,
        }
    }
}

fn step() -> impl Strategy<Value = Step> {
    // Often about the border of two objects.
    let at = prop_oneof![0..BLOCKS - 64, 1000..1050_u64, 2030..2060_u64];
    let pieces = prop::collection::vec((1..8_u64, 1..=255_u8), 1..5);
    prop_oneof![
        6 => (at.clone(), pieces).prop_map(|(at, pieces)| Step::Write { at, pieces }),
        4 => (at.clone(), 1..32_u64).prop_map(|(at, blocks)| Step::Read { at, blocks }),
        1 => (at, 1..64_u64).prop_map(|(at, blocks)| Step::Discard { at, blocks }),
        2 => Just(Step::Flush),
        1 => Just(Step::Reopen),
    ]
}

fn rounds() -> impl Strategy<Value = Vec<Round>> {
    prop::collection::vec(prop::collection::vec(step(), 1..24), 1..12)
}

/// The contents that a read may find: these, or anything after a discard.
#[derive(Clone, Copy, PartialEq)]
enum Block {
    Filled(u8),
    Discarded,
}

fn check(found: &[u8], expected: &[Block]) {
    for (block, expected) in found.chunks(BLOCK as usize).zip(expected) {
        if let Block::Filled(fill) = expected {
            assert!(block.iter().all(|byte| byte == fill), "not what was written last");
        }
    }
}

#[test]
fn random_operations_against_a_model() {
    on_the_cluster(Duration::from_secs(300), |cluster| {
        let mut runner = TestRunner::new(Config { cases: 12, max_shrink_iters: 64, ..Config::default() });
        let result = runner.run(&rounds(), |rounds| {
            let (spec, device) = cluster.create((BLOCKS * BLOCK) >> 20, &RbdOptions::default());
            let mut device = Some(device);
            let mut model = vec![Block::Filled(0); BLOCKS as usize];
            for round in rounds {
                let mut taken: Vec<Range<u64>> = Vec::new();
                let mut waiting: Vec<Box<dyn FnOnce()>> = Vec::new();
                for step in round {
                    let range = step.blocks();
                    if taken.iter().any(|other| range.start < other.end && other.start < range.end) {
                        continue;
                    }
                    taken.push(range.clone());
                    let (offset, len) = (range.start * BLOCK, (range.end - range.start) * BLOCK);
                    let places = range.start as usize..range.end as usize;
                    let opened = device.as_ref().expect("opened");
                    match step {
                        Step::Write { pieces, .. } => {
                            let filled = pieces
                                .iter()
                                .flat_map(|&(blocks, fill)| vec![Block::Filled(fill); blocks as usize]);
                            model.splice(places, filled);
                            let bufs = pieces
                                .iter()
                                .map(|&(blocks, fill)| Bytes::from(vec![fill; (blocks * BLOCK) as usize]));
                            let write = opened.write_at(offset, bufs.collect());
                            waiting.push(Box::new(move || block_on(write).expect("written")));
                        }
                        Step::Read { .. } => {
                            let read = opened.read_at(offset, len as usize);
                            let expected = model[places].to_vec();
                            waiting.push(Box::new(move || check(&block_on(read).expect("read"), &expected)));
                        }
                        Step::Discard { .. } => {
                            model[places].fill(Block::Discarded);
                            let discard = opened.discard_at(offset, len);
                            waiting.push(Box::new(move || block_on(discard).expect("discarded")));
                        }
                        Step::Flush => {
                            let flush = opened.flush_all();
                            waiting.push(Box::new(move || block_on(flush).expect("flushed")));
                        }
                        Step::Reopen => {
                            waiting.drain(..).for_each(|wait| wait());
                            taken.clear();
                            drop(device.take());
                            device = Some(RbdDevice::open(&spec, &RbdOptions::default()).expect("opened"));
                        }
                    }
                }
                waiting.into_iter().for_each(|wait| wait());
            }
            let opened = device.expect("opened");
            let all = block_on(opened.read_at(0, (BLOCKS * BLOCK) as usize)).expect("read");
            check(&all, &model);
            drop(opened);
            RbdDevice::remove(&spec, &RbdOptions::default()).expect("removed");
            Ok(())
        });
        result.unwrap_or_else(|failure| panic!("{failure}"));
    });
}
