//! An open image: librbd's calls that wait for their answer.

use super::cluster::{IMAGE_SETTINGS, Pool, c_string};
use super::error::{Errno, RbdError};
use super::holder::{LockHolder, introduced, introduction};
use super::library::{
    ConfigOption, FEATURE_DEEP_FLATTEN, FEATURE_EXCLUSIVE_LOCK, FEATURE_FAST_DIFF, FEATURE_LAYERING,
    FEATURE_OBJECT_MAP, ImageHandle, LOCK_EXCLUSIVE, Libraries, SOURCE_POOL, Watcher,
};
use super::spec::RbdSpec;
use libc::{c_char, c_int, c_void};
use std::ffi::{CStr, CString};
use std::ptr;

/// Ceph's own choice for new images. The object map makes `rbd du` and removals quick, and costs a
/// request at the first write of each object.
const FEATURES: u64 =
    FEATURE_LAYERING | FEATURE_EXCLUSIVE_LOCK | FEATURE_OBJECT_MAP | FEATURE_FAST_DIFF | FEATURE_DEEP_FLATTEN;
/// Where a holder introduces itself, in the image's metadata.
const INTRODUCTION: &CStr = c"syncline_holder";
/// RBD's name for its lock, on the image's header object.
const LOCK: &CStr = c"rbd_lock";
/// The tag of a lock that librbd or the kernel took, rather than 'rbd lock add'.
const LIBRBDS_TAG: &str = "internal";

/// A client that the cluster has on record as having the lock.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Locker {
    /// Its name: `client.4123`.
    pub(super) client: String,
    cookie: String,
    /// Its address.
    pub(super) address: String,
    /// It is an advisory lock, which somebody took with 'rbd lock add'.
    pub(super) by_hand: bool,
}

/// An open image.
pub(super) struct Image {
    pub(super) handle: ImageHandle,
    /// Behind the handle's user: `drop` closes the handle first.
    pub(super) pool: Pool,
}

// SAFETY: librbd allows any thread to use an image.
unsafe impl Send for Image {}
// SAFETY: as above.
unsafe impl Sync for Image {}

impl Image {
    pub(super) fn open(pool: Pool, spec: &RbdSpec, read_only: bool) -> Result<Self, RbdError> {
        let rbd = &pool.cluster.libraries.rbd;
        let name = c_string("the image", &spec.image)?;
        let mut handle = ptr::null_mut();
        let open = if read_only { rbd.rbd_open_read_only } else { rbd.rbd_open };
        // SAFETY: the pool is open, the pointers are valid for the call; null is no snapshot.
        let opened = unsafe { open(pool.handle, name.as_ptr(), &raw mut handle, ptr::null()) };
        Errno::check(opened.into()).map_err(|errno| match errno {
            Errno(libc::ENOENT) => RbdError::NoImage { place: place(spec) },
            errno => RbdError::refused("open the image", errno.io()),
        })?;
        Ok(Self { handle, pool })
    }

    /// Creates an image and gives the pool back.
    pub(super) fn create(pool: &Pool, spec: &RbdSpec, size_bytes: u64) -> Result<(), RbdError> {
        let name = c_string("the image", &spec.image)?;
        // Zero is the default: objects of 4 MiB.
        let mut order: c_int = 0;
        let create = pool.cluster.libraries.rbd.rbd_create2;
        // SAFETY: the pool is open, the pointers are valid for the call.
        let created = unsafe { create(pool.handle, name.as_ptr(), size_bytes, FEATURES, &raw mut order) };
        Errno::check(created.into()).map(drop).map_err(|errno| match errno {
            Errno(libc::EEXIST) => RbdError::Exists { image: spec.plain() },
            errno => RbdError::refused("create the image", errno.io()),
        })
    }

    /// Removes an image that nobody has open.
    pub(super) fn remove(pool: &Pool, spec: &RbdSpec) -> Result<(), RbdError> {
        let name = c_string("the image", &spec.image)?;
        // SAFETY: the pool is open, the name ends with a zero.
        let removed = unsafe { (pool.cluster.libraries.rbd.rbd_remove)(pool.handle, name.as_ptr()) };
        Errno::check(removed.into()).map(drop).map_err(|errno| match errno {
            Errno(libc::ENOENT) => RbdError::NoImage { place: place(spec) },
            errno => RbdError::refused("remove the image", errno.io()),
        })
    }

    fn libraries(&self) -> &'static Libraries {
        self.pool.cluster.libraries
    }

    /// Its size, as this client knows it: a change by others reaches it within moments.
    pub(super) fn size_bytes(&self) -> Result<u64, Errno> {
        let mut size = 0;
        // SAFETY: the image is open, the pointer is valid for the call.
        Errno::check(unsafe { (self.libraries().rbd.rbd_get_size)(self.handle, &raw mut size) }.into())?;
        Ok(size)
    }

    /// Makes it this large. It is never made smaller.
    pub(super) fn grow(&self, size_bytes: u64) -> Result<(), Errno> {
        unsafe extern "C" fn nothing(_done: u64, _of: u64, _arg: *mut c_void) -> c_int {
            0
        }
        let resize = self.libraries().rbd.rbd_resize2;
        // SAFETY: the image is open; the callback uses no argument.
        Errno::check(unsafe { resize(self.handle, size_bytes, false, nothing, ptr::null_mut()) }.into())
            .map(drop)
    }

    /// True if it can be locked.
    pub(super) fn is_lockable(&self) -> Result<bool, Errno> {
        let mut features = 0;
        // SAFETY: as above.
        let asked = unsafe { (self.libraries().rbd.rbd_get_features)(self.handle, &raw mut features) };
        Errno::check(asked.into())?;
        Ok(features & FEATURE_EXCLUSIVE_LOCK != 0)
    }

    /// The image's id, which the names of its objects end with.
    fn id(&self) -> Result<String, Errno> {
        let mut id = [0u8; 256];
        // SAFETY: the buffer is as long as is said.
        let asked = unsafe {
            (self.libraries().rbd.rbd_get_id)(self.handle, id.as_mut_ptr().cast::<c_char>(), id.len())
        };
        Errno::check(asked.into())?;
        let id = CStr::from_bytes_until_nul(&id).map_err(|_| Errno(libc::ERANGE))?;
        Ok(id.to_string_lossy().into_owned())
    }

    /// Refuses an image for which other settings apply than those of `cluster.rs`.
    pub(super) fn check_settings(&self, spec: &RbdSpec) -> Result<(), RbdError> {
        for (setting, value, source) in
            self.settings().map_err(RbdError::errno("read the image's settings"))?
        {
            let Some((_, wanted)) = IMAGE_SETTINGS.iter().find(|(name, _)| *name == setting) else {
                continue;
            };
            if value != *wanted {
                let (level, owner) = match source {
                    SOURCE_POOL => ("pool", spec.pool.clone()),
                    _ => ("image", spec.plain()),
                };
                return Err(RbdError::Overridden { level, owner, setting, value, wanted });
            }
        }
        Ok(())
    }

    fn settings(&self) -> Result<Vec<(String, String, c_int)>, Errno> {
        let rbd = &self.libraries().rbd;
        let mut room: c_int = 256;
        loop {
            let empty = || ConfigOption { name: ptr::null_mut(), value: ptr::null_mut(), source: 0 };
            let mut options: Vec<ConfigOption> = (0..room).map(|_| empty()).collect();
            let before = room;
            // SAFETY: the array has `room` elements.
            let listed =
                unsafe { (rbd.rbd_config_image_list)(self.handle, options.as_mut_ptr(), &raw mut room) };
            match Errno::check(listed.into()) {
                Err(Errno(libc::ERANGE)) if room > before => continue,
                Err(errno) => return Err(errno),
                Ok(_) => {}
            }
            let filled = usize::try_from(room).unwrap_or(0).min(options.len());
            // SAFETY: librbd filled that many elements with strings of its own.
            let text = |start: *mut c_char| unsafe { string(start) };
            let found =
                options[..filled].iter().map(|one| (text(one.name), text(one.value), one.source)).collect();
            // SAFETY: they are given back once, with their number.
            unsafe { (rbd.rbd_config_image_list_cleanup)(options.as_mut_ptr(), filled as c_int) };
            return Ok(found);
        }
    }

    /// The clients that have it open for writing and are in touch with the cluster: name and address.
    fn watchers(&self) -> Result<Vec<(String, String)>, Errno> {
        let rbd = &self.libraries().rbd;
        let mut room = 64;
        loop {
            let empty = || Watcher { address: ptr::null_mut(), client: 0, cookie: 0 };
            let mut watchers: Vec<Watcher> = (0..room).map(|_| empty()).collect();
            let before = room;
            // SAFETY: the array has `room` elements.
            let listed =
                unsafe { (rbd.rbd_watchers_list)(self.handle, watchers.as_mut_ptr(), &raw mut room) };
            match Errno::check(listed.into()) {
                Err(Errno(libc::ERANGE)) if room > before => continue,
                Err(errno) => return Err(errno),
                Ok(_) => {}
            }
            let filled = room.min(watchers.len());
            // SAFETY: librbd filled that many elements with strings of its own.
            let text = |start: *mut c_char| unsafe { string(start) };
            let named = |one: &Watcher| (format!("client.{}", one.client), text(one.address));
            let found = watchers[..filled].iter().map(named).collect();
            // SAFETY: they are given back once, with their number.
            unsafe { (rbd.rbd_watchers_list_cleanup)(watchers.as_mut_ptr(), filled) };
            return Ok(found);
        }
    }

    /// The holder of the lock, as the cluster has it on record at this moment. (librbd's own answer
    /// comes from its memory if the image is open for reading.)
    pub(super) fn locker(&self) -> Result<Option<Locker>, Errno> {
        let header = self.header()?;
        // Of each client a name, a cookie and an address, each in its buffer and with a zero behind
        // it.
        let mut buffers = [[0u8; 4096]; 4];
        let [tag, clients, cookies, addresses] = &mut buffers;
        let mut lens = [4096; 4];
        let [tag_len, clients_len, cookies_len, addresses_len] = &mut lens;
        let mut exclusive: c_int = 0;
        // SAFETY: the buffers are as long as is said, the pointers are valid for the call.
        let listed = unsafe {
            (self.libraries().rados.rados_list_lockers)(
                self.pool.handle,
                header.as_ptr(),
                LOCK.as_ptr(),
                &raw mut exclusive,
                tag.as_mut_ptr().cast(),
                tag_len,
                clients.as_mut_ptr().cast(),
                clients_len,
                cookies.as_mut_ptr().cast(),
                cookies_len,
                addresses.as_mut_ptr().cast(),
                addresses_len,
            )
        };
        match Errno::check(listed as i64) {
            Ok(0) | Err(Errno(libc::ENOENT)) => return Ok(None),
            Err(errno) => return Err(errno),
            Ok(_) => {}
        }
        let first = |buffer: &[u8]| {
            let text = CStr::from_bytes_until_nul(buffer).map_err(|_| Errno(libc::ERANGE))?;
            Ok(text.to_string_lossy().into_owned())
        };
        let address = first(addresses)?;
        // With the version of the protocol, which watchers' addresses lack.
        let plain = ["v1:", "v2:", "any:"].iter().find_map(|version| address.strip_prefix(version));
        Ok(Some(Locker {
            client: first(clients)?,
            cookie: first(cookies)?,
            address: plain.unwrap_or(&address).to_owned(),
            by_hand: first(tag)? != LIBRBDS_TAG,
        }))
    }

    /// Takes the lock away from a client that was fenced.
    pub(super) fn remove_locker(&self, locker: &Locker) -> Result<(), Errno> {
        let header = self.header()?;
        let text = |text: &str| CString::new(text).map_err(|_| Errno(libc::EINVAL));
        let (client, cookie) = (text(&locker.client)?, text(&locker.cookie)?);
        let remove = self.libraries().rados.rados_break_lock;
        // SAFETY: the pool is open; all strings end with a zero.
        let removed = unsafe {
            remove(self.pool.handle, header.as_ptr(), LOCK.as_ptr(), client.as_ptr(), cookie.as_ptr())
        };
        Errno::check(removed.into()).map(drop)
    }

    /// Finds out more about a client that has the lock.
    pub(super) fn describe(&self, locker: &Locker) -> Result<LockHolder, Errno> {
        let Locker { client, address, .. } = locker.clone();
        let alive = self.watchers()?.iter().any(|(_, watching)| *watching == address);
        let about = self.introduction().and_then(|text| introduced(&text, &client));
        Ok(LockHolder { client, address, alive, about })
    }

    /// The client that said last that it has the lock, if it is another client that still has the image
    /// open for writing.
    pub(super) fn last_holder(&self) -> Result<Option<LockHolder>, Errno> {
        let Some(text) = self.introduction() else { return Ok(None) };
        let ours = self.pool.cluster.client();
        let watching = self.watchers()?.into_iter().filter(|(client, _)| *client != ours);
        let mut holders = watching.filter_map(|(client, address)| {
            let about = introduced(&text, &client)?;
            Some(LockHolder { client, address, alive: true, about: Some(about) })
        });
        Ok(holders.next())
    }

    /// The image's header object.
    pub(super) fn header(&self) -> Result<CString, Errno> {
        CString::new(format!("rbd_header.{}", self.id()?)).map_err(|_| Errno(libc::EINVAL))
    }

    fn introduction(&self) -> Option<String> {
        let mut text = [0u8; 512];
        let mut len = text.len();
        let get = self.libraries().rbd.rbd_metadata_get;
        // SAFETY: the buffer is as long as is said, the key ends with a zero.
        let got = unsafe {
            get(self.handle, INTRODUCTION.as_ptr(), text.as_mut_ptr().cast::<c_char>(), &raw mut len)
        };
        Errno::check(got.into()).ok()?;
        Some(CStr::from_bytes_until_nul(&text).ok()?.to_string_lossy().into_owned())
    }

    /// Says who has the image now. For messages only, so a failure is none.
    pub(super) fn introduce(&self, client: &str) {
        let Ok(text) = CString::new(introduction(client)) else { return };
        let set = self.libraries().rbd.rbd_metadata_set;
        // SAFETY: both strings end with a zero.
        let set = unsafe { set(self.handle, INTRODUCTION.as_ptr(), text.as_ptr()) };
        if let Err(errno) = Errno::check(set.into()) {
            tracing::debug!(errno = errno.0, "the image does not take the name of its holder");
        }
    }

    /// Takes the lock for good. librbd then neither hands it over when another client asks, nor
    /// takes it again by itself before a write.
    pub(super) fn acquire(&self) -> Result<(), Errno> {
        // SAFETY: the image is open.
        let acquired = unsafe { (self.libraries().rbd.rbd_lock_acquire)(self.handle, LOCK_EXCLUSIVE) };
        Errno::check(acquired.into()).map(drop)
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        // SAFETY: nobody starts an operation any more; librbd waits for those in flight, whose memory
        // is their own (`Flight`).
        let closed = unsafe { (self.libraries().rbd.rbd_close)(self.handle) };
        if let Err(errno) = Errno::check(closed.into()) {
            tracing::debug!(errno = errno.0, "the image could not be closed properly");
        }
    }
}

/// Pool and namespace, as `rbd ls` takes them.
fn place(spec: &RbdSpec) -> String {
    match &spec.namespace {
        Some(namespace) => format!("{}/{namespace}", spec.pool),
        None => spec.pool.clone(),
    }
}

/// A copy of a string of C's.
///
/// # Safety
///
/// It is null, or ends with a zero.
unsafe fn string(start: *const c_char) -> String {
    if start.is_null() {
        return String::new();
    }
    // SAFETY: as the caller promises.
    unsafe { CStr::from_ptr(start) }.to_string_lossy().into_owned()
}
