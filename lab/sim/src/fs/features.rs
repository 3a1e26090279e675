//! The other features of a mounted filesystem: snapshots, compression, durability classes,
//! rewriting, defragmenting.

use super::workload::{Done, Task, finds_room};
use crate::model::{Body, Change};
use rand::Rng;
use rand::seq::IndexedRandom;
use syncline_device::BLOCK_BYTES;
use syncline_fs::types::{Algorithm, Ino};
use syncline_fs::{Allocation, Durability, FsError};
use syncline_store::StoreError;

const BLOCK: u64 = BLOCK_BYTES as u64;
/// Most snapshots at a time: each keeps blocks, and the image is small.
const SNAPSHOTS_MAX: usize = 4;

impl Task {
    pub(super) async fn use_feature(&mut self) -> Done {
        match self.rng.random_range(0..18) {
            0..3 => self.create_snapshot().await,
            3..5 => self.delete_snapshot().await,
            5..8 => self.set_compression().await,
            8..10 => self.rewrite().await,
            10..13 => self.shift().await,
            13..16 => self.set_class().await,
            _ => self.defragment().await,
        }
    }

    async fn create_snapshot(&mut self) -> Done {
        if self.history.snapshots.wanted().len() >= SNAPSHOTS_MAX {
            return Ok(());
        }
        // The names sort in the order of creation.
        let name = format!("of-{:020}", self.history.new_tag());
        let (known, log) = (&self.history.snapshots, &self.world.log);
        let (started, everything) = (self.history.now(), self.fs.store().last_op().0);
        known.asked(&name, log.position(), started, everything);
        match self.fs.create_snapshot(&name).await {
            Ok(_) => known.made(&name, log.position(), self.history.now(), self.fs.store().last_op().0),
            Err(FsError::Store(StoreError::NoSpace)) => {
                known.gone(&name, log.position());
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        }
        self.promise(everything);
        self.history.all_synced(self.world.log.position(), started);
        Ok(())
    }

    async fn delete_snapshot(&mut self) -> Done {
        let (known, log) = (&self.history.snapshots, &self.world.log);
        let Some(name) = known.any(self.rng.random_range(0..8)) else { return Ok(()) };
        known.unwanted(&name, log.position());
        let everything = self.fs.store().last_op().0;
        finds_room(self.fs.delete_snapshot(&name).await)?;
        known.gone(&name, log.position());
        self.promise(everything);
        Ok(())
    }

    async fn set_compression(&mut self) -> Done {
        let tree = self.tree()?;
        let fits = |body: &Body| !matches!(body, Body::Symlink(_));
        let inos: Vec<Ino> =
            tree.nodes.iter().filter(|(_, node)| fits(&node.body)).map(|(ino, _)| *ino).collect();
        let ino = *inos.choose(&mut self.rng).expect("there is a root");
        let how = [Some(Algorithm::Zstd), Some(Algorithm::Lz4), None][self.rng.random_range(0..3)];
        let fs = self.fs.clone();
        let ((), op) = self.tracked(async move { fs.set_compression(ino, how).await }).await?;
        // It commits nothing if the setting was the same before.
        if let Some(op) = op {
            self.history.changed(op, Change::Compression { ino, how });
        }
        Ok(())
    }

    async fn set_class(&mut self) -> Done {
        let tree = self.tree()?;
        let fits = |body: &Body| !matches!(body, Body::Symlink(_));
        let inos: Vec<Ino> =
            tree.nodes.iter().filter(|(_, node)| fits(&node.body)).map(|(ino, _)| *ino).collect();
        let ino = *inos.choose(&mut self.rng).expect("there is a root");
        let ordered = Some(Durability::Ordered(self.rng.random_range(1..=255)));
        let class = [ordered, ordered, Some(Durability::Fsync), None][self.rng.random_range(0..4)];
        let fs = self.fs.clone();
        let ((), op) = self.tracked(async move { fs.set_durability(ino, class).await }).await?;
        if let Some(op) = op {
            self.history.changed(op, Change::Class { ino, class });
        }
        Ok(())
    }

    /// Rewrites a file; its contents do not change, even if other tasks write meanwhile.
    async fn rewrite(&mut self) -> Done {
        let ino = self.random_file()?;
        let mut next = Some(0);
        while let Some(offset) = next {
            next = self.fs.rewrite(ino, offset).await?.next;
        }
        Ok(())
    }

    /// Collapses a range of a file, or inserts one.
    async fn shift(&mut self) -> Done {
        let ino = self.random_file()?;
        let _claim = self.claim(ino).await?;
        let size = self.history.with_file(ino, |file| file.size());
        let offset = self.rng.random_range(0..=size.min(400_000)) / BLOCK * BLOCK;
        let len = BLOCK * self.rng.random_range(1..12);
        let (fs, insert) = (self.fs.clone(), self.rng.random());
        let what = if insert { Allocation::InsertRange } else { Allocation::CollapseRange };
        let ((), op) = self.changed(async move { fs.allocate(ino, what, offset, len, false).await }).await?;
        let time = self.history.tick();
        self.history.with_file(ino, |file| {
            let mut contents = file.read(0, file.size() as usize);
            let (start, end) = (offset as usize, (offset + len) as usize);
            if insert {
                contents.splice(start..start, vec![0; end - start]);
            } else {
                contents.drain(start..end);
            }
            file.shifted(time, op, &contents);
        });
        self.history.changed(op, Change::Truncate);
        Ok(())
    }

    async fn defragment(&mut self) -> Done {
        let (ino, unshare) = (self.random_file()?, self.rng.random());
        let mut next = Some(0);
        while let Some(block) = next {
            next = self.fs.defragment(ino, block, unshare).await?.next;
        }
        Ok(())
    }
}
