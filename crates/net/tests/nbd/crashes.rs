//! Random operations on a server that crashes, breaks off and fails, against a model.
//!
//! Invariants: each operation ends once; only injected errors are told; a read finds the last
//! completed write or a later one; and when everything ends in a crash that the client does not
//! survive, everything is there that a successful flush covered.

use super::*;
use proptest::prelude::*;
use server::command;

const BLOCKS: u64 = 24;

#[derive(Clone, Debug)]
enum Step {
    Write { block: u64, blocks: u64, through: bool },
    Discard { block: u64, blocks: u64 },
    Zero { block: u64, blocks: u64 },
    Read { block: u64, blocks: u64 },
    Flush,
    Settle,
    Crash,
    Cut,
    CutSending(usize),
    CutReceiving(usize),
    Away(u64),
    FlushError,
    WriteError,
    Reorder(bool),
    SlowFlushes(u64),
    Enlarge(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let range = || (0..BLOCKS).prop_flat_map(|block| (Just(block), 1..=(BLOCKS - block).min(9)));
    prop_oneof![
        12 => (range(), prop::bool::weighted(0.2))
            .prop_map(|((block, blocks), through)| Step::Write { block, blocks, through }),
        2 => range().prop_map(|(block, blocks)| Step::Discard { block, blocks }),
        1 => range().prop_map(|(block, blocks)| Step::Zero { block, blocks }),
        8 => range().prop_map(|(block, blocks)| Step::Read { block, blocks }),
        5 => Just(Step::Flush),
        6 => Just(Step::Settle),
        2 => Just(Step::Crash),
        1 => Just(Step::Cut),
        1 => (1usize..20_000).prop_map(Step::CutSending),
        1 => (1usize..40_000).prop_map(Step::CutReceiving),
        1 => (1u64..60).prop_map(Step::Away),
        1 => Just(Step::FlushError),
        1 => Just(Step::WriteError),
        1 => any::<bool>().prop_map(Step::Reorder),
        2 => (0u64..4).prop_map(Step::SlowFlushes),
        1 => (0u64..2).prop_map(Step::Enlarge),
    ]
}

/// Contents of a block after a change of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Version {
    Fill(u64),
    Anything,
}

struct Block {
    versions: Vec<Version>,
    /// The newest that is known to be completed, and how many flushes of the server had failed when
    /// it was asked for: one that fails later may take it away.
    completed: (usize, u64),
    /// The newest that a flush covered.
    durable: usize,
}

impl Block {
    /// The oldest version that may be found.
    fn oldest(&self, failed_flushes: u64) -> usize {
        if self.completed.1 == failed_flushes { self.completed.0.max(self.durable) } else { self.durable }
    }

    /// Compares sector by sector: a crash may have torn the block.
    fn check(&self, oldest: usize, bytes: &[u8]) -> Result<(), String> {
        let allowed = &self.versions[oldest..];
        if allowed.contains(&Version::Anything) {
            return Ok(());
        }
        for sector in bytes.chunks(512) {
            let found = u64::from_le_bytes(sector[..8].try_into().unwrap());
            if !sector.chunks(8).all(|piece| piece == &sector[..8])
                || !allowed.contains(&Version::Fill(found))
            {
                return Err(format!("found {found}, not one of {allowed:?}"));
            }
        }
        Ok(())
    }
}

enum Kind {
    /// For each block of it, the index of its version; and the failed flushes at the call.
    Change {
        first: u64,
        versions: Vec<usize>,
        failed_flushes: u64,
        through: Option<Vec<(usize, u64)>>,
    },
    Flush {
        covers: Vec<(usize, u64)>,
    },
}

struct World {
    lab: Lab,
    device: Arc<NbdDevice>,
    blocks: Vec<Block>,
    changes: Vec<(Kind, Pending<()>)>,
    /// With the oldest version of each block that may be found.
    reads: Vec<(u64, Vec<usize>, u64, Pending<AlignedBuf>)>,
    fills: u64,
    errors_allowed: usize,
}

impl World {
    fn new(seed: u64, spec: Spec, kept_bytes: u64) -> Self {
        let lab = Lab::new(seed, spec);
        let device = open_with(&lab, Wait::Seconds(60), NbdOptions { kept_bytes, ..Default::default() });
        let block = || Block { versions: vec![Version::Fill(0)], completed: (0, 0), durable: 0 };
        let blocks = (0..BLOCKS).map(|_| block()).collect();
        Self { lab, device, blocks, changes: vec![], reads: vec![], fills: 0, errors_allowed: 0 }
    }

    fn failed_flushes(&self) -> u64 {
        self.lab.store(|store| store.failed_flushes)
    }

    /// The version of each block that a flush that begins now covers, as far as is known.
    fn covered(&self) -> Vec<(usize, u64)> {
        self.blocks.iter().map(|block| block.completed).collect()
    }

    fn change(
        &mut self,
        first: u64,
        blocks: u64,
        version: Version,
        through: bool,
        pending: Pending<()>,
        at_call: u64,
    ) {
        let through = through.then(|| self.covered());
        let mut versions = Vec::new();
        for block in &mut self.blocks[first as usize..(first + blocks) as usize] {
            block.versions.push(version);
            versions.push(block.versions.len() - 1);
        }
        self.changes.push((Kind::Change { first, versions, failed_flushes: at_call, through }, pending));
    }

    fn run(&mut self, step: Step) -> Result<(), String> {
        let bytes = |blocks: u64| blocks * BLOCK as u64;
        let at_call = self.failed_flushes();
        match step {
            Step::Write { block, blocks, through } => {
                self.fills += 1;
                let data = Bytes::from(self.fills.to_le_bytes().repeat(bytes(blocks) as usize / 8));
                let device = &self.device;
                let pending = match through {
                    true => ask(|done| device.write_through(bytes(block), vec![data], done)),
                    false => ask(|done| device.write(bytes(block), vec![data], done)),
                };
                self.change(block, blocks, Version::Fill(self.fills), through, pending, at_call);
            }
            Step::Discard { block, blocks } if self.device.discards() => {
                let pending = ask(|done| self.device.discard(bytes(block), bytes(blocks), done));
                self.change(block, blocks, Version::Anything, false, pending, at_call);
            }
            Step::Discard { .. } => {}
            Step::Zero { block, blocks } => {
                let pending = ask(|done| self.device.write_zeros(bytes(block), bytes(blocks), done));
                self.change(block, blocks, Version::Fill(0), false, pending, at_call);
            }
            Step::Read { block, blocks } => {
                let range = block as usize..(block + blocks) as usize;
                let oldest = self.blocks[range].iter().map(|block| block.oldest(at_call)).collect();
                let pending = read(&self.device, bytes(block), bytes(blocks) as usize);
                self.reads.push((block, oldest, at_call, pending));
            }
            Step::Flush => {
                let covers = self.covered();
                self.changes.push((Kind::Flush { covers }, flush(&self.device)));
            }
            Step::Settle => self.settle()?,
            Step::Crash => self.lab.crash(),
            Step::Cut => self.lab.cut(),
            Step::CutSending(after) => self.lab.faults(|faults| faults.cut_sending = Some(after)),
            Step::CutReceiving(after) => self.lab.faults(|faults| faults.cut_receiving = Some(after)),
            Step::Away(time) => {
                self.lab.faults(|faults| faults.away = true);
                self.lab.crash();
                std::thread::sleep(Duration::from_millis(time));
                self.lab.faults(|faults| faults.away = false);
            }
            Step::FlushError => self.inject(command::FLUSH),
            Step::WriteError => self.inject(command::WRITE),
            Step::SlowFlushes(time) => {
                self.lab.faults(|faults| faults.flush_delay = Duration::from_millis(time));
            }
            Step::Reorder(on) => self.lab.faults(|faults| faults.reorder = on),
            Step::Enlarge(blocks) => {
                self.lab.spec(|spec| spec.size += blocks * BLOCK as u64);
                match ask(|done| self.device.enlarge(0, done)).wait() {
                    Ok(size) if size == self.device.size_bytes() => {}
                    // The connection that asks was cut.
                    Err(DeviceError::Extend { .. }) => {}
                    other => return Err(format!("{other:?}")),
                }
            }
        }
        self.look()
    }

    fn inject(&mut self, command: u16) {
        self.errors_allowed += 1;
        self.lab.faults(|faults| faults.errors.push((command, 5)));
    }

    /// Takes the results of the operations that have ended.
    fn look(&mut self) -> Result<(), String> {
        for (kind, pending) in std::mem::take(&mut self.changes) {
            match pending.result() {
                None => self.changes.push((kind, pending)),
                Some(result) => self.ended(kind, result)?,
            }
        }
        for (first, oldest, at_call, pending) in std::mem::take(&mut self.reads) {
            match pending.result() {
                None => self.reads.push((first, oldest, at_call, pending)),
                Some(result) => {
                    self.found(first, &oldest, at_call, &result.map_err(|error| error.to_string())?)?
                }
            }
        }
        Ok(())
    }

    fn ended(&mut self, kind: Kind, result: Result<(), DeviceError>) -> Result<(), String> {
        if let Err(error) = result {
            // One failed flush is told to all who wait for it.
            let is_injected = error.io_error().is_some_and(|error| error.raw_os_error() == Some(5));
            return if self.errors_allowed > 0 && is_injected { Ok(()) } else { Err(error.to_string()) };
        }
        let failed_flushes = self.failed_flushes();
        let (covers, own) = match kind {
            Kind::Flush { covers } => (Some(covers), None),
            Kind::Change { first, versions, failed_flushes, through } => {
                for (block, version) in self.blocks[first as usize..].iter_mut().zip(&versions) {
                    if *version >= block.completed.0 {
                        block.completed = (*version, failed_flushes);
                    }
                }
                let own = through.is_some().then_some((first as usize, versions, failed_flushes));
                (through, own)
            }
        };
        // A flush of the server that failed since a write was asked for may have taken it: then it
        // is not the device's success that counts, but the error that was told.
        for (block, (version, at_call)) in self.blocks.iter_mut().zip(covers.into_iter().flatten()) {
            if at_call == failed_flushes {
                block.durable = block.durable.max(version);
            }
        }
        if let Some((first, versions, at_call)) = own
            && at_call == failed_flushes
        {
            for (block, version) in self.blocks[first..].iter_mut().zip(versions) {
                block.durable = block.durable.max(version);
            }
        }
        Ok(())
    }

    fn found(&self, first: u64, oldest: &[usize], at_call: u64, bytes: &[u8]) -> Result<(), String> {
        let failed_flushes = self.failed_flushes();
        let blocks = self.blocks[first as usize..].iter().zip(oldest).zip(bytes.chunks(BLOCK)).enumerate();
        for (index, ((block, &oldest), bytes)) in blocks {
            let oldest = if at_call == failed_flushes { oldest } else { oldest.min(block.durable) };
            block
                .check(oldest, bytes)
                .map_err(|error| format!("reading block {}: {error}", first as usize + index))?;
        }
        Ok(())
    }

    /// Waits for everything.
    fn settle(&mut self) -> Result<(), String> {
        let begun = Instant::now();
        while !self.changes.is_empty() || !self.reads.is_empty() {
            self.look()?;
            if begun.elapsed() > LIMIT {
                return Err(format!("{} changes and {} reads hang", self.changes.len(), self.reads.len()));
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        Ok(())
    }

    fn end(mut self) -> Result<(), String> {
        self.settle()?;
        self.lab.crash();
        self.run(Step::Read { block: 0, blocks: BLOCKS })?;
        self.settle()?;
        self.run(Step::Write { block: 3, blocks: 1, through: true })?;
        self.settle()?;
        // The client ends without a flush, and then the server crashes.
        let Self { lab, device, blocks, .. } = self;
        let reconnects = device.counters().reconnects;
        drop(device);
        lab.crash();
        let bytes = lab.store(|store| store.durable(0, BLOCKS as usize * BLOCK));
        for (index, (block, bytes)) in blocks.iter().zip(bytes.chunks(BLOCK)).enumerate() {
            block.check(block.durable, bytes).map_err(|error| {
                format!(
                    "durable block {index} after {reconnects} reconnects: {error} (all: {:?})",
                    block.versions
                )
            })?;
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: std::env::var("SYNCLINE_NBD_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(40),
        max_shrink_iters: 200,
        max_shrink_time: 20_000,
        ..ProptestConfig::default()
    })]

    #[test]
    fn what_was_promised_survives(
        seed: u64,
        kind in 0usize..5,
        kept_blocks in prop_oneof![Just(1u64 << 20), 4u64..40],
        steps in proptest::collection::vec(step(), 1..120),
    ) {
        let mut world = World::new(seed, specs()[kind], kept_blocks * BLOCK as u64);
        for step in steps {
            world.run(step).map_err(TestCaseError::fail)?;
        }
        world.end().map_err(TestCaseError::fail)?;
    }
}
