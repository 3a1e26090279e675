//! A run in a file: seed, plan and, if the run was reduced, its remaining pieces.
//!
//! ```text
//! # what went wrong
//! subject store
//! seed 160
//! plan cycles=2 lives=2 images=6 recovery_cuts=1 faults=false tasks=4 actions=5..60 pressure=false
//! canary reuse-early
//! keep action 0 1 17
//! keep fault 0 2
//! ```

use crate::lab::{Load, Plan, Subject, run_script};
use crate::{FsSubject, Piece, Script, StoreSubject};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::str::FromStr;

/// The engine that a case puts through power cuts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CaseSubject {
    /// The store alone.
    Store,
    /// The whole filesystem.
    Fs,
    /// The whole filesystem with snapshots, quotas and all other features.
    Everything,
}

/// A run that a few lines describe and that can be repeated from them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Case {
    /// The engine.
    pub subject: CaseSubject,
    /// The seed of everything random.
    pub seed: u64,
    /// How the run is done.
    pub plan: Plan,
    /// The pieces that take part; `None`: all.
    pub pieces: Option<Vec<Piece>>,
}

impl Case {
    /// Runs the case. Returns the failure, if any, and the pieces that took part.
    pub fn run(&self) -> (Result<(), String>, Vec<Piece>) {
        let script = self.pieces.as_ref().map_or_else(Script::whole, |pieces| Script::only(pieces));
        let run = || match self.subject {
            CaseSubject::Store => run_one(&StoreSubject, self, &script),
            CaseSubject::Fs => run_one(&FsSubject::PLAIN, self, &script),
            CaseSubject::Everything => run_one(&FsSubject::EVERYTHING, self, &script),
        };
        let outcome = catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            Err(format!("panicked: {}", text.unwrap_or_default()))
        });
        (outcome, script.taken())
    }

    /// Reduces a failing case to fewer pieces, in at most `tries` runs; `None` if it does not fail.
    pub fn reduced(&self, tries: usize) -> Option<Self> {
        let (outcome, pieces) = self.run();
        outcome.err()?;
        let with = |pieces: &[Piece]| Self { pieces: Some(pieces.to_vec()), ..self.clone() };
        let left = crate::reduce(&pieces, tries, |some| with(some).run().0.is_err());
        Some(with(&left))
    }
}

fn run_one<S: Subject>(subject: &S, case: &Case, script: &std::sync::Arc<Script>) -> Result<(), String> {
    run_script(subject, case.seed, case.plan, script).map(drop)
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Plan { cycles, lives, images, recovery_cuts, faults, canary, load, slow, through } = self.plan;
        let Load { tasks, actions: (least, most), pressure } = load;
        let subject = match self.subject {
            CaseSubject::Store => "store",
            CaseSubject::Fs => "fs",
            CaseSubject::Everything => "everything",
        };
        writeln!(f, "subject {subject}\nseed {}", self.seed)?;
        writeln!(
            f,
            "plan cycles={cycles} lives={lives} images={images} recovery_cuts={recovery_cuts} faults={faults} tasks={tasks} actions={least}..{most} pressure={pressure} slow={slow}"
        )?;
        if let Some(through) = through {
            writeln!(f, "plan through={through}")?;
        }
        if let Some(canary) = canary {
            writeln!(f, "canary {canary}")?;
        }
        self.pieces.iter().flatten().try_for_each(|piece| writeln!(f, "keep {piece}"))
    }
}

impl FromStr for Case {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut case = Self { subject: CaseSubject::Store, seed: 0, plan: Plan::default(), pieces: None };
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        for line in lines {
            let (word, rest) = line.split_once(' ').ok_or_else(|| format!("'{line}' says nothing"))?;
            match word {
                "subject" if rest == "store" => case.subject = CaseSubject::Store,
                "subject" if rest == "fs" => case.subject = CaseSubject::Fs,
                "subject" if rest == "everything" => case.subject = CaseSubject::Everything,
                "seed" => case.seed = number(rest)?,
                "plan" => rest.split_whitespace().try_for_each(|setting| set(&mut case.plan, setting))?,
                "canary" => case.plan.canary = Some(rest.parse()?),
                "keep" => case.pieces.get_or_insert_default().push(rest.parse()?),
                _ => return Err(format!("'{line}' is not understood")),
            }
        }
        Ok(case)
    }
}

fn number<T: FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("'{text}' is no value"))
}

fn set(plan: &mut Plan, setting: &str) -> Result<(), String> {
    let (name, value) = setting.split_once('=').ok_or_else(|| format!("'{setting}' sets nothing"))?;
    match name {
        "cycles" => plan.cycles = number(value)?,
        "lives" => plan.lives = number(value)?,
        "images" => plan.images = number(value)?,
        "recovery_cuts" => plan.recovery_cuts = number(value)?,
        "faults" => plan.faults = number(value)?,
        "tasks" => plan.load.tasks = number(value)?,
        "through" => plan.through = Some(number(value)?),
        "slow" => plan.slow = number(value)?,
        "pressure" => plan.load.pressure = number(value)?,
        "actions" => {
            let (least, most) = value.split_once("..").ok_or_else(|| format!("'{value}' is no range"))?;
            plan.load.actions = (number(least)?, number(most)?);
        }
        _ => return Err(format!("a plan has no '{name}'")),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_is_what_its_text_says() {
        let case = Case {
            subject: CaseSubject::Fs,
            seed: 77,
            plan: Plan {
                faults: true,
                canary: Some("late-joiner".parse().unwrap()),
                slow: true,
                through: Some(false),
                ..Plan::long()
            },
            pieces: Some(vec![
                Piece::Action { life: 0, task: 3, index: 12 },
                Piece::Fault { life: 1, index: 0 },
            ]),
        };
        assert_eq!(case.to_string().parse(), Ok(case));
        assert!("subject nothing".parse::<Case>().is_err());
        assert!("plan speed=3".parse::<Case>().is_err());
    }
}
