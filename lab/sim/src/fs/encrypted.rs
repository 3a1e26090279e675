//! A fork and its base, both encrypted with one key.

use super::{Base, IMAGE_BYTES, fork};
use bytes::Bytes;
use std::sync::{Arc, OnceLock};
use syncline_crypt::{Cipher, Encrypted, KeyRecord, MasterKey, OVERHEAD_BYTES, begin, read_record};
use syncline_device::{BLOCK_BYTES, Device, DeviceExt, MemoryDevice, block_on};

const IMAGE_BLOCKS: u64 = IMAGE_BYTES / BLOCK_BYTES as u64;

fn cipher() -> Arc<Cipher> {
    Arc::new(Cipher::new(&MasterKey::from_bytes(&[6; 64])))
}

/// The storage of the fork and of its base.
fn made() -> &'static [Arc<MemoryDevice>; 2] {
    static MADE: OnceLock<[Arc<MemoryDevice>; 2]> = OnceLock::new();
    MADE.get_or_init(|| [encrypt(&fork::made().own), encrypt(&fork::made().base)])
}

/// An encrypted image with the same contents.
fn encrypt(plain: &Arc<MemoryDevice>) -> Arc<MemoryDevice> {
    const PIECE: usize = 1 << 20;
    let memory = MemoryDevice::new(plain.size_bytes() + OVERHEAD_BYTES);
    let device: Arc<dyn Device> = memory.clone();
    let record = KeyRecord { key_id: [7; 16], ..KeyRecord::new() };
    block_on(begin(&device, &record)).expect("there is room for an image");
    let device = Encrypted::new(device, cipher(), record);
    for (index, piece) in plain.image().chunks(PIECE).enumerate() {
        let piece = Bytes::copy_from_slice(piece);
        block_on(device.write_at((index * PIECE) as u64, vec![piece])).expect("it is as large");
    }
    memory
}

/// The own storage of the fork, and the history that it begins with.
pub(super) fn base() -> Base {
    (made()[0].snapshot(), fork::made().history())
}

/// The device of the fork whose own storage this is.
pub(super) async fn open(own: Arc<dyn Device>) -> Result<Arc<dyn Device>, String> {
    fork::on(decrypted(own).await?, decrypted(made()[1].clone()).await?).await
}

async fn decrypted(below: Arc<dyn Device>) -> Result<Arc<dyn Device>, String> {
    let found = read_record(&below).await.map_err(|error| format!("the keys: {error}"))?;
    let found = found.ok_or("there is no key record")?;
    found.settle(&below, IMAGE_BLOCKS).await.map_err(|error| format!("the keys: {error}"))?;
    Ok(Encrypted::new(below, cipher(), found.record))
}
