//! The fixed parts of answers.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

macro_rules! reply {
    ($(#[$doc:meta])* $name:ident, $size:literal, { $($(#[$field_doc:meta])* $field:ident: $type:ty,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
        #[repr(C)]
        pub struct $name { $($(#[$field_doc])* pub $field: $type,)* }
        const _: () = assert!(size_of::<$name>() == $size);
    };
}

reply!(
    /// Begins every answer.
    OutHeader, 16, {
        /// Length of the answer, this header included.
        len: u32,
        /// Zero or a negated errno; in a notification, its kind.
        error: i32,
        /// The request's `unique`; zero in a notification.
        unique: u64,
    }
);

reply!(
    InitOut, 64, {
        major: u32,
        minor: u32,
        max_readahead: u32,
        flags: u32,
        max_background: u16,
        congestion_threshold: u16,
        max_write: u32,
        time_granularity_ns: u32,
        max_pages: u16,
        map_alignment: u16,
        flags2: u32,
        max_stack_depth: u32,
        request_timeout: u16,
        unused: [u16; 11],
    }
);

reply!(
    Attr, 88, {
        ino: u64,
        size: u64,
        blocks: u64,
        atime: i64,
        mtime: i64,
        ctime: i64,
        atime_ns: u32,
        mtime_ns: u32,
        ctime_ns: u32,
        mode: u32,
        nlink: u32,
        uid: u32,
        gid: u32,
        rdev: u32,
        block_size: u32,
        flags: u32,
    }
);

reply!(
    AttrOut, 104, {
        valid: u64,
        valid_ns: u32,
        padding: u32,
        attr: Attr,
    }
);

reply!(
    EntryOut, 128, {
        /// Zero means that no such name exists, and that the kernel may cache that.
        node: u64,
        generation: u64,
        entry_valid: u64,
        attr_valid: u64,
        entry_valid_ns: u32,
        attr_valid_ns: u32,
        attr: Attr,
    }
);

reply!(StatxTime, 16, { seconds: i64, nanoseconds: u32, reserved: i32, });

reply!(
    Statx, 256, {
        mask: u32,
        block_size: u32,
        attributes: u64,
        nlink: u32,
        uid: u32,
        gid: u32,
        mode: u16,
        spare0: u16,
        ino: u64,
        size: u64,
        blocks: u64,
        attributes_mask: u64,
        atime: StatxTime,
        btime: StatxTime,
        ctime: StatxTime,
        mtime: StatxTime,
        rdev_major: u32,
        rdev_minor: u32,
        dev_major: u32,
        dev_minor: u32,
        spare2: [u64; 14],
    }
);

reply!(
    StatxOut, 288, {
        valid: u64,
        valid_ns: u32,
        flags: u32,
        spare: [u64; 2],
        stat: Statx,
    }
);

reply!(OpenOut, 16, { handle: u64, open_flags: u32, backing_id: i32, });
reply!(CreateOut, 144, { entry: EntryOut, open: OpenOut, });
reply!(WriteOut, 8, { size: u32, padding: u32, });
reply!(
    StatFsOut, 80, {
        blocks: u64,
        free: u64,
        available: u64,
        files: u64,
        files_free: u64,
        block_size: u32,
        name_len: u32,
        fragment_size: u32,
        padding: u32,
        spare: [u32; 6],
    }
);
reply!(GetXattrOut, 8, { size: u32, padding: u32, });
reply!(LSeekOut, 8, { offset: u64, });
reply!(CopyFileRangeOut, 8, { copied: u64, });
reply!(IoctlOut, 16, { result: i32, flags: u32, in_iovs: u32, out_iovs: u32, });
reply!(
    /// Begins every entry of a READDIR answer; the name follows, padded to a multiple of 8 bytes.
    Dirent, 24, {
        ino: u64,
        /// The offset at which to continue after this entry.
        offset: u64,
        name_len: u32,
        file_type: u32,
    }
);
reply!(
    /// Begins every entry of a READDIRPLUS answer.
    DirentPlus, 152, { entry: EntryOut, dirent: Dirent, }
);
reply!(
    /// Notification: drop the cached attributes of `ino`, and if `offset` >= 0 its data too.
    InvalidateInodeOut, 24, { ino: u64, offset: i64, len: i64, }
);
