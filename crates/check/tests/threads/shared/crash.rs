//! Power cuts at any moment of a life, and the state that comes back.

use super::directories::list;
use super::dossier::Dossier;
use super::end::{contents_of, require_sound_names};
use super::judge::values_of;
use super::mount::{Mount, require_clean};
use super::world::World;
use rand::Rng;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use syncline_sim::CrashImages;

/// Power cuts of one life.
const CUTS: usize = 6;

/// Judges images of power cuts after position `begun`; returns their number.
pub fn judge(world: &World, begun: usize, random: &mut StdRng) -> usize {
    let end = world.mount.recording.position();
    // Half of them at the very moment of a promise; there, only flushed writes survive.
    let promises = world.ledger.positions();
    let mut cuts: Vec<(usize, bool)> =
        promises.choose_multiple(random, CUTS / 2).map(|&position| (position, true)).collect();
    cuts.resize_with(CUTS, || (random.random_range(begun..=end), false));
    judge_cuts(world, cuts, random)
}

/// Judges images of power cuts at moments of promises, and of one at another moment after `begun`;
/// returns their number.
pub fn judge_promises(world: &World, begun: usize, random: &mut StdRng) -> usize {
    let end = world.mount.recording.position();
    let mut cuts: Vec<(usize, bool)> =
        world.ledger.positions().into_iter().map(|position| (position, true)).collect();
    cuts.push((random.random_range(begun..=end), false));
    judge_cuts(world, cuts, random)
}

/// Judges an image of each power cut: either no unflushed write survives, or some do.
pub fn judge_cuts(world: &World, mut cuts: Vec<(usize, bool)>, random: &mut StdRng) -> usize {
    let recording = &world.mount.recording;
    let end = recording.position();
    cuts.sort_unstable();
    cuts.dedup();
    let mut images = CrashImages::new(&world.mount.base, recording.events(), world.setup.seed);
    for &(position, promised) in &cuts {
        let image = match promised {
            true => images.cut(position).image(&[]),
            false => images.at(position, random.random()),
        };
        let moment = format!("seed {}, a power cut at event {position} of {end}", world.setup.seed);
        let spawn = world.mount.spawn.clone();
        let _dossier = Dossier { world, image: image.snapshot() };
        require_clean(image.snapshot(), &spawn, &moment);
        let after = Mount::open(world.setup.after_a_power_cut(), image, spawn);
        require_survived(world, &after, position).unwrap_or_else(|what| panic!("{moment}: {what}"));
        require_sound_names(world, &after).map(drop).unwrap_or_else(|what| panic!("{moment}: {what}"));
        let (image, spawn) = after.close();
        require_clean(image, &spawn, &moment);
    }
    cuts.len()
}

/// Fails unless everything promised before `position` is there, and nothing that never existed.
fn require_survived(world: &World, after: &Mount, position: usize) -> Result<(), String> {
    // Checked before the contents: it tells whether the log lost something or never had it.
    let promised = world.ledger.op(position);
    if after.recovered < promised {
        return Err(format!("transaction {} came back; {promised} was promised", after.recovered));
    }
    for (index, file) in world.owned.iter().enumerate() {
        let found = contents_of(&after.fs, file.ino)?;
        let values = values_of(file.ino, 0, &found)?;
        file.require_survived(world.ledger.of_file(index, position), &values)?;
    }
    for (index, directory) in world.directories.iter().enumerate() {
        let found = list(&after.fs, directory.ino)?;
        directory.require_listed(world.ledger.of_directory(index, position), &found)?;
    }
    Ok(())
}
