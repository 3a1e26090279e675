//! Detects the directory of a mounted filesystem where a command wants an image that is not
//! mounted.

use crate::failure::{Cause, Failure};
use serde_json::Value;
use std::path::Path;
use syncline_fuse::control;

/// Refuses such a directory; `next` is the next step.
pub fn refuse_mounted(path: &Path, next: &'static str) -> Result<(), Failure> {
    if !path.is_dir() {
        return Ok(());
    }
    // For any other directory, opening it reports the problem.
    let Ok(daemon) = control::text(path, "daemon") else { return Ok(()) };
    let daemon: Value = serde_json::from_str(&daemon).unwrap_or_default();
    let image = daemon["image"].as_str().map(|image| format!(" (its image is {image})"));
    let text = format!("{} is a mounted filesystem{}", path.display(), image.unwrap_or_default());
    Err(Failure::of(Cause::InUse, text).next(next))
}
