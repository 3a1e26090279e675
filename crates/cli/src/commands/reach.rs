//! Whether sync(2) reaches a mount. The kernel passes it on to FUSE mounts with a block device only.

use super::mount_options::{Fuseblk, MountChoices};
use crate::failure::{Cause, Failure};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;
use syncline_device::MountDevice;
use syncline_fuse::SyncReach;
use syncline_image::Image;
use uuid::Uuid;

/// The advice for mounts that sync(2) does not reach.
pub const WITHOUT: &str = "fsync does, and 'syncline sync --all DIR'";

/// The block device for a mount, or why it gets none.
pub fn device(
    storage: &Image,
    image: &Path,
    uuid: [u8; 16],
    choices: &MountChoices,
) -> Result<Result<Arc<MountDevice>, String>, Failure> {
    let found = may_have(choices).and_then(|()| {
        // An image has the same number at each mount.
        let wish = Uuid::from_bytes(uuid).as_u128() as u32;
        storage.for_mount(image, wish).map(Arc::new).map_err(|error| format!("no loop device: {error}"))
    });
    match found {
        Err(why) if choices.fuseblk == Fuseblk::Always => Err(impossible(&why)),
        found => Ok(found),
    }
}

/// The failure where a mount has to have a block device and can't.
pub fn impossible(why: &str) -> Failure {
    Failure::of(Cause::Fuse, format!("-o fuseblk=always: {why}")).next("leave the option out")
}

fn may_have(choices: &MountChoices) -> Result<(), String> {
    let reason = if choices.snapshot.is_some() {
        "a snapshot does not change"
    } else if choices.fuseblk == Fuseblk::Never {
        "-o fuseblk=never"
    } else if !rustix::process::geteuid().is_root() {
        "root's mounts only"
    } else if choices.fuseblk == Fuseblk::Auto && !syncline_fuse::namespace_outlives_us() {
        "not in a mount namespace that may end with the daemon, as a container's; see -o fuseblk"
    } else if choices.fuseblk == Fuseblk::Auto && syncline_fuse::is_frozen_for_sleep() {
        "not in a user's session, which is frozen while the machine goes to sleep; see -o fuseblk"
    } else {
        return Ok(());
    };
    Err(reason.to_owned())
}

/// Why sync(2) does not reach a mount; `None` if it does. `without` is the reason why it was given no
/// block device.
pub fn why_not(reach: &SyncReach, without: Option<&str>) -> Option<String> {
    match reach {
        SyncReach::Reached => None,
        SyncReach::OldKernel => Some("Linux passes it on since 6.18".to_owned()),
        SyncReach::NoDevice(refused) => {
            let refused = refused.as_ref().map(|error| format!("the kernel refused fuseblk: {error}"));
            Some(without.map(str::to_owned).or(refused).unwrap_or_else(|| "no block device".to_owned()))
        }
    }
}

/// Says once that sync(2) does not reach a mount: to the caller who has asked for it, to others in the log.
pub fn tell_without(why_not: &str, choices: &MountChoices) {
    if choices.fuseblk == Fuseblk::Never {
        tracing::info!("sync(2) does not reach this mount ({why_not}): {WITHOUT}");
    } else {
        note!("syncline: sync(2) does not reach this mount ({why_not}): {WITHOUT}");
    }
}

/// The daemon's report of whether sync(2) reaches its mount.
pub fn told(why_not: Option<&str>) -> Value {
    json!({ "reached": why_not.is_none(), "why_not": why_not })
}

/// In words, for a mount that can be written; `None` for a daemon that does not tell.
pub fn in_words(daemon: &Value) -> Option<String> {
    if daemon["read_only"] == true {
        return None;
    }
    let reached = daemon["sync"]["reached"].as_bool()?;
    let why = daemon["sync"]["why_not"].as_str().unwrap_or("not told");
    Some(match reached {
        true => "sync(2) reaches it".to_owned(),
        false => format!("sync(2) does not reach it ({why}): {WITHOUT}"),
    })
}
