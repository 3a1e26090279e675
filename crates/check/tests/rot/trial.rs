//! Tries one rotten image: mounts, reads, writes, scrubs, checks and repairs it.

use crate::rot::overwrite::overwrite;
use crate::rot::seen::{Errors, Survey};
use crate::rot::subject::{SNAPSHOTS, Subject, spawn};
use std::sync::Arc;
use std::time::Duration;
use syncline::Filesystem;
use syncline_check::{Condition, FindingKind, RepairOptions, Scrub, check, repair};
use syncline_device::{MemoryDevice, block_on};

const NEW: &str = "written after the rot";

/// The outcome of a trial.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Outcome {
    /// Everything is there, and a check finds nothing.
    Unharmed,
    /// Everything is there, and a check reports damage.
    Found,
    /// Some results are EIO.
    Eio,
    /// It mounts only read-only.
    ReadOnly,
    /// It can't be mounted.
    Refused,
}

/// Tries an image; an error lists silent loss, wrong bytes, damage that a check misses, and
/// anything that a repair takes away.
pub fn try_out(
    subject: &Subject,
    rotten: &Arc<MemoryDevice>,
    rolled_back: bool,
) -> Result<Outcome, Vec<String>> {
    let mut wrong = Vec::new();
    let readable = readable(subject, rotten, rolled_back, &mut wrong);
    let written = match rolled_back {
        // A log without its end leads to an earlier state, for which there is no survey.
        true => None,
        false => Some(write(subject, rotten, &mut wrong)),
    };
    let found = checked(rotten);
    let clean = found.as_ref().is_ok_and(|findings| findings.is_empty());
    let errors = readable.as_ref().map_or(1, |(survey, _)| survey.errors());
    let refused = matches!(written, Some(None));
    if clean && (errors > 0 || refused) {
        wrong.push(format!("{errors} errors, mounting refused: {refused}, and the check finds nothing"));
    }
    let cut = rolled_back
        || readable
            .as_ref()
            .is_some_and(|(_, notes)| notes.iter().any(|note| note.contains("the log is damaged")));
    if subject.has_lost_one_copy(rotten) && (errors > 0 || refused) {
        wrong.push(format!("a copy is lost: {errors} errors, mounting refused: {refused}"));
    }
    mend(subject, rotten, readable.as_ref().map(|(survey, _)| survey), cut, &mut wrong);
    if !wrong.is_empty() {
        return Err(wrong);
    }
    Ok(match (&readable, refused) {
        (None, _) => Outcome::Refused,
        (Some(_), true) => Outcome::ReadOnly,
        _ if errors > 0 => Outcome::Eio,
        _ if clean => Outcome::Unharmed,
        _ => Outcome::Found,
    })
}

/// The contents and the notes of a read-only mount.
fn readable(
    subject: &Subject,
    rotten: &Arc<MemoryDevice>,
    rolled_back: bool,
    wrong: &mut Vec<String>,
) -> Option<(Survey, Vec<String>)> {
    let fs = match Filesystem::open_device(rotten.snapshot(), subject.options(true)) {
        Ok(fs) => fs,
        Err(error) => {
            if error.to_string().is_empty() {
                wrong.push("refused without a word".into());
            }
            return None;
        }
    };
    let survey = subject.survey(&fs, rotten);
    let notes = fs.recovery().notes.clone();
    let log_is_cut = notes.iter().any(|note| note.contains("the log is damaged"));
    if !log_is_cut && !rolled_back {
        let differences = survey.differences(&subject.expected, Errors::Tell);
        wrong.extend(differences.into_iter().map(|what| format!("read-only: {what}")));
    }
    Some((survey, notes))
}

/// Mounts for writing: reads everything, writes and syncs something, and verifies it after a crash.
/// `None` if the mount is refused.
fn write(subject: &Subject, rotten: &Arc<MemoryDevice>, wrong: &mut Vec<String>) -> Option<()> {
    let device = rotten.snapshot();
    let fs = Filesystem::open_device(device.clone(), subject.options(false)).ok()?;
    let before = subject.survey(&fs, rotten);
    let differences = before.differences(&subject.expected, Errors::Tell);
    wrong.extend(differences.into_iter().map(|what| format!("mounted: {what}")));
    let written = fs.write(NEW, "synced").and_then(|()| fs.open_file(NEW)?.sync_all());
    let changed = overwrite(&fs, &subject.expected);
    let crashed = device.snapshot();
    let found = scrub(&fs);
    if before.errors() > 0 && found == 0 {
        wrong.push(format!("{} errors, and the scrub finds nothing", before.errors()));
    }
    drop(fs);
    // Recovery rewrites nodes, so it may be refused if one of those is rotten; then the image is
    // opened read-only.
    let opened = Filesystem::open_device(crashed.snapshot(), subject.options(false))
        .or_else(|_| Filesystem::open_device(crashed.snapshot(), subject.options(true)));
    match opened {
        Ok(fs) => {
            if written.is_ok() && fs.read(NEW).map_err(|error| error.errno()) != Ok(b"synced".to_vec()) {
                wrong.push("what was written and synced is gone after a crash".into());
            }
            let mut after = subject.survey(&fs, &crashed);
            after.forget(&format!("/{NEW}"));
            let expected = changed.expected(&subject.expected, &after);
            let differences = after.differences(&expected, Errors::Tell);
            wrong.extend(differences.into_iter().map(|what| format!("after a crash: {what}")));
        }
        Err(error) => wrong.push(format!("mounted once, and after a crash no more: {error}")),
    }
    Some(())
}

/// Number of findings of a complete scrub.
fn scrub(fs: &Filesystem) -> usize {
    let scrub = Scrub::new(fs.engine().store(), spawn());
    scrub.start(0);
    while scrub.report().running {
        std::thread::sleep(Duration::from_micros(200));
    }
    scrub.report().findings.len()
}

/// The findings of a check, or the reason why it failed.
fn checked(device: &Arc<MemoryDevice>) -> Result<Vec<String>, String> {
    let report =
        block_on(check(device.snapshot(), spawn(), &mut |_| {})).map_err(|error| error.to_string())?;
    Ok(report.findings.iter().map(ToString::to_string).collect())
}

/// Repairs: everything readable before must be readable afterwards, nothing unreadable may read as
/// something else, and an image called clean must be clean. With `cut` the end of the log is lost,
/// so an earlier state is right.
fn mend(
    subject: &Subject,
    rotten: &Arc<MemoryDevice>,
    before: Option<&Survey>,
    cut: bool,
    wrong: &mut Vec<String>,
) {
    let device = rotten.snapshot();
    let options = RepairOptions { accept_loss: true, flaw: subject.flaw, ..RepairOptions::default() };
    let repaired = match block_on(repair(device.clone(), spawn(), &options, &mut |_| {})) {
        Ok(repaired) => repaired,
        Err(error) => {
            if device.image() != rotten.image() {
                wrong.push(format!("repair: changed the image and failed: {error}"));
            }
            return;
        }
    };
    let condition = repaired.condition();
    let changed = device.image() != rotten.image();
    if changed && (repaired.after.is_none() || repaired.changes.is_empty()) {
        wrong.push(format!("repair: changed the image without a word: {:?}", repaired.refused));
    }
    let left = checked(&device);
    if condition != Condition::Damaged && left != Ok(Vec::new()) {
        wrong.push(format!("repair: called {condition:?}, and a check says {left:?}"));
    }
    let cut = cut || repaired.changes.iter().any(|change| change.kind == FindingKind::LogDamaged);
    if !cut && let Ok(fs) = Filesystem::open_device(device.snapshot(), subject.options(true)) {
        let mut after = subject.survey(&fs, &device);
        wrong.extend(after.lies(&subject.expected).into_iter().map(|what| format!("repair: {what}")));
        if subject.has_lost_one_copy(rotten) {
            let mut right = subject.expected.clone();
            right.forget_counts();
            after.forget_counts();
            let lost = after.differences(&right, Errors::Lose);
            wrong.extend(lost.into_iter().map(|what| format!("repair of a copy: {what}")));
        }
    }
    match (Filesystem::open_device(device.snapshot(), subject.options(true)), before) {
        (Ok(fs), Some(before)) => {
            let (mut before, mut after) = (before.clone(), subject.survey(&fs, &device));
            // A repair recomputes counts.
            before.forget_counts();
            after.forget_counts();
            // Without its space map nobody knows which blocks a snapshot needs. The loss was accepted.
            for name in SNAPSHOTS {
                let told = format!("snapshot {name:?} → the snapshot is given up");
                if repaired.changes.iter().any(|change| change.text.contains(&told)) {
                    before.forget_snapshot(name);
                    after.forget_snapshot(name);
                }
            }
            let lost = after.differences(&before, Errors::Lose);
            wrong.extend(lost.into_iter().map(|what| format!("repair: {what}; {:?}", repaired.changes)));
        }
        (Err(error), Some(_)) => wrong.push(format!("repair: mounted before, and not any more: {error}")),
        (Err(error), None) if condition != Condition::Damaged => {
            wrong.push(format!("repair: called {condition:?}, and can't be mounted: {error}"));
        }
        _ => {}
    }
}
