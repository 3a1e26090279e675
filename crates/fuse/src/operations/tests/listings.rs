//! READDIR, READDIRPLUS, and what OPENDIR is answered.

use super::*;

/// The entries of a listing, each with the cookie at which to continue after it.
fn entries(mut bytes: &[u8], plus: bool) -> Vec<(Vec<u8>, u64, EntryOut)> {
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let (entry, dirent, rest) = if plus {
            let (both, rest) = DirentPlus::read_from_prefix(bytes).unwrap();
            (both.entry, both.dirent, rest)
        } else {
            let (dirent, rest) = Dirent::read_from_prefix(bytes).unwrap();
            (EntryOut::default(), dirent, rest)
        };
        let name = rest[..dirent.name_len as usize].to_vec();
        bytes = &rest[name.len().next_multiple_of(DIRENT_ALIGN)..];
        found.push((name, dirent.offset, entry));
    }
    found
}

#[test]
fn listings_fit_and_go_on_where_they_stopped() {
    let bench = Bench::new();
    let directory = bench.mkdir(ROOT_NODE, b"d");
    let mut expected: Vec<Vec<u8>> =
        (0..500).map(|index| vec![b'a' + (index % 26) as u8; index / 26 + 1]).collect();
    expected.sort();
    expected.dedup();
    for name in &expected {
        bench.create(directory, name, libc::O_RDWR);
    }
    expected.extend([b".".to_vec(), b"..".to_vec()]);
    expected.sort();
    for (opcode, plus, least) in [(Opcode::ReadDir, false, 48), (Opcode::ReadDirPlus, true, 184)] {
        for size in [least, 1000, 4096, 1 << 20] {
            let (mut names, mut offset) = (Vec::new(), 0);
            loop {
                let input = ReadIn { offset, size, ..ReadIn::default() };
                let reply = bench.send(opcode, directory, &[input.as_bytes()]);
                assert_eq!(reply.errno(), 0);
                let body = reply.body();
                assert!(body.len() <= size as usize);
                let Some((_, last, _)) = entries(&body, plus).last().cloned() else { break };
                offset = last;
                for (name, _, entry) in entries(&body, plus) {
                    let dots = name == b"." || name == b"..";
                    assert_eq!(entry.node != 0, plus && !dots, "{name:?}");
                    names.push(name);
                }
            }
            names.sort();
            assert!(names == expected, "{opcode:?} {size}");
        }
        let tiny = ReadIn { size: least / 2, ..ReadIn::default() };
        assert_eq!(bench.errno(opcode, directory, &[tiny.as_bytes()]), libc::EINVAL);
    }
}

#[test]
fn listing_with_attributes_counts_what_it_sends_and_no_more() {
    let bench = Bench::new();
    let directory = bench.mkdir(ROOT_NODE, b"d");
    let ino = bench.create(directory, &[b'n'; 200], libc::O_RDWR).entry.node;
    // Room for "." and "..", and almost enough for the long name.
    let input = ReadIn { size: 2 * 160 + 300, ..ReadIn::default() };
    let body = bench.send(Opcode::ReadDirPlus, directory, &[input.as_bytes()]).body();
    assert_eq!(entries(&body, true).len(), 2);
    assert_eq!(bench.errno(Opcode::Unlink, directory, &[&[b'n'; 200], b"\0"]), 0);
    bench.send(Opcode::Release, ino, &[ReleaseIn::default().as_bytes()]);
    // The only reference is that of the creation: dropping it removes the inode.
    bench.send(Opcode::Forget, ino, &[ForgetIn { lookups: 1 }.as_bytes()]);
    block_on(bench.session.fs().syncfs()).unwrap();
    let gone = (0..100).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(10));
        bench.errno(Opcode::GetAttr, ino, &[GetAttrIn::default().as_bytes()]) != 0
    });
    assert!(gone, "a reference leaked");
}

/// Refused with ENOSYS, or with this flag in the answer, it lets the kernel cache listings.
#[test]
fn the_kernel_may_cache_no_listing() {
    const CACHE_DIR: u32 = 1 << 3;
    let bench = Bench::new();
    let (open, _) = bench.ask::<OpenOut>(Opcode::OpenDir, ROOT_NODE, &[&[0; 8]]);
    assert_eq!(open.open_flags & CACHE_DIR, 0);
    assert_eq!(bench.errno(Opcode::ReleaseDir, ROOT_NODE, &[&[0; 24]]), 0);
}
