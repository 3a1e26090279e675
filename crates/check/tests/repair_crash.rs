//! The power may fail at any moment of a repair: the image is then the old or the new one, it reads
//! as the old one did, and another repair completes.

use crate::common::damages::DAMAGES;
use crate::common::survey::{assert_kept, survey, survey_for_reading};
use crate::common::{sample, spawn};
use std::sync::Arc;
use syncline_check::{Condition, FindingKind, RepairOptions, repair};
use syncline_device::{Device, block_on};
use syncline_sim::{CrashImages, RecordingDevice};

/// A repair with a transaction, one with only superblocks, and those that rebuild the image.
const KINDS: &[FindingKind] = &[
    FindingKind::LinkCount,
    FindingKind::SuperblockDamaged,
    FindingKind::UnnamedInode,
    FindingKind::BlockUnnamed,
    FindingKind::BlockUsedTwice,
    FindingKind::SpaceMapDamaged,
    FindingKind::LogOverlap,
];
/// Images for each moment, which differ in what survives of the writes in flight.
const SEEDS: u64 = 2;

#[test]
fn a_crash_at_any_write_of_a_repair_is_mended_by_another() {
    for kind in KINDS {
        let (device, inodes) = sample();
        let before = survey(&device);
        DAMAGES.iter().find(|(damaged, _)| damaged == kind).unwrap().1(&device, inodes);
        let base = device.snapshot();
        let mounted = survey_for_reading(base.clone());
        let recording = RecordingDevice::new(device.clone());
        let any: Arc<dyn Device> = recording.clone();
        let done = block_on(repair(any, spawn(), &RepairOptions::default(), &mut |_| {})).unwrap();
        assert_eq!(done.condition(), Condition::Repaired, "{}", kind.name());
        let events = recording.events();
        // A page of the space map is restored in place.
        let least = if *kind == FindingKind::SpaceMapDamaged { 2 } else { 9 };
        assert!(events.len() >= least, "{}: a repair writes", kind.name());
        let positions = events.len();
        let mut images = CrashImages::new(&base, events, 7);
        for position in 0..=positions {
            for seed in 0..SEEDS {
                let what =
                    format!("{}, crash after event {position} of {positions}, seed {seed}", kind.name());
                let image = images.at(position, seed);
                let shown = survey_for_reading(image.clone());
                assert_kept(&mounted, &shown, &what);
                let again =
                    block_on(repair(image.clone(), spawn(), &RepairOptions::default(), &mut |_| {})).unwrap();
                let left = again.after.as_ref().map(|after| &after.findings);
                assert_ne!(again.condition(), Condition::Damaged, "{what}: {left:#?}");
                let after = survey(&image);
                assert_kept(&before, &after, &what);
            }
        }
    }
}
