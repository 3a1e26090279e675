//! The actions of one task on the store.

use super::base::{self, EXTENTS, SHARED, contents, extent_key, shared_key};
use super::history::{Change, History, Placed};
use super::judge;
use super::setup::{Laboratory, seeded};
use bytes::Bytes;
use rand::Rng;
use rand_chacha::ChaCha8Rng;
use std::sync::Arc;
use std::time::Duration;
use syncline_format::{BlockRun, Key};
use syncline_store::{Admission, Store, StoreError, Transaction};

struct Task {
    laboratory: Arc<Laboratory>,
    history: Arc<History>,
    index: u64,
    rng: ChaCha8Rng,
    /// The places of its extents, which no other task changes.
    placed: Vec<Option<Placed>>,
    /// Former places of its data, in which to look for blocks reused too early.
    freed: Vec<u64>,
}

type Done = Result<(), StoreError>;

/// Runs the actions that the seed decides. Panics if the store does something forbidden.
pub(super) async fn run(laboratory: Arc<Laboratory>, history: Arc<History>, index: u64, seed: u64) {
    let items = &base::get().items;
    let placed = (0..EXTENTS)
        .map(|extent| items.get(&extent_key(index, extent)).and_then(|value| Placed::decode(value)));
    let mut task =
        Task { placed: placed.collect(), laboratory, history, index, rng: seeded(seed), freed: Vec::new() };
    for _ in 0..task.laboratory.setup.steps {
        let done = task.step().await;
        match done {
            Ok(()) | Err(StoreError::NoSpace) => {}
            Err(StoreError::ReadOnly { .. }) if task.laboratory.setup.faulty => return,
            Err(_) if task.laboratory.setup.faulty => {}
            Err(error) => panic!("an operation failed on a sound device: {error}"),
        }
    }
}

impl Task {
    fn store(&self) -> Arc<Store> {
        self.laboratory.store.clone()
    }

    async fn step(&mut self) -> Done {
        if self.laboratory.setup.narrow {
            // Only one task syncs; others would only wait for it.
            return match self.rng.random_range(0..10) {
                0..5 if self.index == 0 => self.sync().await,
                0..6 => self.write().await,
                6 => self.remove().await,
                7 => self.look().await,
                _ => self.checkpoint().await,
            };
        }
        if self.laboratory.setup.cramped && self.rng.random_range(0..3) == 0 {
            return self.log_much().await;
        }
        match self.rng.random_range(0..100) {
            0..32 => self.write().await,
            32..40 => self.remove().await,
            40..46 => self.change_items().await,
            46..50 => self.write_for_nothing().await,
            50..72 => self.sync().await,
            72..82 => self.checkpoint().await,
            82..87 => self.snapshot().await,
            87..97 => self.look().await,
            _ => {
                // Long enough for the marker of an idle log.
                self.laboratory.spawn.sleep(Duration::from_millis(230)).await;
                Ok(())
            }
        }
    }

    fn promise(&self, op: u64) {
        self.history.promise(self.laboratory.recording.position(), op);
    }

    fn commit(&mut self, mut transaction: Transaction, mut changes: Vec<Change>) -> Done {
        if self.rng.random() {
            let key = shared_key(self.rng.random_range(0..SHARED));
            changes
                .push((key, Some(Bytes::from(format!("of task {} {}", self.index, self.history.new_tag())))));
        }
        for (key, value) in &changes {
            match value {
                Some(value) => transaction.put(*key, value.clone()),
                None => transaction.delete(*key),
            }
        }
        let op = self.store().commit(transaction)?.0;
        self.history.committed(op, changes);
        Ok(())
    }

    fn some_extent(&mut self) -> (usize, Key) {
        let extent = if self.laboratory.setup.narrow { 0 } else { self.rng.random_range(0..EXTENTS) };
        (extent as usize, extent_key(self.index, extent))
    }

    /// Rewrites one of its extents in another place.
    async fn write(&mut self) -> Done {
        let store = self.store();
        let want = if self.laboratory.setup.narrow { 1 } else { self.rng.random_range(1..4) };
        let _room = store.admit(Admission::Grow).await?;
        let mut room = store.reserve(want).await?;
        let near = if self.laboratory.setup.narrow || self.rng.random_range(0..4) > 0 {
            self.freed.last().copied()
        } else {
            None
        };
        let run = store.allocate(&mut room, want, near)?;
        let tag = self.history.new_tag();
        let write = store.write_data(run, contents(tag, run));
        if self.rng.random_range(0..3) == 0 {
            write.wait().await?;
        }
        let part = match self.rng.random_range(0..6) {
            0 if run.blocks > 1 => {
                store.abandon(&write, BlockRun::new(run.end() - 1, 1));
                BlockRun::new(run.start, run.blocks - 1)
            }
            _ => run,
        };
        let checksums = write.checksums()[..part.blocks as usize].to_vec();
        let placed = Placed { run: part, tag, checksums };
        let (extent, key) = self.some_extent();
        let mut transaction = Transaction::new();
        transaction.name_data(&write, part);
        if let Some(old) = &self.placed[extent] {
            transaction.free(old.run);
        }
        self.commit(transaction, vec![(key, Some(placed.encode()))])?;
        self.freed.extend(self.placed[extent].replace(placed).map(|old| old.run.start));
        Ok(())
    }

    async fn remove(&mut self) -> Done {
        let (extent, key) = self.some_extent();
        let Some(old) = self.placed[extent].clone() else { return Ok(()) };
        let _room = self.store().admit(Admission::Shrink).await?;
        let mut transaction = Transaction::new();
        transaction.free(old.run);
        self.commit(transaction, vec![(key, None)])?;
        self.placed[extent] = None;
        self.freed.push(old.run.start);
        Ok(())
    }

    async fn change_items(&mut self) -> Done {
        let _room = self.store().admit(Admission::Grow).await?;
        let count = self.rng.random_range(1..=SHARED);
        let tag = self.history.new_tag();
        let change = |index| {
            let value = self.rng.random_range(0..4) > 0;
            (shared_key(index), value.then(|| Bytes::from(format!("{tag} ").repeat(10))))
        };
        let changes = (0..count).map(change).collect();
        self.commit(Transaction::new(), changes)
    }

    /// Logs more than the current segment of the log has room for, together with data.
    async fn log_much(&mut self) -> Done {
        self.write().await?;
        let _room = self.store().admit(Admission::Grow).await?;
        let value = Bytes::from(vec![self.index as u8; base::LARGE_BYTES]);
        let changes = (0..base::LARGE).map(|index| (base::large_key(index), Some(value.clone()))).collect();
        self.commit(Transaction::new(), changes)
    }

    async fn write_for_nothing(&mut self) -> Done {
        let store = self.store();
        let mut room = store.reserve(2).await?;
        let run = store.allocate(&mut room, 2, self.freed.last().copied())?;
        let write = store.write_data(run, contents(self.history.new_tag(), run));
        store.abandon(&write, run);
        Ok(())
    }

    async fn sync(&mut self) -> Done {
        let newest = self.store().last_op();
        self.store().sync(newest).await?;
        self.promise(newest.0);
        Ok(())
    }

    async fn checkpoint(&mut self) -> Done {
        let newest = self.store().last_op();
        self.store().checkpoint().await?;
        self.promise(newest.0);
        Ok(())
    }

    async fn snapshot(&mut self) -> Done {
        let (store, recording) = (self.store(), self.laboratory.recording.clone());
        let known: Vec<String> = self.history.snapshots().into_keys().collect();
        if !known.is_empty() && self.rng.random() {
            let name = &known[self.rng.random_range(0..known.len())];
            self.history.change_snapshot(name, |snapshot| {
                snapshot.unwanted.get_or_insert(recording.position());
            });
            return match store.delete_snapshot(name).await {
                // Another task was first, or the snapshot is still being made.
                Err(StoreError::Snapshot(_)) => Ok(()),
                done => done,
            };
        }
        let name = format!("of-{}", self.history.new_tag());
        let newest = store.last_op().0;
        self.history.change_snapshot(&name, |snapshot| snapshot.least_op = newest);
        store.create_snapshot(&name, 0).await?;
        self.history.change_snapshot(&name, |snapshot| snapshot.made = Some(recording.position()));
        self.promise(newest);
        Ok(())
    }

    /// Reads one of its own extents, and one of another task's while that task may change it.
    async fn look(&mut self) -> Done {
        let store = self.store();
        let (extent, key) = self.some_extent();
        let own = self.placed[extent].clone();
        let pin = store.pin();
        let found = store.get(key).await?.and_then(|value| Placed::decode(&value));
        assert_eq!(
            found.as_ref().map(|placed| placed.tag),
            own.as_ref().map(|placed| placed.tag),
            "a task's own item"
        );
        let other = extent_key(
            self.rng.random_range(0..self.laboratory.setup.tasks),
            self.rng.random_range(0..EXTENTS),
        );
        let others = store.get(other).await?.and_then(|value| Placed::decode(&value));
        for placed in own.into_iter().chain(others) {
            let read = judge::require_data(&store, &placed).await;
            assert!(read.is_ok() || self.laboratory.setup.faulty, "{read:?}");
        }
        drop(pin);
        let newest = store.last_op();
        if store.is_durable(newest) {
            self.promise(newest.0);
        }
        Ok(())
    }
}
