//! Snapshots through crashes: each exists from when its creation was acknowledged until its removal
//! was requested, and shows exactly the state when it was made.

use super::accounts::Accounts;
use super::judge::{Found, difference};
use super::run::Run;
use super::state::State;
use super::step::Path;
use crate::observe::observe;
use std::collections::BTreeMap;
use std::sync::Arc;
use syncline_device::{Device, Spawn};
use syncline_fs::{Filesystem, Options};
use syncline_store::{Store, StoreOptions};

/// The creation or removal of a snapshot.
#[derive(Clone, Debug)]
pub(super) struct Turn {
    pub(super) name: Path,
    /// True: creation; false: removal.
    pub(super) made: bool,
    /// Number of calls before it.
    pub(super) calls: usize,
    /// Length of the device log when it was requested; `given`: when it was acknowledged.
    pub(super) asked: usize,
    pub(super) given: usize,
}

/// The contents of snapshots.
pub(super) type Snapshots = BTreeMap<Path, (State, Accounts)>;

/// Reads all snapshots of an open filesystem.
pub(super) async fn read_all(
    fs: &Arc<Filesystem>,
    device: &Arc<dyn Device>,
    spawn: &Arc<dyn Spawn>,
    options: impl Fn() -> (StoreOptions, Options),
) -> Result<Snapshots, String> {
    let mut found = Snapshots::new();
    for snapshot in fs.store().snapshots().await {
        let name = &snapshot.name;
        let (store_options, options) = options();
        let opened = Store::open_snapshot(device.clone(), store_options, spawn.clone(), name).await;
        let (store, _) = opened.map_err(|error| format!("snapshot {name} does not open: {error}"))?;
        let opened = Filesystem::open(store, spawn.clone(), options).await;
        let view =
            opened.map_err(|error| format!("the filesystem of snapshot {name} does not open: {error}"))?;
        let tree = observe(&view).await.map_err(|what| format!("snapshot {name}: {what}"))?;
        let state = State::of(tree);
        let accounts = Accounts::read(&view, &state).await?;
        found.insert(Path::new(name), (state, accounts));
    }
    Ok(found)
}

/// Compares the snapshots recovered after a crash at `position` with the allowed ones.
pub(super) fn judge(run: &Run, found: &Found, position: usize) -> Result<(), String> {
    if let Some(name) = found.snapshots.keys().find(|name| !run.turns.iter().any(|turn| turn.name == **name))
    {
        return Err(format!("there is a snapshot {name}, and nobody asked for it"));
    }
    let mut names: Vec<&Path> = run.turns.iter().map(|turn| &turn.name).collect();
    names.sort_unstable();
    names.dedup();
    names.into_iter().try_for_each(|name| {
        // Calls do not overlap: at most one turn was requested and not acknowledged.
        let asked: Vec<_> =
            run.turns.iter().filter(|turn| turn.name == *name && turn.asked <= position).collect();
        let answered = asked.iter().rposition(|turn| turn.given <= position);
        let certain = answered.map(|turn| asked[turn]);
        let open = asked.get(answered.map_or(0, |turn| turn + 1)).copied();
        let may = [Some(certain), open.map(Some)];
        let allowed = may.into_iter().flatten().map(|turn| turn.filter(|turn| turn.made));
        judge_one(run, name, found.snapshots.get(name), &allowed.collect::<Vec<_>>())
    })
}

/// `allowed` are the creations whose contents the snapshot may show; `None` stands for its absence.
fn judge_one(
    run: &Run,
    name: &Path,
    found: Option<&(State, Accounts)>,
    allowed: &[Option<&Turn>],
) -> Result<(), String> {
    let Some((state, accounts)) = found else {
        let may_be_absent = allowed.iter().any(Option::is_none);
        return if may_be_absent {
            Ok(())
        } else {
            Err(format!("snapshot {name} is gone, and was promised"))
        };
    };
    let mut wrong = format!("snapshot {name} is there, and was deleted or never made");
    for turn in allowed.iter().flatten() {
        let expected = &run.states[turn.calls];
        let differs = difference(state, expected, true).map_or(Ok(()), Err);
        // It also contains inodes that no longer had a name.
        match differs.and_then(|()| accounts.check(expected, None, false)) {
            Ok(()) => return Ok(()),
            Err(what) => wrong = format!("snapshot {name}, as of {} calls: {what}", turn.calls),
        }
    }
    Err(wrong)
}
