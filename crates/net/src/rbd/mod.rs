//! Images of Ceph clusters: RBD, through Ceph's own librbd.
//!
//! **The promise of librbd, and the meaning of a flush.** With `rbd_cache = false` "writes return only when
//! the data is on disk on all replicas" (Ceph's documentation, "RBD Config Reference", cache settings).
//! The primary OSD answers a write when it and all replicas of the placement group have committed it to
//! stable storage. So a write that has completed is durable, and a flush has little left to do: librbd
//! waits for the writes in flight ("get a callback when the currently pending writes are on disk",
//! librbd.h) and sends nothing. It is called all the same. The trait asks for it, an image with
//! journaling has more to do in it, and nothing above has to know which storage needs no flush.
//!
//! A flush is acknowledged only while the device works: no sign of a fence was seen, and no operation
//! was given up. With the lock in other hands a flush that librbd answers out of its own memory would
//! say nothing.
//!
//! **Reads** go to the primary OSD, not to a cache of this host.
//!
//! **Threads.** librbd calls back on its own threads and the completions run there. Each device has
//! two threads besides: the sentinel ends it (`sentinel.rs`), the watchman looks now and then
//! (`watchman.rs`). Both sleep nearly always.
//!
//! | file | what it is about |
//! |---|---|
//! | `library.rs` | librados and librbd, loaded when they are needed |
//! | `cluster.rs` | a client of the cluster, the settings that safety depends on |
//! | `image.rs` | an open image, the calls that wait |
//! | `lock.rs`, `holder.rs` | one writer; why a former one can't write |
//! | `flight.rs`, `flights.rs` | operations under way; answered once, by their result or by the end |
//! | `sentinel.rs`, `watchman.rs`, `broken.rs` | the end: fenced, away, shrunk |
//! | `claims.rs` | snapshots that are being read |
//! | `device.rs` | the device |

mod bounded;
mod broken;
mod claims;
mod cluster;
mod device;
mod error;
mod flight;
mod flights;
mod holder;
mod image;
mod library;
mod lock;
mod sentinel;
mod spec;
mod watchman;

pub use broken::successor;
pub use device::RbdDevice;
pub use error::RbdError;
pub use holder::LockHolder;
#[doc(hidden)]
pub use spec::Canary;
pub use spec::{RbdOptions, RbdSpec};
