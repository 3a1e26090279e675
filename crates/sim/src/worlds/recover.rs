//! Opens what a crash left, checks the whole image and reads everything that came back.

use super::disk::Image;
use super::judge::Found;
use super::observe::observe;
use super::run::options;
use crate::{Event, RecordingDevice, Simulation};
use std::sync::Arc;
use syncline_check::{FindingKind, check};
use syncline_device::{Device, block_on};
use syncline_fs::Filesystem;
use syncline_store::{Canary, Store};

/// What a recovery found, and what it wrote.
pub(super) struct Recovered {
    pub(super) found: Found,
    pub(super) events: Vec<Event>,
}

/// Recovers a copy of an image. `checked` also verifies it as a whole, as the crash left it.
pub(super) fn recover(image: &Image, checked: bool, canary: Option<Canary>) -> Result<Recovered, String> {
    // One image is one recovery, whichever thread comes across it.
    let seed = image.hash() as u64;
    let simulation = Simulation::new(seed);
    if checked {
        check_image(&simulation, image)?;
    }
    let log = RecordingDevice::new(image.device());
    let (device, spawn) = (log.clone() as Arc<dyn Device>, simulation.spawner());
    // Never that of the run, nor of another recovery (rule R3).
    let (store_options, options) = options(simulation.clock(), canary, image.hash().to_le_bytes());
    let opening = async move {
        let (store, _) = Store::open(device, store_options, spawn.clone())
            .await
            .map_err(|error| format!("the image does not open: {error}"))?;
        let op = store.last_op().0;
        let fs = Filesystem::open(store, spawn, options)
            .await
            .map_err(|error| format!("the filesystem does not open: {error}"))?;
        Ok::<_, String>(Found { state: observe(&fs).await?, op })
    };
    let found = simulation.run(opening).map_err(|_| "stalled: the recovery does not end".to_owned())??;
    Ok(Recovered { found, events: log.events() })
}

/// Every structure of the image agrees with every other.
fn check_image(simulation: &Simulation, image: &Image) -> Result<(), String> {
    let (device, spawn) = (image.device(), simulation.spawner());
    // It starts no task, and reads end at once.
    let report = block_on(check(device, spawn, &mut |_| {}));
    let report = report.map_err(|error| format!("check: {error}"))?;
    // A superblock that was being written may be torn; its slot is not the newest durable one's.
    match report.findings.iter().find(|finding| finding.kind != FindingKind::SuperblockDamaged) {
        Some(finding) => Err(format!("check: {finding}")),
        None if report.incomplete => Err("check: something could not be read".to_owned()),
        None => Ok(()),
    }
}
