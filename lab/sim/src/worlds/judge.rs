//! The oracle: decides whether the state recovered after a crash is what was promised.
//!
//! A workload is a single sequence of calls, so the oracle can be simple. The recovered tree must
//! be the model's after the first k calls, for a k that no promise excludes and that matches the
//! recovered transaction number. Each file's data must be in the window that the promises leave
//! ([`Window`]).

#[cfg(test)]
mod tests;

use super::accounts::{Accounts, INLINE_BYTES_MAX};
use super::data::{Window, truncates};
use super::kept::{self, Snapshots};
use super::run::{Names, Ran, Run, Sync};
use super::state::State;
use crate::model::{Body, Node, Times};
use syncline_fs::types::{Ino, Timestamp};

/// The recovered state.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct Found {
    pub(super) state: State,
    /// The newest transaction that recovery found.
    pub(super) op: u64,
    pub(super) accounts: Accounts,
    pub(super) snapshots: Snapshots,
}

/// Compares the state recovered after a crash at `position` with the allowed ones. The error
/// describes the expected state.
pub(super) fn judge(run: &Run, found: &Found, position: usize) -> Result<(), String> {
    kept::judge(run, found, position)?;
    let given: Vec<&Sync> = run.syncs.iter().filter(|sync| sync.given <= position).collect();
    let (least, most) = calls_named(run, found.op);
    let promised = given.iter().map(|sync| promised(run, sync)).max().unwrap_or(0);
    if most < promised {
        return Err(format!(
            "transaction {} came back, which is {most} of {} calls; {promised} were promised",
            found.op,
            run.ran.len()
        ));
    }
    let mut wrong = None;
    for calls in least.max(promised)..=most {
        match judge_prefix(run, found, &given, calls) {
            Ok(()) => return Ok(()),
            Err(what) => wrong = Some(format!("as after {calls} calls: {what}")),
        }
    }
    Err(wrong.expect("the range is not empty"))
}

/// The range of numbers of calls that a recovery up to transaction `op` may bring back: all calls
/// that ended by then, and none that began after it. A call that committed nothing goes with the
/// one before it.
fn calls_named(run: &Run, op: u64) -> (usize, usize) {
    let least = run.ran.iter().rposition(|ran| ran.ops.1 <= op).map_or(0, |call| call + 1);
    let most = run.ran.iter().rposition(|ran| ran.ops.0 < op).map_or(0, |call| call + 1);
    (least, most.max(least))
}

/// Number of calls that a sync made durable.
fn promised(run: &Run, sync: &Sync) -> usize {
    match sync.names {
        Names::All => sync.steps,
        Names::Of(ino) => {
            let concerns = |calls: &usize| {
                truncates(run, calls - 1, ino)
                    || names_of(&run.states[*calls], ino) != names_of(&run.states[calls - 1], ino)
            };
            (1..=sync.steps).rev().find(concerns).unwrap_or(0)
        }
    }
}

/// The names of an inode: directory and name.
fn names_of(state: &State, ino: Ino) -> Vec<(Ino, &[u8])> {
    let directories = state.tree.nodes.iter().filter_map(|(dir, node)| match &node.body {
        Body::Directory(entries) => Some((*dir, entries)),
        _ => None,
    });
    directories
        .flat_map(|(dir, entries)| {
            let named = entries.iter().filter(|(_, named)| **named == ino);
            named.map(move |(name, _)| (dir, name.as_slice()))
        })
        .collect()
}

/// Compares the recovered state with the model after the first `calls` calls.
fn judge_prefix(run: &Run, found: &Found, given: &[&Sync], calls: usize) -> Result<(), String> {
    let expected = &run.states[calls];
    if let Some(difference) = difference(&found.state, expected, false) {
        return Err(difference);
    }
    let within = |ran: &&Ran| ran.ops.0 < found.op && found.op < ran.ops.1;
    let setting = run.ran.get(calls).filter(within).and_then(|ran| ran.quota);
    found.accounts.check(expected, setting, true)?;
    for (ino, node) in &found.state.tree.nodes {
        let Some(data) = node.data() else { continue };
        let least = data_promised(run, found, given, *ino, calls);
        let window = Window::new(run, *ino, calls, least, usize::MAX);
        window.check(data).map_err(|what| format!("inode {ino}: {what}"))?;
        check_times(run, *ino, node, calls, &window)?;
    }
    run.syncs
        .iter()
        .filter(|sync| sync.atomic)
        .try_for_each(|sync| all_or_nothing(run, found, given, calls, sync))
}

/// Number of calls after which this file's data is certain: the calls before a sync of it, the
/// calls before an ordered sync if anything after it came back, and the calls before a rename
/// (promise P3) or a copy by sharing that survived.
fn data_promised(run: &Run, found: &Found, given: &[&Sync], ino: Ino, calls: usize) -> usize {
    let ordered = run.syncs.iter().filter(|sync| sync.ordered_by.is_some_and(|(op, _)| op <= found.op));
    let syncs = given.iter().copied().chain(ordered);
    let synced = syncs.filter(|sync| sync.data.contains(&ino)).map(|sync| sync.steps);
    let carried = (1..=calls).filter(|calls| run.ran[calls - 1].carried.contains(&ino));
    synced.chain(carried).max().unwrap_or(0)
}

/// Times belong to the contents: if the contents are certain, so are the times; otherwise they are
/// any that the file had.
fn check_times(
    run: &Run,
    ino: Ino,
    node: &Node<Vec<u8>>,
    calls: usize,
    window: &Window<'_>,
) -> Result<(), String> {
    let times = |calls: usize| run.states[calls].tree.nodes.get(&ino).map(|node| node.times);
    let expected = times(calls).ok_or_else(|| format!("inode {ino} is not in the model"))?;
    if node.times.fixed != expected.fixed {
        return Err(format!("inode {ino} has birth and access times {:?}, not {:?}", node.times, expected));
    }
    // An fdatasync may make data durable without the attribute changes before it; then the times
    // are not certain.
    if window.is_settled() && window.newest_write() <= calls {
        return if node.times == expected {
            Ok(())
        } else {
            Err(format!("inode {ino} has times {:?}, not {expected:?}", node.times))
        };
    }
    let had: Vec<_> = (0..run.states.len()).filter_map(times).collect();
    // A copy that shares only some of the blocks consists of several changes, each with its own
    // time.
    let copies = (0..run.ran.len())
        .filter(|call| run.ran[*call].written == Some(ino) && run.ran[*call].copied.contains(&ino));
    let copying: Vec<_> = copies.filter_map(|call| times(call).zip(times(call + 1))).collect();
    let known = |time: fn(&Times) -> Timestamp| {
        let shown = time(&node.times);
        had.iter().any(|had| time(had) == shown)
            || copying.iter().any(|(before, after)| (time(before)..=time(after)).contains(&shown))
    };
    let known = known(|times| times.mtime) && known(|times| times.ctime);
    if known { Ok(()) } else { Err(format!("inode {ino} has times {:?}, which it never had", node.times)) }
}

/// Promise P6: of the data not logged when the sync began, all comes back or none.
fn all_or_nothing(
    run: &Run,
    found: &Found,
    given: &[&Sync],
    calls: usize,
    sync: &Sync,
) -> Result<(), String> {
    let files = || sync.data.iter().filter_map(|ino| Some((*ino, found.state.tree.nodes.get(ino)?.data()?)));
    let all = files().try_for_each(|(ino, data)| {
        let least = data_promised(run, found, given, ino, calls).max(sync.steps);
        Window::new(run, ino, calls, least, usize::MAX).check(data)
    });
    let none = files().try_for_each(|(ino, data)| {
        let least = data_promised(run, found, given, ino, calls);
        Window::new(run, ino, calls, least, logged_before(run, sync, ino)).check(data)
    });
    match (all, none) {
        (Err(all), Err(none)) => {
            Err(format!("of one sync of {:?} some came back and some did not: {all}; {none}", sync.data))
        }
        _ => Ok(()),
    }
}

/// Number of calls after which this file's data may have been logged before this sync began.
fn logged_before(run: &Run, sync: &Sync, ino: Ino) -> usize {
    let index = run.syncs.iter().position(|other| std::ptr::eq(other, sync)).unwrap_or(0);
    let synced = run.syncs[..index].iter().filter(|other| other.data.contains(&ino)).map(|other| other.steps);
    // Background work is not observed.
    let idle = run.idles.iter().filter(|(_, syncs)| *syncs <= index).map(|(steps, _)| *steps);
    let submitted = (1..=sync.steps).filter(|calls| {
        let ran = &run.ran[calls - 1];
        ran.is_ordered_for(ino) || ran.carried.contains(&ino) || ran.copied.contains(&ino)
    });
    // A small file is taken along with a sync of any other file.
    let small = |steps: usize| {
        let data = run.states[steps].tree.nodes.get(&ino).and_then(|node| node.data());
        data.is_some_and(|data| data.len() <= INLINE_BYTES_MAX)
    };
    let along = run.syncs[..index].iter().map(|other| other.steps).filter(|steps| small(*steps));
    synced.chain(idle).chain(submitted).chain(along).max().unwrap_or(0)
}

/// The first difference between two trees. Without `all`, file data and attributes that belong to
/// it are ignored.
pub(super) fn difference(found: &State, expected: &State, all: bool) -> Option<String> {
    let inos = found.tree.nodes.keys().chain(expected.tree.nodes.keys());
    let differs = |ino: &&Ino| match (found.tree.nodes.get(*ino), expected.tree.nodes.get(*ino)) {
        (Some(one), Some(other)) if all => one != other,
        (Some(one), Some(other)) => !same_but_for_data(one, other),
        _ => true,
    };
    let ino = inos.filter(differs).min()?;
    let (found, expected) = (found.tree.nodes.get(ino), expected.tree.nodes.get(ino));
    let bytes = |node: Option<&std::sync::Arc<Node<Vec<u8>>>>| Some(node?.data()?.len());
    let what = format!("inode {ino} is {found:?}, not {expected:?}");
    Some(format!("{what} (files of {:?} and {:?} bytes)", bytes(found), bytes(expected)))
}

fn same_but_for_data(one: &Node<Vec<u8>>, other: &Node<Vec<u8>>) -> bool {
    let bodies = match (&one.body, &other.body) {
        (Body::File(_), Body::File(_)) => true,
        (one_body, other_body) => one_body == other_body && one.times == other.times,
    };
    bodies
        && one.permissions == other.permissions
        && one.nlink == other.nlink
        && one.xattrs == other.xattrs
        && (one.compression, one.class) == (other.compression, other.class)
}
