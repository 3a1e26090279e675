//! Whole images, opened for writing and used.

use super::from_bytes;
use crate::bases::{open, store_options};
use crate::exercise::{Step, exercise, round};
use crate::hard::{examine, hold, is_sound};
use crate::mutate::Case;
use crate::run::run;
use crate::walk::walk;
use arbitrary::Arbitrary;
use std::sync::Arc;
use syncline_device::MemoryDevice;
use syncline_fs::FsError;

/// An image and the operations on it.
#[derive(Arbitrary, Debug)]
pub(crate) struct Input {
    pub case: Case,
    /// The operations; none means each of them once.
    steps: Vec<Step>,
    /// Check the image before and after.
    checked: bool,
    /// Cut the power instead of unmounting.
    killed: bool,
}

/// Opens a changed image for writing, reads everything, uses every operation, closes it, and opens
/// it again.
///
/// - Nothing panics or hangs: each operation returns a result or a proper error, in a bounded
///   number of steps.
/// - Results are consistent with each other (see [`walk`]).
/// - If a check of the image was clean before, it is clean after, whether unmounted or killed. So it is
///   after hard use ([`hold`]).
/// - An image that could be closed can be opened again.
pub fn mount(bytes: &[u8]) {
    let Some(input) = from_bytes::<Input>(bytes) else { return };
    let device = input.case.device();
    let sound = input.checked && examine(&device).is_ok_and(|report| is_sound(&report));
    let closed = used(&device, input.steps, input.killed);
    if sound {
        let used = hold(&input.case.device());
        used.unwrap_or_else(|what| panic!("it was sound before: {what}"));
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

/// Opens the image, uses it, and closes it or cuts the power.
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
