//! Tests of Btrfs where directories are moved and names are exchanged.

use super::*;

#[test]
fn btrfs_exchanges_the_name_of_a_synced_file_for_one_that_the_other_file_has_not_got() {
    let before = [mkdir(ROOT, "d", 2), mkdir(ROOT, "e", 3), file(2, "a", 4), file(3, "b", 5)];
    let exchange = exchange([(2, "c"), (3, "b")], [4, 5]);
    let changes = [write(5, 0, b"data", 0), sync(5), rename(2, "a", 2, "c", 4), exchange];
    let history = history(&before, &changes);
    let [renamed, exchanged] = [3, 4].map(|at| history.recording.begin + at - 1);
    let lost = BTreeMap::from([(renamed, None), (exchanged, Some(Part::Linked))]);
    let tree = left(&history, "btrfs", &lost).unwrap();
    assert_eq!(paths(&tree), ["d", "d/a", "d/c", "e", "e/b"]);
    assert_eq!([tree.lookup(2, b"c"), tree.lookup(3, b"b")], [Some(5), Some(4)]);
    let half = BTreeMap::from([(exchanged, Some(Part::Linked))]);
    assert!(left(&history, "btrfs", &half).is_none(), "the other file would have no name");
}

#[test]
fn btrfs_exchanges_a_logged_directory_with_one_that_lost_changes() {
    let before = [mkdir(ROOT, "d", 2), mkdir(ROOT, "e", 3), file(3, "b", 4)];
    let exchange = exchange([(ROOT, "d"), (ROOT, "e")], [2, 3]);
    let changes = [file(2, "a", 5), rename(3, "b", 3, "c", 4), sync(2), exchange];
    let tree = without(&history(&before, &changes), "btrfs", &[2]).unwrap();
    assert_eq!(paths(&tree), ["d", "d/b", "e", "e/a"]);
}

#[test]
fn btrfs_logs_the_synced_file_of_an_exchange_without_a_new_one() {
    let before = [mkdir(ROOT, "d", 2), mkdir(ROOT, "e", 3), file(2, "a", 4)];
    let exchange = exchange([(2, "a"), (3, "b")], [4, 5]);
    let history = history(&before, &[file(3, "b", 5), exchange, sync(4)]);
    let tree = without(&history, "btrfs", &[1]).unwrap();
    assert_eq!(paths(&tree), ["d", "e", "e/b"]);
    assert_eq!(tree.lookup(3, b"b"), Some(4));
}

#[test]
fn btrfs_keeps_moved_and_exchanged_directories_that_were_synced() {
    let before = [mkdir(ROOT, "current", 2), file(2, "f", 3)];
    let next = [mkdir(ROOT, "next", 4), file(4, "f", 5), write(5, 0, b"new", 0), sync(5), sync(4)];
    let moves =
        [exchange([(ROOT, "next"), (ROOT, "current")], [4, 2]), rename(ROOT, "next", ROOT, "final", 4)];
    for change in moves {
        let history = history(&before, &[&next[..], &[change, sync(ROOT)]].concat());
        let whole = paths(&without(&history, "btrfs", &[]).unwrap());
        for lost in [1, 2, 3, 6] {
            let tree = without(&history, "btrfs", &[lost]);
            assert!(tree.is_none_or(|tree| paths(&tree) == whole && bytes(&tree, 5) == b"new"), "{lost}");
        }
    }
}

#[test]
fn btrfs_loses_no_file_where_directories_are_moved_and_not_synced() {
    let before = [mkdir(ROOT, "d", 2), file(2, "a", 3), file(ROOT, "b", 4)];
    let changes = [
        rename(ROOT, "d", ROOT, "e", 2),
        rename(2, "a", ROOT, "c", 3),
        rename_over([(ROOT, "b"), (ROOT, "c")], 4, 3),
        rename(ROOT, "c", 2, "a", 4),
    ];
    let history = history(&before, &changes);
    for lost in 0..1 << changes.len() {
        let lost: Vec<usize> = (1..=changes.len()).filter(|number| lost & (1 << (number - 1)) != 0).collect();
        let Some(tree) = without(&history, "btrfs", &lost) else { continue };
        assert!(tree.walk().iter().any(|(_, ino)| *ino == 4), "{lost:?}: {:?}", paths(&tree));
    }
}

#[test]
fn btrfs_may_log_any_name_where_names_were_exchanged() {
    let before = [file(ROOT, "a", 2), file(ROOT, "b", 3)];
    let unlink = (Action::Unlink { parent: ROOT, name: name("a"), ino: 4 }, Vec::new());
    let changes = [
        rename(ROOT, "a", ROOT, "c", 2),
        file(ROOT, "n", 4),
        sync(4),
        exchange([(ROOT, "c"), (ROOT, "n")], [2, 4]),
        rename(ROOT, "c", ROOT, "a", 4),
        unlink,
    ];
    let tree = without(&history(&before, &changes), "btrfs", &[1, 4, 5]).unwrap();
    assert_eq!(paths(&tree), ["a", "b"]);
    assert_eq!(tree.lookup(ROOT, b"a"), Some(2));
}

#[test]
fn btrfs_logs_the_last_name_of_a_file_without_the_exchange_before_it() {
    let before = [mkdir(ROOT, "d", 2), mkdir(ROOT, "e", 3), file(3, "b", 4)];
    let changes = [
        file(3, "c", 5),
        exchange([(3, "b"), (3, "c")], [4, 5]),
        rename(3, "c", 2, "c", 4),
        rename_over([(3, "b"), (2, "c")], 5, 4),
        sync(5),
    ];
    let tree = without(&history(&before, &changes), "btrfs", &[2, 3]).unwrap();
    assert_eq!(paths(&tree), ["d", "d/c", "e", "e/b"]);
    assert_eq!([tree.lookup(2, b"c"), tree.lookup(3, b"b")], [Some(5), Some(4)]);
}

#[test]
fn btrfs_logs_one_half_of_an_exchange_with_a_file_that_is_elsewhere() {
    let before = [mkdir(ROOT, "one", 2), mkdir(ROOT, "two", 3), file(2, "a", 4), file(3, "b", 5)];
    let changes =
        [rename(3, "b", 3, "c", 5), file(2, "new", 6), sync(2), exchange([(3, "c"), (2, "a")], [5, 4])];
    let tree = without(&history(&before, &changes), "btrfs", &[1]).expect("one of the two is in the log");
    assert_eq!(paths(&tree), ["one", "one/new", "two", "two/b", "two/c"]);
    assert_eq!((tree.lookup(3, b"b"), tree.lookup(3, b"c")), (Some(5), Some(4)));
}

/// Replaces `name` in a directory by a file that was written and synced, as often as there are inodes.
fn replaced_again(dir: Ino, own: &str, inos: std::ops::Range<Ino>, before: Ino) -> Vec<(Action, Vec<u8>)> {
    let replace = |ino: Ino| {
        let former = if ino == inos.start { before } else { ino - 1 };
        let renamed = rename_over([(dir, "new"), (dir, own)], ino, former);
        [file(dir, "new", ino), write(ino, 0, b"data", 0), sync(ino), renamed]
    };
    inos.clone().flat_map(replace).collect()
}

#[test]
fn btrfs_replaces_synced_files_in_a_moved_directory_as_in_any_other() {
    let before = [mkdir(ROOT, "d", 2), file(2, "f", 3)];
    let moved = [rename(ROOT, "d", ROOT, "e", 2), sync(ROOT)];
    let history = history(&before, &[&moved[..], &replaced_again(2, "f", 4..7, 3)].concat());
    let last = history.events().len() - 1;
    for part in [Part::Unlinked, Part::Linked] {
        assert!(left(&history, "btrfs", &BTreeMap::from([(last - 1, Some(part))])).is_none());
    }
    for lost in 1..=last + 1 - history.recording.begin {
        let Some(tree) = without(&history, "btrfs", &[lost]) else { continue };
        assert!(tree.lookup(2, b"f").is_some(), "{lost}: {:?}", paths(&tree));
    }
}

#[test]
fn btrfs_loses_the_removal_of_what_was_exchanged_with_the_exchange() {
    let before = [mkdir(ROOT, "d", 2), rename(ROOT, "d", ROOT, "e", 2), file(ROOT, "a", 3)];
    let unlink = (Action::Unlink { parent: ROOT, name: name("new"), ino: 3 }, Vec::new());
    let changes = [
        write(3, 0, b"old", 0),
        sync(3),
        file(ROOT, "new", 4),
        sync(4),
        exchange([(ROOT, "new"), (ROOT, "a")], [4, 3]),
        unlink,
    ];
    let tree = without(&history(&before, &changes), "btrfs", &[5]).unwrap();
    assert_eq!(paths(&tree), ["a", "e", "new"]);
}

#[test]
fn btrfs_keeps_the_order_of_names_behind_the_last_fsync_and_of_logged_names() {
    let before = [mkdir(ROOT, "d", 2), file(ROOT, "a", 3), file(ROOT, "b", 4)];
    let moved = rename(ROOT, "d", ROOT, "e", 2);
    let renamed = [rename(ROOT, "a", ROOT, "a2", 3), rename(ROOT, "b", ROOT, "b2", 4)];
    let unsynced = history(&before, &[&[moved.clone()][..], &renamed].concat());
    assert_eq!(paths(&without(&unsynced, "btrfs", &[2]).unwrap()), ["a", "b", "e"]);
    let link = (Action::Link { ino: 3, parent: ROOT, name: name("c") }, Vec::new());
    let later = [moved, write(3, 0, b"data", 0), sync(3), link, write(4, 0, b"data", 0), sync(4)];
    let lost = without(&history(&before, &[&later[..], &renamed[1..]].concat()), "btrfs", &[4]).unwrap();
    assert_eq!(paths(&lost), ["a", "b", "e"], "what was logged later is lost with it");
}

#[test]
fn btrfs_logs_nothing_at_the_second_fsync_of_an_unchanged_file() {
    let changes =
        [mkdir(ROOT, "new", 2), file(2, "b", 3), sync(3), rename(ROOT, "new", ROOT, "cur", 2), sync(3)];
    let tree = without(&history(&[], &changes), "btrfs", &[4]).unwrap();
    assert_eq!(paths(&tree), ["new", "new/b"]);
}
