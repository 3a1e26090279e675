//! For the client of a network device: the check right before it sends, and after a reconnect.

use crate::LeaseLost;
use crate::gate::Gate;
use std::sync::Arc;
use syncline_format::lease::Lease;

/// Asks whether this host may still write. Cheap to clone.
///
/// [`Leased`](crate::Leased) checks each write when it is handed to the device. A device that keeps
/// writes in a queue asks again right before it sends one: the shorter the way from the check to the
/// wire, the less can be late.
#[derive(Clone)]
pub struct Permit(pub(crate) Arc<Gate>);

impl Permit {
    /// Fails if the lease is not valid at this moment. Takes as long as reading the clock.
    pub fn check(&self) -> Result<(), LeaseLost> {
        self.0.check()
    }

    /// The same for an operation that [`Leased`](crate::Leased) has let pass and that is sent only now.
    /// It may still be sent while the lease is being released.
    pub fn check_begun(&self) -> Result<(), LeaseLost> {
        self.0.check_begun()
    }

    /// The check after a reconnect, before anything is sent again: `block` was just read at
    /// [`LEASE_OFFSET`](crate::LEASE_OFFSET) on the new connection. If another host has taken over,
    /// or the lease has expired meanwhile, it is lost and nothing may be sent.
    pub fn check_block(&self, block: &[u8]) -> Result<(), LeaseLost> {
        self.0.check_block(&Lease::decode(block))?;
        // Last, since the read may have taken its time.
        self.0.check()
    }
}
