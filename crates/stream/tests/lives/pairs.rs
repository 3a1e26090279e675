//! Files that share their blocks, and what may happen to one of the two: it is cut or grows, loses its
//! name while it is open, gives its blocks to a third one, or takes them from the other again.
//!
//! A sender sends such blocks once, and names whose contents they are. Together with crashes, which cut
//! truncations short and leave blocks in the log, this makes places that look like contents.

use crate::world::{ROOT_USER, World};
use bytes::Bytes;
use rand::{Rng, RngCore};
use rand_chacha::ChaCha8Rng;
use syncline_fs::FsError;
use syncline_fs::types::{FileType, Ino, ROOT, SetAttributes};

const BLOCK: u64 = 4096;
/// More than any file has.
const ALL: u64 = 1 << 30;

/// Two files in the root directory, the older one first.
pub struct Pair {
    pub inos: [Ino; 2],
    pub blocks: u64,
    number: u64,
}

impl Pair {
    fn name(&self, which: usize) -> Vec<u8> {
        name(self.number, which)
    }
}

fn name(number: u64, which: usize) -> Vec<u8> {
    format!("pair-{number}-{which}").into_bytes()
}

impl World {
    pub async fn make_pair(&mut self, rng: &mut ChaCha8Rng) -> Result<(), FsError> {
        // Numbers are given once in a life.
        let number: u64 = rng.random();
        let mut inos = [0; 2];
        for (which, ino) in inos.iter_mut().enumerate() {
            *ino = self.file(&name(number, which)).await?;
        }
        let blocks = rng.random_range(2..40);
        let mut data = vec![0; (blocks * BLOCK) as usize];
        rng.fill_bytes(&mut data);
        // The contents begin in either of them.
        let (from, to) = if rng.random_bool(0.5) { (inos[0], inos[1]) } else { (inos[1], inos[0]) };
        self.fs.write(from, 0, Bytes::from(data), false).await?;
        self.fs.copy_range((from, 0), (to, 0), ALL, false).await?;
        self.pairs.push(Pair { inos, number, blocks });
        Ok(())
    }

    /// One of the last few.
    pub fn any_pair(&self, rng: &mut ChaCha8Rng) -> Option<&Pair> {
        let count = self.pairs.len();
        (count > 0).then(|| &self.pairs[count - 1 - rng.random_range(0..count.min(3))])
    }

    async fn file(&mut self, name: &[u8]) -> Result<Ino, FsError> {
        let made = self.fs.mknod(ROOT_USER, ROOT, name, FileType::Regular, 0o644, 0).await?;
        self.made(made.ino);
        Ok(made.ino)
    }

    pub async fn meddle_with_pair(&mut self, rng: &mut ChaCha8Rng) -> Result<(), FsError> {
        let Some(pair) = self.any_pair(rng) else { return self.make_pair(rng).await };
        let which = rng.random_range(0..2);
        let (one, other, blocks) = (pair.inos[which], pair.inos[1 - which], pair.blocks);
        let name = pair.name(which);
        let fs = self.fs.clone();
        match rng.random_range(0..6) {
            0 => {
                self.hold_open(ROOT, &name).await?;
                fs.unlink(ROOT, &name).await?;
            }
            1 | 2 => {
                let third = self.file(format!("copy-{}", rng.random::<u64>()).as_bytes()).await?;
                fs.copy_range((other, 0), (third, 0), ALL, false).await?;
            }
            3 => drop(fs.copy_range((other, 0), (one, 0), ALL, false).await?),
            4 => {
                let size = Some(rng.random_range(0..blocks * BLOCK));
                fs.setattr(ROOT_USER, one, SetAttributes { size, ..SetAttributes::default() }).await?;
            }
            _ => {
                let at = rng.random_range(0..blocks) * BLOCK;
                fs.write(one, at, Bytes::from(vec![rng.random(); 100]), false).await?;
                fs.fsync(one, false).await?;
            }
        }
        Ok(())
    }
}
