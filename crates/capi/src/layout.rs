//! Tests that the structures and numbers of the header are those of this crate: a C compiler is
//! given the values from here and rejects any that differ.

use crate::*;
use std::mem::{offset_of, size_of};
use std::process::Command;

macro_rules! layout {
    ($into:ident, $name:ident { $($field:ident),* }) => {
        $into.push_str(&format!("SAME(sizeof(struct {0}), {1});\n", stringify!($name), size_of::<$name>()));
        $($into.push_str(&format!(
            "SAME(offsetof(struct {0}, {1}), {2});\n",
            stringify!($name), stringify!($field), offset_of!($name, $field)
        ));)*
    };
}

macro_rules! numbers {
    ($into:ident, $($name:ident),*) => {
        $($into.push_str(&format!("SAME({}, {});\n", stringify!($name), $name));)*
    };
}

fn assertions() -> String {
    let mut text = String::from(
        "#include <libsyncline.h>\n#define SAME(header, library) _Static_assert((header) == (library), #header)\n",
    );
    layout!(text, syncline_time { seconds, nanoseconds, reserved });
    layout!(
        text,
        syncline_stat {
            ino,
            size,
            blocks,
            mode,
            nlink,
            uid,
            gid,
            rdev,
            reserved,
            atime,
            mtime,
            ctime,
            btime
        }
    );
    layout!(text, syncline_dirent { ino, mode, name_len, name });
    layout!(text, syncline_space { block_bytes, blocks, free, available, objects, objects_free });
    layout!(text, syncline_snapshot { name, created, used_bytes, exclusive_bytes });
    numbers!(
        text,
        SYNCLINE_READ_ONLY,
        SYNCLINE_NO_IO_URING,
        SYNCLINE_ENCRYPTED,
        SYNCLINE_NAME_BYTES,
        SYNCLINE_TIME_OMIT
    );
    numbers!(text, SYNCLINE_RENAME_NOREPLACE, SYNCLINE_RENAME_EXCHANGE);
    numbers!(text, SYNCLINE_XATTR_CREATE, SYNCLINE_XATTR_REPLACE);
    text
}

#[test]
fn the_header_has_these_structures_and_numbers() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("layout.c");
    let compile = |text: &str| {
        std::fs::write(&source, text).unwrap();
        let include = concat!(env!("CARGO_MANIFEST_DIR"), "/../../include");
        Command::new("cc").args(["-std=c11", "-fsyntax-only", "-I", include]).arg(&source).output()
    };
    let text = assertions();
    let Ok(output) = compile(&text) else {
        eprintln!("SKIPPED: there is no 'cc' here");
        return;
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    // A difference must be found.
    let wrong = text.replace("struct syncline_dirent, name), 16)", "struct syncline_dirent, name), 12)");
    assert_ne!(wrong, text);
    assert!(!compile(&wrong).unwrap().status.success());
}
