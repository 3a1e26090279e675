//! What the tests share: the changes, and what must be left of them.
//!
//! Change n writes a record with number n, and n as the record "count", in one transaction. So "count" says
//! which records must be there.

use crate::Result;
use std::collections::BTreeMap;
use std::io::Write;

pub type Records = BTreeMap<Vec<u8>, Vec<u8>>;

const CHANGES: u32 = 6;
const COUNT: &[u8] = b"count";

fn record(number: u32) -> (Vec<u8>, Vec<u8>) {
    (format!("key{number:04}").into_bytes(), format!("value-{number}-").repeat(50).into_bytes())
}

fn count(number: u32) -> (Vec<u8>, Vec<u8>) {
    (COUNT.to_vec(), number.to_string().into_bytes())
}

/// Calls `write` with the records of each change, and says that it is stored. Then it ends the process,
/// without closing the store.
pub fn make_changes(mut write: impl FnMut(u32, [(Vec<u8>, Vec<u8>); 2]) -> Result<()>) -> Result<()> {
    for number in 1..=CHANGES {
        write(number, [record(number), count(number)])?;
        println!("stored {number}");
        std::io::stdout().flush()?;
    }
    std::process::exit(0);
}

/// Each change is there as a whole or not at all, in order, and none is lost that was stored.
pub fn check(found: &Records) -> Result<()> {
    let printed = std::fs::read_to_string(std::env::var("CRASHLAB_ACKED")?)?;
    let stored =
        printed.lines().filter_map(|line| line.strip_prefix("stored ")?.parse().ok()).max().unwrap_or(0);
    let there = match found.get(COUNT) {
        Some(number) => std::str::from_utf8(number)?.parse()?,
        None => 0,
    };
    if there < stored {
        return Err(format!("change {stored} was stored, and only {there} are there").into());
    }
    let mut expected: Records = (1..=there).map(record).collect();
    if there > 0 {
        expected.extend([count(there)]);
    }
    match found == &expected {
        true => Ok(()),
        false => {
            Err(format!("{there} changes are there, but not with these records: {:?}", found.keys()).into())
        }
    }
}

/// The version of a package in Cargo.lock.
pub fn version(name: &str) -> &str {
    let lock = include_str!("../Cargo.lock");
    let package = lock.split("[[package]]").find(|package| package.contains(&format!("name = \"{name}\"\n")));
    package.and_then(|package| package.split("version = \"").nth(1)?.split('"').next()).unwrap_or("unknown")
}
