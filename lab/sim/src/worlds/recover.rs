//! Opens the image that a crash left, checks all of it and reads everything that came back.

use super::accounts::Accounts;
use super::disk::Image;
use super::judge::Found;
use super::kept;
use super::run::options;
use super::state::State;
use crate::observe::observe;
use crate::{Event, RecordingDevice, Simulation, unexplained};
use std::sync::Arc;
use std::time::Duration;
use syncline_check::check;
use syncline_device::{Device, block_on};
use syncline_fs::Filesystem;
use syncline_store::{Canary, Store};

/// Long enough to remove the few files of a workload that wait for removal.
const REMOVALS: Duration = Duration::from_millis(5);

/// The recovered state, and the writes of the recovery.
pub(super) struct Recovered {
    pub(super) found: Found,
    pub(super) events: Vec<Event>,
}

/// Recovers a copy of an image. With `checked`, the whole image is also verified as the crash left
/// it.
pub(super) fn recover(image: &Image, checked: bool, canary: Option<Canary>) -> Result<Recovered, String> {
    // An image determines its recovery, whichever thread explores it.
    let seed = image.hash() as u64;
    let simulation = Simulation::new(seed);
    if checked {
        check_image(&simulation, image)?;
    }
    let log = RecordingDevice::new(image.device());
    let (device, spawn) = (log.clone() as Arc<dyn Device>, simulation.spawner());
    // Different from the epoch of the run and of any other recovery (rule R3).
    let (clock, epoch) = (simulation.clock(), image.hash().to_le_bytes());
    let again = move || options(clock.clone(), canary, epoch);
    let (store_options, options) = again();
    let opening = async move {
        let (store, _) = Store::open(device.clone(), store_options, spawn.clone())
            .await
            .map_err(|error| format!("the image does not open: {error}"))?;
        let op = store.last_op().0;
        let fs = Filesystem::open(store, spawn.clone(), options)
            .await
            .map_err(|error| format!("the filesystem does not open: {error}"))?;
        let state = State::of(observe(&fs).await?);
        if !fs.quotas().is_empty() {
            // An inode without a name counts until it is removed.
            spawn.sleep(REMOVALS).await;
        }
        let accounts = Accounts::read(&fs, &state).await?;
        let snapshots = kept::read_all(&fs, &device, &spawn, again).await?;
        Ok::<_, String>(Found { state, op, accounts, snapshots })
    };
    let found = simulation.run(opening).map_err(|_| "stalled: the recovery does not end".to_owned())??;
    Ok(Recovered { found, events: log.events() })
}

/// Checks that all structures of the image agree.
fn check_image(simulation: &Simulation, image: &Image) -> Result<(), String> {
    let (device, spawn) = (image.device(), simulation.spawner());
    // The check starts no task, and reads complete at once.
    let report = block_on(check(device, spawn, &mut |_| {}));
    let report = report.map_err(|error| format!("check: {error}"))?;
    match unexplained(&report) {
        Some(finding) => Err(format!("check: {finding}")),
        None if report.incomplete => Err("check: something could not be read".to_owned()),
        None => Ok(()),
    }
}
