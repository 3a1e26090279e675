//! Evidence of a life that a power cut spoiled, which can't be repeated: the image that was left,
//! and a record of the events.

use super::world::World;
use std::fmt::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use syncline_device::MemoryDevice;
use syncline_sim::Event;

/// Kept beside other temporary files if a judge rejects the life.
pub struct Dossier<'a> {
    pub world: &'a World,
    /// The image that the power cut left.
    pub image: Arc<MemoryDevice>,
}

impl Drop for Dossier<'_> {
    fn drop(&mut self) {
        // A deliberately broken rule needs no evidence.
        if std::thread::panicking() && self.world.setup.canary.is_none() {
            match self.keep() {
                Ok(path) => eprintln!("see {}.img and {0}.txt", path.display()),
                Err(error) => eprintln!("the image can't be kept: {error}"),
            }
        }
    }
}

impl Dossier<'_> {
    fn keep(&self) -> std::io::Result<PathBuf> {
        let name = format!("syncline-threads-{}-{}", self.world.setup.seed, std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(path.with_extension("img"), self.image.image())?;
        let mut text = String::new();
        tell(self.world, &mut text).expect("a string takes all");
        std::fs::write(path.with_extension("txt"), text)?;
        Ok(path)
    }
}

fn tell(world: &World, text: &mut String) -> fmt::Result {
    writeln!(text, "{:?}", world.setup)?;
    for file in &world.owned {
        let lengths: Vec<usize> = file.history.since(0).iter().map(|state| state.values.len()).collect();
        writeln!(text, "file {} of thread {}: records after each change {lengths:?}", file.ino, file.owner)?;
    }
    let mut told: Vec<(usize, String)> = Vec::new();
    for (position, thread, what) in world.watchdog.done() {
        told.push((position, format!("thread {thread} {what}")));
    }
    for promise in world.ledger.all() {
        let inos: Vec<_> =
            promise.files.iter().map(|(file, change)| (world.owned[*file].ino, *change)).collect();
        told.push((
            promise.position,
            format!("durable: changes {inos:?}, of directories {:?}", promise.directories),
        ));
    }
    for (position, event) in world.mount.recording.events().iter().enumerate() {
        let event = match event {
            Event::Write { offset, bufs } => {
                let blocks = bufs.iter().map(|buf| buf.len()).sum::<usize>() / 4096;
                format!("write of {blocks} at block {}", offset / 4096)
            }
            other => format!("{other:?}"),
        };
        told.push((position, format!("  event {position}: {event}")));
    }
    // In the order in which the events happened, as far as known.
    told.sort_by_key(|(position, _)| *position);
    told.iter().try_for_each(|(_, line)| writeln!(text, "{line}"))
}
