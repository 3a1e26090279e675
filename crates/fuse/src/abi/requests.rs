//! The fixed parts of requests. Names and data follow them.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

macro_rules! request {
    ($(#[$doc:meta])* $name:ident, $size:literal, { $($(#[$field_doc:meta])* $field:ident: $type:ty,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
        #[repr(C)]
        pub struct $name { $($(#[$field_doc])* pub $field: $type,)* }
        const _: () = assert!(size_of::<$name>() == $size);
    };
}

request!(
    /// Begins every request.
    InHeader, 40, {
        /// Length of the request, this header included.
        len: u32,
        opcode: u32,
        /// Identifies the request; the answer repeats it.
        unique: u64,
        /// The inode that the request is about.
        node: u64,
        uid: u32,
        gid: u32,
        pid: u32,
        /// Length of extensions at the end, in units of 8 bytes.
        extensions_len: u16,
        padding: u16,
    }
);

request!(
    InitIn, 64, {
        major: u32,
        minor: u32,
        max_readahead: u32,
        flags: u32,
        flags2: u32,
        unused: [u32; 11],
    }
);

/// Length of the part of [`InitIn`] that kernels before 7.36 send.
pub const INIT_IN_SHORT_BYTES: usize = 16;

request!(ForgetIn, 8, { lookups: u64, });
request!(ForgetOne, 16, { node: u64, lookups: u64, });
request!(BatchForgetIn, 8, { count: u32, padding: u32, });
request!(GetAttrIn, 16, { flags: u32, padding: u32, handle: u64, });
request!(StatxIn, 24, { getattr_flags: u32, reserved: u32, handle: u64, flags: u32, mask: u32, });
request!(
    SetAttrIn, 88, {
        valid: u32,
        padding: u32,
        handle: u64,
        size: u64,
        lock_owner: u64,
        atime: i64,
        mtime: i64,
        ctime: i64,
        atime_ns: u32,
        mtime_ns: u32,
        ctime_ns: u32,
        mode: u32,
        unused4: u32,
        uid: u32,
        gid: u32,
        unused5: u32,
    }
);
request!(MkNodIn, 16, { mode: u32, rdev: u32, umask: u32, padding: u32, });
request!(MkDirIn, 8, { mode: u32, umask: u32, });
request!(RenameIn, 8, { new_dir: u64, });
request!(Rename2In, 16, { new_dir: u64, flags: u32, padding: u32, });
request!(LinkIn, 8, { old_node: u64, });
request!(OpenIn, 8, { flags: u32, open_flags: u32, });
request!(CreateIn, 16, { flags: u32, mode: u32, umask: u32, open_flags: u32, });
request!(ReleaseIn, 24, { handle: u64, flags: u32, release_flags: u32, lock_owner: u64, });
request!(
    /// READ, READDIR and READDIRPLUS.
    ReadIn, 40, {
        handle: u64,
        offset: u64,
        size: u32,
        read_flags: u32,
        lock_owner: u64,
        flags: u32,
        padding: u32,
    }
);
request!(
    WriteIn, 40, {
        handle: u64,
        offset: u64,
        size: u32,
        write_flags: u32,
        lock_owner: u64,
        flags: u32,
        padding: u32,
    }
);
request!(FSyncIn, 16, { handle: u64, flags: u32, padding: u32, });
request!(
    SetXattrIn, 8, { size: u32, flags: u32, }
);
request!(
    /// Follows [`SetXattrIn`] if SETXATTR_EXT was agreed on.
    SetXattrMore, 8, { setxattr_flags: u32, padding: u32, }
);
request!(GetXattrIn, 8, { size: u32, padding: u32, });
request!(LSeekIn, 24, { handle: u64, offset: u64, whence: u32, padding: u32, });
request!(FAllocateIn, 32, { handle: u64, offset: u64, len: u64, mode: u32, padding: u32, });
request!(
    CopyFileRangeIn, 56, {
        handle: u64,
        offset: u64,
        /// The destination of the copy.
        to_node: u64,
        to_handle: u64,
        to_offset: u64,
        len: u64,
        flags: u64,
    }
);
request!(
    IoctlIn, 32, {
        handle: u64,
        flags: u32,
        command: u32,
        argument: u64,
        in_size: u32,
        out_size: u32,
    }
);
request!(
    /// `struct fsxattr` of `FS_IOC_FSGETXATTR`.
    FsXattr, 28, {
        xflags: u32,
        extent_size: u32,
        extents: u32,
        project: u32,
        cow_extent_size: u32,
        padding: [u8; 8],
    }
);
