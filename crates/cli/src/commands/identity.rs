//! `syncline label` and `syncline uuid`: the names of a filesystem.

use super::figures::IDENTITY;
use super::image;
use super::mkfs::switch;
use crate::failure::{Cause, Failure, Outcome};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;
use syncline::{Filesystem, ImageOptions};
use syncline_device::{OpenOptions, block_on};
use syncline_format::superblock::{LABEL_BYTES, encode_label};
use syncline_fs::FsError;
use syncline_fuse::control::{self, ControlError};
use syncline_image::{How, Location};
use uuid::Uuid;

/// Arguments of `label`.
#[derive(clap::Args)]
pub struct LabelArgs {
    /// Image file or block device that is not mounted, or any directory of a mounted filesystem
    #[arg(value_name = "IMAGE|DIR")]
    source: PathBuf,
    /// The label from now on, at most 64 bytes; '' for none
    new: Option<String>,
    /// Whether several hosts reach this block device, so that every writer must hold its device
    /// lease: on or off. No other host may have it mounted meanwhile
    #[arg(long, value_name = "on|off", value_parser = switch, action = clap::ArgAction::Set, conflicts_with = "new")]
    shared: Option<bool>,
}

/// Arguments of `uuid`.
#[derive(clap::Args)]
pub struct UuidArgs {
    /// Image file or block device that is not mounted, or, to show it, any directory of a mounted
    /// filesystem
    #[arg(value_name = "IMAGE|DIR")]
    source: PathBuf,
    /// The UUID from now on: eight, four, four, four and twelve hexadecimal digits, or 'random'
    new: Option<NewUuid>,
}

/// A UUID on the command line.
#[derive(Clone, Copy)]
struct NewUuid(Uuid);

impl FromStr for NewUuid {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "random" {
            return Ok(Self(Uuid::new_v4()));
        }
        match Uuid::parse_str(text) {
            Ok(uuid) if uuid.is_nil() => Err("all zeros name nothing".into()),
            Ok(uuid) => Ok(Self(uuid)),
            Err(error) => Err(format!("{error}; or give 'random'")),
        }
    }
}

/// Label, UUID, size and further figures of an image.
pub struct Identity {
    pub label: String,
    pub uuid: Uuid,
    /// The size of the filesystem, if its daemon tells it.
    pub size_bytes: Option<u64>,
    /// Its daemon says that it has saved part of a stream.
    pub part_of_stream: bool,
}

/// Runs `label`.
pub fn label(args: LabelArgs) -> Outcome {
    if let Some(shared) = args.shared {
        return share(&args.source, shared);
    }
    let Some(new) = args.new else {
        say!("{}", identity(&args.source)?.label);
        return Ok(ExitCode::SUCCESS);
    };
    require_label(&new)?;
    if args.source.is_dir() {
        // The ioctl alone would also set the label of another kind of filesystem.
        identity_of_mount(&args.source)?;
        control::set_label(&args.source, &new).map_err(|error| refused(&args.source, error))?;
    } else {
        change(&args.source, |fs| fs.set_label(&new))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Sets or clears what makes every writer take the device lease, which this process holds meanwhile.
fn share(source: &Path, shared: bool) -> Outcome {
    if source.is_dir() {
        let text = format!("{}: it is mounted, and --shared is changed while it is not", source.display());
        return Err(Failure::of(Cause::InUse, text).next("unmount it, and name the image"));
    }
    match Location::parse(source.as_os_str()) {
        Ok(Location::Rbd(_)) if shared => {
            let text = format!("{}: an RBD image has a lock of its own", source.display());
            return Err(Failure::usage(text).next("nothing has to be set"));
        }
        Ok(Location::Nbd(_)) if !shared => {
            let text = format!("{}: the lease of an NBD export is always taken", source.display());
            return Err(Failure::usage(text).next("to give it up, name the file behind the export"));
        }
        _ => {}
    }
    let how = How { shared: true, ..How::new(OpenOptions::default()) };
    let image = image::open(source, &how)?;
    if image.is_encrypted() && !shared {
        let text = format!("{}: the lease of an encrypted image is always taken", source.display());
        return Err(Failure::usage(text).next("'syncline mkfs --force' makes an image without one"));
    }
    let device = image.device();
    let about = |error: syncline::Error| Failure::from(error).about(source);
    let fs = Filesystem::open_device(device, ImageOptions::default()).map_err(about)?;
    let set = block_on(fs.engine().store().set_shared(shared));
    set.map_err(|error| FsError::from(error).into()).and_then(|()| fs.close()).map_err(about)?;
    Ok(ExitCode::SUCCESS)
}

/// Refuses an invalid label, or one that would be displayed as something else.
pub fn require_label(label: &str) -> Result<(), Failure> {
    let bytes = label.len();
    if label.chars().any(char::is_control) {
        return Err(Failure::usage("a label has no control characters"));
    }
    match encode_label(label) {
        Some(_) => Ok(()),
        None => Err(Failure::usage(format!("a label has at most {LABEL_BYTES} bytes, this one has {bytes}"))),
    }
}

/// Runs `uuid`.
pub fn uuid(args: UuidArgs) -> Outcome {
    let Some(NewUuid(new)) = args.new else {
        say!("{}", identity(&args.source).map_err(Failure::or_its_directory)?.uuid);
        return Ok(ExitCode::SUCCESS);
    };
    if args.source.is_dir() {
        let text = format!("{}: the UUID of a mounted filesystem stays", args.source.display());
        return Err(Failure::of(Cause::InUse, text).next("unmount it, and name the image"));
    }
    change(&args.source, |fs| fs.set_uuid(*new.as_bytes()))?;
    say!("{new}");
    Ok(ExitCode::SUCCESS)
}

fn identity(source: &Path) -> Result<Identity, Failure> {
    if source.is_dir() {
        return identity_of_mount(source);
    }
    let device = image::open_read_only(source)?;
    let slots = block_on(syncline_store::read_superblocks(&device))
        .map_err(|error| Failure::from(error).about(source))?;
    let superblock = slots.superblock;
    let size_bytes = Some(superblock.geometry.total_blocks * syncline_format::BLOCK_BYTES as u64);
    let (label, uuid) = (superblock.label_text(), Uuid::from_bytes(superblock.uuid));
    Ok(Identity { label, uuid, size_bytes, part_of_stream: false })
}

/// Asks the daemon of a mount.
pub fn identity_of_mount(source: &Path) -> Result<Identity, Failure> {
    let text = control::text(source, IDENTITY)?;
    let strange = |_| Failure::new(format!("{}: the daemon's answer makes no sense", source.display()));
    let answer: serde_json::Value = serde_json::from_str(&text).map_err(strange)?;
    let field = |name: &str| answer[name].as_str().unwrap_or_default().to_owned();
    let uuid = Uuid::parse_str(&field("uuid"))
        .map_err(|_| Failure::new(format!("{}: the daemon ends just now", source.display())))?;
    let part_of_stream = answer["part_of_stream"].as_bool().unwrap_or_default();
    Ok(Identity { label: field("label"), uuid, size_bytes: answer["size_bytes"].as_u64(), part_of_stream })
}

/// Opens an image as a mount would, changes it and leaves it clean.
fn change(
    source: &Path,
    change: impl FnOnce(&Filesystem) -> Result<(), syncline::Error>,
) -> Result<(), Failure> {
    let about = |error: syncline::Error| Failure::from(error).about(source);
    let fs = Filesystem::open(source, ImageOptions::default()).map_err(about)?;
    change(&fs).and_then(|()| fs.close()).map_err(about)
}

/// Names the next step if only an owner may do this.
fn refused(source: &Path, error: ControlError) -> Failure {
    let errno = match &error {
        ControlError::Failed { source, .. } => {
            source.raw_os_error().map(rustix::io::Errno::from_raw_os_error)
        }
        _ => None,
    };
    match errno {
        Some(rustix::io::Errno::PERM) => Failure::of(Cause::Permission, error)
            .next("only root and the user whose daemon it is may name the filesystem"),
        Some(rustix::io::Errno::ROFS) => {
            let text = format!("{}: the filesystem is read-only", source.display());
            Failure::of(Cause::Permission, text).next("mount it for writing")
        }
        _ => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuids_are_read_and_nonsense_is_refused() {
        let text = "6ba7b810-9dad-11d1-80b4-00c04fd430c8";
        assert_eq!(text.parse::<NewUuid>().unwrap().0.to_string(), text);
        let random = || "random".parse::<NewUuid>().unwrap().0;
        assert_ne!(random(), random());
        assert!("00000000-0000-0000-0000-000000000000".parse::<NewUuid>().is_err());
        assert!("6ba7".parse::<NewUuid>().is_err_and(|text| text.contains("random")));
    }
}
