//! `syncline mkfs`: make a filesystem.

use super::identity::require_label;
use super::image;
use crate::failure::{Cause, Failure, Outcome};
use crate::{keys, size};
use std::path::PathBuf;
use std::process::ExitCode;
use syncline::FormatOptions;
use syncline_device::{OpenOptions, block_on};
use syncline_image::How;

/// Arguments of `mkfs`.
#[derive(clap::Args)]
pub struct Args {
    /// Image file to make, or block device, NBD export or RBD image to use
    image: PathBuf,
    /// The size, as --size has it, with its unit
    #[arg(value_name = "SIZE", value_parser = with_unit, conflicts_with = "size")]
    with_unit: Option<u64>,
    /// Size of the image file; a block device is used whole. A new file needs it; the default for
    /// an existing one is its length
    #[arg(long, value_parser = size::parse)]
    size: Option<u64>,
    /// Make the image file sparse: its host allocates blocks when they are first written. If the
    /// host is full, writes fail; synced data stays
    #[arg(long)]
    sparse: bool,
    /// Tree node size: 4KiB, 8KiB, 16KiB, 32KiB or 64KiB
    #[arg(long, value_parser = size::parse, default_value = "16KiB")]
    node_size: u64,
    /// How many copies of tree nodes, space map and table of snapshots the image has: dup (two, so that one
    /// damaged block of these loses nothing) or single
    #[arg(long, value_name = "dup|single", value_parser = metadata, default_value = "dup", action = clap::ArgAction::Set)]
    metadata: bool,
    /// Name of the filesystem, at most 64 bytes
    #[arg(long, short = 'L', default_value = "")]
    label: String,
    /// Store its names with every inode, for 'syncline path': on or off
    #[arg(long, value_name = "on|off", value_parser = switch, default_value = "on", action = clap::ArgAction::Set)]
    parent_pointers: bool,
    /// A sync may write little data into the log and place it later, which is faster; older
    /// programs refuse the image: on or off
    #[arg(long, value_name = "on|off", value_parser = switch, default_value = "on", action = clap::ArgAction::Set)]
    data_in_log: bool,
    /// Extended attributes count in the blocks of their files, and so in quotas; older programs
    /// refuse the image: on or off
    #[arg(long, value_name = "on|off", value_parser = switch, default_value = "on", action = clap::ArgAction::Set)]
    counted_xattrs: bool,
    /// Several hosts reach this block device: every writer must hold its device lease, so that only
    /// one host at a time has it. Always on for NBD
    #[arg(long)]
    shared: bool,
    /// Encrypt the image. It asks for a passphrase, unless --key-file or --key-command gives the key
    #[arg(long)]
    encrypt: bool,
    /// Overwrite the present contents
    #[arg(long, short)]
    force: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// UUID of the filesystem; random unless given. It is also the seed of the hash of names, so
    /// that equal commands make equal trees
    #[arg(long, hide = true)]
    uuid: Option<uuid::Uuid>,
}

/// A size with its unit. Other programs under mkfs(8) count in blocks of their own.
fn with_unit(text: &str) -> Result<u64, String> {
    match text.bytes().all(|byte| byte.is_ascii_digit()) {
        true => Err(format!("give it a unit, such as {text}MiB")),
        false => size::parse(text),
    }
}

fn metadata(text: &str) -> Result<bool, String> {
    match text {
        "dup" => Ok(true),
        "single" => Ok(false),
        _ => Err("choose dup or single".into()),
    }
}

pub(super) fn switch(text: &str) -> Result<bool, String> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err("choose on or off".into()),
    }
}

/// Runs the command.
pub fn run(mut args: Args) -> Outcome {
    args.size = args.size.or(args.with_unit);
    if !args.node_size.is_power_of_two() || !(4096..=65536).contains(&args.node_size) {
        return Err(Failure::usage("--node-size is 4KiB, 8KiB, 16KiB, 32KiB or 64KiB"));
    }
    require_label(&args.label)?;
    if args.size.is_some_and(|size| size < image::LEAST_BYTES) {
        return Err(Failure::usage("--size is at least 16MiB"));
    }
    if keys::is_chosen() && !args.encrypt {
        return Err(Failure::usage("a key is for an image that is made with --encrypt"));
    }
    if args.size.is_none() && !args.image.exists() && !syncline_image::is_remote(&args.image) {
        let text = format!("{} does not exist, and no size was given", args.image.display());
        return Err(Failure::of(Cause::NotAnImage, text)
            .next("check the path, or make an image file with --size 8GiB"));
    }
    let mut options = FormatOptions::new()
        .node_bytes(args.node_size as u32)
        .duplicate_metadata(args.metadata)
        .label(args.label)
        .parent_pointers(args.parent_pointers)
        .data_in_log(args.data_in_log)
        .counted_xattrs(args.counted_xattrs)
        .encrypted(args.encrypt);
    if let Some(uuid) = args.uuid {
        options = options.uuid(*uuid.as_bytes()).hash_seed(*uuid.as_bytes());
    }
    if args.sparse && syncline_image::is_remote(&args.image) {
        return Err(Failure::usage("--sparse is for image files"));
    }
    if args.encrypt {
        if !args.force {
            // Before somebody types a passphrase.
            image::refuse_known(&args.image)?;
        }
        syncline_image::add_key(keys::of_new_image()?);
    }
    let how = How::new(OpenOptions { sparse: args.sparse, ..OpenOptions::default() });
    let made = image::make(&args.image, args.size, args.force, args.shared, &how, &options)?;
    let device = made.device();
    if args.json {
        let info = block_on(syncline_check::info(&device))
            .map_err(|error| Failure::from(error).about(&args.image))?;
        say_text!("{:#}\n", serde_json::to_value(&info).expect("numbers and texts are JSON"));
    } else {
        let kind = if args.encrypt { ", encrypted" } else { "" };
        say!("{}: {} of Syncline, empty{kind}", args.image.display(), size::show(device.size_bytes()));
    }
    Ok(ExitCode::SUCCESS)
}
