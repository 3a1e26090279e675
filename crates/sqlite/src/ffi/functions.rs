//! The SQL functions. The last argument of most is the schema, `main` if left out.

use super::abi::{Context, Db, FUNCTION, Function, Value, control, transient};
use super::file;
use super::sqlite::{Sqlite, guarded};
use crate::connection::Connection;
use crate::failure::{self, Failure, code};
use std::ffi::{CStr, c_char, c_int};

/// Each function with its name, and the least and the greatest number of them.
const FUNCTIONS: [(&CStr, Function, c_int, c_int); 5] = [
    (c"syncline_snapshot", snapshot, 1, 2),
    (c"syncline_delete_snapshot", delete_snapshot, 1, 2),
    (c"syncline_snapshots", snapshots, 0, 1),
    (c"syncline_sync", sync, 0, 1),
    (c"syncline_last_error", last_error, 0, 0),
];

/// Registers the functions for a connection.
///
/// # Safety
///
/// `db` is an open connection.
pub(super) unsafe fn register(sqlite: &Sqlite, db: *mut Db) -> c_int {
    for (name, function, least, most) in FUNCTIONS {
        for count in least..=most {
            let (create, name, none) = (sqlite.api.create_function_v2, name.as_ptr(), std::ptr::null_mut());
            // SAFETY: names end with a NUL; the caller's promise.
            let registered =
                unsafe { create(db, name, count, FUNCTION, none, Some(function), None, None, None) };
            // A statement is running, so the connection has them: `load_extension` in a second connection.
            if registered != code::OK && registered != code::BUSY {
                return registered;
            }
        }
    }
    code::OK
}

/// The arguments of a call, as texts.
struct Call<'a> {
    context: *mut Context,
    sqlite: &'a Sqlite,
    arguments: &'a [*mut Value],
}

impl Call<'_> {
    /// Makes a call, whose result or error SQLite copies.
    ///
    /// # Safety
    ///
    /// SQLite has passed the context and the arguments.
    unsafe fn answer(
        context: *mut Context,
        count: c_int,
        values: *mut *mut Value,
        work: impl FnOnce(&Call<'_>) -> Result<String, Failure>,
    ) {
        let sqlite = Sqlite::this();
        let arguments = match count {
            0 => &[][..],
            // SAFETY: SQLite passes so many values.
            _ => unsafe { std::slice::from_raw_parts(values, count as usize) },
        };
        let call = Call { context, sqlite, arguments };
        let answer = guarded(|| work(&call));
        let text = answer.as_ref().unwrap_or_else(|failure| &failure.text);
        let (bytes, len) = (text.as_ptr().cast::<c_char>(), text.len() as c_int);
        // SAFETY: SQLite copies the text.
        unsafe {
            match answer {
                Ok(_) => (sqlite.api.result_text)(context, bytes, len, transient()),
                Err(_) => (sqlite.api.result_error)(context, bytes, len),
            }
        }
    }

    /// An argument as a text; None if it is left out or NULL.
    fn text(&self, index: usize) -> Result<Option<&str>, Failure> {
        let Some(value) = self.arguments.get(index) else { return Ok(None) };
        // SAFETY: a value of this call; the text stays until the call ends.
        let bytes = unsafe {
            let text = (self.sqlite.api.value_text)(*value);
            if text.is_null() {
                return Ok(None);
            }
            std::slice::from_raw_parts(text, (self.sqlite.api.value_bytes)(*value) as usize)
        };
        let text = std::str::from_utf8(bytes);
        text.map(Some).map_err(|_| Failure::new(code::ERROR, "a text that is not UTF-8"))
    }

    fn name(&self) -> Result<&str, Failure> {
        self.text(0)?.ok_or_else(|| Failure::new(code::ERROR, "a snapshot needs a name"))
    }

    /// Works with the database of the schema that the argument with this index names.
    fn database<T>(
        &self,
        index: usize,
        work: impl FnOnce(&Connection) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let schema = self.text(index)?.unwrap_or("main");
        let name = std::ffi::CString::new(schema).unwrap_or_default();
        let mut place: *mut super::abi::File = std::ptr::null_mut();
        // SAFETY: SQLite puts the file of the schema into the place; the connection is that of the call, whose
        // thread has it.
        let connection = unsafe {
            let db = (self.sqlite.api.context_db_handle)(self.context);
            let argument = (&raw mut place).cast();
            let found = (self.sqlite.api.file_control)(db, name.as_ptr(), control::FILE_POINTER, argument);
            if found == code::OK { file::connection(place) } else { None }
        };
        let Some(connection) = connection else {
            let text = format!("the database '{schema}' is in no image: open it with vfs=syncline");
            return Err(Failure::new(code::ERROR, text));
        };
        work(connection)
    }
}

unsafe extern "C" fn snapshot(context: *mut Context, count: c_int, values: *mut *mut Value) {
    // SAFETY: passed on.
    unsafe {
        Call::answer(context, count, values, |call| {
            let name = call.name()?;
            call.database(1, |database| database.make_snapshot(name))?;
            Ok(name.to_owned())
        });
    }
}

unsafe extern "C" fn delete_snapshot(context: *mut Context, count: c_int, values: *mut *mut Value) {
    // SAFETY: passed on.
    unsafe {
        Call::answer(context, count, values, |call| {
            let name = call.name()?;
            call.database(1, |database| database.delete_snapshot(name))?;
            Ok(name.to_owned())
        });
    }
}

unsafe extern "C" fn snapshots(context: *mut Context, count: c_int, values: *mut *mut Value) {
    // SAFETY: passed on.
    unsafe { Call::answer(context, count, values, |call| call.database(0, Connection::snapshots)) }
}

unsafe extern "C" fn sync(context: *mut Context, count: c_int, values: *mut *mut Value) {
    // SAFETY: passed on.
    unsafe {
        Call::answer(context, count, values, |call| {
            call.database(0, Connection::sync_image)?;
            Ok("synced".to_owned())
        });
    }
}

unsafe extern "C" fn last_error(context: *mut Context, count: c_int, values: *mut *mut Value) {
    // SAFETY: passed on.
    unsafe { Call::answer(context, count, values, |_| Ok(failure::newest())) }
}
