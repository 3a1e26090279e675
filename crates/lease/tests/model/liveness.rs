//! L4: a host that waits gets the lease in time. Nothing else goes wrong here.

use crate::model::host::Doing;
use crate::model::plan::{MS, Plan, SECOND, Trouble};
use crate::model::world::World;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use syncline_lease::lab::How;

const SEEDS: u64 = 500;

/// A world in which host 0 has the lease, at some moment of its renewals.
fn held(seed: u64) -> (World, ChaCha8Rng, u64) {
    let plan = Plan::quiet(seed, Trouble::Bounded);
    let longest_ns = plan.longest_wait_ns();
    let mut world = World::new(plan, None);
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    world.start(0, Some(How::Wait));
    until(&mut world, 3 * SECOND, |world| world.hosts[0].is_valid());
    let moment = rng.random_range(0..15 * SECOND);
    let end = world.now() + moment;
    while world.turn() < end {}
    assert!(world.hosts[0].is_valid(), "seed {seed}: it renews");
    (world, rng, longest_ns)
}

fn until(world: &mut World, within_ns: u64, condition: impl Fn(&World) -> bool) -> u64 {
    let begun = world.now();
    while !condition(world) {
        world.turn();
        assert!(world.outcome.broken.is_empty(), "{:?}", world.outcome.broken);
        assert!(world.now() <= begun + within_ns, "not within {} ms", within_ns / MS);
    }
    world.now() - begun
}

#[test]
fn after_a_crash_another_gets_it_in_time() {
    let mut longest = 0;
    for seed in 0..SEEDS {
        let (mut world, mut rng, within_ns) = held(seed);
        let how = if rng.random() { How::Wait } else { How::TakeOver };
        // No renewal is under way at the crash: a host that sees a late renewal takes host 0 for alive.
        while !matches!(&world.hosts[0].doing, Doing::Holding(holding) if holding.idle) {
            world.turn();
        }
        world.crash(0);
        world.start(1, Some(how));
        longest = longest.max(until(&mut world, within_ns, |world| world.hosts[1].is_valid()));
    }
    println!("longest: {} ms", longest / MS);
}

#[test]
fn a_living_holder_is_taken_over_in_time_and_refuses_others_soon() {
    for seed in 0..SEEDS {
        let (mut world, _, within_ns) = held(seed);
        let began = world.outcome.acquired;
        world.start(1, Some(How::Wait));
        // Refused at the first renewal that it sees.
        until(&mut world, 6 * SECOND, |world| matches!(world.hosts[1].doing, Doing::Nothing));
        assert!(world.hosts[0].is_valid() && world.outcome.acquired == began);
        world.start(1, Some(How::TakeOver));
        // Its first claim may be overwritten, which it sees half a second later.
        until(&mut world, within_ns + SECOND, |world| world.hosts[1].is_valid());
        assert!(!world.hosts[0].is_valid());
    }
}

#[test]
fn after_a_release_nobody_waits() {
    for seed in 0..SEEDS {
        let (mut world, _, _) = held(seed);
        let before = world.outcome.released;
        while world.outcome.released == before {
            world.release(0);
            world.turn();
        }
        world.start(1, Some(How::Wait));
        until(&mut world, 2 * SECOND, |world| world.hosts[1].is_valid());
    }
}
