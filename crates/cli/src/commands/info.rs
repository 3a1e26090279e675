//! `syncline info`: what an image says about itself.

use crate::failure::{Failure, Outcome};
use crate::size;
use serde_json::json;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use syncline_device::{Device, FileDevice, OpenOptions, block_on};
use syncline_store::{ReadSlots, read_superblocks};

/// Arguments of `info`.
#[derive(clap::Args)]
pub struct Args {
    /// Image file or block device that is not mounted
    image: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: Args) -> Outcome {
    let device = FileDevice::open(&args.image, OpenOptions { read_only: true, ..OpenOptions::default() })?;
    let device: Arc<dyn Device> = device;
    let slots = block_on(read_superblocks(&device))
        .map_err(|error| Failure::new(format!("{}: {error}", args.image.display())))?;
    let facts = facts(&slots);
    if args.json {
        println!("{:#}", facts);
    } else {
        print(&facts, &slots);
    }
    Ok(ExitCode::SUCCESS)
}

fn facts(slots: &ReadSlots) -> serde_json::Value {
    let superblock = &slots.superblock;
    let label = String::from_utf8_lossy(&superblock.label).trim_end_matches('\0').to_owned();
    json!({
        "format_version": syncline_format::FORMAT_VERSION,
        "uuid": uuid::Uuid::from_bytes(superblock.uuid).to_string(),
        "label": label,
        "size_bytes": superblock.geometry.total_blocks * 4096,
        "node_bytes": superblock.geometry.node_bytes,
        "used_bytes": superblock.used_blocks * 4096,
        "tree_nodes": superblock.tree_nodes,
        "objects": superblock.objects,
        "generation": superblock.generation,
        "superblock_slot": slots.slot,
        "transactions": superblock.op_seq,
        "next_batch": superblock.log.seq,
        "clean": superblock.clean,
        "created_ns": superblock.created_ns,
        "damaged_copies": slots.damaged.len(),
    })
}

fn print(facts: &serde_json::Value, slots: &ReadSlots) {
    let number = |name: &str| facts[name].as_u64().unwrap_or(0);
    println!("format        version {}", number("format_version"));
    println!("uuid          {}", facts["uuid"].as_str().unwrap_or(""));
    println!("label         {}", facts["label"].as_str().unwrap_or(""));
    println!("size          {}", size::show(number("size_bytes")));
    println!("in use        {} (as of the last checkpoint)", size::show(number("used_bytes")));
    println!("objects       {}", number("objects"));
    println!("tree          {} nodes of {}", number("tree_nodes"), size::show(number("node_bytes")));
    println!("checkpoint    generation {}, transaction {}", number("generation"), number("transactions"));
    println!("log           goes on with batch {}", number("next_batch"));
    let clean = "clean: it was unmounted";
    let dirty = "in use or not unmounted: mounting it replays the log";
    println!("state         {}", if slots.superblock.clean { clean } else { dirty });
    for (slot, copy, error) in &slots.damaged {
        println!("damaged       copy {copy} of superblock {slot}: {error}; 'syncline check' tells more");
    }
}
