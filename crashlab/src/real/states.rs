//! What a power cut may leave on the disk of a run: everything before the last flush, and of the writes
//! since then any that arrived.

use super::disk::Access;
use super::replay::Run;
use crate::Error;
use crate::contents::Contents;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::HashMap;
use std::fmt;

/// Random choices of writes for one stretch between two flushes.
const RANDOM: usize = 8;
/// The most choices of one kind for one stretch.
const EACH_MAX: usize = 24;
/// Where a write is torn within a block of 4096 bytes, if the sectors are smaller.
pub(crate) const TORN_AT: u64 = 2560;
const BLOCK: u64 = 4096;

/// Which writes since the last flush have arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kept {
    /// All.
    All,
    /// All but this one, counted from the last flush.
    Without(usize),
    /// Those that a generator with this seed chooses.
    Random(u64),
    /// All, but of this one only the first bytes.
    Torn(usize, u64),
    /// All before this one, and its first bytes.
    TornLast(usize, u64),
}

/// A power cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cut {
    /// Accesses before it.
    pub at: usize,
    /// Which of the last have arrived.
    pub kept: Kept,
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.at)?;
        match self.kept {
            Kept::All => Ok(()),
            Kept::Without(which) => write!(f, ".w{which}"),
            Kept::Random(seed) => write!(f, ".r{seed}"),
            Kept::Torn(which, bytes) => write!(f, ".t{which}b{bytes}"),
            Kept::TornLast(which, bytes) => write!(f, ".e{which}b{bytes}"),
        }
    }
}

/// The contents of a disk after a power cut, and the cuts that leave them.
pub struct DiskState {
    /// The disk.
    pub image: Contents,
    /// The power cuts, each with the number of events of the program that had happened.
    pub cuts: Vec<(Cut, usize)>,
}

/// The different states of a run, in the order of the log.
pub fn disk_states(run: &Run, sector: u64, seed: u64) -> Result<Vec<DiskState>, Error> {
    let mut found = States { run, sector, states: Vec::new(), known: HashMap::new() };
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut base = run.base.clone();
    let mut begin = 0;
    for end in 0..=run.log.len() {
        if matches!(run.log.get(end), None | Some(Access::Flush)) {
            found.stretch(&base, begin, end, &mut rng)?;
            run.log[begin..end].iter().try_for_each(|access| access.apply(&mut base))?;
            begin = end + 1;
        }
    }
    Ok(found.states)
}

struct States<'a> {
    run: &'a Run,
    sector: u64,
    states: Vec<DiskState>,
    known: HashMap<u128, usize>,
}

impl States<'_> {
    /// The states between two flushes.
    fn stretch(
        &mut self,
        base: &Contents,
        begin: usize,
        end: usize,
        rng: &mut ChaCha8Rng,
    ) -> Result<(), Error> {
        let count = end - begin;
        let mut cuts: Vec<Cut> = (begin..=end).map(|at| Cut { at, kept: Kept::All }).collect();
        let mut all: Vec<usize> = (0..count).collect();
        all.shuffle(rng);
        all.truncate(EACH_MAX);
        let at_end = |kept| Cut { at: end, kept };
        cuts.extend(
            all.iter().filter(|which| **which + 1 < count).map(|which| at_end(Kept::Without(*which))),
        );
        if count > 2 {
            cuts.extend((0..RANDOM).map(|_| at_end(Kept::Random(rng.random_range(0..1000)))));
        }
        for which in all {
            if let Some(bytes) = self.torn_at(begin + which, rng) {
                cuts.push(at_end(Kept::Torn(which, bytes)));
                cuts.push(Cut { at: begin + which + 1, kept: Kept::TornLast(which, bytes) });
            }
        }
        cuts.into_iter().try_for_each(|cut| self.add(base, begin, cut))
    }

    /// Where a write can be torn.
    fn torn_at(&self, access: usize, rng: &mut ChaCha8Rng) -> Option<u64> {
        let Access::Write(offset, bytes) = &self.run.log[access] else { return None };
        let first = (offset / BLOCK + 1) * BLOCK;
        let end = offset + bytes.len() as u64;
        let mut places: Vec<u64> = (first..end).step_by(BLOCK as usize).collect();
        if self.sector < BLOCK {
            places.extend((offset / BLOCK * BLOCK..end).step_by(BLOCK as usize).map(|block| block + TORN_AT));
        }
        places.retain(|place| (offset + 1..end).contains(place));
        (!places.is_empty()).then(|| places[rng.random_range(0..places.len())] - offset)
    }

    fn add(&mut self, base: &Contents, begin: usize, cut: Cut) -> Result<(), Error> {
        let image = image(base, &self.run.log[begin..cut.at], cut.kept)?;
        let states = &mut self.states;
        let index = *self.known.entry(image.digest()).or_insert_with(|| {
            states.push(DiskState { image, cuts: Vec::new() });
            states.len() - 1
        });
        let position = self.run.position(cut.at);
        let cuts = &mut states[index].cuts;
        if cuts.iter().all(|(_, other)| *other != position) {
            cuts.push((cut, position));
        }
        Ok(())
    }
}

/// The disk with these writes after the last flush.
fn image(base: &Contents, log: &[Access], kept: Kept) -> Result<Contents, Error> {
    let mut image = base.clone();
    let mut rng = match kept {
        Kept::Random(seed) => ChaCha8Rng::seed_from_u64(seed),
        _ => ChaCha8Rng::seed_from_u64(0),
    };
    for (at, access) in log.iter().enumerate() {
        match (kept, access) {
            (Kept::Without(which), _) if which == at => {}
            (Kept::Random(_), _) if rng.random_bool(0.5) => {}
            (Kept::Torn(which, len) | Kept::TornLast(which, len), Access::Write(offset, bytes))
                if which == at =>
            {
                image.write(*offset, &bytes[..(len as usize).min(bytes.len())])?;
            }
            _ => access.apply(&mut image)?,
        }
    }
    Ok(image)
}
