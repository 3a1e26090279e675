//! A rule of receivers that is broken on purpose is found by lives of streams that are cut off.

use crate::pieces::life_with_cuts;
use crate::world;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use syncline_device::Spawn;
use syncline_store::Canary;

/// Lives within which it must be found.
const SEEDS: u64 = 20;

fn is_sound(seed: u64, spawn: &Arc<dyn Spawn>, canary: Option<Canary>) -> bool {
    catch_unwind(AssertUnwindSafe(|| life_with_cuts(seed, spawn, canary))).is_ok()
}

#[test]
fn a_part_that_is_ahead_of_what_is_durable_is_found() {
    let spawn = world::spawn();
    let found = (1..=SEEDS).find(|seed| !is_sound(*seed, &spawn, Some(Canary::PartAhead)));
    let found = found.unwrap_or_else(|| panic!("it went unnoticed in {SEEDS} lives"));
    println!("{} found after {found} lives", Canary::PartAhead);
    assert!(is_sound(found, &spawn, None), "seed {found} fails without it, too");
}
