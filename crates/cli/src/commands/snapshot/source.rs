//! The source of snapshots: an image that nobody uses, or a mounted one.

use crate::commands::ask;
use crate::failure::Failure;
use serde_json::Value;
use std::path::{Path, PathBuf};
use syncline_fuse::control;

/// True for a directory, whose daemon can be asked; fails if that does not answer.
pub fn is_mounted(source: &Path) -> Result<bool, Failure> {
    ask::require_answer(source, ask::PATIENCE)?;
    Ok(source.is_dir())
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
