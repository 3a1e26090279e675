//! `syncline info`: the information in an image's superblock, or from a mount's daemon.

use super::identity::identity_of_mount;
use super::snapshot::{BaseOf, base_in, base_of};
use super::stats::{network, summary};
use super::{ask, image, reach};
use crate::failure::{Failure, Outcome};
use crate::live::Sample;
use crate::printed::several;
use crate::size;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use syncline_check::Info;
use syncline_device::{OpenOptions, block_on};
use syncline_format::BLOCK_BYTES;
use syncline_image::How;

/// Arguments of `info`.
#[derive(clap::Args)]
pub struct Args {
    /// Image file or block device that is not mounted, or any directory of a mounted filesystem
    #[arg(value_name = "IMAGE|DIR")]
    source: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The line about a stream that was cut off.
const PART_OF_STREAM: &str =
    "stream        a part of one is saved: 'syncline receive --resume' continues it, --abandon discards it";

/// Runs the command.
pub fn run(args: Args) -> Outcome {
    if args.source.is_dir() {
        return of_mount(&args);
    }
    let opened = image::open(&args.source, &How::reading());
    let opened = opened.map_err(|error| Failure::from(error).or_its_directory())?;
    let about = |failure: Failure| failure.about(&args.source);
    let info = block_on(syncline_check::info(&opened.device())).map_err(|error| about(error.into()))?;
    let base = base_in(&opened).map_err(about)?;
    if args.json {
        let mut info = serde_json::to_value(&info).expect("numbers and texts are JSON");
        info["base"] = base.as_ref().map(BaseOf::as_json).into();
        info["encrypted"] = opened.is_encrypted().into();
        say_text!("{info:#}\n");
        return Ok(ExitCode::SUCCESS);
    }
    print(&info);
    if opened.is_encrypted() {
        say!("encryption    AES-256-XTS; 'syncline key list' shows the keys");
    }
    tell_base(base.as_ref());
    Ok(ExitCode::SUCCESS)
}

fn tell_base(base: Option<&BaseOf>) {
    if let Some(base) = base {
        say!("base          {}, snapshot {:?}: this is a fork", base.image.display(), base.snapshot);
    }
}

/// Asks the daemon of a mounted filesystem, since its superblock is older than its memory.
fn of_mount(args: &Args) -> Outcome {
    ask::require_answer(&args.source, ask::PATIENCE)?;
    let identity = identity_of_mount(&args.source)?;
    let sample = Sample::take(&args.source)?;
    let bytes = |name: &str| sample.number(&format!("/space/{name}_blocks")) * BLOCK_BYTES as u64;
    let read_only = sample.stats["read_only"].as_str();
    // An older daemon tells only of the room that it can hand out.
    let size_bytes = identity.size_bytes.unwrap_or(bytes("total"));
    let (snapshots, kept_bytes) = beside_daemon(Path::new(sample.text("/daemon/image"))).unzip();
    let (image, label, uuid) = (sample.text("/daemon/image"), identity.label, identity.uuid.to_string());
    let is_fork = sample.stats["daemon"]["base"].is_string();
    let base = if is_fork { base_of(Path::new(image))? } else { None };
    if args.json {
        let answer = json!({ "image": image, "base": base.as_ref().map(BaseOf::as_json), "uuid": uuid, "label": label, "size_bytes": size_bytes,
            "block_bytes": BLOCK_BYTES, "used_bytes": bytes("named"), "snapshots": snapshots, "kept_bytes": kept_bytes,
            "free_bytes": bytes("free") + bytes("pending_free"), "clean": false, "mounted": true,
            "read_only": read_only, "sync": sample.stats["daemon"]["sync"], "network": sample.stats["network"], "lease": sample.stats["lease"],
            "lost": sample.stats["lost"], "part_of_stream": identity.part_of_stream });
        say_text!("{answer:#}\n");
        return Ok(ExitCode::SUCCESS);
    }
    say!("image         {image}");
    say!("uuid          {uuid}");
    say!("label         {label}");
    say!("size          {}", size::show(size_bytes));
    say!("in use        {}", size::show(bytes("named")));
    if let Some(line) = kept(snapshots, identity.part_of_stream, kept_bytes) {
        say!("snapshots     {line} (as of the last checkpoint)");
    }
    tell_base(base.as_ref());
    say!("free          {}", size::show(bytes("free") + bytes("pending_free")));
    for (name, what) in network::lines(&sample) {
        say!("{name:14}{what}");
    }
    if let Some(words) = reach::in_words(&sample.stats["daemon"]) {
        say!("sync          {words}");
    }
    if identity.part_of_stream {
        say!("{PART_OF_STREAM}");
    }
    match read_only {
        _ if sample.stats["lost"].is_object() => say!("state         {}", summary::state(&sample)),
        Some(reason) => say!("state         mounted, read-only: {reason}"),
        None => say!("state         mounted; 'syncline stats' shows its activity"),
    }
    Ok(ExitCode::SUCCESS)
}

/// The number of snapshots, and the bytes that only they use: read from the image while its daemon
/// has it, where that can be done.
fn beside_daemon(image: &Path) -> Option<(u64, u64)> {
    // Nobody but the holder of its device lease reads an NBD export.
    if syncline_image::is_remote(image) {
        return None;
    }
    let options = OpenOptions { beside_writer: true, ..OpenOptions::default() };
    let how = How { unattended: true, ..How::new(options) };
    let device = image::open(image, &how).ok()?.device();
    block_on(async {
        let (_, snapshots) = syncline_store::read_snapshots(&device).await.ok()?;
        let kept_blocks = syncline_store::kept_besides(&device).await.ok()?;
        let visible = snapshots.iter().filter(|snapshot| snapshot.is_visible()).count();
        Some((visible as u64, kept_blocks * BLOCK_BYTES as u64))
    })
}

/// How many snapshots there are, and the room that they take besides the files.
fn kept(snapshots: Option<u64>, part_of_stream: bool, kept_bytes: Option<u64>) -> Option<String> {
    let snapshots = snapshots.filter(|number| *number > 0 || part_of_stream)?;
    let what =
        if part_of_stream { format!("{snapshots}, and part of a stream") } else { snapshots.to_string() };
    let room = kept_bytes.map(|bytes| format!("; they take {} in addition", size::show(bytes)));
    Some(what + &room.unwrap_or_default())
}

fn print(info: &Info) {
    say!("format        version {}", info.format_version);
    say!("uuid          {}", info.uuid);
    say!("label         {}", info.label);
    say!("size          {}", size::show(info.size_bytes));
    say!("in use        {} (as of the last checkpoint)", size::show(info.used_bytes));
    if let Some(line) = kept(info.snapshots, info.part_of_stream, info.kept_bytes) {
        say!("snapshots     {line}");
    }
    say!("objects       {}", info.objects);
    let nodes = several(info.tree_nodes, "node", "nodes");
    let copies = several(info.metadata_copies, "copy", "copies");
    say!("tree          {nodes} of {}, {copies} of each", size::show(u64::from(info.node_bytes)));
    say!("checkpoint    generation {}, transaction {}", info.generation, info.transactions);
    say!("log           {} to replay", several(info.log_batches, "batch", "batches"));
    let clean = "clean: it was unmounted";
    let dirty = "not unmounted: the next mount replays the log";
    say!("parents       {}", if info.parent_pointers { "every inode knows its names" } else { "off" });
    if info.device_lease {
        say!("lease         every writer takes the device lease: other hosts may reach the device");
    }
    if info.part_of_stream {
        say!("{PART_OF_STREAM}");
    }
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
