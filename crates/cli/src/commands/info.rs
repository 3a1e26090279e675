//! `syncline info`: the information in an image's superblock.

use super::image;
use super::mounted::refuse_mounted;
use crate::failure::{Failure, Outcome};
use crate::printed::several;
use crate::size;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use syncline_check::Info;
use syncline_device::{Device, block_on};

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
    refuse_mounted(&args.image, "ask it with 'syncline stats', or unmount it and name the image")?;
    let device: Arc<dyn Device> = image::open_read_only(&args.image)?;
    let info =
        block_on(syncline_check::info(&device)).map_err(|error| Failure::from(error).about(&args.image))?;
    if args.json {
        say_text!("{:#}\n", serde_json::to_value(&info).expect("numbers and texts are JSON"));
    } else {
        print(&info);
    }
    Ok(ExitCode::SUCCESS)
}

fn print(info: &Info) {
    say!("format        version {}", info.format_version);
    say!("uuid          {}", info.uuid);
    say!("label         {}", info.label);
    say!("size          {}", size::show(info.size_bytes));
    say!("in use        {} (as of the last checkpoint)", size::show(info.used_bytes));
    say!("objects       {}", info.objects);
    say!("tree          {} nodes of {}", info.tree_nodes, size::show(u64::from(info.node_bytes)));
    say!("checkpoint    generation {}, transaction {}", info.generation, info.transactions);
    say!("log           {} batches to replay", info.log_batches);
    let clean = "clean: it was unmounted";
    let dirty = "not unmounted: the next mount replays the log";
    say!("parents       {}", if info.parent_pointers { "every inode knows its names" } else { "off" });
    say!("state         {}", if info.clean { clean } else { dirty });
    if let Some(what) = &info.superblock_lost {
        say!("damaged       {what}; a mount for writing is refused");
    }
    if let Some(what) = &info.log_damaged {
        say!("damaged       the log: {what}; 'syncline check' tells more");
    }
    if info.superblocks_damaged > 0 {
        let copies = several(info.superblocks_damaged, "copy of a superblock", "copies of superblocks");
        say!("damaged       {copies}; 'syncline check' tells more");
    }
}
