//! Writes to a filesystem that has not room for all of them.

use super::*;

/// What fits is written, in whole blocks, and then nothing more; a page is not divided.
#[test]
fn a_full_filesystem_takes_what_fits() {
    let mount = Mount::formatted(16 << 20, 4096, options());
    let ino = mount.create("file");
    let write = |offset: u64, len: usize| {
        let data = Bytes::from(vec![7; len]);
        block_on(mount.fs.write_what_fits(ino, offset, data, false))
    };
    let (mut size, mut short) = (100, 0);
    mount.write(ino, 0, &[7; 100]);
    let error = loop {
        match write(size, 300_000) {
            Ok(written) => {
                assert!(short == 0 || written < 300_000);
                short += u64::from(written < 300_000);
                assert!(written == 300_000 || (size + written as u64).is_multiple_of(4096), "{written}");
                size += written as u64;
            }
            Err(error) => break error,
        }
    };
    assert!(matches!(error, FsError::Store(StoreError::NoSpace)), "{error}");
    assert!(short > 0, "the last write took nothing of what was left");
    assert_eq!(mount.size(ino), size);
    let block = block_on(mount.fs.write(ino, 1 << 30, vec![7; 4096].into(), false));
    assert!(matches!(block, Err(FsError::Store(StoreError::NoSpace))), "room for a block was left");
    mount.fsync(ino);
    assert_eq!(mount.read(ino, 0, 32 << 20), vec![7; size as usize]);
    // With room for some blocks, a page of more is refused, and so many bytes elsewhere are not.
    let page = size.next_multiple_of(64 << 10);
    let mut end = size - size % 4096;
    let written = loop {
        end -= 4096;
        mount.truncate(ino, end).unwrap();
        assert!(write(page, 64 << 10).is_err(), "there is room for a page before there is any for a part");
        assert_eq!(mount.size(ino), end);
        if let Ok(written) = write(page + 4096, 64 << 10) {
            break written;
        }
    };
    assert!(written < 64 << 10, "{written}");
}
