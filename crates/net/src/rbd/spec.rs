//! Which image, and how to open it.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// An image of a Ceph cluster.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RbdSpec {
    /// The pool.
    pub pool: String,
    /// The namespace in the pool; `None` is the one without a name.
    pub namespace: Option<String>,
    /// The image.
    pub image: String,
    /// The configuration file. `None` is where Ceph's own programs look: `$CEPH_CONF`,
    /// `/etc/ceph/ceph.conf`, `~/.ceph/config`, `ceph.conf` in the current folder.
    pub conf: Option<PathBuf>,
    /// The user, without the `client.` in front. `None` is `admin`.
    pub id: Option<String>,
}

impl RbdSpec {
    /// An image of the pool's namespace without a name, with Ceph's usual configuration file and
    /// user.
    pub fn new(pool: impl Into<String>, image: impl Into<String>) -> Self {
        Self { pool: pool.into(), namespace: None, image: image.into(), conf: None, id: None }
    }

    /// The user with its type, as in the keyring.
    pub(super) fn entity(&self) -> String {
        format!("client.{}", self.id.as_deref().unwrap_or("admin"))
    }

    /// The image as `rbd`'s own commands take it.
    pub(super) fn plain(&self) -> String {
        match &self.namespace {
            Some(namespace) => format!("{}/{namespace}/{}", self.pool, self.image),
            None => format!("{}/{}", self.pool, self.image),
        }
    }
}

impl fmt::Display for RbdSpec {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "rbd:{}", self.plain())
    }
}

/// How to open an image. The default is for reading and writing.
#[derive(Clone, Debug)]
pub struct RbdOptions {
    /// Refuse to change anything.
    pub read_only: bool,
    /// Read-only beside a possible writer: for data that is guaranteed not to change, such as a
    /// snapshot of Syncline's.
    pub beside_writer: bool,
    /// How long the cluster may take to let us in.
    pub open_limit: Duration,
    /// How long to wait for another client to release its lock. A client that died without
    /// releasing it counts as there until the cluster gives its watch up: 30 s after its last sign
    /// of life, by default (`osd_client_watch_timeout`).
    pub lock_wait: Duration,
    /// How long an operation may remain unanswered before the device gives up for good; `None` is
    /// for ever.
    pub wait: Option<Duration>,
    /// How often to check that the lock is still ours (or, for a reader, that nobody writes), so
    /// that an idle device notices too.
    pub check_every: Duration,
    /// How long those who wait for an answer go on waiting when the device is found fenced, for the
    /// name of who has the lock now.
    pub name_wait: Duration,
    /// A rule to break.
    #[doc(hidden)]
    pub canary: Option<Canary>,
}

impl Default for RbdOptions {
    fn default() -> Self {
        Self {
            read_only: false,
            beside_writer: false,
            open_limit: Duration::from_secs(30),
            lock_wait: Duration::from_secs(1),
            wait: Some(Duration::from_secs(60)),
            check_every: Duration::from_secs(5),
            name_wait: Duration::from_secs(1),
            canary: None,
        }
    }
}

syncline_rules::rules! {
    /// A deliberately broken rule: the tests must notice.
    #[doc(hidden)]
    pub enum Canary {
        /// Leave the lock to librbd, which takes it before a write and hands it over when asked.
        AutomaticLock,
        /// Break a former holder's lock without keeping him from writing.
        Unfenced,
    }
}
