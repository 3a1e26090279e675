//! `snapshot prune`: deletes old snapshots and keeps some of each hour, day, week, month and year.

use super::change::delete_one;
use super::source::image_of;
use crate::failure::{Cause, Failure, Outcome};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};
use syncline::Filesystem;

/// Arguments of `prune`.
#[derive(clap::Args)]
pub struct Args {
    /// Image file or block device that is not mounted, or any directory of a mounted filesystem
    #[arg(value_name = "IMAGE|DIR")]
    source: PathBuf,
    /// Number of snapshots to keep: `last=N`, the newest N; `hourly`, `daily`, `weekly`, `monthly`
    /// and `yearly=N`, the newest of each of the last N periods that have one (UTC; weeks begin on
    /// Monday)
    #[arg(long, value_name = "PERIOD=NUMBER,...", required = true, value_delimiter = ',', value_parser = rule)]
    keep: Vec<Rule>,
    /// Look only at names that begin with this; all others stay
    #[arg(long, value_name = "TEXT")]
    prefix: String,
    /// Only list the snapshots that would be deleted
    #[arg(long, short = 'n')]
    dry_run: bool,
}

/// A period, and of how many of them the newest snapshot stays.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Rule {
    period: Period,
    number: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Period {
    Last,
    Hour,
    Day,
    Week,
    Month,
    Year,
}

fn rule(text: &str) -> Result<Rule, String> {
    let expected = || format!("{text:?} is no rule; say for example 'daily=7'");
    let (period, number) = text.split_once('=').ok_or_else(expected)?;
    let period = match period {
        "last" => Period::Last,
        "hourly" => Period::Hour,
        "daily" => Period::Day,
        "weekly" => Period::Week,
        "monthly" => Period::Month,
        "yearly" => Period::Year,
        _ => {
            return Err(format!(
                "there is no period {period:?}; last, hourly, daily, weekly, monthly or yearly"
            ));
        }
    };
    Ok(Rule { period, number: number.parse().map_err(|_| expected())? })
}

/// Deletes the snapshots that no rule keeps.
pub fn run(args: &Args) -> Outcome {
    if args.keep.iter().all(|rule| rule.number == 0) {
        return Err(
            Failure::usage("nothing would be kept").next("delete snapshots by 'syncline snapshot delete'")
        );
    }
    let image = image_of(&args.source)?;
    let snapshots = Filesystem::snapshots_of(&image).map_err(|error| Failure::from(error).about(&image))?;
    // Of one second too, the newest is the newest.
    let mut snapshots: Vec<(SystemTime, String)> = snapshots
        .into_iter()
        .filter(|snapshot| snapshot.name.starts_with(&args.prefix))
        .map(|snapshot| (snapshot.created, snapshot.name))
        .collect();
    snapshots.sort();
    let early = snapshots.split_off(begun_by(&snapshots, SystemTime::now()));
    for (_, name) in early {
        note!("syncline: {name:?} was made later than now, by the clock: it stays, and counts in no period");
    }
    let times: Vec<u64> = snapshots.iter().map(|(time, _)| seconds(*time)).collect();
    let kept = kept(&times, &args.keep);
    let mut code = 0;
    for (_, name) in snapshots.iter().enumerate().filter(|(at, _)| !kept.contains(at)).map(|(_, it)| it) {
        if args.dry_run {
            say!("would delete {name:?}");
            continue;
        }
        match delete_one(&args.source, name) {
            Ok(()) => say!("deleted {name:?}"),
            // Somebody reads it: the next time it can go.
            Err(failure) if failure.code() == Cause::InUse as u8 => {
                note!("syncline: {failure}");
                code = failure.code();
            }
            Err(failure) => return Err(failure),
        }
    }
    Ok(ExitCode::from(code))
}

/// How many of these, which are in order, were made up to now. A clock that was ahead for some time would
/// otherwise fill the newest periods for ever, and whatever is made now would go at once.
fn begun_by(snapshots: &[(SystemTime, String)], now: SystemTime) -> usize {
    snapshots.partition_point(|(time, _)| *time <= now)
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// The positions of the snapshots that the rules keep, among times in ascending order.
fn kept(times: &[u64], rules: &[Rule]) -> BTreeSet<usize> {
    let mut kept = BTreeSet::new();
    for rule in rules {
        let mut number = rule.number;
        let mut last = None;
        for (at, time) in times.iter().enumerate().rev() {
            let period = rule.period.of(*time, at);
            if number == 0 {
                break;
            }
            if last != Some(period) {
                kept.insert(at);
                last = Some(period);
                number -= 1;
            }
        }
    }
    kept
}

impl Period {
    /// The number of the period in which a moment lies.
    fn of(self, seconds: u64, at: usize) -> u64 {
        let days = seconds / 86_400;
        match self {
            Self::Last => at as u64,
            Self::Hour => seconds / 3600,
            Self::Day => days,
            // 1970 began on a Thursday.
            Self::Week => (days + 3) / 7,
            Self::Month => months(days),
            Self::Year => months(days) / 12,
        }
    }
}

/// Months since the year 0, of a day since 1970, in the Gregorian calendar. (Years are counted from
/// March, so that leap days come last: Hinnant, "chrono-compatible low-level date algorithms".)
fn months(days: u64) -> u64 {
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    (era * 400 + year_of_era) * 12 + month_from_march + 2
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: u64 = 86_400;

    fn keep(times: &[u64], rules: &str) -> Vec<usize> {
        let rules: Vec<Rule> = rules.split(',').map(|text| rule(text).unwrap()).collect();
        kept(times, &rules).into_iter().collect()
    }

    #[test]
    fn months_are_those_of_the_calendar() {
        let date = |days: u64| (months(days) / 12, months(days) % 12 + 1);
        assert_eq!(date(0), (1970, 1));
        assert_eq!(date(30), (1970, 1));
        assert_eq!(date(31), (1970, 2));
        assert_eq!(date(11_015), (2000, 2), "the 28th");
        assert_eq!(date(11_016), (2000, 2), "a leap day");
        assert_eq!(date(11_017), (2000, 3));
        assert_eq!(date(20_453), (2025, 12), "the 31st");
        assert_eq!(date(20_454), (2026, 1));
    }

    /// Otherwise each snapshot that is made now would go at once, as older than all of those.
    #[test]
    fn what_was_made_later_than_now_fills_no_period() {
        let folder = tempfile::tempdir().unwrap();
        let image = folder.path().join("image");
        let fs = Filesystem::create(&image, 32 << 20, &syncline::FormatOptions::default()).unwrap();
        let now = seconds(SystemTime::now());
        for (name, time) in [("a-1", now - 9), ("a-2", now - 5), ("a-3", now + DAY), ("a-4", now + 2 * DAY)] {
            let made = fs.engine().store().create_snapshot(name, time * 1_000_000_000);
            syncline_device::block_on(made).unwrap();
        }
        fs.close().unwrap();
        let keep = vec![rule("last=1").unwrap()];
        run(&Args { source: image.clone(), keep, prefix: "a-".into(), dry_run: false }).unwrap();
        let names: Vec<String> =
            Filesystem::snapshots_of(&image).unwrap().into_iter().map(|snapshot| snapshot.name).collect();
        assert_eq!(names, ["a-2", "a-3", "a-4"]);
    }

    #[test]
    fn the_newest_of_each_period_stays() {
        let hours: Vec<u64> = (0..100).map(|hour| 20_000 * DAY + hour * 3600).collect();
        assert_eq!(keep(&hours, "last=3"), [97, 98, 99]);
        assert_eq!(keep(&hours, "hourly=2"), [98, 99]);
        assert_eq!(keep(&hours, "daily=3"), [71, 95, 99]);
        assert_eq!(keep(&hours, "daily=99"), [23, 47, 71, 95, 99], "there are no more");
        assert_eq!(keep(&hours, "daily=2,last=2"), [95, 98, 99]);
        // Day 20,000 is a Friday (2024-10-04); the next week begins on day 20,003.
        let days: Vec<u64> = (0..10).map(|day| (20_000 + day) * DAY).collect();
        assert_eq!(keep(&days, "weekly=2"), [2, 9]);
        assert_eq!(keep(&[], "daily=2"), [0; 0]);
        assert!(rule("daily").is_err() && rule("never=1").is_err() && rule("daily=x").is_err());
    }
}
