//! The workload on the store: several tasks that put, delete, write data, sync and checkpoint at
//! random.

use super::history::{Change, STAMP, StoreHistory};
use super::{EXTENT, FIRST_OBJECT, ITEM, Placed};
use crate::block_of;
use crate::executor::spread;
use crate::lab::World;
use bytes::Bytes;
use parking_lot::Mutex;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::sync::Arc;
use std::time::Duration;
use syncline_device::AlignedBuf;
use syncline_format::{BlockRun, Key};
use syncline_store::{Admission, Admitted, DataWrite, Store, StoreError, Transaction};

/// Runs the tasks to their ends, or to the first failure.
pub(super) async fn work(world: World, store: Arc<Store>, history: Arc<StoreHistory>) -> Result<(), String> {
    let mut rng = ChaCha8Rng::seed_from_u64(world.seed ^ 0x51);
    // Some lives are long, so that the log returns to blocks it used before.
    let (least, most) = world.load.actions;
    let actions = match rng.random_range(0..12) {
        0 if !world.load.pressure => rng.random_range(2 * most..4 * most),
        _ => rng.random_range(least..most),
    };
    // Some lives fill the image, so that every place that can run out of room does.
    let crowded = rng.random_range(0..if world.load.pressure { 2 } else { 6 }) == 0;
    let narrow = world.slow && rng.random();
    let outcome: Arc<Mutex<(u32, Option<String>)>> = Arc::new(Mutex::new((world.load.tasks, None)));
    for index in 0..world.load.tasks {
        let mut rng = ChaCha8Rng::seed_from_u64(rng.random());
        let actions = world.actions(index, actions, &mut rng);
        let mut task = Task {
            rng,
            world: world.clone(),
            store: store.clone(),
            history: history.clone(),
            writes: Vec::new(),
            freed: Vec::new(),
            crowded,
            narrow,
            restless: narrow && index >= world.load.tasks / 2,
        };
        let outcome = outcome.clone();
        world.spawn.spawn(Box::pin(async move {
            let result = task.run(actions).await;
            let mut outcome = outcome.lock();
            outcome.0 -= 1;
            if let Err(error) = result {
                outcome.1.get_or_insert(error);
            }
        }));
    }
    drop((store, history));
    loop {
        world.nap(200).await;
        let mut outcome = outcome.lock();
        if let Some(error) = outcome.1.take() {
            return Err(error);
        }
        if outcome.0 == 0 {
            return Ok(());
        }
    }
}

struct Task {
    rng: ChaCha8Rng,
    world: World,
    store: Arc<Store>,
    history: Arc<StoreHistory>,
    /// Data written but not named yet.
    writes: Vec<(DataWrite, u64)>,
    /// Places of data that this task removed, in which to look for blocks reused too early.
    freed: Vec<u64>,
    /// Writes much and keeps it.
    crowded: bool,
    /// Overwrites the same few extents again and again, so that blocks are soon reused.
    narrow: bool,
    /// Never waits for a sync, so that something runs while other tasks wait for theirs.
    restless: bool,
}

type Done = Result<(), StoreError>;

/// Checks that an operation found room: operations that draw on the reserve never lack it.
fn finds_room<T>(answer: Result<T, StoreError>) -> Result<T, StoreError> {
    match answer {
        Err(StoreError::NoSpace) => {
            Err(StoreError::Unusable("what draws on the reserve found no room".into()))
        }
        answer => answer,
    }
}

impl Task {
    async fn run(&mut self, actions: Vec<u64>) -> Result<(), String> {
        let outcome = self.run_actions(actions).await;
        self.drop_writes();
        outcome
    }

    async fn run_actions(&mut self, actions: Vec<u64>) -> Result<(), String> {
        for action in actions {
            // A seed of its own for each action: leaving one out does not change the others.
            self.rng = ChaCha8Rng::seed_from_u64(action);
            match self.act().await {
                // Room is scarce on so small an image: this is an answer, not a failure.
                Ok(()) | Err(StoreError::NoSpace) => {}
                Err(StoreError::ReadOnly { .. }) if self.world.faulty => break,
                Err(_) if self.world.faulty => self.drop_writes(),
                Err(error) => return Err(format!("an operation failed: {error}")),
            }
            self.look().await?;
        }
        Ok(())
    }

    /// Abandons all writes that were not named.
    fn drop_writes(&mut self) {
        for (write, _) in std::mem::take(&mut self.writes) {
            self.store.abandon(&write, write.run());
        }
    }

    async fn act(&mut self) -> Done {
        if self.world.slow && self.rng.random_range(0..12) == 0 {
            return self.change_many_items().await;
        }
        if self.restless {
            self.world
                .spawn
                .sleep(Duration::from_nanos(spread(&mut self.rng, 1_000_000, 2_000_000_000)))
                .await;
            return match self.rng.random_range(0..10) {
                0..7 => self.write_data(true).await,
                _ => self.remove_data().await,
            };
        }
        match self.rng.random_range(0..100) {
            0..30 => self.change_items().await,
            30..45 => self.write_data(true).await,
            45..52 => self.write_data(false).await,
            52..58 => self.name_what_was_written().await,
            58..68 => self.remove_data().await,
            68..88 => self.sync().await,
            88..91 => {
                let op = self.store.last_op().0;
                finds_room(self.store.checkpoint().await)?;
                self.promise(op);
                Ok(())
            }
            91..93 => self.create_snapshot().await,
            93..95 => self.delete_snapshot().await,
            95..98 => {
                self.world.nap(self.rng.random_range(0..3000)).await;
                Ok(())
            }
            _ => {
                // Long enough for the marker of an idle log.
                self.world.nap(230_000).await;
                Ok(())
            }
        }
    }

    /// Commits and records the transaction. There is no await in between, so nothing else can
    /// commit.
    fn commit(&mut self, mut transaction: Transaction, mut changes: Vec<Change>) -> Result<u64, StoreError> {
        let stamp = self.history.last_op() + 1;
        changes.push((STAMP, Some(Bytes::copy_from_slice(&stamp.to_le_bytes()))));
        for (key, value) in &changes {
            match value {
                Some(value) => transaction.put(*key, value.clone()),
                None => transaction.delete(*key),
            }
        }
        let least = if self.history.objects() > 0 { -1 } else { 0 };
        let objects_delta = self.rng.random_range(least..=2);
        transaction.count_objects(objects_delta);
        let op = self.store.commit(transaction)?.0;
        self.history.committed(op, changes, objects_delta);
        Ok(op)
    }

    fn promise(&self, op: u64) {
        self.history.promise(self.world.log.position(), op);
    }

    fn random_key(&mut self) -> Key {
        let object = FIRST_OBJECT + self.rng.random_range(0..40);
        let offset = match self.rng.random_range(0..3) {
            0 => 1000 + self.rng.random_range(0..400),
            _ => self.rng.random_range(0..12),
        };
        Key { object, kind: ITEM, offset }
    }

    async fn change_items(&mut self) -> Done {
        let shrinks = self.rng.random_range(0..4) == 0;
        let _room = self.store.admit(if shrinks { Admission::Shrink } else { Admission::Grow }).await?;
        let mut changes: Vec<Change> = Vec::new();
        let count = self.rng.random_range(1..6);
        for _ in 0..count {
            let key = self.random_key();
            changes.retain(|(other, _)| *other != key);
            let value = (!shrinks && self.rng.random_range(0..5) > 0).then(|| {
                let len = match self.rng.random_range(0..4) {
                    0 => self.rng.random_range(200..950),
                    _ => self.rng.random_range(0..60),
                };
                let tag = self.history.new_tag();
                Bytes::from(
                    format!("{tag:x} ").into_bytes().into_iter().cycle().take(len).collect::<Vec<u8>>(),
                )
            });
            changes.push((key, value));
        }
        self.commit(Transaction::new(), changes)?;
        Ok(())
    }

    /// Makes changes without a sync, as fast as they are admitted: more than may wait for a flush.
    async fn change_many_items(&mut self) -> Done {
        for _ in 0..self.rng.random_range(50..1500) {
            self.change_items().await?;
        }
        Ok(())
    }

    /// Writes data and names it now or later.
    async fn write_data(&mut self, name_now: bool) -> Done {
        let want = self.rng.random_range(1..=if self.crowded { 60 } else { 16 });
        let mut reservation = self.store.reserve(want).await?;
        while reservation.blocks() > 0 {
            let near = if self.rng.random() { self.freed.pop() } else { None };
            let run = self.store.allocate(&mut reservation, want, near)?;
            let tag = self.history.new_tag();
            let blocks =
                (0..run.blocks).map(|index| AlignedBuf::copy_from(&block_of(tag, index)).into_bytes());
            let write = self.store.write_data(run, blocks.collect());
            self.writes.push((write, tag));
        }
        if name_now { self.name_what_was_written().await } else { Ok(()) }
    }

    async fn name_what_was_written(&mut self) -> Done {
        if self.writes.is_empty() {
            return Ok(());
        }
        let wait = self.rng.random_bool(0.4);
        let _room = self.store.admit(Admission::Grow).await?;
        while !self.writes.is_empty() {
            if wait {
                let write = self.writes[0].0.clone();
                write.wait().await?;
            }
            let (write, tag) = self.writes.remove(0);
            self.name(write, tag)?;
        }
        Ok(())
    }

    /// Names a write, perhaps without its ends, and frees the data that it replaces.
    fn name(&mut self, write: DataWrite, tag: u64) -> Result<(), StoreError> {
        let run = write.run();
        let cut =
            if self.rng.random_range(0..4) == 0 { self.rng.random_range(0..=run.blocks) } else { run.blocks };
        if cut < run.blocks {
            self.store.abandon(&write, BlockRun::new(run.start + cut, run.blocks - cut));
        }
        if cut == 0 {
            return Ok(());
        }
        let part = BlockRun::new(run.start, cut);
        let checksums = write.checksums()[..cut as usize].to_vec();
        let placed = Placed { run: part, tag, checksums };
        let key = self.random_extent_key();
        let mut transaction = Transaction::new();
        transaction.name_data(&write, part);
        if let Some(old) = self.history.get(&key).and_then(|old| Placed::decode(&old)) {
            transaction.free(old.run);
            self.freed.push(old.run.start);
        }
        let committed = self.commit(transaction, vec![(key, Some(placed.encode()))]);
        if committed.is_err() {
            self.store.abandon(&write, part);
        }
        committed.map(drop)
    }

    fn random_extent_key(&mut self) -> Key {
        let (objects, offsets) = match (self.narrow, self.crowded) {
            (true, _) => (2, 3),
            (_, true) => (40, 10),
            _ => (8, 6),
        };
        let object = FIRST_OBJECT + self.rng.random_range(0..objects);
        Key { object, kind: EXTENT, offset: self.rng.random_range(0..offsets) }
    }

    /// Gets room to remove something. Snapshots may keep removed data, so that there is no room
    /// left for the removal; then snapshots are deleted to make some.
    async fn room_to_remove(&mut self) -> Result<Admitted, StoreError> {
        loop {
            let beside_snapshots = self.store.keeps_replaced();
            match self.store.admit(Admission::Shrink).await {
                Err(StoreError::NoSpace) if beside_snapshots => {
                    self.delete_any_snapshot().await?;
                    self.world.nap(200).await;
                }
                answer => return finds_room(answer),
            }
        }
    }

    async fn remove_data(&mut self) -> Done {
        let _room = self.room_to_remove().await?;
        let (mut transaction, mut changes) = (Transaction::new(), Vec::new());
        for _ in 0..self.rng.random_range(1..4) {
            let key = self.random_extent_key();
            let old = self.history.get(&key).and_then(|old| Placed::decode(&old));
            if let Some(old) = old.filter(|_| changes.iter().all(|(other, _)| *other != key)) {
                transaction.free(old.run);
                self.freed.push(old.run.start);
                changes.push((key, None));
            }
        }
        if !changes.is_empty() {
            self.commit(transaction, changes)?;
        }
        Ok(())
    }

    async fn create_snapshot(&mut self) -> Done {
        let name = format!("of-{}", self.history.new_tag());
        let (known, log) = (&self.history.snapshots, &self.world.log);
        let newest = self.store.last_op().0;
        known.asked(&name, log.position(), 0, newest);
        match self.store.create_snapshot(&name, 0).await {
            Ok(_) => known.made(&name, log.position(), 0, u64::MAX),
            Err(StoreError::NoSpace) => {
                known.gone(&name, log.position());
                return Ok(());
            }
            Err(error) => return Err(error),
        }
        self.promise(newest);
        Ok(())
    }

    async fn delete_snapshot(&mut self) -> Done {
        match self.history.snapshots.any(self.rng.random_range(0..8)) {
            Some(name) => self.delete_named(&name).await,
            None => Ok(()),
        }
    }

    async fn delete_named(&self, name: &str) -> Done {
        let (known, log) = (&self.history.snapshots, &self.world.log);
        known.unwanted(name, log.position());
        let deleted = finds_room(self.store.delete_snapshot(name).await);
        if matches!(deleted, Err(StoreError::Snapshot(_))) {
            // Another task was faster, or the snapshot was lost.
            self.world.nap(200).await;
            let gone = known.get(name).is_some_and(|life| life.gone.is_some());
            return if gone { Ok(()) } else { deleted };
        }
        deleted?;
        known.gone(name, log.position());
        Ok(())
    }

    /// Deletes an existing snapshot, whether known or left by a power cut.
    async fn delete_any_snapshot(&self) -> Done {
        match self.store.snapshots().await.pop() {
            Some(there) => self.delete_named(&there.name).await,
            None => Ok(()),
        }
    }

    async fn sync(&mut self) -> Done {
        let newest = self.store.last_op();
        finds_room(self.store.sync(newest).await)?;
        self.promise(newest.0);
        Ok(())
    }

    /// Reads some data back and compares it with the history, unless anything was committed
    /// meanwhile.
    async fn look(&mut self) -> Result<(), String> {
        let newest = self.store.last_op();
        if self.store.is_durable(newest) {
            self.promise(newest.0);
        }
        if self.rng.random_range(0..4) > 0 {
            return Ok(());
        }
        let from = self.random_key();
        let to = Key { object: from.object + self.rng.random_range(0..3), kind: u8::MAX, offset: 0 };
        let chunk = match self.store.scan(from, to, 10).await {
            Ok(chunk) => chunk,
            Err(_) if self.world.faulty => return Ok(()),
            Err(error) => return Err(format!("scan: {error}")),
        };
        let expected = self.history.range(from, to);
        if self.store.last_op() == newest && !expected.starts_with(&chunk.items) {
            return Err(format!("a scan from {from:?} shows what was never so"));
        }
        let extent = self.random_extent_key();
        let Some(placed) = self.history.get(&extent).and_then(|value| Placed::decode(&value)) else {
            return Ok(());
        };
        let _pin = self.store.pin();
        let read = self.store.read_data(extent.object, placed.run, &placed.checksums).await;
        let bytes = match read {
            Ok(bytes) => bytes,
            Err(_) if self.world.faulty => return Ok(()),
            Err(error) => return Err(format!("data {:#x} is not readable: {error}", placed.tag)),
        };
        match (0..).zip(bytes.chunks(4096)).all(|(index, block)| block == block_of(placed.tag, index)) {
            true => Ok(()),
            false => Err(format!("data {:#x} reads as another's", placed.tag)),
        }
    }
}
