//! Creating and removing files through the library.

use super::Routine;
use crate::BenchError;
use std::hint::black_box;
use syncline::device::MemoryDevice;
use syncline::{Filesystem, FormatOptions, ImageOptions, format_device};

/// Size of the device, in memory: unwritten parts take none.
const DEVICE_BYTES: u64 = 16 << 30;
/// Files of one directory, as in K4.
const DIRECTORY_FILES: u64 = 10_000;

fn failed(error: syncline::Error) -> BenchError {
    BenchError::Engine { what: "the library", said: error.to_string() }
}

fn filesystem() -> Result<Filesystem, BenchError> {
    let device = MemoryDevice::new(DEVICE_BYTES);
    format_device(device.clone(), &FormatOptions::default()).map_err(failed)?;
    Filesystem::open_device(device, ImageOptions::default()).map_err(failed)
}

fn name(number: u64) -> String {
    format!("/{}/{number:016}", number / DIRECTORY_FILES)
}

/// Creating an empty file and closing it, checkpoints included.
pub(super) fn create() -> Result<Routine, BenchError> {
    let fs = filesystem()?;
    let mut number = 0;
    Ok(Box::new(move || {
        if number % DIRECTORY_FILES == 0 {
            fs.create_dir(format!("/{}", number / DIRECTORY_FILES)).expect("memory does not fail");
        }
        black_box(fs.create_file(name(number)).expect("memory does not fail, and there is room"));
        number += 1;
    }))
}

/// Creating an empty file, and removing the file created 1000 files earlier.
pub(super) fn create_and_remove() -> Result<Routine, BenchError> {
    const BEHIND: u64 = 1000;
    let fs = filesystem()?;
    let mut make = {
        let fs = fs.clone();
        let mut number = 0;
        move || {
            if number % DIRECTORY_FILES == 0 {
                fs.create_dir(format!("/{}", number / DIRECTORY_FILES)).expect("memory does not fail");
            }
            drop(fs.create_file(name(number)).expect("memory does not fail, and there is room"));
            number += 1;
            number
        }
    };
    Ok(Box::new(move || {
        if let Some(old) = make().checked_sub(BEHIND) {
            fs.remove_file(name(old)).expect("it was made");
        }
    }))
}
