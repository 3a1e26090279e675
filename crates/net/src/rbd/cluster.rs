//! A client of the cluster, and a pool.
//!
//! Each device is a client of its own. The cluster fences clients, not images: one that loses one
//! image must not lose the others.

use super::error::{Errno, RbdError};
use super::library::{CLIENTS, Libraries, PoolHandle, RadosHandle};
use super::spec::{Canary, RbdOptions, RbdSpec};
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;
use std::sync::atomic::Ordering;

/// How long a client that was fenced stays so, in seconds: ten years. Ceph's own choice is an hour,
/// and a process that is stopped for longer than that would go on with its writes when it is
/// continued.
const FENCED_SECONDS: u64 = 10 * 365 * 24 * 60 * 60;

/// Settings that hold for each image too: a pool or an image may have its own, which come before ours,
/// so `image.rs` looks at the values that apply.
pub(super) const IMAGE_SETTINGS: [(&str, &str); 5] = [
    // Writes are answered when all replicas have them (`mod.rs`), and a read returns what the
    // cluster holds.
    ("rbd_cache", "false"),
    ("rbd_persistent_cache_mode", "disabled"),
    // A replica may not know yet that a client was fenced, so only the primary is asked.
    ("rbd_read_from_replica_policy", "default"),
    // A lock that is broken, by a take-over or because its holder died, fences its holder.
    ("rbd_blocklist_on_break_lock", "true"),
    // librbd's own way to break a lock, which counts where its holder dies between our look and our
    // turn, fences for an hour. With another value librbd 16 sends a command that monitors refuse.
    ("rbd_blocklist_expire_seconds", "0"),
];

/// Settings with their names before Ceph 16.
const OLD_NAMES: [(&str, &str); 2] = [
    ("rbd_blocklist_on_break_lock", "rbd_blacklist_on_break_lock"),
    ("rbd_blocklist_expire_seconds", "rbd_blacklist_expire_seconds"),
];

/// Settings that versions before this one lack, and then behave like.
const NEWER: [&str; 2] = ["rbd_persistent_cache_mode", "rbd_read_from_replica_policy"];

/// The purpose of a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Purpose {
    /// Reading and writing an image.
    Use,
    /// A look at who has an image. It writes nothing and has no time to lose.
    Look,
}

/// A client that is connected to a cluster.
pub(super) struct Cluster {
    pub(super) libraries: &'static Libraries,
    handle: RadosHandle,
}

// SAFETY: librados allows any thread to use a client.
unsafe impl Send for Cluster {}
// SAFETY: as above.
unsafe impl Sync for Cluster {}

impl Cluster {
    pub(super) fn connect(
        libraries: &'static Libraries,
        spec: &RbdSpec,
        options: &RbdOptions,
        purpose: Purpose,
    ) -> Result<Self, RbdError> {
        let user = c_string("the user", spec.id.as_deref().unwrap_or("admin"))?;
        let mut handle = ptr::null_mut();
        // SAFETY: both pointers are valid for the call.
        let created = unsafe { (libraries.rados.rados_create)(&raw mut handle, user.as_ptr()) };
        Errno::check(created.into()).map_err(RbdError::errno("start a client of Ceph"))?;
        let cluster = Self { libraries, handle };
        CLIENTS.fetch_add(1, Ordering::AcqRel);
        cluster.configure(spec.conf.as_deref())?;
        cluster.settle(options, purpose)?;
        // SAFETY: the client is configured and not connected yet.
        let connected = unsafe { (libraries.rados.rados_connect)(handle) };
        let refused = |errno: Errno| RbdError::Connect { entity: spec.entity(), source: errno.io() };
        Errno::check(connected.into()).map_err(refused)?;
        Ok(cluster)
    }

    /// Reads the configuration file, and `CEPH_ARGS` as Ceph's own programs do.
    fn configure(&self, path: Option<&Path>) -> Result<(), RbdError> {
        let named =
            path.map(|path| c_string("the configuration file", path.as_os_str().as_bytes())).transpose()?;
        let name = named.as_ref().map_or(ptr::null(), |name| name.as_ptr());
        // SAFETY: the client exists; the name is null or ends with a zero.
        let read = unsafe { (self.libraries.rados.rados_conf_read_file)(self.handle, name) };
        Errno::check(read.into()).map_err(|errno| RbdError::Configuration {
            path: path.map(Path::to_owned),
            source: errno.io(),
        })?;
        // SAFETY: the client exists; null stands for CEPH_ARGS.
        let read = unsafe { (self.libraries.rados.rados_conf_parse_env)(self.handle, ptr::null()) };
        Errno::check(read.into()).map_err(RbdError::errno("read CEPH_ARGS"))?;
        Ok(())
    }

    /// Sets what safety depends on, after the file so that the file can't change it.
    fn settle(&self, options: &RbdOptions, purpose: Purpose) -> Result<(), RbdError> {
        for (setting, value) in IMAGE_SETTINGS {
            let unfenced =
                options.canary == Some(Canary::Unfenced) && setting == "rbd_blocklist_on_break_lock";
            self.set(setting, if unfenced { "false" } else { value })?;
        }
        // Nobody takes the lock by itself, also before we do (`lock.rs`).
        let automatic = options.canary == Some(Canary::AutomaticLock);
        self.set("rbd_auto_exclusive_lock_until_manual_request", if automatic { "true" } else { "false" })?;
        // This program reports errors, in one line.
        self.set("log_to_stderr", "false")?;
        self.set("err_to_stderr", "false")?;
        // Connecting, and asking monitors: nothing has been written then, and a command that is
        // given up but carried out later fences a client that was to be fenced. At least a second:
        // zero would be no limit.
        let seconds = options.open_limit.as_secs().max(1).to_string();
        self.set("client_mount_timeout", &seconds)?;
        self.set("rados_mon_op_timeout", &seconds)?;
        // Operations on OSDs have no limit. librados would answer one with an error while it is
        // still on its way, and it might be carried out afterwards. The store would write the same
        // data elsewhere and use the blocks for something else, which the late write would then
        // overwrite. Where there has to be an end (`RbdOptions::wait`), all of the device ends, so
        // that nobody uses these blocks any more.
        self.set("rados_osd_op_timeout", if purpose == Purpose::Look { "2" } else { "0" })
    }

    /// Our name in the cluster.
    pub(super) fn client(&self) -> String {
        // SAFETY: the client is connected.
        format!("client.{}", unsafe { (self.libraries.rados.rados_get_instance_id)(self.handle) })
    }

    /// Keeps the client with this address from ever doing anything in the cluster again. From here on
    /// each of our requests tells its OSD of the fence.
    pub(super) fn fence(&self, address: &str) -> Result<(), Errno> {
        let ordinary = |byte: u8| byte.is_ascii_hexdigit() || b".:/[]".contains(&byte);
        if !address.bytes().all(ordinary) {
            return Err(Errno(libc::EINVAL));
        }
        // Versions before Ceph 16 know only the second word.
        let [new, old] = ["blocklist", "blacklist"].map(|list| {
            format!(
                r#"{{"prefix": "osd {list}", "{list}op": "add", "addr": "{address}", "expire": {FENCED_SECONDS}.0}}"#
            )
        });
        match self.command(&new) {
            Err(Errno(libc::EINVAL)) => self.command(&old)?,
            result => result?,
        }
        // SAFETY: the client is connected.
        let waited = unsafe { (self.libraries.rados.rados_wait_for_latest_osdmap)(self.handle) };
        Errno::check(waited.into()).map(drop)
    }

    /// Has the monitors carry out a command; its output is not wanted.
    fn command(&self, json: &str) -> Result<(), Errno> {
        let json = CString::new(json).map_err(|_| Errno(libc::EINVAL))?;
        let mut words = [json.as_ptr()];
        // SAFETY: one string, which ends with a zero; null stands for output that is not wanted.
        let done = unsafe {
            (self.libraries.rados.rados_mon_command)(
                self.handle,
                words.as_mut_ptr(),
                words.len(),
                ptr::null(),
                0,
                ptr::null_mut(),
                ptr::null_mut(),
                ptr::null_mut(),
                ptr::null_mut(),
            )
        };
        Errno::check(done.into()).map(drop)
    }

    fn set(&self, setting: &'static str, value: &str) -> Result<(), RbdError> {
        let older = OLD_NAMES.iter().find(|(name, _)| *name == setting).map(|(_, older)| *older);
        let mut result = self.try_set(setting, value)?;
        if let (Err(Errno(libc::ENOENT)), Some(older)) = (result, older) {
            result = self.try_set(older, value)?;
        }
        match result {
            Ok(()) => Ok(()),
            Err(Errno(libc::ENOENT)) if NEWER.contains(&setting) => Ok(()),
            Err(errno) => Err(RbdError::Setting { setting, source: errno.io() }),
        }
    }

    fn try_set(&self, setting: &str, value: &str) -> Result<Result<(), Errno>, RbdError> {
        let (name, value) = (c_string("a setting", setting)?, c_string("a value", value)?);
        // SAFETY: the client exists; both strings end with a zero.
        let set =
            unsafe { (self.libraries.rados.rados_conf_set)(self.handle, name.as_ptr(), value.as_ptr()) };
        Ok(Errno::check(set.into()).map(drop))
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // SAFETY: nobody uses the client any more; pools and images are closed before
        // (`Pool`, `Image`). This is no thread of librados' (`device.rs` closes on one of its own).
        unsafe { (self.libraries.rados.rados_shutdown)(self.handle) }
        CLIENTS.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A pool, and a namespace in it.
pub(super) struct Pool {
    pub(super) handle: PoolHandle,
    /// Declared behind the handle's user: `drop` destroys the handle first.
    pub(super) cluster: Cluster,
}

// SAFETY: librados allows any thread to use a pool; its settings are made before it is shared.
unsafe impl Send for Pool {}
// SAFETY: as above.
unsafe impl Sync for Pool {}

impl Pool {
    pub(super) fn open(cluster: Cluster, spec: &RbdSpec) -> Result<Self, RbdError> {
        let libraries = cluster.libraries;
        let name = c_string("the pool", &spec.pool)?;
        let mut handle = ptr::null_mut();
        // SAFETY: the cluster is connected, the pointers are valid for the call.
        let opened =
            unsafe { (libraries.rados.rados_ioctx_create)(cluster.handle, name.as_ptr(), &raw mut handle) };
        Errno::check(opened.into()).map_err(|errno| match errno {
            Errno(libc::ENOENT) => RbdError::NoPool { pool: spec.pool.clone() },
            errno => RbdError::refused("open the pool", errno.io()),
        })?;
        let pool = Self { handle, cluster };
        // A full pool refuses writes with an error. Otherwise they would wait for room, without an
        // end.
        // SAFETY: the pool is open and nobody else's yet.
        unsafe { (libraries.rados.rados_set_pool_full_try)(pool.handle) };
        if let Some(namespace) = &spec.namespace {
            pool.enter(&spec.pool, namespace)?;
        }
        Ok(pool)
    }

    fn enter(&self, pool: &str, namespace: &str) -> Result<(), RbdError> {
        let libraries = self.cluster.libraries;
        let name = c_string("the namespace", namespace)?;
        let mut exists = false;
        // SAFETY: the pool is open, the pointers are valid for the call.
        let asked =
            unsafe { (libraries.rbd.rbd_namespace_exists)(self.handle, name.as_ptr(), &raw mut exists) };
        Errno::check(asked.into()).map_err(RbdError::errno("look for the namespace"))?;
        if !exists {
            let (pool, namespace) = (pool.to_owned(), namespace.to_owned());
            return Err(RbdError::NoNamespace { pool, namespace });
        }
        // SAFETY: as above, and nobody else uses the pool yet.
        unsafe { (libraries.rados.rados_ioctx_set_namespace)(self.handle, name.as_ptr()) };
        Ok(())
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: the images in it are closed (`Image`), and nobody uses it any more.
        unsafe { (self.cluster.libraries.rados.rados_ioctx_destroy)(self.handle) }
    }
}

/// A string for C, of a name that is not empty.
pub(super) fn c_string(what: &'static str, text: impl AsRef<[u8]>) -> Result<CString, RbdError> {
    let text = text.as_ref();
    let bad = || RbdError::BadName { what, text: String::from_utf8_lossy(text).into_owned() };
    if text.is_empty() {
        return Err(bad());
    }
    CString::new(text).map_err(|_| bad())
}
