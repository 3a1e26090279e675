//! The checker: the rules that must hold, and whether they do.
//!
//! A record may be asked for before the successor had the image, and acknowledged after that. It is
//! no violation if the successor found it: its sync ended before, and only the answer was late. If
//! the successor did not find it, it is lost. A record that was asked for later may not be
//! acknowledged at all.

use super::journal::{Asked, Id, Place, contents};
use super::view::Found;
use super::writers::CELL_BYTES;
use std::collections::BTreeMap;
use std::time::Instant;

/// The checker's findings, a line each.
pub type Violations = Vec<String>;

/// A mount that was followed by another one.
pub struct Followed<'a> {
    pub mount: u64,
    pub journal: &'a BTreeMap<Id, Asked>,
    /// The records of this mount that the successor found.
    pub found: &'a Found,
    /// The contents of the cell that the successor found.
    pub cell: &'a [u8],
    /// The contents of the cell that this mount had found.
    pub cell_before: &'a [u8],
    /// When the successor had the image, at the latest.
    pub since: Instant,
}

impl Followed<'_> {
    /// Everything that is wrong with a mount whose writers have ended.
    pub fn check(&self) -> Violations {
        let mut wrong = self.late();
        wrong.extend(self.log());
        wrong.extend(self.files());
        wrong.extend(self.cell());
        wrong
    }

    fn late(&self) -> Violations {
        let late = self.journal.iter().filter(|(_, asked)| asked.at > self.since);
        late.filter_map(|(id, asked)| Some((id, asked.at, asked.acknowledged?)))
            .map(|(id, at, acknowledged)| {
                let mount = self.mount;
                let (asked, answered) = (at - self.since, acknowledged - self.since);
                format!(
                    "two holders: mount {mount} acknowledged {id:?}, asked {asked:?} and answered {answered:?} after its successor had the image"
                )
            })
            .collect()
    }

    fn of(&self, place: Place) -> impl Iterator<Item = (&Id, &Asked)> {
        self.journal.iter().filter(move |((of, _), _)| *of == place)
    }

    fn lost(&self, id: Id, asked: &Asked) -> String {
        let before = self.since.saturating_duration_since(asked.acknowledged.unwrap_or(self.since));
        format!(
            "lost: mount {} acknowledged {id:?} {before:?} before its successor had the image",
            self.mount
        )
    }

    fn log(&self) -> Violations {
        let mut wrong = Violations::new();
        let mut end = 0;
        for (id, asked) in self.of(Place::Log) {
            let (from, to) = (asked.offset as usize, asked.offset as usize + asked.len);
            end = end.max(to);
            let expected = contents(self.mount, *id, asked.len);
            let log = &self.found.log;
            let found = &log[from.min(log.len())..to.min(log.len())];
            if found == expected {
                continue;
            }
            if asked.acknowledged.is_some() {
                wrong.push(self.lost(*id, asked));
            } else if !is_part(found, &expected) {
                wrong.push(format!("garbage: in the place of {id:?} of mount {}", self.mount));
            }
        }
        if self.found.log.len() > end {
            wrong.push(format!("garbage: mount {} has a log of more than it wrote", self.mount));
        }
        wrong
    }

    fn files(&self) -> Violations {
        let mut wrong = Violations::new();
        for (id, asked) in self.of(Place::Files) {
            let expected = contents(self.mount, *id, asked.len);
            match self.found.files.get(&id.1) {
                Some(found) if *found == expected => {}
                _ if asked.acknowledged.is_some() => wrong.push(self.lost(*id, asked)),
                Some(found) if !is_part(found, &expected) => {
                    wrong.push(format!("garbage: file {id:?} of mount {}", self.mount));
                }
                _ => {}
            }
        }
        let unknown = self.found.files.keys().filter(|n| !self.journal.contains_key(&(Place::Files, **n)));
        wrong.extend(unknown.map(|number| format!("garbage: mount {} made no file {number}", self.mount)));
        wrong
    }

    /// The newest that was acknowledged, or one that was asked for later.
    fn cell(&self) -> Violations {
        let acknowledged = self.of(Place::Cell).filter(|(_, asked)| asked.acknowledged.is_some()).last();
        let least = acknowledged.map(|((_, number), _)| *number);
        if self.cell == self.cell_before && least.is_none() {
            return Violations::new();
        }
        let number = self.cell.get(8..16).map(|bytes| u64::from_le_bytes(bytes.try_into().expect("eight")));
        let own = number.filter(|number| {
            self.journal.contains_key(&(Place::Cell, *number))
                && self.cell == contents(self.mount, (Place::Cell, *number), CELL_BYTES)
        });
        match own {
            Some(number) if least.is_none_or(|least| number >= least) => Violations::new(),
            // A file that was made and never written.
            None if least.is_none() && self.cell.is_empty() => Violations::new(),
            _ => vec![format!(
                "lost: the cell has record {number:?} (whole: {}), where mount {} acknowledged {least:?}",
                own.is_some(),
                self.mount
            )],
        }
    }
}

/// True if these bytes are the record that was to be written, as far as its bytes are there.
fn is_part(found: &[u8], expected: &[u8]) -> bool {
    found.len() <= expected.len()
        && found.iter().zip(expected).all(|(found, expected)| found == expected || *found == 0)
}

/// Whether the records found of a mount are still there, unchanged.
pub fn unchanged(mount: u64, before: &Found, now: &Found) -> Violations {
    if before == now {
        return Violations::new();
    }
    let files = before.files.iter().filter(|(number, bytes)| now.files.get(number) != Some(bytes)).count();
    let more = now.files.keys().filter(|number| !before.files.contains_key(number)).count();
    vec![format!(
        "changed: what a host had found of mount {mount} is not what the next one finds: log of {} bytes, now {} ({}), {files} files differ, {more} are new",
        before.log.len(),
        now.log.len(),
        if before.log == now.log { "equal" } else { "other" },
    )]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    struct Case {
        journal: BTreeMap<Id, Asked>,
        found: Found,
        cell: Vec<u8>,
        since: Instant,
    }

    /// Two records in each place, the second one not acknowledged.
    fn case() -> Case {
        let at = Instant::now();
        let since = at + Duration::from_secs(1);
        let mut case = Case { journal: BTreeMap::new(), found: Found::default(), cell: Vec::new(), since };
        for place in Place::ALL {
            for number in 0..2 {
                let len = if place == Place::Cell { CELL_BYTES } else { 5000 };
                let acknowledged = (number == 0).then_some(at);
                let asked = Asked { at, acknowledged, offset: number * 5000, len };
                case.journal.insert((place, number), asked);
            }
        }
        case.found.log = contents(3, (Place::Log, 0), 5000);
        case.found.files.insert(0, contents(3, (Place::Files, 0), 5000));
        case.cell = contents(3, (Place::Cell, 0), CELL_BYTES);
        case
    }

    fn check(change: impl FnOnce(&mut Case)) -> Violations {
        let mut case = case();
        change(&mut case);
        let Case { journal, found, cell, since } = &case;
        Followed { mount: 3, journal, found, cell, cell_before: &[], since: *since }.check()
    }

    #[track_caller]
    fn assert_one(wrong: &Violations, what: &str) {
        assert!(wrong.len() == 1 && wrong[0].starts_with(what), "{wrong:?}");
    }

    #[test]
    fn what_may_be_is_no_violation() {
        assert_eq!(check(|_| {}), Violations::new());
        // Records that nobody acknowledged may be there, wholly or as far as they got.
        let more = check(|case| {
            case.found.log.extend(&contents(3, (Place::Log, 1), 5000)[..3192]);
            case.found.files.insert(1, Vec::new());
            case.cell = contents(3, (Place::Cell, 1), CELL_BYTES);
        });
        assert_eq!(more, Violations::new());
        // An answer that is late, of a sync that was not.
        let late = check(|case| {
            let since = case.since;
            case.journal.get_mut(&(Place::Log, 0)).unwrap().acknowledged =
                Some(since + Duration::from_secs(9));
        });
        assert_eq!(late, Violations::new());
    }

    #[test]
    fn what_is_lost_is_found() {
        assert_one(&check(|case| case.found.log.truncate(4999)), "lost: mount 3 acknowledged (Log, 0)");
        assert_one(&check(|case| case.found.log[4500] = 0), "lost: ");
        assert_one(&check(|case| drop(case.found.files.remove(&0))), "lost: mount 3 acknowledged (Files, 0)");
        assert_one(&check(|case| case.cell.clear()), "lost: the cell");
        assert_one(&check(|case| case.cell[4000] ^= 1), "lost: the cell");
        let older = |case: &mut Case| {
            let acknowledged = Some(case.since);
            case.journal.get_mut(&(Place::Cell, 1)).unwrap().acknowledged = acknowledged;
        };
        assert_one(&check(older), "lost: the cell");
    }

    #[test]
    fn two_holders_and_garbage_are_found() {
        let late = check(|case| {
            let at = case.since + Duration::from_millis(1);
            let asked = Asked { at, acknowledged: Some(at), offset: 10_000, len: 0 };
            case.journal.insert((Place::Log, 2), asked);
        });
        assert_one(&late, "two holders");
        assert_one(&check(|case| case.found.log.extend([7; 10])), "garbage");
        assert_one(&check(|case| drop(case.found.files.insert(9, Vec::new()))), "garbage");
    }

    #[test]
    fn what_changes_later_is_found() {
        let before = case().found;
        assert_eq!(unchanged(3, &before, &before.clone()), Violations::new());
        let mut now = before.clone();
        now.log.push(0);
        assert_one(&unchanged(3, &before, &now), "changed");
        now = before.clone();
        now.files.insert(1, Vec::new());
        assert_one(&unchanged(3, &before, &now), "changed");
    }
}
