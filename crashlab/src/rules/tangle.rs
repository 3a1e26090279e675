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
