//! What is kept of a life that a power cut spoiled, since it can't be lived again: the image that was left, and what happened when.

use crate::life::World;
use std::fmt::{self, Write};
use std::path::PathBuf;
use syncline_device::MemoryDevice;
use syncline_sim::Event;

/// Keeps it beside other temporary files; where.
pub fn keep(world: &World, image: &MemoryDevice) -> String {
    let name = format!("syncline-threads-{}-{}", world.setup.seed, std::process::id());
    let base = std::env::temp_dir().join(name);
    let (image_path, text_path) = (base.with_extension("img"), base.with_extension("txt"));
    match write(world, image, &image_path, &text_path) {
        Ok(()) => format!("see {} and {}", image_path.display(), text_path.display()),
        Err(error) => format!("{}: {error}", base.display()),
    }
}

fn write(
    world: &World,
    image: &MemoryDevice,
    image_path: &PathBuf,
    text_path: &PathBuf,
) -> std::io::Result<()> {
    std::fs::write(image_path, image.image())?;
    let mut text = String::new();
    tell(world, &mut text).expect("a string takes all");
    std::fs::write(text_path, text)
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
    // In the order in which they came, as far as that is known.
    told.sort_by_key(|(position, _)| *position);
    told.iter().try_for_each(|(_, line)| writeln!(text, "{line}"))
}
