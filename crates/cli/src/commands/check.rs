//! `syncline check`: reads everything and reports damage; with `--repair` repairs it.

use super::found::{self, Paths};
use super::image;
use super::mounted::refuse_mounted;
use super::snapshot::base_of;
use crate::failure::{Failure, Outcome};
use crate::printed::{left_out, several};
use indicatif::ProgressBar;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use syncline_check::{
    CheckError, Condition, FINDINGS_MAX, Finding, FindingKind, Progress, Readable, Repair, RepairOptions,
    Report, Stage,
};
use syncline_device::{OpenOptions, block_on};
use syncline_image::How;
use syncline_store::StoreError;

/// fsck(8)'s exit code for "errors were corrected".
pub const REPAIRED: u8 = 1;
/// fsck(8)'s exit code for "errors are left uncorrected".
pub const ERRORS_FOUND: u8 = 4;
/// fsck(8)'s exit code for an operational error.
pub const OPERATIONAL_ERROR: u8 = 8;
/// fsck(8)'s exit code for a usage error.
pub const WRONG_USAGE: u8 = 16;
const BLOCK_BYTES: u64 = syncline_format::BLOCK_BYTES as u64;

/// Arguments of `check`.
#[derive(clap::Args)]
pub struct Args {
    /// Image file or block device that is not mounted
    image: PathBuf,
    /// Repair without asking, and check again
    #[arg(long, short = 'y')]
    repair: bool,
    /// Repair only if nothing is given up or removed, as for a check at boot; otherwise change
    /// nothing, and exit with code 4
    #[arg(short = 'p', visible_short_alias = 'a', conflicts_with = "repair")]
    preen: bool,
    /// Only look, as without --repair
    #[arg(short = 'n', conflicts_with_all = ["repair", "preen"])]
    _only_look: bool,
    /// Check it even if it was unmounted cleanly, as is done in any case
    #[arg(short = 'f')]
    _force: bool,
    /// With --repair: go on although a large part of the image's contents has to be given up
    #[arg(long, requires = "repair")]
    accept_loss: bool,
    /// With --repair: only list the changes, and write nothing
    #[arg(long, requires = "repair")]
    dry_run: bool,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: Args) -> Outcome {
    let next = "verify it with 'syncline scrub', or unmount it and name the image";
    refuse_mounted(&args.image, next).map_err(|failure| failure.with_code(OPERATIONAL_ERROR))?;
    let outcome = if args.repair || args.preen { mend(&args) } else { examine(&args) };
    let code = outcome.map_err(|failure| failure.with_code(OPERATIONAL_ERROR))?;
    Ok(ExitCode::from(code))
}

fn examine(args: &Args) -> Result<u8, Failure> {
    let device = image::open_read_only(&args.image)?;
    let spawn = image::background()?;
    let bar = image::progress_bar(0, "reading the tree");
    let report = block_on(syncline_check::check(device, spawn, &mut |progress| show(&bar, progress)));
    bar.finish_and_clear();
    let report = report.map_err(|error| not_checked(error, &args.image))?;
    let paths = found::paths(&args.image, &report.findings);
    if args.json {
        print_json(&report, &paths);
    } else {
        print_report(&args.image, &report, &paths);
    }
    Ok(if report.is_clean() { 0 } else { ERRORS_FOUND })
}

fn mend(args: &Args) -> Result<u8, Failure> {
    let options = OpenOptions { read_only: args.dry_run, ..OpenOptions::default() };
    let device = image::open(&args.image, &How::new(options))?.device();
    let spawn = image::background()?;
    let bar = image::progress_bar(0, "reading the tree");
    let mut tell = |progress| show(&bar, progress);
    let how = RepairOptions {
        dry_run: args.dry_run,
        accept_loss: args.accept_loss,
        refuse_loss: args.preen,
        ..RepairOptions::default()
    };
    let repair = block_on(syncline_check::repair(device, spawn, &how, &mut tell));
    bar.finish_and_clear();
    let repair = repair.map_err(|error| {
        let usable = !matches!(error, CheckError::Store(StoreError::Unusable(_)));
        let failure = not_checked(error, &args.image);
        // If this is no image at all, there is nothing to save; its text names the next step.
        if !usable {
            return failure;
        }
        failure.next("the image reads as it did; 'mount -o ro' saves the readable files")
    })?;
    let left = repair.after.iter().flat_map(|after| &after.findings);
    let paths = found::paths(&args.image, repair.before.findings.iter().chain(&repair.changes).chain(left));
    if args.json {
        print_json(&repair, &paths);
    } else {
        print_repair(&args.image, &repair, &paths, args.preen);
    }
    Ok(match repair.condition() {
        Condition::Clean => 0,
        Condition::Repaired => REPAIRED,
        Condition::Damaged => ERRORS_FOUND,
    })
}

/// The failure when there is no report. A checker must not advise making a filesystem where one may
/// have been.
pub(super) fn not_checked(error: CheckError, image: &Path) -> Failure {
    let none = matches!(&error, CheckError::Store(StoreError::Unusable(text)) if text.contains("no superblock found"));
    let failure = Failure::from(error);
    if !none {
        return failure.about(image);
    }
    match image::known_contents(image) {
        Some(what) => failure
            .with_text(format!("{}: not a Syncline image: it holds {what}", image.display()))
            .next("name another image, or use the checker of its filesystem"),
        None => failure
            .with_text(format!(
                "{}: not a Syncline image: no superblock found, without which nothing can be mended",
                image.display()
            ))
            .next("check the name; if it was a Syncline image, restore it from a backup"),
    }
}

fn show(bar: &ProgressBar, progress: Progress) {
    bar.set_length(progress.total * BLOCK_BYTES);
    bar.set_position(progress.done * BLOCK_BYTES);
    bar.set_message(match progress.stage {
        Stage::Nodes => "reading the tree",
        Stage::Contents => "reading the files",
        Stage::Comparison => "comparing",
    });
}

fn print_json(report: &impl serde::Serialize, paths: &Paths) {
    let mut report = serde_json::to_value(report).expect("numbers and texts are JSON");
    report["paths"] = serde_json::json!(paths);
    say_text!("{report:#}\n");
}

fn print_report(image: &Path, report: &Report, paths: &Paths) {
    print_findings(&report.findings, report.findings_dropped, paths);
    print_summary(image, report);
    if !report.is_clean() {
        let readable = image::what_can_be_read(image);
        // A repair may restore lost parts of a snapshot, so it should not be deleted needlessly.
        if only_copies(report) {
            let repair =
                format!("'syncline check --repair {}' writes the damaged ones again", image.display());
            let next = copies_in_base(image).unwrap_or(repair);
            return say!("{}: {SOUND_ELSEWHERE}: {next}", image.display());
        }
        let in_snapshots = report.of(FindingKind::SnapshotDamaged).next().is_some();
        let left_alone = report.findings.iter().all(|finding| finding.kind.is_left_alone());
        if left_alone && !in_snapshots && !report.incomplete {
            return say!("{}: {}", image.display(), next_step(report, &readable));
        }
        if let Ok(Some(base)) = base_of(image) {
            say!(
                "{}: the blocks that snapshot {:?} keeps lie in {}; 'syncline check' of that tells whether it has to be repaired or restored",
                image.display(),
                base.snapshot,
                base.image.display()
            );
        }
        let read = match readable {
            Readable::Present => "mount it with -o ro to save the readable files".to_owned(),
            _ => format!("as it is, {}", image::without_present(&readable)),
        };
        say!("{}: 'syncline check --repair --dry-run' lists the possible repairs; {read}", image.display());
    }
}

fn print_findings(findings: &[Finding], dropped: u64, paths: &Paths) {
    for (finding, more) in found::runs(findings, found::follows) {
        say!("{}{}", found::of_finding(finding, paths), found::and_more(more));
    }
    if dropped > 0 {
        say!("... and {dropped} more than the {FINDINGS_MAX} shown");
    }
}

fn print_summary(image: &Path, report: &Report) {
    let image = image.display();
    let read = format!(
        "{}, {}, {}, {} read",
        several(report.inodes, "inode", "inodes"),
        several(report.names, "name", "names"),
        several(report.nodes, "tree node", "tree nodes"),
        several(report.data_blocks, "data block", "data blocks")
    );
    if report.is_clean() {
        say!("{image}: clean ({read})");
        if !report.clean_unmount {
            let batches = report.batches_replayed;
            say!(
                "{image}: it was not unmounted: the next mount replays its log, {}",
                several(batches, "batch", "batches")
            );
        }
        if report.batches_discarded > 0 {
            say!("{image}: {}", left_out(report.batches_discarded));
        }
        return;
    }
    let errors = several(report.findings.len() as u64 + report.findings_dropped, "error", "errors");
    say!("{image}: {errors} ({read})");
    if report.incomplete {
        say!("{image}: parts could not be read, so not everything was compared");
    }
}

/// Prints each change in a line, and the remaining findings.
fn print_repair(path: &Path, repair: &Repair, paths: &Paths, preen: bool) {
    let image = path.display();
    let shown = if repair.refused.is_some() { &repair.before.findings } else { &repair.changes };
    print_findings(shown, repair.changes_dropped, paths);
    let changes = repair.changes.len() as u64 + repair.changes_dropped;
    if let Some(reason) = &repair.refused {
        say!("{image}: the repair is refused, and nothing was changed: {reason}");
        if preen {
            return say!("{image}: 'syncline check --repair --dry-run' lists the possible repairs");
        }
        say!("{image}: {}", after_refusal(repair.refused_for_loss, &image::what_can_be_read(path)));
        return;
    }
    if repair.dry_run && changes > 0 {
        say!("{image}: {} would be made; nothing was written", several(changes, "change", "changes"));
        return;
    }
    let last = repair.after.as_ref().unwrap_or(&repair.before);
    if changes > 0 {
        say!("{image}: made {}", several(changes, "change", "changes"));
    }
    if !last.is_clean() {
        say!("{image}: remaining findings:");
        print_findings(&last.findings, last.findings_dropped, paths);
    }
    print_summary(path, last);
    if only_copies(last) {
        let next = copies_in_base(path);
        let next = next.unwrap_or_else(|| "copy the image to a sound device, and repair the copy".into());
        say!("{image}: {SOUND_ELSEWHERE}: {next}");
    } else if !last.is_clean() {
        say!("{image}: {}", next_step(last, &image::what_can_be_read(path)));
    }
}

const SOUND_ELSEWHERE: &str = "the other copies are sound, so nothing is lost";

/// True if nothing is wrong except copies of metadata whose other copy is sound.
fn only_copies(report: &Report) -> bool {
    let is_copy = |finding: &Finding| finding.kind == FindingKind::CopyDamaged;
    !report.is_clean() && !report.incomplete && report.findings.iter().all(is_copy)
}

/// The next step for damaged copies of a fork; `None` for another image.
fn copies_in_base(image: &Path) -> Option<String> {
    let base = base_of(image).ok()??.image;
    Some(format!(
        "'syncline check --repair {}' mends those in the base, 'syncline check --repair {}' the rest",
        base.display(),
        image.display()
    ))
}

/// The next step when a repair is refused.
fn after_refusal(for_loss: bool, readable: &Readable) -> String {
    let unreadable = image::without_present(readable);
    let restore = match readable {
        Readable::Nothing => format!("{unreadable}: restore it from a backup"),
        _ => unreadable,
    };
    match (for_loss, readable) {
        (true, Readable::Present) => {
            "mount it with -o ro and save the readable files; --accept-loss then gives up the listed parts, and keeps the rest".to_owned()
        }
        (true, _) => format!("{restore}; --accept-loss gives up the listed parts, and keeps the rest"),
        (false, Readable::Present) => "mount it with -o ro, save the readable files, and make the image again".to_owned(),
        (false, _) => restore,
    }
}

/// The next step for damage that can't be mended.
fn next_step(left: &Report, readable: &Readable) -> String {
    use syncline_check::FindingKind::{DataDamaged, DataUnreadable, SnapshotDamaged};
    if left.blocks == 0 {
        return "every superblock is damaged, and nothing can be mended without one: restore the image from a backup".to_owned();
    }
    if left.findings.iter().all(|finding| matches!(finding.kind, DataDamaged | DataUnreadable)) {
        return "damaged data is left as it is, and reading it fails: restore these files from a backup, or delete them".to_owned();
    }
    if left.findings.iter().all(|finding| finding.kind == SnapshotDamaged) {
        return "only snapshots are damaged: save their readable files ('mount --snapshot NAME'), and delete them ('syncline snapshot delete')".to_owned();
    }
    if left
        .findings
        .iter()
        .all(|finding| matches!(finding.kind, DataDamaged | DataUnreadable | SnapshotDamaged))
    {
        return "damaged data is left as it is, and reading it fails: restore these files from a backup, or delete them; delete the damaged snapshots ('syncline snapshot delete')".to_owned();
    }
    after_refusal(false, readable)
}
