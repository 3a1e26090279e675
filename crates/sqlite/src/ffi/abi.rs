//! SQLite's structures and functions, as sqlite3.h and sqlite3ext.h declare them. Only what is used
//! here has a name. The interface never changes: new members come behind the old ones.

use std::ffi::{c_char, c_int, c_uint, c_void};

/// An unnamed member.
type Unused = *const c_void;
/// `sqlite3`, a database connection.
#[repr(C)]
pub struct Db(c_void);
/// `sqlite3_context`
#[repr(C)]
pub(super) struct Context(c_void);
/// `sqlite3_value`
#[repr(C)]
pub(super) struct Value(c_void);

pub(super) type Destructor = Option<unsafe extern "C" fn(*mut c_void)>;
pub(super) type Function = unsafe extern "C" fn(*mut Context, c_int, *mut *mut Value);
pub(super) type Init = unsafe extern "C" fn(*mut Db, *mut *mut c_char, *const Api) -> c_int;

/// `sqlite3_api_routines`
#[repr(C)]
pub struct Api {
    _0: [Unused; 67],
    pub(super) libversion_number: unsafe extern "C" fn() -> c_int,
    pub(super) malloc: unsafe extern "C" fn(c_int) -> *mut c_void,
    _69: [Unused; 11],
    pub(super) result_error: unsafe extern "C" fn(*mut Context, *const c_char, c_int),
    _81: [Unused; 4],
    pub(super) result_text: unsafe extern "C" fn(*mut Context, *const c_char, c_int, Destructor),
    _86: [Unused; 17],
    pub(super) value_bytes: unsafe extern "C" fn(*mut Value) -> c_int,
    _104: [Unused; 5],
    pub(super) value_text: unsafe extern "C" fn(*mut Value) -> *const u8,
    _110: [Unused; 17],
    pub(super) file_control: unsafe extern "C" fn(*mut Db, *const c_char, c_int, *mut c_void) -> c_int,
    _128: [Unused; 13],
    pub(super) vfs_find: unsafe extern "C" fn(*const c_char) -> *mut Vfs,
    pub(super) vfs_register: unsafe extern "C" fn(*mut Vfs, c_int) -> c_int,
    _143: [Unused; 6],
    pub(super) context_db_handle: unsafe extern "C" fn(*mut Context) -> *mut Db,
    _150: [Unused; 12],
    pub(super) create_function_v2: unsafe extern "C" fn(
        *mut Db,
        *const c_char,
        c_int,
        c_int,
        *mut c_void,
        Option<Function>,
        Option<Function>,
        Option<unsafe extern "C" fn(*mut Context)>,
        Destructor,
    ) -> c_int,
    _163: [Unused; 4],
    pub(super) log: unsafe extern "C" fn(c_int, *const c_char, ...),
    _168: [Unused; 21],
    pub(super) uri_parameter: unsafe extern "C" fn(*const c_char, *const c_char) -> *const c_char,
    _190: [Unused; 2],
    pub(super) auto_extension: unsafe extern "C" fn(Option<Init>) -> c_int,
}

/// `sqlite3_vfs`, version 2
#[repr(C)]
pub(super) struct Vfs {
    pub(super) version: c_int,
    pub(super) file_bytes: c_int,
    pub(super) path_bytes_max: c_int,
    pub(super) next: *mut Vfs,
    pub(super) name: *const c_char,
    pub(super) data: *mut c_void,
    pub(super) open: unsafe extern "C" fn(*mut Vfs, *const c_char, *mut File, c_int, *mut c_int) -> c_int,
    pub(super) delete: unsafe extern "C" fn(*mut Vfs, *const c_char, c_int) -> c_int,
    pub(super) access: unsafe extern "C" fn(*mut Vfs, *const c_char, c_int, *mut c_int) -> c_int,
    pub(super) full_pathname: unsafe extern "C" fn(*mut Vfs, *const c_char, c_int, *mut c_char) -> c_int,
    pub(super) dl_open: unsafe extern "C" fn(*mut Vfs, *const c_char) -> *mut c_void,
    pub(super) dl_error: unsafe extern "C" fn(*mut Vfs, c_int, *mut c_char),
    pub(super) dl_sym: unsafe extern "C" fn(*mut Vfs, *mut c_void, *const c_char) -> *mut c_void,
    pub(super) dl_close: unsafe extern "C" fn(*mut Vfs, *mut c_void),
    pub(super) randomness: unsafe extern "C" fn(*mut Vfs, c_int, *mut c_char) -> c_int,
    pub(super) sleep: unsafe extern "C" fn(*mut Vfs, c_int) -> c_int,
    pub(super) current_time: unsafe extern "C" fn(*mut Vfs, *mut f64) -> c_int,
    pub(super) last_error: unsafe extern "C" fn(*mut Vfs, c_int, *mut c_char) -> c_int,
    pub(super) current_time_int64: unsafe extern "C" fn(*mut Vfs, *mut i64) -> c_int,
}

/// `sqlite3_file`: the beginning of each VFS's own structure
#[repr(C)]
pub(super) struct File {
    pub(super) methods: *const Methods,
}

/// `sqlite3_io_methods`, version 2
#[repr(C)]
pub(super) struct Methods {
    pub(super) version: c_int,
    pub(super) close: unsafe extern "C" fn(*mut File) -> c_int,
    pub(super) read: unsafe extern "C" fn(*mut File, *mut c_void, c_int, i64) -> c_int,
    pub(super) write: unsafe extern "C" fn(*mut File, *const c_void, c_int, i64) -> c_int,
    pub(super) truncate: unsafe extern "C" fn(*mut File, i64) -> c_int,
    pub(super) sync: unsafe extern "C" fn(*mut File, c_int) -> c_int,
    pub(super) file_size: unsafe extern "C" fn(*mut File, *mut i64) -> c_int,
    pub(super) lock: unsafe extern "C" fn(*mut File, c_int) -> c_int,
    pub(super) unlock: unsafe extern "C" fn(*mut File, c_int) -> c_int,
    pub(super) check_reserved_lock: unsafe extern "C" fn(*mut File, *mut c_int) -> c_int,
    pub(super) file_control: unsafe extern "C" fn(*mut File, c_int, *mut c_void) -> c_int,
    pub(super) sector_size: unsafe extern "C" fn(*mut File) -> c_int,
    pub(super) device_characteristics: unsafe extern "C" fn(*mut File) -> c_int,
    pub(super) shm_map: unsafe extern "C" fn(*mut File, c_int, c_int, c_int, *mut *mut c_void) -> c_int,
    pub(super) shm_lock: unsafe extern "C" fn(*mut File, c_int, c_int, c_int) -> c_int,
    pub(super) shm_barrier: unsafe extern "C" fn(*mut File),
    pub(super) shm_unmap: unsafe extern "C" fn(*mut File, c_int) -> c_int,
}

/// Flags of `xOpen` (SQLITE_OPEN_*).
pub(super) mod open {
    use super::c_int;
    pub(crate) const READONLY: c_int = 0x1;
    pub(crate) const READWRITE: c_int = 0x2;
    pub(crate) const CREATE: c_int = 0x4;
    pub(crate) const DELETEONCLOSE: c_int = 0x8;
    pub(crate) const EXCLUSIVE: c_int = 0x10;
    pub(crate) const MAIN_DB: c_int = 0x100;
    pub(crate) const MAIN_JOURNAL: c_int = 0x800;
    pub(crate) const SUPER_JOURNAL: c_int = 0x4000;
    pub(crate) const WAL: c_int = 0x80000;
}

/// Operations of `xFileControl` (SQLITE_FCNTL_*).
pub(super) mod control {
    use super::c_int;
    pub(crate) const LOCKSTATE: c_int = 1;
    pub(crate) const SIZE_HINT: c_int = 5;
    pub(crate) const CHUNK_SIZE: c_int = 6;
    pub(crate) const FILE_POINTER: c_int = 7;
    pub(crate) const PERSIST_WAL: c_int = 10;
    pub(crate) const POWERSAFE_OVERWRITE: c_int = 13;
    pub(crate) const VFSNAME: c_int = 12;
    pub(crate) const PRAGMA: c_int = 14;
    pub(crate) const HAS_MOVED: c_int = 20;
    pub(crate) const SYNC: c_int = 21;
}

/// Promises of `xDeviceCharacteristics` (SQLITE_IOCAP_*).
pub(super) mod promise {
    use super::c_int;
    /// A file that grows never has garbage where data was to be.
    pub(crate) const SAFE_APPEND: c_int = 0x200;
    /// A power cut does not change bytes beside those that are written.
    pub(crate) const POWERSAFE_OVERWRITE: c_int = 0x1000;
}

/// Flags of `xShmLock` (SQLITE_SHM_*).
pub(super) mod shm {
    use super::c_int;
    pub(crate) const LOCK: c_int = 2;
    pub(crate) const EXCLUSIVE: c_int = 8;
}

/// Flags of functions: UTF-8, and not from triggers and views of a foreign database.
pub(super) const FUNCTION: c_int = 1 | 0x80000;
/// The argument of a destructor that has SQLite copy the text (SQLITE_TRANSIENT).
pub(super) fn transient() -> Destructor {
    // SAFETY: SQLite compares this value and never calls it. It is no null pointer, so it is a value of the type.
    unsafe { std::mem::transmute::<isize, Destructor>(-1) }
}

/// The first version that finds the parameters of a URI from any name that it passes.
pub(super) const VERSION_MIN: c_int = 3_031_000;

/// The bytes of a buffer that SQLite gives with its length.
///
/// # Safety
///
/// The buffer has so many bytes, and nobody else uses it for as long.
pub(super) unsafe fn buffer<'a>(bytes: *mut c_void, len: c_int) -> &'a mut [u8] {
    // SAFETY: the caller's promise; SQLite's lengths are not negative.
    unsafe { std::slice::from_raw_parts_mut(bytes.cast(), len as c_uint as usize) }
}
