//! An image that was lost while it was in use: no operation on it succeeds any more.

use parking_lot::Mutex;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::SystemTime;
use syncline_device::DeviceError;
use syncline_lease::LeaseLost;
use syncline_net::NbdDevice;
use syncline_net::rbd::RbdDevice;

/// Why an image can't be used any more, until it is opened again.
#[derive(Clone, Debug)]
pub struct Lost {
    /// The present holder, if it is known.
    pub to: Option<String>,
    /// When that was found out.
    pub at: SystemTime,
    /// The cause and the next step, in one line.
    pub why: Arc<str>,
}

impl Lost {
    fn now(to: Option<String>, why: &dyn fmt::Display) -> Self {
        Self { to, at: SystemTime::now(), why: why.to_string().into() }
    }

    fn of_lease(why: &LeaseLost) -> Self {
        let to = match why {
            LeaseLost::TakenBy { host, pid, .. } => Some(format!("{host} (process {pid})")),
            _ => None,
        };
        Self::now(to, why)
    }

    /// Of the error with which a device broke.
    fn of(error: &io::Error, to: Option<String>) -> Self {
        let lease = error.get_ref().and_then(|inner| {
            let through_fence = inner.downcast_ref::<DeviceError>().and_then(LeaseLost::of);
            inner.downcast_ref::<LeaseLost>().or(through_fence)
        });
        lease.map_or_else(|| Self::now(to, error), Self::of_lease)
    }
}

type Listener = Box<dyn FnOnce(&Lost) + Send>;

/// Whether an image was lost, and who wants to know.
#[derive(Default)]
pub(crate) struct Watch(Mutex<State>);

#[derive(Default)]
struct State {
    lost: Option<Lost>,
    listeners: Vec<Listener>,
}

impl Watch {
    /// The image was lost; the first report stays.
    pub(crate) fn lose(&self, lost: Lost) {
        let mut state = self.0.lock();
        if state.lost.is_some() {
            return;
        }
        state.lost = Some(lost.clone());
        let listeners = std::mem::take(&mut state.listeners);
        drop(state);
        listeners.into_iter().for_each(|listener| listener(&lost));
    }

    pub(crate) fn lost(&self) -> Option<Lost> {
        self.0.lock().lost.clone()
    }

    /// Calls `listener` when the image is lost, or now if it was.
    pub(crate) fn on_lost(&self, listener: Listener) {
        let mut state = self.0.lock();
        match state.lost.clone() {
            None => state.listeners.push(listener),
            Some(lost) => {
                drop(state);
                listener(&lost);
            }
        }
    }

    /// Of a device of this host that has a lease.
    pub(crate) fn of_lease(leased: &syncline_lease::Leased) -> Arc<Self> {
        let watch = Arc::<Self>::default();
        let told = watch.clone();
        leased.on_lost(move |why| told.lose(Lost::of_lease(why)));
        watch
    }

    /// Of an export: the end of its lease, if it has one, ends the connection to the server too, so
    /// that nothing more leaves this host and nobody waits for an answer that may never come.
    pub(crate) fn of_nbd(nbd: &Arc<NbdDevice>, leased: Option<&syncline_lease::Leased>) -> Arc<Self> {
        let watch = Arc::<Self>::default();
        let told = watch.clone();
        nbd.on_broken(move |error| told.lose(Lost::of(error, None)));
        if let Some(leased) = leased {
            // The device holds the lease's fence, so the lease must not hold the device.
            let nbd = Arc::downgrade(nbd);
            leased.on_lost(move |why| {
                if let Some(nbd) = nbd.upgrade() {
                    nbd.end(why.clone().into());
                }
            });
        }
        watch
    }

    /// Of an RBD image.
    pub(crate) fn of_rbd(rbd: &RbdDevice) -> Arc<Self> {
        let watch = Arc::<Self>::default();
        let told = watch.clone();
        rbd.on_broken(move |error| {
            let to = syncline_net::rbd::successor(error).map(|holder| holder.to_string());
            told.lose(Lost::of(error, to));
        });
        watch
    }
}
