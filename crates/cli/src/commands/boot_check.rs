//! `fsck.syncline -a`, as run at boot: mounting recovers from a crash, so nothing is checked,
//! except that there is an image.

use super::check::{OPERATIONAL_ERROR, not_checked};
use crate::failure::{Failure, Outcome};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use syncline_device::{Device, FileDevice, OpenOptions, block_on};
use syncline_store::read_superblocks;

/// Tells that the image is not checked, if it is one.
pub fn run(image: &Path) -> Outcome {
    look(image).map_err(|failure| failure.with_code(OPERATIONAL_ERROR))?;
    say!("{}: not checked, as mounting recovers whatever a crash left; use -f to check it", image.display());
    Ok(ExitCode::SUCCESS)
}

fn look(image: &Path) -> Result<(), Failure> {
    // The root filesystem is mounted by then.
    let how = OpenOptions { read_only: true, beside_writer: true, ..OpenOptions::default() };
    let device: Arc<dyn Device> = FileDevice::open(image, how)?;
    match block_on(read_superblocks(&device)) {
        Ok(_) => Ok(()),
        // Nobody can be asked for its key at boot.
        Err(_) if syncline_image::peek_keys(image).is_some() => Ok(()),
        Err(error) => Err(not_checked(error.into(), image)),
    }
}
