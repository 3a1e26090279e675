//! Figures of an image in use, for those who must not keep it open.

use crate::lost::{Lost, Watch};
use crate::{Image, Storage};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use syncline_lease::{LeaseStatus, Leased};
use syncline_net::rbd::RbdDevice;
use syncline_net::{NbdDevice, NetCounters};

/// The figures of an open image. They end when it is closed, and do not keep it open.
#[derive(Clone)]
pub struct Figures {
    network: Network,
    leased: Weak<Leased>,
    watch: Arc<Watch>,
    base: Option<PathBuf>,
    overhead_bytes: u64,
}

#[derive(Clone)]
enum Network {
    None,
    Nbd(Weak<NbdDevice>),
    Rbd(Weak<RbdDevice>),
}

impl Figures {
    /// Counters of the network, for an image that is not on this host.
    pub fn net_counters(&self) -> Option<NetCounters> {
        match &self.network {
            Network::None => None,
            Network::Nbd(nbd) => nbd.upgrade().map(|nbd| nbd.counters()),
            Network::Rbd(rbd) => rbd.upgrade().map(|rbd| rbd.counters()),
        }
    }

    /// The device lease as it is now, if the image has one.
    pub fn lease(&self) -> Option<LeaseStatus> {
        self.leased.upgrade().map(|leased| leased.status())
    }

    /// True if another host may take the image while it is in use.
    pub fn can_be_lost(&self) -> bool {
        !matches!(self.network, Network::None) || self.leased.upgrade().is_some()
    }

    /// Bytes of its storage that its filesystem does not have.
    pub fn overhead_bytes(&self) -> u64 {
        self.overhead_bytes
    }

    /// Where the base of a fork is.
    pub fn base(&self) -> Option<&Path> {
        self.base.as_deref()
    }

    /// How the image was lost, if it was.
    pub fn lost(&self) -> Option<Lost> {
        self.watch.lost()
    }
}

impl Image {
    /// The figures of this image.
    pub fn figures(&self) -> Figures {
        let network = match &self.storage {
            Storage::File(_) => Network::None,
            Storage::Nbd(nbd) => Network::Nbd(Arc::downgrade(nbd)),
            Storage::Rbd(rbd) => Network::Rbd(Arc::downgrade(rbd)),
        };
        let leased = self.leased.as_ref().map(Arc::downgrade).unwrap_or_default();
        let base = self.base().map(Path::to_owned);
        let (watch, overhead_bytes) = (self.watch.clone(), self.overhead_bytes());
        Figures { network, leased, watch, base, overhead_bytes }
    }
}
