//! Transactions of the library: several changes of names, attributes and data that a crash leaves
//! all or none of.

use super::actions::{CALLER, Claim};
use super::history::FsHistory;
use super::tracked::{Did, tracked_each};
use super::workload::{Done, Failure, Task};
use crate::block_of;
use crate::content::contents_of;
use crate::model::{Body, Change, Node, Place, Tree};
use parking_lot::Mutex;
use rand::Rng;
use rand::seq::IndexedRandom;
use std::sync::Arc;
use syncline_fs::types::{Ino, ROOT, XattrMode};
use syncline_fs::{Action, NotCommitted, Step, Together};

/// The meaning of a step in the model.
enum Meant {
    /// A change of names or attributes. An inode that this or an earlier step makes has the number
    /// of [`made`].
    Change(Change),
    Write {
        ino: Ino,
        offset: u64,
        data: Vec<u8>,
    },
    SetLen {
        ino: Ino,
        size: u64,
    },
}

/// Stands for the inode that the step of this index makes, until its number is known.
fn made(step: usize) -> Ino {
    u64::MAX - step as u64
}

/// The transaction that is being put together, and the tree as it will be.
struct Draft {
    tree: Tree,
    steps: Vec<(Step, Meant)>,
    /// The files that it may change, claimed.
    files: Vec<Ino>,
}

/// The path of a directory.
fn path_of(tree: &Tree, dir: Ino) -> Vec<u8> {
    let mut path = Vec::new();
    let mut at = dir;
    while at != ROOT {
        let place = tree.places().into_iter().find(|place| tree.find(place) == Some(at));
        let Some(place) = place else { break };
        path.splice(0..0, [b"/", &place.name[..]].concat());
        at = place.parent;
    }
    path
}

fn path_to(tree: &Tree, at: &Place) -> Vec<u8> {
    [&path_of(tree, at.parent)[..], b"/", &at.name].concat()
}

impl Draft {
    /// Adds a step if it is possible in the model.
    fn add(&mut self, path: Vec<u8>, action: Action, meant: Meant) {
        if let Meant::Change(change) = &meant {
            let mut next = self.tree.clone();
            if next.apply(change).is_err() {
                return;
            }
            self.tree = next;
        }
        self.steps.push((Step { path, action }, meant));
    }

    /// Its claimed files, and those it makes, each with a path of it.
    fn file(&self, rng: &mut impl Rng) -> Option<(Ino, Vec<u8>)> {
        let own = |place: &Place| {
            let ino = self.tree.find(place)?;
            let ours = self.files.contains(&ino) || ino > u64::MAX / 2;
            (ours && self.tree.nodes[&ino].body == Body::File(())).then(|| (ino, path_to(&self.tree, place)))
        };
        let all: Vec<_> = self.tree.places().iter().filter_map(own).collect();
        all.choose(rng).cloned()
    }
}

impl Task {
    /// Makes a transaction of a few random steps.
    pub(super) async fn transaction(&mut self) -> Done {
        let names = self.names.clone();
        let _names = names.write().await;
        let tree = self.tree()?;
        let mut claims: Vec<Claim> = Vec::new();
        for ino in tree.files().choose_multiple(&mut self.rng, 2) {
            claims.extend(self.claim(*ino).await.ok());
        }
        let files = claims.iter().map(Claim::ino).collect();
        let mut draft = Draft { tree, steps: Vec::new(), files };
        for _ in 0..self.rng.random_range(2..9) {
            self.add_step(&mut draft);
        }
        let (steps, meant): (Vec<Step>, Vec<Meant>) = draft.steps.into_iter().unzip();
        if steps.is_empty() {
            return Ok(());
        }
        let (fs, before) = (self.fs.clone(), self.fs.counters().transactions);
        let committing = async move { fs.transact(CALLER, &steps).await };
        // As soon as it is applied: the host may die while the commit waits for its flush.
        let (looking, history, count) = (self.fs.clone(), self.history.clone(), meant.len());
        let recorded = Arc::new(Mutex::new(None));
        let (mut meant, noted) = (Some(meant), recorded.clone());
        let each = move |_: &Did| {
            if looking.counters().transactions > before
                && let (Some(meant), Some(together)) = (meant.take(), looking.last_transaction())
            {
                *noted.lock() = Some(record(&history, &together, meant).map(|()| together));
            }
        };
        let (answer, _) = tracked_each(&self.fs, committing, each).await;
        let recorded = recorded.lock().take();
        tracing::trace!(steps = count, ?answer, "transaction");
        let applied = match &answer {
            Ok(()) | Err(NotCommitted::NotDurable(_)) => true,
            Err(NotCommitted::Broken { step, error }) if !self.world.faulty => {
                return Err(Failure::Wrong(format!("a transaction broke off at step {step}: {error}")));
            }
            Err(_) => false,
        };
        if applied {
            let together =
                recorded.ok_or_else(|| Failure::Wrong("no transaction was applied".to_owned()))??;
            if answer.is_ok() {
                self.promised(&together)?;
            }
        }
        answer.map_err(|error| Failure::from(error.cause().clone()))
    }

    /// A commit that has returned is durable, with everything before it, if no class takes that
    /// back.
    fn promised(&self, together: &Together) -> Done {
        let newest = *together.ops.end();
        if self.fs.store().is_durable(syncline_store::OpSeq(newest)) {
            self.promise(newest);
        } else if !self.fs.may_be_strict() {
            // No inode has a class, so none is `ordered`.
            return Err(Failure::Wrong("a transaction was answered before it was durable".to_owned()));
        }
        Ok(())
    }

    fn add_step(&mut self, draft: &mut Draft) {
        let index = draft.steps.len();
        let Some(parent) = draft.tree.directories().choose(&mut self.rng).copied() else { return };
        let name = format!("n{}", self.rng.random_range(0..7)).into_bytes();
        let at = Place { parent, name };
        let path = path_to(&draft.tree, &at);
        match self.rng.random_range(0..10) {
            0 | 1 => {
                let change = Change::Create { at, ino: made(index), node: Node::new(Body::File(()), 0o640) };
                let action = Action::Create { permissions: 0o640, exclusive: true };
                draft.add(path, action, Meant::Change(change));
            }
            2 => {
                let node = Node::new(Body::Directory(Default::default()), 0o755);
                let change = Change::Create { at, ino: made(index), node };
                draft.add(path, Action::Mkdir { permissions: 0o755 }, Meant::Change(change));
            }
            3..6 => self.add_data_step(draft),
            6 => {
                let Some(from) = draft.tree.places().choose(&mut self.rng).cloned() else { return };
                let started = self.history.now();
                let to = path;
                let path = path_to(&draft.tree, &from);
                if to.starts_with(&[&path[..], b"/"].concat()) || !may_replace(&draft.tree, &from, &at) {
                    return;
                }
                let change = Change::Rename { from, to: at, exchange: false, started };
                draft.add(path, Action::Rename { to }, Meant::Change(change));
            }
            7 => {
                let Some(at) = draft.tree.places().choose(&mut self.rng).cloned() else { return };
                let directory = draft.tree.find(&at).is_some_and(|ino| draft.tree.nodes[&ino].is_directory());
                let action = if directory { Action::RemoveDir } else { Action::RemoveFile };
                let path = path_to(&draft.tree, &at);
                draft.add(path, action, Meant::Change(Change::Remove { at }));
            }
            8 => {
                let Some((ino, path)) = draft.file(&mut self.rng) else { return };
                let permissions = self.rng.random_range(0..0o777);
                let change = Change::Permissions { ino, permissions };
                draft.add(path, Action::SetPermissions { permissions }, Meant::Change(change));
            }
            _ => {
                let Some((ino, path)) = draft.file(&mut self.rng) else { return };
                let name = format!("user.x{}", self.rng.random_range(0..4)).into_bytes();
                let value: Vec<u8> = block_of(self.history.new_tag(), 0).into_iter().take(300).collect();
                let change = Change::SetXattr { ino, name: name.clone(), value: value.clone() };
                let action = Action::SetXattr { name, value, mode: XattrMode::Set };
                draft.add(path, action, Meant::Change(change));
            }
        }
    }

    fn add_data_step(&mut self, draft: &mut Draft) {
        let Some((ino, path)) = draft.file(&mut self.rng) else { return };
        if self.rng.random_range(0..4) == 0 {
            let size = self.rng.random_range(0..60_000);
            return draft.add(path, Action::SetLen { size }, Meant::SetLen { ino, size });
        }
        let (offset, len) = self.random_range_of(30_000);
        let data = contents_of(self.history.new_tag(), len);
        // Always aligned, so that runs are repeatable.
        let payload = syncline_device::AlignedBuf::copy_from(&data).into_bytes().slice(..len);
        draft.add(path, Action::Write { offset, data: payload }, Meant::Write { ino, offset, data });
    }
}

/// Puts the steps into the history. A crash leads back to the end of the transaction or to
/// before it, so it matters little which of its operations made which change.
fn record(history: &FsHistory, together: &Together, meant: Vec<Meant>) -> Done {
    let number = |ino: &mut Ino| {
        if let Some((_, real)) = together.made.iter().find(|(step, _)| made(*step) == *ino) {
            *ino = *real;
        }
    };
    let (mut op, last) = (*together.ops.start(), *together.ops.end());
    let mut files = Vec::new();
    for meant in meant {
        match meant {
            Meant::Change(mut change) => {
                change.each_ino(number);
                history.changed(op, change);
                op += 1;
            }
            Meant::Write { mut ino, offset, data } => {
                number(&mut ino);
                let time = history.tick();
                history.with_file(ino, |file| file.taken_over(time, last, offset, &data));
                files.push(ino);
            }
            Meant::SetLen { mut ino, size } => {
                number(&mut ino);
                let time = history.tick();
                history.with_file(ino, |file| file.truncate(time, last, size));
                files.push(ino);
            }
        }
    }
    if op > last + 1 {
        return Err(Failure::Wrong("a transaction committed less than it has changes".to_owned()));
    }
    let time = history.now();
    files.into_iter().for_each(|ino| history.with_file(ino, |file| file.carried_by(last, time)));
    history.together(together.ops.clone());
    Ok(())
}

/// The rules of the filesystem for a rename that the model does not check.
fn may_replace(tree: &Tree, from: &Place, to: &Place) -> bool {
    let directory = |ino: &Ino| tree.nodes[ino].is_directory();
    match (tree.find(from), tree.find(to)) {
        (Some(source), Some(target)) if source == target => false,
        (Some(source), Some(target)) => directory(&source) == directory(&target),
        (source, _) => source.is_some(),
    }
}
