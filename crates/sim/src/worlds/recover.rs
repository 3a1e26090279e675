//! Opens what a crash left, checks the whole image and reads everything that came back.

use super::accounts::Accounts;
use super::disk::Image;
use super::judge::Found;
use super::kept;
use super::observe::observe;
use super::run::options;
use crate::{Event, RecordingDevice, Simulation, unexplained};
use std::sync::Arc;
use std::time::Duration;
use syncline_check::check;
use syncline_device::{Device, block_on};
use syncline_fs::Filesystem;
use syncline_store::{Canary, Store};

/// Long enough to remove what the few files of a workload leave.
const REMOVALS: Duration = Duration::from_millis(5);

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
        let state = observe(&fs).await?;
        if !fs.quotas().is_empty() {
            // What has no name any more counts until it is removed.
            spawn.sleep(REMOVALS).await;
        }
        let accounts = Accounts::read(&fs, &state).await?;
        let snapshots = kept::read_all(&fs, &device, &spawn, again).await?;
        Ok::<_, String>(Found { state, op, accounts, snapshots })
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
    match unexplained(&report) {
        Some(finding) => Err(format!("check: {finding}")),
        None if report.incomplete => Err("check: something could not be read".to_owned()),
        None => Ok(()),
    }
}
