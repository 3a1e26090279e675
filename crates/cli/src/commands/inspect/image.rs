//! An image under inspection.

use crate::commands::image;
use crate::failure::Failure;
use std::path::Path;
use std::sync::Arc;
use syncline_device::{AlignedBuf, Device, DeviceExt, block_on};
use syncline_format::superblock::Superblock;
use syncline_format::{BLOCK_BYTES, Geometry};
use syncline_store::{Salvaged, Store, read_superblocks};

/// The device, and the structures that could be opened on it.
pub struct Image {
    pub device: Arc<dyn Device>,
    /// The newest good superblock, or why there is none.
    superblock: Result<Superblock, String>,
    /// Tree and log together, as far as they can be read, or why they can't be.
    opened: Result<(Arc<Store>, Salvaged), String>,
}

impl Image {
    /// Opens a device for reading. Any other error is reported by the commands that it affects.
    pub fn open(path: &Path) -> Result<Self, Failure> {
        let device = image::open_read_only(path)?;
        let slots = block_on(read_superblocks(&device));
        let superblock = slots.map(|slots| slots.superblock).map_err(|error| error.to_string());
        let spawn = image::background()?;
        let opened =
            block_on(Store::open_to_salvage(device.clone(), spawn)).map_err(|error| error.to_string());
        Ok(Self { device, superblock, opened })
    }

    /// The newest good superblock.
    pub fn superblock(&self) -> Result<&Superblock, String> {
        self.superblock.as_ref().map_err(Clone::clone)
    }

    /// The layout of the image.
    pub fn geometry(&self) -> Result<Geometry, String> {
        Ok(self.superblock()?.geometry)
    }

    /// The items, including those in the log.
    pub fn store(&self) -> Result<&Arc<Store>, String> {
        self.opened.as_ref().map(|(store, _)| store).map_err(Clone::clone)
    }

    /// The structures other than items, and the parts that could not be read.
    pub fn salvaged(&self) -> Result<&Salvaged, String> {
        self.opened.as_ref().map(|(_, salvaged)| salvaged).map_err(Clone::clone)
    }

    /// The number of blocks on the device.
    pub fn blocks(&self) -> u64 {
        self.device.size_bytes() / BLOCK_BYTES as u64
    }

    /// Reads blocks.
    pub fn read(&self, addr: u64, blocks: u64) -> Result<AlignedBuf, String> {
        let last = addr.checked_add(blocks).filter(|&end| end <= self.blocks());
        if last.is_none() {
            return Err(format!("block {addr} is outside: the device has {} blocks", self.blocks()));
        }
        let read = self.device.read_at(addr * BLOCK_BYTES as u64, blocks as usize * BLOCK_BYTES);
        block_on(read).map_err(|error| error.to_string())
    }
}
