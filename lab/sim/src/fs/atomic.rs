//! Atomic writes: several writes of a file that are there after a crash with one transaction, or
//! not at all.

use super::tracked::{Did, tracked_each};
use super::workload::{Done, Failure, Task, finds_room};
use crate::content::contents_of;
use bytes::Bytes;
use rand::Rng;
use syncline_fs::types::Ino;
use syncline_fs::{AtomicWrite, FsError, QuotaLimits};

type Limits = Vec<(Ino, bool, QuotaLimits)>;

impl Task {
    pub(super) async fn write_atomically(&mut self) -> Done {
        let ino = self.random_file()?;
        let _claim = self.claim(ino).await?;
        let limits = self.limits();
        let open = self.fs.start_atomic_write(ino).await?;
        let written = self.write_aside(ino, open).await;
        let commits = self.rng.random_range(0..4) > 0;
        let ended = match written {
            Ok(writes) if commits => self.commit(ino, open, writes, limits).await,
            Ok(_) => Ok(()),
            Err(failure) => Err(failure),
        };
        // After a commit there is nothing to take back, unless it failed.
        self.fs.abort_atomic_write(open).await?;
        ended
    }

    /// Writes that no crash may show yet, with time in between for tasks that write data back.
    async fn write_aside(&mut self, ino: Ino, open: AtomicWrite) -> Result<Vec<(u64, Vec<u8>)>, Failure> {
        let mut seen = self.history.with_file(ino, |file| file.read(0, file.size() as usize));
        let (mut writes, mut size) = (Vec::new(), seen.len() as u64);
        for _ in 0..self.rng.random_range(1..5) {
            let (offset, len) = self.random_range_of(size);
            let data = contents_of(self.history.new_tag(), len);
            let payload: Bytes = syncline_device::AlignedBuf::copy_from(&data).into_bytes().slice(..len);
            self.fs.write_atomically(open, offset, payload, false).await?;
            size = size.max(offset + len as u64);
            seen.resize(size as usize, 0);
            seen[offset as usize..][..len].copy_from_slice(&data);
            writes.push((offset, data));
            if self.rng.random() {
                let longest = if self.rng.random_range(0..8) == 0 { 200_000 } else { 3_000 };
                self.world.nap(self.rng.random_range(0..longest)).await;
            }
        }
        // A part of it may lie on the device by now.
        let shown = self.fs.getattr(ino).await?.size;
        let found = self.fs.read(ino, 0, seen.len()).await?.concat();
        if shown != size || found != seen {
            return Err(Failure::Wrong(format!("file {ino} does not show what an atomic write has written")));
        }
        Ok(writes)
    }

    /// The trees that have limits, and these.
    fn limits(&self) -> Limits {
        self.fs.quotas().iter().map(|tree| (tree.root, tree.being_set, tree.limits)).collect()
    }

    async fn commit(&self, ino: Ino, open: AtomicWrite, writes: Vec<(u64, Vec<u8>)>, limits: Limits) -> Done {
        let (fs, history, started) = (self.fs.clone(), self.history.clone(), self.history.now());
        let everything = self.fs.store().last_op().0;
        let looking = self.fs.clone();
        let mut noted = false;
        let each = move |_: &Did| {
            // Nobody else runs between the transaction, which ends the atomic write, and this look.
            if noted || looking.atomic_write_of(ino).is_some() {
                return;
            }
            noted = true;
            let op = looking.data_operation(ino).expect("it is in memory").0;
            history.with_file(ino, |file| file.carried_by(op, started));
            for (offset, data) in &writes {
                let time = history.tick();
                history.with_file(ino, |file| file.taken_over(time, op, *offset, data));
            }
        };
        let committing = async move { fs.commit_atomic_write(open).await };
        let ordered = self.is_ordered(ino).await?;
        let (answer, _) = tracked_each(&self.fs, committing, each).await;
        let written = self.history.now();
        tracing::trace!(ino, ?answer, "atomic write");
        match answer {
            Err(FsError::AtomicWriteTooLarge) => return Err(Failure::Expected),
            // A limit that was set meanwhile counts all of it again.
            Err(FsError::QuotaExceeded) if self.limits() != limits => return Err(Failure::Expected),
            answer => finds_room(answer)?,
        }
        if ordered || self.is_ordered(ino).await? {
            return Ok(());
        }
        let position = self.world.log.position();
        self.history.promise(position, everything, Some(ino));
        self.history.with_file(ino, |file| file.synced(position, written));
        Ok(())
    }
}
