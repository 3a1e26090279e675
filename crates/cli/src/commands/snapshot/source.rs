//! The source of snapshots: an image that nobody uses, or a mounted one.

use crate::commands::ask;
use crate::failure::Failure;
use serde_json::Value;
use std::path::{Path, PathBuf};
use syncline_fuse::{MountEntry, control, mounts};

/// True for a directory, whose daemon can be asked; fails if that does not answer.
pub fn is_mounted(source: &Path) -> Result<bool, Failure> {
    if ask::mount_point(source).is_some() {
        ask::require_answer(source, ask::PATIENCE)?;
    }
    Ok(source.is_dir())
}

/// The directory at which the source is mounted for writing; `None` for an image that is not. A
/// directory stands for itself.
pub fn mounted_at(source: &Path) -> Result<Option<PathBuf>, Failure> {
    if is_mounted(source)? {
        return Ok(Some(source.to_owned()));
    }
    let Ok(whole) = source.canonicalize() else { return Ok(None) };
    let is_it =
        |mount: &MountEntry| mount.is_ours() && !mount.is_read_only() && Path::new(&mount.image) == whole;
    let Some(mount) = mounts()?.into_iter().rfind(is_it) else { return Ok(None) };
    ask::require_answer(&mount.mount_point, ask::PATIENCE)?;
    Ok(Some(mount.mount_point))
}

/// The image: the source itself, or the one behind a mount.
pub fn image_of(source: &Path) -> Result<PathBuf, Failure> {
    if !is_mounted(source)? {
        return Ok(source.to_owned());
    }
    let daemon: Value = serde_json::from_str(&control::text(source, "daemon")?).unwrap_or_default();
    let image = daemon["image"].as_str().map(PathBuf::from);
    image.ok_or_else(|| Failure::new("the daemon does not tell which image it serves").about(source))
}
