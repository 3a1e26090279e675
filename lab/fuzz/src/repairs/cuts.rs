//! Power cuts during a repair.

use super::{View, difference, mend};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::sync::Arc;
use syncline_check::{FindingKind, RepairOptions};
use syncline_device::MemoryDevice;
use syncline_sim::{CrashImages, Event};

/// Power cuts tried for one repair.
const CUTS: usize = 6;

/// Cuts the power at random moments, and repairs one of the images again. Returns the number of
/// images examined.
pub(super) fn search(
    seed: u64,
    base: &Arc<MemoryDevice>,
    events: Vec<Event>,
    before: Option<&View>,
    told: &[FindingKind],
) -> Result<u64, String> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let count = events.len();
    let mut positions: Vec<usize> = (0..CUTS).map(|_| rng.random_range(0..=count)).collect();
    positions.sort_unstable();
    positions.dedup();
    let again = rng.random_range(0..positions.len());
    let cuts = positions.len() as u64;
    let mut images = CrashImages::new(base, events, seed);
    for (number, position) in positions.into_iter().enumerate() {
        let image = images.at(position, rng.random());
        let shown = View::of(image.snapshot());
        if let Some(lost) = difference(before, shown.as_ref(), told) {
            return Err(format!("after a power cut at event {position} of {count} {lost}"));
        }
        if number == again {
            let ended = mend(image.clone(), RepairOptions::default());
            ended.map_err(|error| format!("after a power cut at event {position} no repair: {error}"))?;
            if let Some(lost) = difference(before, View::of(image).as_ref(), told) {
                return Err(format!(
                    "after a power cut at event {position} of {count} and another repair {lost}"
                ));
            }
        }
    }
    Ok(cuts)
}
