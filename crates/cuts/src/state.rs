//! A state that a power cut may leave, and its short name.
//!
//! `41`: after 41 events, with everything that was submitted. `41.l2.l5`: the second and the fifth
//! of the open writes are lost. `41.t3x17`: the third is torn, in the way numbered 17. `41.kd3`: of
//! the open writes only the ones in the mask are there (four to a digit, least significant bit
//! first). `41.s9`: seed 9 decides.

use crate::{CutsError, Recording};
use std::fmt;
use syncline_powercut::{CrashImages, Cut, Fate};

/// Most lost writes that are named one by one; beyond that the name has a mask.
const NAMED_MAX: usize = 8;

/// A state that a power cut may leave.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct State {
    /// Number of events before the power cut.
    pub position: usize,
    /// The fates of the writes open at that time.
    pub choice: Choice,
}

/// The fates of the open writes.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Choice {
    /// Given one by one.
    Fates(Vec<Fate>),
    /// Decided by a seed.
    Seed(u64),
}

impl State {
    /// The simplest name of the state in which the writes that were open at some time since `from`
    /// have these fates. The power cut comes as early as possible, so that writes that never
    /// arrived had not been submitted.
    pub fn earliest(from: usize, open: &[usize], fates: &[Fate]) -> Self {
        let last = fates.iter().rposition(|fate| *fate != Fate::Lost);
        let position = last.map_or(from, |last| from.max(open[last] + 1));
        let known = open.iter().take_while(|id| **id < position).count();
        let mut fates = fates.to_vec();
        fates.resize(known, Fate::Lost);
        Self { position, choice: Choice::Fates(fates) }
    }

    /// The fates of the writes that are open at `cut`.
    pub fn fates(&self, cut: &Cut) -> Vec<Fate> {
        match &self.choice {
            Choice::Fates(fates) => fates.clone(),
            Choice::Seed(seed) => cut.fates(*seed),
        }
    }

    /// Number of writes that are not whole.
    pub fn missing(&self) -> usize {
        match &self.choice {
            Choice::Fates(fates) => fates.iter().filter(|fate| **fate != Fate::Kept).count(),
            Choice::Seed(_) => usize::MAX,
        }
    }

    /// Parses a state's name and makes its power cut.
    pub fn parse(text: &str, recording: &Recording) -> Result<(Self, Cut), CutsError> {
        let bad = |detail: &str| CutsError::state(text, detail);
        let mut words = text.split('.');
        let position = words.next().and_then(|word| word.parse().ok());
        let position: usize = position.ok_or_else(|| bad("it begins with a number of events"))?;
        if position > recording.events.len() {
            return Err(bad(&format!("there are only {} events", recording.events.len())));
        }
        let cut = recording.cut(position);
        let mut fates = vec![Fate::Kept; cut.open().len()];
        for word in words {
            let unknown = || bad(&format!("'{word}' is not understood"));
            let (letter, rest) = word.split_at_checked(1).ok_or_else(unknown)?;
            match letter {
                "s" if fates.iter().all(|fate| *fate == Fate::Kept) => {
                    let seed = u64::from_str_radix(rest, 16).map_err(|_| unknown())?;
                    return Ok((Self { position, choice: Choice::Seed(seed) }, cut));
                }
                "k" => keep_only(&mut fates, rest).ok_or_else(unknown)?,
                "l" => *one(&mut fates, rest).ok_or_else(unknown)? = Fate::Lost,
                "t" => {
                    let (number, seed) = rest.split_once('x').ok_or_else(unknown)?;
                    let seed = seed.parse().map_err(|_| unknown())?;
                    *one(&mut fates, number).ok_or_else(unknown)? = Fate::Torn(seed);
                }
                _ => return Err(unknown()),
            }
        }
        Ok((Self { position, choice: Choice::Fates(fates) }, cut))
    }
}

/// The write with this number, counted from 1.
fn one<'a>(fates: &'a mut [Fate], number: &str) -> Option<&'a mut Fate> {
    fates.get_mut(number.parse::<usize>().ok()?.checked_sub(1)?)
}

/// Parses a mask.
fn keep_only(fates: &mut [Fate], mask: &str) -> Option<()> {
    let digits: Vec<u32> = mask.chars().map(|digit| digit.to_digit(16)).collect::<Option<_>>()?;
    for (index, fate) in fates.iter_mut().enumerate() {
        let kept = digits.get(index / 4).is_some_and(|digit| digit >> (index % 4) & 1 == 1);
        *fate = if kept { Fate::Kept } else { Fate::Lost };
    }
    Some(())
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.position)?;
        let fates = match &self.choice {
            Choice::Fates(fates) => fates,
            Choice::Seed(seed) => return write!(f, ".s{seed:x}"),
        };
        let numbers = |wanted: Fate| (1..).zip(fates).filter(move |(_, fate)| **fate == wanted);
        if numbers(Fate::Lost).count() > NAMED_MAX {
            write!(f, ".k")?;
            for four in fates.chunks(4) {
                let bits = (0..).zip(four).map(|(bit, fate)| u32::from(*fate == Fate::Kept) << bit);
                write!(f, "{:x}", bits.sum::<u32>())?;
            }
        } else {
            numbers(Fate::Lost).try_for_each(|(number, _)| write!(f, ".l{number}"))?;
        }
        for (number, fate) in (1..).zip(fates) {
            if let Fate::Torn(seed) = fate {
                write!(f, ".t{number}x{seed}")?;
            }
        }
        Ok(())
    }
}

impl Recording {
    /// A walk over the power cuts, from front to back.
    pub fn images(&self) -> CrashImages {
        // The seed decides the contents of discarded blocks.
        CrashImages::new(&self.base, self.events.clone(), 0)
    }

    /// The power cut after this many events.
    pub fn cut(&self, position: usize) -> Cut {
        self.images().cut(position)
    }
}
