//! Forks: writable images that share the blocks of a snapshot of another one.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use syncline::{Filesystem, FormatOptions, ImageOptions, Result};

const SIZE: u64 = 64 << 20;

/// A base with a snapshot `monday`, in which `/old` has a MiB of 1, and a later state.
fn base(folder: &Path) -> PathBuf {
    let path = folder.join("base.img");
    let fs = Filesystem::create(&path, SIZE, &FormatOptions::default()).unwrap();
    fs.create_dir("/d").unwrap();
    fs.write("/d/old", vec![1; 1 << 20]).unwrap();
    fs.write("/small", "as it was").unwrap();
    fs.create_snapshot("monday").unwrap();
    fs.write("/d/old", vec![2; 1 << 20]).unwrap();
    fs.write("/later", "not in the fork").unwrap();
    fs.close().unwrap();
    path
}

fn open(path: &Path) -> Filesystem {
    Filesystem::open(path, ImageOptions::default()).unwrap()
}

fn write_and_delete(fs: &Filesystem, byte: u8) -> Result<()> {
    fs.write("/d/new", vec![byte; 4 << 20])?;
    fs.remove_file("/d/new")?;
    fs.write("/d/other", vec![byte; 2 << 20])?;
    fs.sync()
}

#[test]
fn fork_and_base_go_their_own_ways() {
    let folder = tempfile::tempdir().unwrap();
    let (base, work) = (base(folder.path()), folder.path().join("work.img"));
    Filesystem::fork_of(&base, "monday", &work).unwrap();
    let used = work.metadata().unwrap().blocks() * 512;
    assert!(used <= 1 << 20, "a new fork takes {used} bytes");
    // Both are open, and go on.
    let (fork, origin) = (open(&work), open(&base));
    assert_ne!(fork.uuid(), origin.uuid());
    assert_eq!(fork.read("/d/old").unwrap(), vec![1; 1 << 20]);
    assert!(!fork.exists("/later"));
    for round in 10..20 {
        write_and_delete(&fork, round).unwrap();
        write_and_delete(&origin, 100 + round).unwrap();
    }
    fork.write("/small", "as it is").unwrap();
    fork.remove_file("/d/old").unwrap();
    fork.close().unwrap();
    origin.remove_file("/d/old").unwrap();
    origin.close().unwrap();
    let (fork, origin) = (open(&work), open(&base));
    assert_eq!(fork.read("/small").unwrap(), b"as it is");
    assert_eq!(fork.read("/d/other").unwrap(), vec![19; 2 << 20]);
    assert_eq!(origin.read("/small").unwrap(), b"as it was");
    assert_eq!(origin.read("/d/other").unwrap(), vec![119; 2 << 20]);
    // The snapshot is in both.
    for image in [&work, &base] {
        let then = Filesystem::open_snapshot(image, "monday", ImageOptions::default()).unwrap();
        assert_eq!(then.read("/d/old").unwrap(), vec![1; 1 << 20]);
    }
}

#[test]
fn a_snapshot_with_forks_stays_until_they_are_released() {
    let folder = tempfile::tempdir().unwrap();
    let base = base(folder.path());
    let names: Vec<PathBuf> = ["one.img", "two.img"].map(|name| folder.path().join(name)).into();
    names.iter().for_each(|name| Filesystem::fork_of(&base, "monday", name).unwrap());
    let forks = Filesystem::forks_of(&base).unwrap();
    assert_eq!(open(&base).forks(), forks);
    let paths: Vec<&Path> = forks.iter().map(|fork| Path::new(&fork.path)).collect();
    assert_eq!(paths, names);
    assert!(forks.iter().all(|fork| fork.snapshot == "monday" && fork.may_be_at(&fork.path)));
    let origin = open(&base);
    // Only the user's snapshot is one.
    assert_eq!(origin.snapshots().unwrap().len(), 1);
    let refused = origin.delete_snapshot("monday").unwrap_err();
    assert_eq!(refused.errno(), 16);
    assert!(refused.to_string().contains("one.img"), "{refused}");
    // An open fork is not released.
    let open_fork = open(&names[0]);
    assert_eq!(origin.forget_fork(&forks[0]).unwrap_err().errno(), 16);
    drop(open_fork);
    std::fs::remove_file(&names[0]).unwrap();
    assert!(!forks[0].may_be_at(&names[0]) && forks[0].was_made_at(&names[0]));
    origin.forget_fork(&forks[0]).unwrap();
    origin.delete_snapshot("monday").unwrap_err();
    origin.forget_fork(&forks[1]).unwrap();
    origin.delete_snapshot("monday").unwrap();
    origin.close().unwrap();
    let refused = Filesystem::open(&names[1], ImageOptions::default()).err().unwrap().to_string();
    assert!(refused.contains("keeps no snapshot for this fork"), "{refused}");
    assert!(Filesystem::forks_of(&base).unwrap().is_empty());
}

/// By mistake, or because the base was restored from an older copy of itself.
#[test]
fn a_released_fork_is_tied_again_while_the_snapshot_exists() {
    let folder = tempfile::tempdir().unwrap();
    let (base, work) = (base(folder.path()), folder.path().join("work.img"));
    Filesystem::fork_of(&base, "monday", &work).unwrap();
    let fork = open(&work);
    fork.write("/mine", "kept").unwrap();
    fork.close().unwrap();
    let origin = open(&base);
    origin.forget_fork(&origin.forks()[0]).unwrap();
    write_and_delete(&origin, 6).unwrap();
    origin.close().unwrap();
    assert!(Filesystem::open(&work, ImageOptions::default()).is_err());
    Filesystem::rebase_fork(&work, &base).unwrap();
    assert_eq!(open(&work).read("/mine").unwrap(), b"kept");
    assert_eq!(open(&base).delete_snapshot("monday").unwrap_err().errno(), 16);
}

#[test]
fn a_moved_fork_and_a_copied_one_are_tied_by_themselves() {
    let folder = tempfile::tempdir().unwrap();
    let base = base(folder.path());
    let [work, moved, copy] = ["work.img", "moved.img", "copy.img"].map(|name| folder.path().join(name));
    Filesystem::fork_of(&base, "monday", &work).unwrap();
    std::fs::rename(&work, &moved).unwrap();
    Filesystem::rebase_fork(&moved, &base).unwrap();
    let places =
        || Filesystem::forks_of(&base).unwrap().into_iter().map(|fork| fork.path).collect::<Vec<_>>();
    assert_eq!(places(), [moved.to_str().unwrap()]);
    std::fs::copy(&moved, &copy).unwrap();
    Filesystem::rebase_fork(&copy, &base).unwrap();
    assert_eq!(places(), [moved.to_str().unwrap(), copy.to_str().unwrap()]);
    let deeper = folder.path().join("deeper.img");
    Filesystem::fork_of(&moved, "monday", &deeper).unwrap();
    assert_eq!(Filesystem::remove_fork(&moved).unwrap_err().errno(), 16, "it is a base itself");
    Filesystem::remove_fork(&deeper).unwrap().release().unwrap();
    // Each goes without the other.
    Filesystem::remove_fork(&moved).unwrap().release().unwrap();
    assert!(!moved.exists());
    assert_eq!(open(&copy).read("/small").unwrap(), b"as it was");
    Filesystem::remove_fork(&copy).unwrap().release().unwrap();
    open(&base).delete_snapshot("monday").unwrap();
}

/// A copy has the hold of its original until it gets one of its own.
#[test]
fn a_copy_that_goes_leaves_the_hold_to_its_original() {
    let folder = tempfile::tempdir().unwrap();
    let base = base(folder.path());
    let [work, copy] = ["work.img", "copy.img"].map(|name| folder.path().join(name));
    Filesystem::fork_of(&base, "monday", &work).unwrap();
    for detach in [false, true] {
        std::fs::copy(&work, &copy).unwrap();
        let gone = match detach {
            true => Filesystem::detach(&copy, &mut |_, _| {}),
            false => Filesystem::remove_fork(&copy),
        };
        let gone = gone.unwrap();
        assert_eq!((&gone.hold, gone.other.as_deref()), (&None, work.to_str()));
        gone.release().unwrap();
        assert_eq!(copy.exists(), detach);
        assert_eq!(open(&base).delete_snapshot("monday").unwrap_err().errno(), 16);
        assert_eq!(open(&work).read("/small").unwrap(), b"as it was");
    }
    // The original goes with its hold. A copy is not known.
    Filesystem::remove_fork(&work).unwrap().release().unwrap();
    open(&base).delete_snapshot("monday").unwrap();
}

/// Of a long path the hold has only a part, and for odd characters other ones. Then nobody can look whether the
/// original is still there.
#[test]
fn a_copy_leaves_the_hold_of_an_original_whose_path_is_not_known() {
    use std::os::unix::ffi::OsStrExt;
    let folder = tempfile::tempdir().unwrap();
    let base = base(folder.path());
    let (long, copy) = (folder.path().join("long".repeat(55)), folder.path().join("copy.img"));
    std::fs::create_dir(&long).unwrap();
    let odd = folder.path().join(std::ffi::OsStr::from_bytes(b"x\xff"));
    for (round, original) in [long.join("work.img"), odd].iter().enumerate() {
        Filesystem::fork_of(&base, "monday", original).unwrap();
        std::fs::copy(original, &copy).unwrap();
        Filesystem::rebase_fork(&copy, &base).unwrap();
        assert_eq!(Filesystem::forks_of(&base).unwrap().len(), 2 + round);
        assert_eq!(open(original).read("/small").unwrap(), b"as it was");
        // One that was not given a hold of its own.
        let gone = Filesystem::remove_fork(&copy).unwrap();
        assert!(gone.hold.is_some() && gone.other.is_none());
        gone.release().unwrap();
        std::fs::copy(original, &copy).unwrap();
        let gone = Filesystem::remove_fork(&copy).unwrap();
        assert!(gone.hold.is_none() && gone.other.is_some());
        assert_eq!(open(original).read("/small").unwrap(), b"as it was");
    }
}

/// Each copy is enough, of a new fork as well as of one with a new hold.
#[test]
fn a_rotten_copy_of_the_record_does_not_lose_the_fork() {
    use std::os::unix::fs::FileExt;
    let folder = tempfile::tempdir().unwrap();
    let base = base(folder.path());
    let work = folder.path().join("work.img");
    Filesystem::fork_of(&base, "monday", &work).unwrap();
    let file = std::fs::File::options().read(true).write(true).open(&work).unwrap();
    let mut record = [0; 2 * 4096];
    for _ in 0..3 {
        file.read_exact_at(&mut record, 49 * 4096).unwrap();
        for copy in [49, 50] {
            file.write_all_at(&[7; 4096], copy * 4096).unwrap();
            assert_eq!(open(&work).read("/small").unwrap(), b"as it was");
            file.write_all_at(&record, 49 * 4096).unwrap();
        }
        // The former hold is released.
        Filesystem::rebase_fork(&work, &base).unwrap();
        assert_eq!(Filesystem::forks_of(&base).unwrap().len(), 1);
    }
    // Without one of the copies, too.
    file.write_all_at(&[7; 4096], 49 * 4096).unwrap();
    Filesystem::rebase_fork(&work, &base).unwrap();
    file.write_all_at(&[7; 4096], 50 * 4096).unwrap();
    assert_eq!(open(&work).read("/small").unwrap(), b"as it was");
}

/// All of these have the snapshot.
#[test]
fn a_base_that_needs_the_fork_or_lies_too_deep_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let base = base(folder.path());
    let [one, two] = ["one.img", "two.img"].map(|name| folder.path().join(name));
    [&one, &two].iter().for_each(|name| Filesystem::fork_of(&base, "monday", name).unwrap());
    let refused = |fork: &Path, base: &Path| Filesystem::rebase_fork(fork, base).unwrap_err().to_string();
    assert!(refused(&one, &one).contains("this fork itself"), "{}", refused(&one, &one));
    Filesystem::rebase_fork(&two, &one).unwrap();
    assert!(refused(&one, &two).contains("this fork itself"), "{}", refused(&one, &two));
    let mut last = two;
    for depth in 2..15 {
        let next = folder.path().join(format!("{depth}.img"));
        Filesystem::fork_of(&last, "monday", &next).unwrap();
        last = next;
    }
    let other = folder.path().join("other.img");
    Filesystem::fork_of(&base, "monday", &other).unwrap();
    Filesystem::rebase_fork(&other, &last).unwrap();
    assert_eq!(open(&other).read("/small").unwrap(), b"as it was");
    let more = folder.path().join("more.img");
    Filesystem::fork_of(&base, "monday", &more).unwrap();
    assert!(refused(&more, &other).contains("more than 16 forks"), "{}", refused(&more, &other));
    assert_eq!(open(&more).read("/small").unwrap(), b"as it was");
    // Nothing was held for it.
    assert!(Filesystem::forks_of(&other).unwrap().is_empty());
}

/// And one whose base this process has open goes: the caller releases the hold there.
#[test]
fn a_fork_that_somebody_reads_stays() {
    let folder = tempfile::tempdir().unwrap();
    let (base, work) = (base(folder.path()), folder.path().join("work.img"));
    Filesystem::fork_of(&base, "monday", &work).unwrap();
    let then = Filesystem::open_snapshot(&work, "monday", ImageOptions::default()).unwrap();
    assert_eq!(Filesystem::remove_fork(&work).unwrap_err().errno(), 16);
    assert!(work.exists());
    drop(then);
    let origin = open(&base);
    let removed = Filesystem::remove_fork(&work).unwrap();
    assert!(!work.exists());
    origin.delete_snapshot(removed.hold.as_deref().unwrap()).unwrap();
    origin.delete_snapshot("monday").unwrap();
}

/// The fork itself goes, not the link; and the base learns where the fork is, not where the link is.
#[test]
fn a_link_to_a_fork_stands_for_the_fork() {
    let folder = tempfile::tempdir().unwrap();
    let base = base(folder.path());
    let [work, link, name] = ["work.img", "link.img", "name.img"].map(|name| folder.path().join(name));
    Filesystem::fork_of(&base, "monday", &work).unwrap();
    std::os::unix::fs::symlink("work.img", &link).unwrap();
    Filesystem::rebase_fork(&link, &base).unwrap();
    let forks = Filesystem::forks_of(&base).unwrap();
    assert_eq!(forks.iter().map(|fork| Path::new(&fork.path)).collect::<Vec<_>>(), [&work]);
    std::fs::hard_link(&work, &name).unwrap();
    let refused = Filesystem::remove_fork(&work).unwrap_err();
    assert_eq!(refused.errno(), 31);
    assert!(refused.to_string().contains("has 2 names"), "{refused}");
    assert!(work.exists() && Filesystem::forks_of(&base).unwrap() == forks);
    std::fs::remove_file(&name).unwrap();
    Filesystem::remove_fork(&link).unwrap().release().unwrap();
    assert!(!work.exists() && link.is_symlink());
    open(&base).delete_snapshot("monday").unwrap();
    // The same for one that becomes independent.
    let origin = open(&base);
    origin.create_snapshot("tuesday").unwrap();
    origin.fork(&base, "tuesday", &work).unwrap();
    origin.close().unwrap();
    let detached = Filesystem::detach(&link, &mut |_, _| {}).unwrap();
    assert_eq!(detached.fork, work);
}

#[test]
fn a_base_that_is_elsewhere_or_another_one_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (base, work) = (base(folder.path()), folder.path().join("work.img"));
    Filesystem::fork_of(&base, "monday", &work).unwrap();
    let refused = || Filesystem::open(&work, ImageOptions::default()).err().unwrap().to_string();
    let moved = folder.path().join("moved.img");
    std::fs::rename(&base, &moved).unwrap();
    assert!(refused().contains("'syncline fork --base BASE FORK'"), "{}", refused());
    // One that was made the same way is another one.
    let other = folder.path().join("other");
    std::fs::create_dir(&other).unwrap();
    std::fs::rename(self::base(&other), &base).unwrap();
    assert!(refused().contains("keeps no snapshot for this fork"), "{}", refused());
    let refused = Filesystem::rebase_fork(&work, &base).unwrap_err().to_string();
    assert!(refused.contains("does not have the snapshot"), "{refused}");
    assert_eq!(Filesystem::rebase_fork(&base, &moved).unwrap_err().errno(), 22, "no fork");
    Filesystem::rebase_fork(&work, &moved).unwrap();
    assert_eq!(open(&work).read("/small").unwrap(), b"as it was");
    assert_eq!(Filesystem::forks_of(&moved).unwrap().len(), 1, "the former hold is released");
}

/// Neither does a fork mind what else happens to its base.
#[test]
fn a_fork_outlives_a_rollback_and_a_growth_of_its_base() {
    let folder = tempfile::tempdir().unwrap();
    let (base, work) = (base(folder.path()), folder.path().join("work.img"));
    let origin = open(&base);
    origin.create_snapshot("tuesday").unwrap();
    origin.fork(&base, "tuesday", &work).unwrap();
    origin.enlarge(2 * SIZE).unwrap();
    write_and_delete(&origin, 3).unwrap();
    origin.close().unwrap();
    let fork = open(&work);
    write_and_delete(&fork, 7).unwrap();
    fork.enlarge(2 * SIZE).unwrap();
    fork.close().unwrap();
    let deeper = folder.path().join("deeper.img");
    let origin = open(&base);
    origin.create_snapshot("wednesday").unwrap();
    origin.close().unwrap();
    Filesystem::fork_of(&base, "wednesday", &deeper).unwrap();
    Filesystem::roll_back(&base, "wednesday").unwrap();
    assert_eq!(open(&work).read("/later").unwrap(), b"not in the fork");
    assert_eq!(open(&deeper).read("/d/other").unwrap(), vec![3; 2 << 20]);
    assert_eq!(Filesystem::forks_of(&base).unwrap().len(), 2);
}

#[test]
fn forks_of_forks_read_through_all_of_them() {
    let folder = tempfile::tempdir().unwrap();
    let mut image = base(folder.path());
    for depth in 0..4u8 {
        let next = folder.path().join(format!("fork-{depth}.img"));
        Filesystem::fork_of(&image, "monday", &next).unwrap();
        let fs = open(&next);
        fs.write(format!("/d/{depth}"), vec![depth; 300_000]).unwrap();
        // The next fork begins with what this one has made of it.
        let name = format!("monday-{depth}");
        fs.create_snapshot(&name).unwrap();
        fs.close().unwrap();
        let last = folder.path().join("last.img");
        Filesystem::fork_of(&next, &name, &last).unwrap();
        let fs = open(&last);
        assert_eq!(fs.read(format!("/d/{depth}")).unwrap(), vec![depth; 300_000]);
        assert_eq!(fs.read("/d/old").unwrap(), vec![1; 1 << 20]);
        fs.close().unwrap();
        std::fs::remove_file(&last).unwrap();
        image = next;
    }
    assert!(Filesystem::open(&image, ImageOptions::default()).is_ok());
}

#[test]
fn a_detached_fork_needs_no_base() {
    let folder = tempfile::tempdir().unwrap();
    let (base, work) = (base(folder.path()), folder.path().join("work.img"));
    Filesystem::fork_of(&base, "monday", &work).unwrap();
    let fork = open(&work);
    assert_eq!(fork.delete_snapshot("monday").unwrap_err().errno(), 16, "it is the base");
    write_and_delete(&fork, 8).unwrap();
    fork.close().unwrap();
    let mut last = (0, 0);
    let detached = Filesystem::detach(&work, &mut |bytes, total| last = (bytes, total)).unwrap();
    assert!(last.0 > 1 << 20 && last.0 == last.1, "{last:?}");
    assert_eq!(detached.base, base.canonicalize().unwrap());
    let origin = open(&base);
    origin.delete_snapshot(&detached.hold.unwrap()).unwrap();
    origin.delete_snapshot("monday").unwrap();
    origin.close().unwrap();
    std::fs::remove_file(&base).unwrap();
    let fork = open(&work);
    assert_eq!(fork.read("/d/old").unwrap(), vec![1; 1 << 20]);
    assert_eq!(fork.read("/d/other").unwrap(), vec![8; 2 << 20]);
    fork.delete_snapshot("monday").unwrap();
    write_and_delete(&fork, 9).unwrap();
    fork.close().unwrap();
    assert_eq!(Filesystem::detach(&work, &mut |_, _| {}).unwrap_err().errno(), 22, "it is no fork any more");
}

#[test]
fn a_temporary_fork_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let base = base(folder.path());
    let sandbox = Filesystem::open_fork(&base, "monday", ImageOptions::default()).unwrap();
    write_and_delete(&sandbox, 5).unwrap();
    sandbox.remove_dir_all("/d").unwrap();
    let origin = open(&base);
    assert_eq!(origin.delete_snapshot("monday").unwrap_err().errno(), 16, "it is being read");
    assert_eq!(origin.read("/d/old").unwrap(), vec![2; 1 << 20]);
    sandbox.close().unwrap();
    origin.delete_snapshot("monday").unwrap();
    origin.close().unwrap();
    assert!(Filesystem::forks_of(&base).unwrap().is_empty());
}

#[test]
fn a_fork_takes_no_place_that_is_taken() {
    let folder = tempfile::tempdir().unwrap();
    let (base, work) = (base(folder.path()), folder.path().join("work.img"));
    std::fs::write(&work, "mine").unwrap();
    let refused = Filesystem::fork_of(&base, "monday", &work).unwrap_err();
    assert_eq!(refused.errno(), 17, "{refused}");
    assert_eq!(std::fs::read(&work).unwrap(), b"mine");
    let nowhere = folder.path().join("missing/work.img");
    assert_eq!(Filesystem::fork_of(&base, "monday", &nowhere).unwrap_err().errno(), 2);
    let refused = Filesystem::fork_of(&base, "sunday", folder.path().join("new.img")).unwrap_err();
    assert!(refused.to_string().contains("there is no snapshot \"sunday\""), "{refused}");
    assert_eq!(refused.errno(), 2);
    assert!(Filesystem::forks_of(&base).unwrap().is_empty());
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|it| it.unwrap().file_name()).collect();
    assert_eq!(left.len(), 2, "{left:?}");
}
