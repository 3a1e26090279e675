//! Power cuts: threads work on databases of an image whose device is recorded. Of each record, images
//! are made as a power cut could leave them, at random moments and right after answers. SQLite opens
//! each of them: every database is sound, every transaction is there as a whole or not at all, and
//! all that were answered are there.
//!
//! `SYNCLINE_SQLITE_CUTS` says how many images there are in all; `SYNCLINE_SQLITE_SEED` is the first
//! seed.

use crate::sqlite::{Connection, Sqlite, name, new_name, sqlite};
use parking_lot::Mutex;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;
use syncline::device::MemoryDevice;
use syncline::{Filesystem, FormatOptions, ImageOptions, format_device};
use syncline_powercut::{CrashImages, Event, RecordingDevice};
use syncline_sqlite::serve;

const WRITERS: i64 = 3;
const ROUNDS: i64 = 12;
/// Transactions of a writer whose items are there.
const KEPT: i64 = 4;
const CUTS_OF_A_LIFE: usize = 50;

/// How a life goes.
#[derive(Clone, Copy, Debug)]
struct Way {
    mode: &'static str,
    /// `synchronous`; `mixed` is full or off for each transaction.
    sync: &'static str,
    options: &'static str,
    /// One transaction changes two databases. A write-ahead log does not make that atomic.
    two: bool,
    /// A defect of the workload: it commits in two pieces.
    in_pieces: bool,
}

const WAYS: [Way; 8] = [
    // Large transactions outgrow the memory for changes, and go by way of a copy.
    Way { mode: "delete", sync: "full", options: "&memory=1MiB", two: true, in_pieces: false },
    Way { mode: "memory", sync: "full", options: "", two: false, in_pieces: false },
    Way { mode: "wal", sync: "full", options: "", two: false, in_pieces: false },
    Way { mode: "truncate", sync: "full", options: "&journal=file", two: true, in_pieces: false },
    Way { mode: "wal", sync: "mixed", options: "", two: false, in_pieces: false },
    Way { mode: "wal", sync: "off", options: "", two: false, in_pieces: false },
    Way { mode: "persist", sync: "off", options: "&journal=file", two: false, in_pieces: false },
    // SQLite uses no super-journal then.
    Way { mode: "delete", sync: "off", options: "&memory=1MiB", two: false, in_pieces: false },
];
/// The first of them, in which every answer waits for a flush.
const SYNCED_WAYS: usize = 4;

/// The record of a life.
struct Life {
    base: Arc<MemoryDevice>,
    events: Vec<Event>,
    /// The position in the record at which a transaction of a writer was answered; its number.
    answers: Vec<(usize, i64, i64)>,
}

/// Number and size of the items of a transaction.
fn items(writer: i64, number: i64) -> (i64, i64) {
    match (writer + number) % 5 {
        0 => (200, 2000),
        1 => (1, 10),
        _ => (5, 700),
    }
}

fn set_up(connection: &Connection, way: &Way) {
    connection.run(&format!(
        "pragma journal_mode = {}; pragma synchronous = full; pragma cache_size = 20",
        way.mode
    ));
    connection.run(
        "begin;
         create table done(writer integer primary key, number);
         create table item(writer, number, part, body, primary key(writer, number, part));
         create table bank(id integer primary key, balance);
         with recursive n(i) as (select 0 union all select i + 1 from n where i < 2)
         insert into done select i, 0 from n;
         with recursive n(i) as (select 0 union all select i + 1 from n where i < 19)
         insert into bank select i, 100 from n;
         commit",
    );
}

fn transaction(writer: i64, number: i64, way: &Way, rng: &mut ChaCha8Rng) -> String {
    let (count, bytes) = items(writer, number);
    let (from, to) = (rng.random_range(0..20), rng.random_range(0..20));
    let two = if way.two {
        format!("update two.done set number = {number} where writer = {writer};")
    } else {
        String::new()
    };
    let piece = if way.in_pieces { "commit; begin immediate;" } else { "" };
    format!(
        "begin immediate;
         update done set number = {number} where writer = {writer};
         {two} {piece}
         savepoint s; delete from item; update bank set balance = 0; rollback to s; release s;
         with recursive n(i) as (select 1 union all select i + 1 from n where i < {count})
         insert into item select {writer}, {number}, i, randomblob({bytes}) from n;
         update bank set balance = balance - 7 where id = {from};
         update bank set balance = balance + 7 where id = {to};
         delete from item where writer = {writer} and number <= {number} - {KEPT};
         commit"
    )
}

fn open(sqlite: &'static Sqlite, image: &str, way: &Way) -> Connection {
    let connection = sqlite.open_in(image, "one.db", way.options);
    if way.two {
        connection.run(&format!("attach '{}' as two", name(image, "two.db", way.options)));
    }
    connection.run(&format!("pragma journal_mode = {}; pragma cache_size = 20", way.mode));
    connection
}

fn live(sqlite: &'static Sqlite, seed: u64, way: &Way) -> Life {
    let memory = MemoryDevice::new(64 << 20);
    format_device(memory.clone(), &FormatOptions::default()).unwrap();
    let base = memory.snapshot();
    let device = RecordingDevice::new(memory);
    // Checkpoints come between.
    let options =
        ImageOptions::new().memtable_bytes(256 << 10).checkpoint_interval(Duration::from_millis(50));
    let fs = Filesystem::open_device(device.clone(), options).unwrap();
    let image = new_name("life");
    let served = serve(&image, &fs);
    if way.two {
        set_up(&sqlite.open_in(&image, "two.db", way.options), way);
    }
    set_up(&sqlite.open_in(&image, "one.db", way.options), way);
    let answers = Mutex::new(vec![(device.position(), 0, 0)]);
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let (answers, device, image) = (&answers, &device, &image);
            scope.spawn(move || {
                let mut rng = ChaCha8Rng::seed_from_u64(seed * 100 + writer as u64);
                let connection = open(sqlite, image, way);
                for number in 1..=ROUNDS {
                    let sync = match way.sync {
                        "mixed" => ["full", "off"][rng.random_range(0..2)],
                        sync => sync,
                    };
                    connection.run(&format!("pragma synchronous = {sync}"));
                    connection.run(&transaction(writer, number, way, &mut rng));
                    // Nothing makes a write-ahead log durable without a sync.
                    if sync == "full" || way.mode != "wal" {
                        answers.lock().push((device.position(), writer, number));
                    }
                    if writer == 0 && number % 5 == 0 {
                        connection.run("vacuum");
                    }
                    if way.mode == "wal" && rng.random_range(0..3) == 0 {
                        connection.run("pragma wal_checkpoint");
                    }
                }
            });
        }
    });
    drop(served);
    Life { base, events: device.events(), answers: answers.into_inner() }
}

/// Opens what a power cut left, and compares it with what was answered; returns what is wrong.
fn look(
    sqlite: &'static Sqlite,
    image: Arc<MemoryDevice>,
    way: &Way,
    answered: Option<[i64; 3]>,
) -> Result<(), String> {
    let fs = Filesystem::open_device(image, ImageOptions::new()).map_err(|error| error.to_string())?;
    let name = new_name("cut");
    let _served = serve(&name, &fs);
    let Some(answered) = answered else {
        // The cut came before the set-up was over.
        return match sqlite.open_in(&name, "one.db", way.options).one("pragma integrity_check") {
            sound if sound == "ok" => Ok(()),
            unsound => Err(unsound),
        };
    };
    let databases = if way.two { &["one.db", "two.db"][..] } else { &["one.db"] };
    let mut numbers = Vec::new();
    for database in databases {
        let connection = sqlite.open_in(&name, database, way.options);
        let failed = |failed: crate::sqlite::Failed| format!("{database}: {failed:?}");
        let sound = connection.try_run("pragma integrity_check").map_err(failed)?;
        if sound != [["ok"]] {
            return Err(format!("{database}: {sound:?}"));
        }
        for (writer, answered) in (0..WRITERS).zip(answered) {
            let number = connection.number(&format!("select number from done where writer = {writer}"));
            if number < answered {
                return Err(format!(
                    "{database}: {answered} of writer {writer} was answered, and there is {number}"
                ));
            }
            numbers.push(number);
        }
    }
    if way.two && numbers[..3] != numbers[3..] {
        return Err(format!("the databases have {numbers:?}"));
    }
    let connection = sqlite.open_in(&name, "one.db", way.options);
    for (writer, number) in (0..WRITERS).zip(&numbers) {
        let expected: Vec<Vec<String>> = (1..=*number)
            .filter(|item| *item > number - KEPT)
            .map(|number| {
                let (count, bytes) = items(writer, number);
                vec![number.to_string(), count.to_string(), (count * bytes).to_string()]
            })
            .collect();
        let found = connection.run(&format!(
            "select number, count(*), sum(length(body)) from item where writer = {writer} group by number"
        ));
        if found != expected {
            return Err(format!("writer {writer} at {number} has {found:?}, not {expected:?}"));
        }
    }
    if connection.number("select sum(balance) from bank") != 2000 {
        return Err("money was lost".into());
    }
    // Work goes on.
    connection.run("update done set number = number + 1");
    Ok(())
}

/// What was answered before the cut; None if not even the set-up was.
fn answered(life: &Life, position: usize) -> Option<[i64; 3]> {
    let mut newest = None;
    for (at, writer, number) in &life.answers {
        if *at <= position {
            let newest = newest.get_or_insert([0; 3]);
            newest[*writer as usize] = newest[*writer as usize].max(*number);
        }
    }
    newest
}

/// Makes cuts of a life; returns what was wrong.
fn cut(sqlite: &'static Sqlite, seed: u64, way: &Way, life: Life) -> Vec<String> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut positions: Vec<usize> = (0..CUTS_OF_A_LIFE)
        .map(|index| match index % 2 {
            0 => rng.random_range(0..life.events.len()),
            _ => life.answers[rng.random_range(0..life.answers.len())].0,
        })
        .collect();
    positions.sort_unstable();
    let mut images = CrashImages::new(&life.base, life.events.clone(), seed);
    let mut wrong = Vec::new();
    for (index, position) in positions.into_iter().enumerate() {
        let image = images.at(position, seed * 1000 + index as u64);
        let answered = answered(&life, position);
        // An error of SQLite is a finding as well: nothing may fail here.
        let looked = catch_unwind(AssertUnwindSafe(|| look(sqlite, image, way, answered)));
        let looked = looked.unwrap_or_else(|_| Err(format!("refused: {}", sqlite.last_error())));
        if let Err(text) = looked {
            wrong.push(format!("seed {seed}, {way:?}, event {position}: {text}"));
        }
    }
    wrong
}

fn from_environment(variable: &str, otherwise: u64) -> u64 {
    std::env::var(variable).map_or(otherwise, |text| text.parse().unwrap())
}

#[test]
fn every_database_survives_a_power_cut() {
    let Some(sqlite) = sqlite() else { return };
    let cuts = from_environment("SYNCLINE_SQLITE_CUTS", 1000) as usize;
    let first = from_environment("SYNCLINE_SQLITE_SEED", 1);
    let lives = cuts.div_ceil(CUTS_OF_A_LIFE);
    let mut wrong = Vec::new();
    for (life, seed) in (0..lives).zip(first..) {
        let way = &WAYS[life % WAYS.len()];
        wrong.extend(cut(sqlite, seed, way, live(sqlite, seed, way)));
    }
    println!("{} power cuts, {} databases refused or wrong", lives * CUTS_OF_A_LIFE, wrong.len());
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn a_flush_that_does_nothing_is_found() {
    let Some(sqlite) = sqlite() else { return };
    for way in &WAYS[..SYNCED_WAYS] {
        let mut life = live(sqlite, 1, way);
        // The record of a device that was never flushed after the set-up.
        let set_up = life.answers[0].0;
        for (at, event) in life.events.iter_mut().enumerate() {
            if let Event::FlushEnded { id, .. } = *event
                && at > set_up
            {
                *event = Event::FlushEnded { id, ok: false };
            }
        }
        let wrong = cut(sqlite, 1, way, life);
        assert!(wrong.len() > 5, "{way:?}: {wrong:#?}");
    }
}

#[test]
fn a_commit_in_two_pieces_is_found() {
    let Some(sqlite) = sqlite() else { return };
    let way = Way { in_pieces: true, ..WAYS[0] };
    let wrong = cut(sqlite, 1, &way, live(sqlite, 1, &way));
    assert!(!wrong.is_empty());
}
