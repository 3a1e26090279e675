//! A state that a power cut may leave, and its short name. The name counts the events of the program,
//! from 1.
//!
//! `41`: after 41 events, with all their changes. `41.l17`: the change of event 17 is lost.
//! `41.l17-19`: those of events 17 to 19, as far as they are changes. `41.t17b4096`: of the write of
//! event 17 only the bytes before offset 4096 of the file are there; of a truncate, it leaves 4096 bytes;
//! `f4096`: only those from there on; `s`: only its size; `f0b512s4096`: only the bytes from 0 to 512, and
//! the size up to 4096; `w0b512`: all but those; `w0b512s4096`: of these, those up to 4096. `41.t17l`: the
//! file of the rename of event 17 has both names; `u`: what it replaces has lost the name, and nothing has it;
//! `g`: the file has lost the old name, and has not got the new one; `n`: the inode that event 17 creates never had that name.

use crate::Error;
use crate::action::Event;
use crate::model::Part;
use std::collections::BTreeMap;

/// A state that a power cut may leave.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct State {
    /// Number of events before the power cut.
    pub position: usize,
    /// The changes that are lost; of a torn write, the part that is there.
    pub lost: BTreeMap<usize, Option<Part>>,
}

impl State {
    /// Parses the name of a state, where the program's first event is at `begin`.
    pub fn parse(text: &str, events: &[Event], begin: usize) -> Result<Self, Error> {
        let bad = |detail: &str| Error::State { text: text.to_owned(), detail: detail.to_owned() };
        let mut words = text.split('.');
        let position = words.next().and_then(|word| word.parse::<usize>().ok());
        let position = position.ok_or_else(|| bad("it begins with a number of events"))?;
        let count = events.len() - begin.min(events.len());
        if position > count {
            return Err(bad(&format!("there are only {count} events")));
        }
        let mut lost = BTreeMap::new();
        for word in words {
            let parsed = lost_by(word).filter(|(range, _)| range.start > 0 && range.end <= position + 1);
            let (range, part) = parsed.ok_or_else(|| bad(&format!("'{word}' is not understood")))?;
            let changes = range.map(|number| begin + number - 1).filter(|at| events[*at].action.is_change());
            lost.extend(changes.map(|at| (at, part)));
        }
        Ok(Self { position: begin + position, lost })
    }
}

fn lost_by(word: &str) -> Option<(std::ops::Range<usize>, Option<Part>)> {
    let (letter, rest) = word.split_at_checked(1)?;
    if letter == "l" {
        let (first, last) = rest.split_once('-').unwrap_or((rest, rest));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        return Some((first..last.checked_add(1)?, None));
    }
    if letter != "t" {
        return None;
    }
    let digits = rest.find(|c: char| !c.is_ascii_digit())?;
    let (at, part) = rest.split_at(digits);
    let at: usize = at.parse().ok()?;
    let part = match part.split_at_checked(1)? {
        ("s", "") => Part::Size,
        ("l", "") => Part::Linked,
        ("u", "") => Part::Unlinked,
        ("g", "") => Part::Left,
        ("n", "") => Part::Unnamed,
        ("b", offset) => Part::Before(offset.parse().ok()?),
        ("w", rest) => {
            let (from, rest) = rest.split_once('b')?;
            let (before, size) =
                rest.split_once('s').map_or((rest, None), |(before, size)| (before, Some(size)));
            let size = size.map(str::parse).transpose().ok()?;
            Part::Without { from: from.parse().ok()?, before: before.parse().ok()?, size }
        }
        ("f", rest) => match rest.split_once('b') {
            None => Part::From(rest.parse().ok()?),
            Some((from, rest)) => {
                let (before, size) = rest.split_once('s')?;
                let (from, before, size) = (from.parse().ok()?, before.parse().ok()?, size.parse().ok()?);
                Part::Slice { from, before, size }
            }
        },
        _ => return None,
    };
    Some((at..at.checked_add(1)?, Some(part)))
}

impl State {
    /// The name of the state, where the program's first event is at `begin`.
    pub fn name(&self, begin: usize) -> String {
        let number = |at: usize| (at + 1).saturating_sub(begin);
        let mut name = self.position.saturating_sub(begin).to_string();
        let whole: Vec<usize> =
            self.lost.iter().filter(|(_, part)| part.is_none()).map(|(at, _)| *at).collect();
        for run in whole.chunk_by(|one, next| one + 1 == *next) {
            name += &match run {
                [one] => format!(".l{}", number(*one)),
                run => format!(".l{}-{}", number(run[0]), number(run[run.len() - 1])),
            };
        }
        for (at, part) in &self.lost {
            let Some(part) = part else { continue };
            name += &format!(".t{}", number(*at));
            name += &match part {
                Part::Size => "s".to_owned(),
                Part::Without { from, before, size: None } => format!("w{from}b{before}"),
                Part::Without { from, before, size: Some(size) } => format!("w{from}b{before}s{size}"),
                Part::Linked => "l".to_owned(),
                Part::Unlinked => "u".to_owned(),
                Part::Left => "g".to_owned(),
                Part::Unnamed => "n".to_owned(),
                Part::Before(offset) => format!("b{offset}"),
                Part::From(offset) => format!("f{offset}"),
                Part::Slice { from, before, size } => format!("f{from}b{before}s{size}"),
            };
        }
        name
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::action::Action;

    #[test]
    fn a_name_comes_back() {
        let action = Action::Truncate { ino: 2, from: 0, to: 1 };
        let events = vec![Event { time_ns: 0, pid: 0, program: None, stack: 0, action }; 40];
        for name in [
            "30",
            "30.l3.l7-9.t2b4096.t5f512.t6s",
            "12.t3f0b512s4096.t4l.t5w0b512.t6u.t8n.t9g",
            "9.t3w0b512s4096",
        ] {
            assert_eq!(State::parse(name, &events, 10).unwrap().name(10), name);
        }
        for name in ["31", "x", "3.l4", "9.l0", "9.t3", "9.t3f1b2", "9.q"] {
            assert!(State::parse(name, &events, 10).is_err(), "{name}");
        }
    }
}
