//! The system's SQLite, as far as the tests use it.
#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "all of them call SQLite as sqlite3.h says, with pointers that are good for the call"
)]

use libloading::Library;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use syncline::Filesystem;
use syncline_sqlite::{Served, serve};

const READWRITE_CREATE_URI: c_int = 0x2 | 0x4 | 0x40;
pub const BUSY: c_int = 5;
pub const FULL: c_int = 13;
pub const CANTOPEN: c_int = 14;

type Row = Vec<String>;

/// SQLite's functions.
pub struct Sqlite {
    open: unsafe extern "C" fn(*const c_char, *mut *mut c_void, c_int, *const c_char) -> c_int,
    close: unsafe extern "C" fn(*mut c_void) -> c_int,
    exec: unsafe extern "C" fn(
        *mut c_void,
        *const c_char,
        Option<Each>,
        *mut c_void,
        *mut *mut c_char,
    ) -> c_int,
    error: unsafe extern "C" fn(*mut c_void) -> *const c_char,
    code: unsafe extern "C" fn(*mut c_void) -> c_int,
    timeout: unsafe extern "C" fn(*mut c_void, c_int) -> c_int,
    interrupt: unsafe extern "C" fn(*mut c_void),
    backup: unsafe extern "C" fn(*mut c_void, *const c_char, *mut c_void, *const c_char) -> *mut c_void,
    backup_step: unsafe extern "C" fn(*mut c_void, c_int) -> c_int,
    backup_finish: unsafe extern "C" fn(*mut c_void) -> c_int,
}

type Each = unsafe extern "C" fn(*mut c_void, c_int, *mut *mut c_char, *mut *mut c_char) -> c_int;
type Init = unsafe extern "C" fn(*mut c_void, *mut *mut c_char, *const c_void) -> c_int;

/// A failed call.
#[derive(Debug)]
pub struct Failed {
    pub code: c_int,
    pub text: String,
}

/// SQLite with the extension; None, said once for each test, if there is no SQLite here.
pub fn sqlite() -> Option<&'static Sqlite> {
    static LOADED: OnceLock<Option<Sqlite>> = OnceLock::new();
    let loaded = LOADED.get_or_init(|| unsafe {
        let library: &'static Library = Box::leak(Box::new(Library::new("libsqlite3.so.0").ok()?));
        macro_rules! get {
            ($name:literal) => {
                *library.get($name).ok()?
            };
        }
        let initialize: unsafe extern "C" fn() -> c_int = get!(b"sqlite3_initialize");
        assert_eq!(initialize(), 0);
        let automatic: unsafe extern "C" fn(Option<Init>) -> c_int = get!(b"sqlite3_auto_extension");
        let init = syncline_sqlite::syncline_sqlite_init as *const ();
        assert_eq!(automatic(Some(std::mem::transmute::<*const (), Init>(init))), 0);
        Some(Sqlite {
            open: get!(b"sqlite3_open_v2"),
            close: get!(b"sqlite3_close"),
            exec: get!(b"sqlite3_exec"),
            error: get!(b"sqlite3_errmsg"),
            code: get!(b"sqlite3_extended_errcode"),
            timeout: get!(b"sqlite3_busy_timeout"),
            interrupt: get!(b"sqlite3_interrupt"),
            backup: get!(b"sqlite3_backup_init"),
            backup_step: get!(b"sqlite3_backup_step"),
            backup_finish: get!(b"sqlite3_backup_finish"),
        })
    });
    if loaded.is_none() {
        eprintln!("SKIPPED: there is no libsqlite3.so.0 here");
    }
    let sqlite = loaded.as_ref()?;
    // The extension registers its VFS in the first connection.
    static FIRST: OnceLock<()> = OnceLock::new();
    FIRST.get_or_init(|| drop(sqlite.open(":memory:").unwrap()));
    Some(sqlite)
}

/// An open connection, which one thread at a time uses.
pub struct Connection {
    sqlite: &'static Sqlite,
    db: *mut c_void,
}

unsafe impl Send for Connection {}
// The system's SQLite takes a lock for each call.
unsafe impl Sync for Connection {}

impl Sqlite {
    pub fn open(&'static self, name: &str) -> Result<Connection, Failed> {
        let name = CString::new(name).unwrap();
        let mut db = null_mut();
        let code = unsafe { (self.open)(name.as_ptr(), &raw mut db, READWRITE_CREATE_URI, std::ptr::null()) };
        let connection = Connection { sqlite: self, db };
        unsafe { (self.timeout)(db, 30_000) };
        if code == 0 { Ok(connection) } else { Err(connection.failed()) }
    }

    /// Opens a database of an image.
    pub fn open_in(&'static self, image: &str, file: &str, options: &str) -> Connection {
        self.open(&name(image, file, options))
            .unwrap_or_else(|failed| panic!("{failed:?}: {}", self.last_error()))
    }

    /// The text of the newest failure.
    pub fn last_error(&'static self) -> String {
        self.open(":memory:").unwrap().one("select syncline_last_error()")
    }
}

/// The URI of a database in an image.
pub fn name(image: &str, file: &str, options: &str) -> String {
    format!("file:{file}?vfs=syncline&image={image}{options}")
}

impl Connection {
    fn failed(&self) -> Failed {
        unsafe {
            let text = CStr::from_ptr((self.sqlite.error)(self.db)).to_string_lossy().into_owned();
            Failed { code: (self.sqlite.code)(self.db), text }
        }
    }

    pub fn try_run(&self, sql: &str) -> Result<Vec<Row>, Failed> {
        unsafe extern "C" fn each(
            rows: *mut c_void,
            count: c_int,
            values: *mut *mut c_char,
            _: *mut *mut c_char,
        ) -> c_int {
            let values = unsafe { std::slice::from_raw_parts(values, count as usize) };
            let text = |value: &*mut c_char| match value.is_null() {
                true => "NULL".to_owned(),
                false => unsafe { CStr::from_ptr(*value) }.to_string_lossy().into_owned(),
            };
            unsafe { &mut *rows.cast::<Vec<Row>>() }.push(values.iter().map(text).collect());
            0
        }
        let mut rows: Vec<Row> = Vec::new();
        let text = CString::new(sql).unwrap();
        let place = (&raw mut rows).cast();
        let code = unsafe { (self.sqlite.exec)(self.db, text.as_ptr(), Some(each), place, null_mut()) };
        if code == 0 { Ok(rows) } else { Err(self.failed()) }
    }

    pub fn run(&self, sql: &str) -> Vec<Row> {
        self.try_run(sql).unwrap_or_else(|failed| panic!("{sql}: {failed:?}"))
    }

    /// The first column of the first row.
    pub fn one(&self, sql: &str) -> String {
        self.run(sql)[0][0].clone()
    }

    pub fn number(&self, sql: &str) -> i64 {
        self.one(sql).parse().unwrap()
    }

    pub fn require_sound(&self) {
        assert_eq!(self.run("pragma integrity_check"), [["ok"]]);
    }

    pub fn set_timeout(&self, milliseconds: c_int) {
        unsafe { (self.sqlite.timeout)(self.db, milliseconds) };
    }

    pub fn interrupt(&self) {
        unsafe { (self.sqlite.interrupt)(self.db) };
    }

    /// Copies the database into another one with SQLite's backup API, some pages at a time.
    pub fn back_up_to(&self, other: &Connection, mut between: impl FnMut()) {
        const OK: c_int = 0;
        const DONE: c_int = 101;
        unsafe {
            let backup = (self.sqlite.backup)(other.db, c"main".as_ptr(), self.db, c"main".as_ptr());
            assert!(!backup.is_null(), "{:?}", other.failed());
            loop {
                match (self.sqlite.backup_step)(backup, 7) {
                    OK => between(),
                    DONE => break,
                    code => panic!("{code}"),
                }
            }
            assert_eq!((self.sqlite.backup_finish)(backup), OK);
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        unsafe { (self.sqlite.close)(self.db) };
    }
}

/// A name for an image of a test, for which no other test asks.
pub fn new_name(what: &str) -> String {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    format!("test-{what}-{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

/// An image in memory, and its name for SQLite.
pub fn image(bytes: u64) -> (Filesystem, Served, String) {
    let fs = Filesystem::in_memory(bytes).unwrap();
    let name = new_name("memory");
    let served = serve(&name, &fs);
    (fs, served, name)
}
