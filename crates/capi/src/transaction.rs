//! Transactions: changes of any files that come together, or not at all.

use crate::arguments::{hand_out, reference, slice, string, take_back};
use crate::failure::{Failure, done};
use crate::image::syncline_fs;
use crate::xattrs::xattr_mode;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::{Mutex, PoisonError};
use syncline::Transaction;

/// Changes that are collected for a commit.
pub struct syncline_transaction {
    changes: Mutex<Transaction>,
}

impl syncline_transaction {
    fn add(&self, change: impl FnOnce(&mut Transaction)) {
        change(&mut self.changes.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

/// Begins a transaction.
///
/// # Safety
/// `fs` is NULL or an open handle; `transaction` may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_transaction_begin(
    fs: *const syncline_fs,
    transaction: *mut *mut syncline_transaction,
) -> c_int {
    // SAFETY: the caller's promise for each pointer.
    done(|| unsafe {
        hand_out(transaction, || {
            let changes = Mutex::new(reference(fs, "fs")?.filesystem.transaction());
            Ok(syncline_transaction { changes })
        })
    })
}

/// Makes all changes, or none.
///
/// # Safety
/// `transaction` is NULL or a handle, and not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_transaction_commit(transaction: *mut syncline_transaction) -> c_int {
    done(|| {
        // SAFETY: the caller's promise.
        let handle = unsafe { take_back(transaction) }?;
        Ok(handle.changes.into_inner().unwrap_or_else(PoisonError::into_inner).commit()?)
    })
}

/// Forgets all changes.
///
/// # Safety
/// `transaction` is NULL or a handle, and not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_transaction_discard(transaction: *mut syncline_transaction) -> c_int {
    // SAFETY: the caller's promise.
    done(|| unsafe { take_back(transaction) }.map(drop))
}

/// Gives a file these contents.
///
/// # Safety
/// `transaction` is NULL or a handle, `path` a string; `data` has `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_transaction_write(
    transaction: *const syncline_transaction,
    path: *const c_char,
    data: *const c_void,
    size: usize,
) -> c_int {
    // SAFETY: the caller's promise for each pointer.
    done(|| unsafe {
        let (path, data) = (string(path, "path")?, slice(data.cast::<u8>(), size, "data")?);
        reference(transaction, "transaction")?.add(|changes| _ = changes.write(path, data));
        Ok(())
    })
}

/// Writes at an offset of a file that exists.
///
/// # Safety
/// As for [`syncline_transaction_write`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_transaction_pwrite(
    transaction: *const syncline_transaction,
    path: *const c_char,
    data: *const c_void,
    size: usize,
    offset: u64,
) -> c_int {
    // SAFETY: the caller's promise for each pointer.
    done(|| unsafe {
        let (path, data) = (string(path, "path")?, slice(data.cast::<u8>(), size, "data")?);
        reference(transaction, "transaction")?.add(|changes| _ = changes.write_at(path, data, offset));
        Ok(())
    })
}

/// Makes an empty file that must not exist.
///
/// # Safety
/// `transaction` is NULL or a handle, `path` a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_transaction_create(
    transaction: *const syncline_transaction,
    path: *const c_char,
    mode: u32,
) -> c_int {
    // SAFETY: the caller's promise for each pointer.
    done(|| unsafe {
        let (path, mode) = (string(path, "path")?, (mode & 0o7777) as u16);
        reference(transaction, "transaction")?.add(|changes| _ = changes.create_new(path, mode));
        Ok(())
    })
}

/// Makes a directory.
///
/// # Safety
/// `transaction` is NULL or a handle, `path` a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_transaction_mkdir(
    transaction: *const syncline_transaction,
    path: *const c_char,
    mode: u32,
) -> c_int {
    // SAFETY: the caller's promise for each pointer.
    done(|| unsafe {
        let (path, mode) = (string(path, "path")?, (mode & 0o7777) as u16);
        reference(transaction, "transaction")?.add(|changes| _ = changes.create_dir_with(path, mode));
        Ok(())
    })
}

/// Makes a symbolic link.
///
/// # Safety
/// `transaction` is NULL or a handle, `target` and `path` are strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_transaction_symlink(
    transaction: *const syncline_transaction,
    target: *const c_char,
    path: *const c_char,
) -> c_int {
    // SAFETY: the caller's promise for each pointer.
    done(|| unsafe {
        let (target, path) = (string(target, "target")?, string(path, "path")?);
        reference(transaction, "transaction")?.add(|changes| _ = changes.symlink(target, path));
        Ok(())
    })
}

/// Renames, replacing what has the new name.
///
/// # Safety
/// `transaction` is NULL or a handle, `from` and `to` are strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_transaction_rename(
    transaction: *const syncline_transaction,
    from: *const c_char,
    to: *const c_char,
) -> c_int {
    // SAFETY: the caller's promise for each pointer.
    done(|| unsafe {
        let (from, to) = (string(from, "from")?, string(to, "to")?);
        reference(transaction, "transaction")?.add(|changes| _ = changes.rename(from, to));
        Ok(())
    })
}

/// Removes a name of anything but a directory.
///
/// # Safety
/// `transaction` is NULL or a handle, `path` a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_transaction_unlink(
    transaction: *const syncline_transaction,
    path: *const c_char,
) -> c_int {
    // SAFETY: the caller's promise for each pointer.
    done(|| unsafe {
        let path = string(path, "path")?;
        reference(transaction, "transaction")?.add(|changes| _ = changes.remove_file(path));
        Ok(())
    })
}

/// Removes an empty directory.
///
/// # Safety
/// `transaction` is NULL or a handle, `path` a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_transaction_rmdir(
    transaction: *const syncline_transaction,
    path: *const c_char,
) -> c_int {
    // SAFETY: the caller's promise for each pointer.
    done(|| unsafe {
        let path = string(path, "path")?;
        reference(transaction, "transaction")?.add(|changes| _ = changes.remove_dir(path));
        Ok(())
    })
}

/// Sets the size of a file.
///
/// # Safety
/// `transaction` is NULL or a handle, `path` a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_transaction_truncate(
    transaction: *const syncline_transaction,
    path: *const c_char,
    size: u64,
) -> c_int {
    // SAFETY: the caller's promise for each pointer.
    done(|| unsafe {
        let path = string(path, "path")?;
        reference(transaction, "transaction")?.add(|changes| _ = changes.set_len(path, size));
        Ok(())
    })
}

/// Changes permissions.
///
/// # Safety
/// `transaction` is NULL or a handle, `path` a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_transaction_chmod(
    transaction: *const syncline_transaction,
    path: *const c_char,
    mode: u32,
) -> c_int {
    // SAFETY: the caller's promise for each pointer.
    done(|| unsafe {
        let (path, mode) = (string(path, "path")?, (mode & 0o7777) as u16);
        reference(transaction, "transaction")?.add(|changes| _ = changes.set_permissions(path, mode));
        Ok(())
    })
}

/// Sets an extended attribute.
///
/// # Safety
/// `transaction` is NULL or a handle, `path` and `name` are strings; `value` has `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_transaction_setxattr(
    transaction: *const syncline_transaction,
    path: *const c_char,
    name: *const c_char,
    value: *const c_void,
    size: usize,
    flags: c_uint,
) -> c_int {
    // SAFETY: the caller's promise for each pointer.
    done(|| unsafe {
        let (path, name) = (string(path, "path")?, string(name, "name")?);
        let (value, mode) = (slice(value.cast::<u8>(), size, "value")?, xattr_mode(flags)?);
        let transaction = reference(transaction, "transaction")?;
        transaction.add(|changes| _ = changes.set_xattr_with(path, name, value, mode));
        Ok::<_, Failure>(())
    })
}

/// Removes an extended attribute.
///
/// # Safety
/// `transaction` is NULL or a handle, `path` and `name` are strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_transaction_removexattr(
    transaction: *const syncline_transaction,
    path: *const c_char,
    name: *const c_char,
) -> c_int {
    // SAFETY: the caller's promise for each pointer.
    done(|| unsafe {
        let (path, name) = (string(path, "path")?, string(name, "name")?);
        reference(transaction, "transaction")?.add(|changes| _ = changes.remove_xattr(path, name));
        Ok(())
    })
}
