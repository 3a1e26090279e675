//! Whole images, opened for writing and used.

use super::check::{examine, is_sound};
use super::from_bytes;
use crate::bases::{open, store_options};
use crate::exercise::{Step, exercise, round};
use crate::mutate::Case;
use crate::run::run;
use crate::walk::walk;
use arbitrary::Arbitrary;
use std::sync::Arc;
use syncline_device::MemoryDevice;
use syncline_fs::FsError;

/// An image and what is done to it.
#[derive(Arbitrary, Debug)]
pub(crate) struct Input {
    pub case: Case,
    /// What is done; nothing means everything once.
    steps: Vec<Step>,
    /// Check the image before and after.
    checked: bool,
    /// The power fails instead of an unmount.
    killed: bool,
}

/// Opens a changed image for writing, looks at everything, uses every operation, closes it, opens it again.
///
/// - Nothing panics and nothing hangs: an answer or an orderly error for each operation, in a bounded number of steps.
/// - Answers are consistent in themselves (see [`walk`]).
/// - The image of a filesystem whose check was clean before is clean after, unmounted or killed.
/// - An image that could be closed can be opened again.
pub fn mount(bytes: &[u8]) {
    let Some(input) = from_bytes::<Input>(bytes) else { return };
    let device = input.case.device();
    let sound = input.checked && examine(&device).is_ok_and(|report| is_sound(&report));
    let closed = used(&device, input.steps, input.killed);
    if sound {
        let report = examine(&device).expect("an image that was sound can be checked");
        assert!(is_sound(&report), "it was sound before: {:#?}", report.findings);
    }
    if closed.is_ok() {
        let again = device.snapshot();
        let opened = run(|world| async move {
            let fs = open(again, &world, store_options(7, true)).await?;
            walk(&fs).await;
            Ok::<_, FsError>(())
        });
        opened.expect("an image that was closed can be opened");
    }
}

/// Opens the image, uses it, and closes it or not.
fn used(device: &Arc<MemoryDevice>, steps: Vec<Step>, killed: bool) -> Result<(), FsError> {
    let device = device.clone();
    run(move |world| async move {
        let fs = open(device, &world, store_options(6, false)).await?;
        let walked = walk(&fs).await;
        let steps = if steps.is_empty() { round() } else { steps };
        exercise(&fs, &walked, &steps).await;
        walk(&fs).await;
        if killed {
            return Err(FsError::NotSupported);
        }
        let written = fs.close().await;
        fs.store().close().await?;
        written
    })
}
