//! librados and librbd, loaded when the first image is opened.
//!
//! The build needs nothing of Ceph, and a host that uses no Ceph needs no library of it. The
//! declarations here are those of Ceph's documented C interface (librados.h, librbd.h; pointers to
//! opaque handles, plain integers, two small structures), which has kept them since Ceph 14.

use super::error::RbdError;
use libc::{c_char, c_int, c_void, iovec, size_t, ssize_t, timeval};
use libloading::Library;
use std::sync::OnceLock;
use std::sync::atomic::AtomicUsize;

/// `rados_t`: a client of a cluster.
pub(super) type RadosHandle = *mut c_void;
/// `rados_ioctx_t`: a pool, and a namespace in it.
pub(super) type PoolHandle = *mut c_void;
/// `rbd_image_t`: an open image.
pub(super) type ImageHandle = *mut c_void;
/// `rbd_completion_t`: an operation in flight.
pub(super) type CompletionHandle = *mut c_void;
/// `rbd_callback_t`.
pub(super) type Callback = unsafe extern "C" fn(CompletionHandle, *mut c_void);
/// `librbd_progress_fn_t`.
pub(super) type Progress = unsafe extern "C" fn(u64, u64, *mut c_void) -> c_int;

/// `RBD_LOCK_MODE_EXCLUSIVE` of `rbd_lock_mode_t`.
pub(super) const LOCK_EXCLUSIVE: c_int = 0;
/// `RBD_FEATURE_LAYERING`.
pub(super) const FEATURE_LAYERING: u64 = 1;
/// `RBD_FEATURE_EXCLUSIVE_LOCK`.
pub(super) const FEATURE_EXCLUSIVE_LOCK: u64 = 1 << 2;
/// `RBD_FEATURE_OBJECT_MAP`.
pub(super) const FEATURE_OBJECT_MAP: u64 = 1 << 3;
/// `RBD_FEATURE_FAST_DIFF`.
pub(super) const FEATURE_FAST_DIFF: u64 = 1 << 4;
/// `RBD_FEATURE_DEEP_FLATTEN`.
pub(super) const FEATURE_DEEP_FLATTEN: u64 = 1 << 5;
/// `RBD_CONFIG_SOURCE_POOL` of `rbd_config_source_t`.
pub(super) const SOURCE_POOL: c_int = 1;
/// `LIBRADOS_LOCK_FLAG_MAY_RENEW`.
pub(super) const LOCK_MAY_RENEW: u8 = 1;

/// `rbd_image_watcher_t`: a client that has an image open for writing.
#[repr(C)]
pub(super) struct Watcher {
    pub(super) address: *mut c_char,
    pub(super) client: i64,
    pub(super) cookie: u64,
}

/// `rbd_config_option_t`: a setting as it applies to one image.
#[repr(C)]
pub(super) struct ConfigOption {
    pub(super) name: *mut c_char,
    pub(super) value: *mut c_char,
    pub(super) source: c_int,
}

/// Declares a library: its functions as fields.
macro_rules! library {
    ($(#[$about:meta])* $name:ident { $(fn $symbol:ident($($argument:ty),* $(,)?) $(-> $answer:ty)?;)* }) => {
        $(#[$about])*
        pub(super) struct $name {
            $(pub(super) $symbol: unsafe extern "C" fn($($argument),*) $(-> $answer)?,)*
            /// Keeps the functions where they are.
            _library: Library,
        }

        impl $name {
            fn load(file: &'static str) -> Result<Self, RbdError> {
                // SAFETY: the library under these names is Ceph's, whose initialisers need nothing of
                // us.
                let library = unsafe { Library::new(file) }
                    .map_err(|error| RbdError::NotLoaded { file, why: error.to_string() })?;
                Ok(Self {
                    $($symbol: {
                        let name = concat!(stringify!($symbol), "\0").as_bytes();
                        // SAFETY: the type is the documented one of this function.
                        let found = unsafe { library.get(name) };
                        *found.map_err(|_| RbdError::TooOld { file, symbol: stringify!($symbol) })?
                    },)*
                    _library: library,
                })
            }
        }
    };
}

library! {
    /// librados: clusters and pools.
    Rados {
        fn rados_create(*mut RadosHandle, *const c_char) -> c_int;
        fn rados_conf_read_file(RadosHandle, *const c_char) -> c_int;
        fn rados_conf_parse_env(RadosHandle, *const c_char) -> c_int;
        fn rados_conf_set(RadosHandle, *const c_char, *const c_char) -> c_int;
        fn rados_connect(RadosHandle) -> c_int;
        fn rados_shutdown(RadosHandle);
        fn rados_ioctx_create(RadosHandle, *const c_char, *mut PoolHandle) -> c_int;
        fn rados_ioctx_set_namespace(PoolHandle, *const c_char);
        fn rados_ioctx_destroy(PoolHandle);
        fn rados_get_instance_id(RadosHandle) -> u64;
        fn rados_wait_for_latest_osdmap(RadosHandle) -> c_int;
        fn rados_break_lock(PoolHandle, *const c_char, *const c_char, *const c_char, *const c_char) -> c_int;
        fn rados_set_pool_full_try(PoolHandle);
        fn rados_lock_exclusive(PoolHandle, *const c_char, *const c_char, *const c_char, *const c_char, *mut timeval, u8) -> c_int;
        fn rados_lock_shared(PoolHandle, *const c_char, *const c_char, *const c_char, *const c_char, *const c_char, *mut timeval, u8) -> c_int;
        fn rados_list_lockers(PoolHandle, *const c_char, *const c_char, *mut c_int, *mut c_char, *mut size_t, *mut c_char, *mut size_t, *mut c_char, *mut size_t, *mut c_char, *mut size_t) -> ssize_t;
        fn rados_mon_command(RadosHandle, *mut *const c_char, size_t, *const c_char, size_t, *mut *mut c_char, *mut size_t, *mut *mut c_char, *mut size_t) -> c_int;
        fn rados_unlock(PoolHandle, *const c_char, *const c_char, *const c_char) -> c_int;
    }
}

library! {
    /// librbd: images.
    Rbd {
        fn rbd_create2(PoolHandle, *const c_char, u64, u64, *mut c_int) -> c_int;
        fn rbd_remove(PoolHandle, *const c_char) -> c_int;
        fn rbd_namespace_exists(PoolHandle, *const c_char, *mut bool) -> c_int;
        fn rbd_open(PoolHandle, *const c_char, *mut ImageHandle, *const c_char) -> c_int;
        fn rbd_open_read_only(PoolHandle, *const c_char, *mut ImageHandle, *const c_char) -> c_int;
        fn rbd_close(ImageHandle) -> c_int;
        fn rbd_get_id(ImageHandle, *mut c_char, size_t) -> c_int;
        fn rbd_get_size(ImageHandle, *mut u64) -> c_int;
        fn rbd_get_features(ImageHandle, *mut u64) -> c_int;
        fn rbd_resize2(ImageHandle, u64, bool, Progress, *mut c_void) -> c_int;
        fn rbd_config_image_list(ImageHandle, *mut ConfigOption, *mut c_int) -> c_int;
        fn rbd_config_image_list_cleanup(*mut ConfigOption, c_int);
        fn rbd_metadata_get(ImageHandle, *const c_char, *mut c_char, *mut size_t) -> c_int;
        fn rbd_metadata_set(ImageHandle, *const c_char, *const c_char) -> c_int;
        fn rbd_watchers_list(ImageHandle, *mut Watcher, *mut size_t) -> c_int;
        fn rbd_watchers_list_cleanup(*mut Watcher, size_t);
        fn rbd_lock_acquire(ImageHandle, c_int) -> c_int;
        fn rbd_aio_create_completion(*mut c_void, Callback, *mut CompletionHandle) -> c_int;
        fn rbd_aio_get_return_value(CompletionHandle) -> ssize_t;
        fn rbd_aio_release(CompletionHandle);
        fn rbd_aio_read(ImageHandle, u64, size_t, *mut c_char, CompletionHandle) -> c_int;
        fn rbd_aio_write(ImageHandle, u64, size_t, *const c_char, CompletionHandle) -> c_int;
        fn rbd_aio_writev(ImageHandle, *const iovec, c_int, u64, CompletionHandle) -> c_int;
        fn rbd_aio_discard(ImageHandle, u64, u64, CompletionHandle) -> c_int;
        fn rbd_aio_flush(ImageHandle, CompletionHandle) -> c_int;
    }
}

/// Both libraries. They are never unloaded: their threads may outlive any use of them.
pub(super) struct Libraries {
    pub(super) rados: Rados,
    pub(super) rbd: Rbd,
}

/// A program without a dynamic loader: the one for every distribution is such a program.
const IS_STATIC: bool = cfg!(target_feature = "crt-static");

impl Libraries {
    /// Loads them, but not into a static program. glibc's loader would bring a second C library
    /// into it, and musl's has none.
    fn load_into(is_static: bool) -> Result<Self, RbdError> {
        let (rados, rbd) = ("librados.so.2", "librbd.so.1");
        if is_static {
            return Err(RbdError::Static { file: rbd });
        }
        Self::load(rados, rbd)
    }

    fn load(rados: &'static str, rbd: &'static str) -> Result<Self, RbdError> {
        Ok(Self { rados: Rados::load(rados)?, rbd: Rbd::load(rbd)? })
    }
}

/// The libraries, loaded once. A host where they are installed meanwhile finds them at the next
/// call.
pub(super) fn libraries() -> Result<&'static Libraries, RbdError> {
    static LOADED: OnceLock<Libraries> = OnceLock::new();
    match LOADED.get() {
        Some(libraries) => Ok(libraries),
        None => {
            let libraries = Libraries::load_into(IS_STATIC)?;
            Ok(LOADED.get_or_init(|| {
                leave_with_clients();
                libraries
            }))
        }
    }
}

/// Clients that have been started and not shut down yet.
pub(super) static CLIENTS: AtomicUsize = AtomicUsize::new(0);

/// From now on, a process that ends while a client is in use ends without the destructors of the
/// libraries. The destructors destroy objects that the client's threads use: the process would die of a
/// signal, and its exit code be lost. A device leaves a client behind where the cluster keeps it
/// waiting.
#[cfg(target_env = "gnu")]
fn leave_with_clients() {
    unsafe extern "C" {
        fn on_exit(function: extern "C" fn(c_int, *mut c_void), arg: *mut c_void) -> c_int;
    }
    extern "C" fn leave(status: c_int, _arg: *mut c_void) {
        if CLIENTS.load(std::sync::atomic::Ordering::Acquire) > 0 {
            // SAFETY: null stands for all streams of C's; the other call does not return.
            unsafe {
                libc::fflush(std::ptr::null_mut());
                libc::_exit(status)
            }
        }
    }
    // SAFETY: the function has glibc's documented type. The function that is registered last is called
    // first: before the destructors of the libraries, which were loaded before.
    if unsafe { on_exit(leave, std::ptr::null_mut()) } != 0 {
        tracing::debug!("the end of the process with a client in use may be a crash");
    }
}

/// Only glibc knows the exit code there.
#[cfg(not(target_env = "gnu"))]
fn leave_with_clients() {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_without_the_library_is_told_the_package_in_one_line() {
        let Err(error) = Libraries::load("librados-of-nobody.so.2", "librbd.so.1") else { panic!("loaded") };
        let text = error.to_string();
        assert!(text.contains("librados-of-nobody.so.2") && text.contains("apt install librbd1"), "{text}");
        assert_eq!(text.lines().count(), 1, "{text}");
    }

    #[test]
    fn a_static_program_loads_nothing_and_names_one_that_can() {
        let Err(error) = Libraries::load_into(true) else { panic!("loaded") };
        let text = error.to_string();
        assert!(text.contains("librbd.so.1") && text.contains("cargo install"), "{text}");
        assert_eq!(text.lines().count(), 1, "{text}");
        assert_eq!(error.kind(), std::io::ErrorKind::Unsupported);
    }

    #[test]
    fn a_library_without_a_function_is_called_too_old() {
        // Any library that is there and is not Ceph.
        let Err(error) = Libraries::load("libc.so.6", "libc.so.6") else { panic!("loaded") };
        let text = error.to_string();
        assert!(text.contains("rados_create") && text.contains("too old"), "{text}");
        assert_eq!(text.lines().count(), 1, "{text}");
    }
}
