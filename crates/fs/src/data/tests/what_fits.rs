//! Writes to a filesystem that has not room for all of them.

use super::*;

/// A write stores the whole blocks that fit, and then nothing more. A page is not divided.
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
    // With room for some blocks, the write of a whole page is refused. A write of as many bytes that is no
    // page is done in part.
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

/// The quota has room for the first half of a page only. The next piece waits until earlier data has been
/// compressed. Then the quota has room for the other half, which must not follow.
#[test]
fn a_write_that_fits_in_parts_divides_no_page() {
    let mount = Mount::sized(64 << 20, Options { dirty_bytes_max: 48 << 10, ..options() });
    let dir = mount.mkdir_in(ROOT, "dir");
    mount.set_quota(dir, 44 << 10, 0);
    let ino = mount.create_in(dir, "file");
    mount.compress(ino, Some(Algorithm::Lz4));
    mount.fsync(ROOT);
    let data = Bytes::from(vec![7; 128 << 10]);
    let written = block_on(mount.fs.write_what_fits(ino, 0, data, false)).unwrap();
    assert!(written >= 32 << 10, "{written}");
    mount.fsync(ROOT);
    let after = mount.crash();
    let found = after.read(block_on(after.fs.lookup(dir, b"file")).unwrap().ino, 0, 1 << 20);
    for page in [8, 16, 32, 64].map(|kib| kib << 10) {
        for at in (0..written / page).map(|number| number * page) {
            let there = found.iter().skip(at).take(page).filter(|byte| **byte == 7).count();
            assert!(there == 0 || there == page, "{there} bytes of the page of {page} at {at}");
        }
    }
}

/// Blocks that have room, since they are preallocated, or replace others need no more.
#[test]
fn what_needs_no_room_is_written_where_the_rest_does_not_fit() {
    let mount = Mount::formatted(16 << 20, 4096, options());
    let [ino, filler] = ["file", "filler"].map(|name| mount.create(name));
    mount.allocate(ino, Allocation::Preallocate { keep_size: true }, 0, 512 << 10).unwrap();
    let full = (0..).map(|at| mount.try_write(filler, at << 12, &[7; 4096])).find_map(Result::err);
    assert_eq!(full.unwrap().errno(), 28);
    let write = |byte: u8| {
        let data = Bytes::from(vec![byte; 1 << 20]);
        block_on(mount.fs.write_what_fits(ino, 0, data, false)).unwrap()
    };
    let first = write(8);
    assert!((512 << 10..1 << 20).contains(&first), "{first}");
    block_on(mount.fs.syncfs()).unwrap();
    let again = write(9);
    assert!((1..=first).contains(&again), "{again}");
    mount.fsync(ino);
    assert_eq!(mount.read(ino, 0, 1 << 20), [vec![9; again], vec![8; first - again]].concat());
    mount.check_items(ino);
}
