//! The question whether this host may still write, asked before anything is written again.

use parking_lot::RwLock;
use std::sync::Arc;
use syncline_device::DeviceError;

/// Decides, after the connection was lost, whether this host may still write to the export.
///
/// While this host was cut off, another host may have taken the export over. Writing again the changes
/// that this host never flushed would then destroy the writes of its successor. Without a fence a
/// reconnect trusts that no host took the export over.
pub trait Fence: Send + Sync {
    /// Called after each reconnect, and before each enlargement, when the new connection stands and
    /// nothing has been written on it. `image` reads from it; a lease that lies in the image must
    /// be read, and may be found to be another host's.
    ///
    /// It runs on the device's own thread, and the device serves nothing until it returns: it must
    /// use `image`, not the device. An error is final: everything that waits gets it, and every
    /// later operation. Only if a read of `image` failed is the error taken for the connection's,
    /// and the question asked again on the next one.
    fn may_write(&self, image: &mut dyn ReadBlock) -> Result<(), DeviceError>;

    /// Called before each write or discard is sent that had to wait in this device (through a
    /// reconnect, or behind another write), and before each that is sent again, since its permission
    /// may be old. It must not block, nor call the device: it looks at a clock or a flag. An error is
    /// final.
    fn may_still_write(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    /// Called whenever a part of a write or discard goes to the socket, on whichever thread sends it:
    /// bytes for which the socket has no room may lie in this device for any time. The rules of
    /// [`may_still_write`](Self::may_still_write) hold here too. By default it is that call; a fence
    /// may tell an operation that was begun from one that is sent again.
    fn may_send(&self) -> Result<(), DeviceError> {
        self.may_still_write()
    }
}

/// The fence of a device, once there is one.
#[derive(Default)]
pub(super) struct Guard(RwLock<Option<Arc<dyn Fence>>>);

impl Guard {
    pub(super) fn set(&self, fence: Arc<dyn Fence>) {
        *self.0.write() = Some(fence);
    }

    pub(super) fn get(&self) -> Option<Arc<dyn Fence>> {
        self.0.read().clone()
    }

    /// [`Fence::may_still_write`] of it.
    pub(super) fn may_still_write(&self) -> Result<(), DeviceError> {
        self.0.read().as_ref().map_or(Ok(()), |fence| fence.may_still_write())
    }

    /// [`Fence::may_send`] of it.
    pub(super) fn may_send(&self) -> Result<(), DeviceError> {
        self.0.read().as_ref().map_or(Ok(()), |fence| fence.may_send())
    }
}

impl<F> Fence for F
where
    F: Fn(&mut dyn ReadBlock) -> Result<(), DeviceError> + Send + Sync,
{
    fn may_write(&self, image: &mut dyn ReadBlock) -> Result<(), DeviceError> {
        self(image)
    }
}

/// Reads on a connection on which nothing has been written yet.
pub trait ReadBlock {
    /// Fills `into` from `offset`; both offset and length are multiples of 4096.
    fn read_block(&mut self, offset: u64, into: &mut [u8]) -> Result<(), DeviceError>;
}
