//! Long seeded simulations compared with a model: many tasks; little space, memory and cache; slow
//! and reordered completions; faults and crashes. A failure is reduced to a short case.
//!
//! `just soak 600` runs for ten minutes, with seeds that start at the current time;
//! `SYNCLINE_SOAK_SEED` repeats one. A failure is reduced in at most `SYNCLINE_SOAK_TRIES` runs
//! (default 400, 0 for no reduction).

use crate::support::{number_from, show_logs, silently};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use syncline_sim::lab::{Explored, Plan, Subject, run_seed};
use syncline_sim::{Case, CaseSubject, FsSubject, StoreSubject};

fn case_of(seed: u64, plan: Plan) -> Case {
    let subject = match seed % 4 {
        0 => CaseSubject::Store,
        1 => CaseSubject::Fs,
        _ => CaseSubject::Everything,
    };
    Case { subject, seed, plan: Plan { faults: (seed / 4).is_multiple_of(2), ..plan }, pieces: None }
}

fn run<S: Subject>(subject: &S, case: &Case) -> Option<Explored> {
    let run = || run_seed(subject, case.seed, case.plan);
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).ok()?.ok()
}

/// Runs a case; an error is the failure, reduced.
fn explore(case: &Case, tries: usize) -> Result<Explored, String> {
    show_logs();
    let explored = match case.subject {
        CaseSubject::Store => run(&StoreSubject, case),
        CaseSubject::Fs => run(&FsSubject::PLAIN, case),
        CaseSubject::Everything => run(&FsSubject::EVERYTHING, case),
    };
    explored.ok_or_else(|| {
        if tries > 50 {
            println!("seed {} fails: it is being reduced", case.seed);
        }
        let reduced = case.reduced(tries).unwrap_or_else(|| case.clone());
        let what = reduced.run().0.err().unwrap_or_else(|| "it does not fail again".to_owned());
        format!("# {}\n{reduced}", what.replace('\n', " "))
    })
}

#[test]
fn a_few_long_lives() {
    let plan = Plan { cycles: 1, images: 3, ..Plan::long() };
    for seed in 0..4 {
        let case =
            case_of(seed, Plan { load: syncline_sim::lab::Load { actions: (30, 90), ..plan.load }, ..plan });
        silently(|| explore(&case, 60)).unwrap_or_else(|found| panic!("seed {seed}:\n{found}"));
    }
}

#[test]
#[ignore = "runs as long as SYNCLINE_SOAK_SECONDS says, a minute without"]
fn soak() {
    let started = Instant::now();
    let limit = Duration::from_secs(number_from("SYNCLINE_SOAK_SECONDS").unwrap_or(60));
    let clock = SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |time| time.as_secs());
    let first = number_from("SYNCLINE_SOAK_SEED").unwrap_or(clock * 1000);
    let only = number_from("SYNCLINE_SOAK_SEED").is_some();
    let tries = number_from("SYNCLINE_SOAK_TRIES").unwrap_or(400) as usize;
    let (mut seeds, mut violations, mut total) = (0, 0, Explored::default());
    for seed in first.. {
        match silently(|| explore(&case_of(seed, Plan::long()), tries)) {
            Ok(explored) => total.add(explored),
            Err(found) => {
                violations += 1;
                let file = std::env::temp_dir().join(format!("syncline-case-{seed}.txt"));
                std::fs::write(&file, &found).expect("the directory for temporary files can be written");
                println!("seed {seed}, kept as {}:\n{found}", file.display());
            }
        }
        seeds += 1;
        let seconds = started.elapsed().as_secs_f64();
        println!(
            "seed {seed}: {seeds} seeds, {} actions, {} device events, {} images opened and compared ({:.1} a second), {violations} violations, {seconds:.0} s",
            total.actions,
            total.events,
            total.images,
            total.images as f64 / seconds,
        );
        if only || started.elapsed() >= limit {
            break;
        }
    }
    assert_eq!(violations, 0);
}

/// Cases that failed once. A case with a canary must still fail with it; without one, none may
/// fail.
#[test]
fn regressions() {
    show_logs();
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/regressions");
    let mut cases = 0;
    for file in std::fs::read_dir(dir).expect("it is part of the repository") {
        let path = file.expect("it can be listed").path();
        let text = std::fs::read_to_string(&path).expect("it can be read");
        let case: Case = text.parse().unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let sound = Case { plan: Plan { canary: None, ..case.plan }, ..case.clone() };
        assert_eq!(silently(|| sound.run().0), Ok(()), "{}", path.display());
        let found = case.plan.canary.is_none() || silently(|| case.run().0).is_err();
        assert!(found, "{}: the canary is silent", path.display());
        cases += 1;
    }
    assert!(cases > 0);
}

#[test]
fn a_failure_is_reduced_to_a_few_actions() {
    let canary = Some(syncline_store::Canary::RenameWithoutData);
    let failing = (0..20).map(|seed| Case {
        subject: CaseSubject::Fs,
        seed,
        plan: Plan { canary, cycles: 1, lives: 1, ..Plan::default() },
        pieces: None,
    });
    let (whole, reduced) = silently(|| {
        let found = failing.into_iter().find_map(|case| Some((case.run().1.len(), case.reduced(300)?)));
        found.expect("the canary shows in twenty seeds")
    });
    let left = reduced.pieces.as_ref().map_or(0, Vec::len);
    println!("{whole} pieces, reduced to {left}:\n{reduced}");
    assert!(left * 2 < whole, "{left} of {whole} are left");
    assert!(silently(|| reduced.run().0).is_err());
}
