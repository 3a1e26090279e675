//! Tests of the log of Btrfs.

use super::*;

#[test]
fn btrfs_logs_the_last_name_of_a_file_and_none_in_between() {
    let before = [file(ROOT, "a", 2), file(ROOT, "b", 3)];
    let chain = [
        file(ROOT, "c", 4),
        rename_over([(ROOT, "c"), (ROOT, "a")], 4, 2),
        rename_over([(ROOT, "a"), (ROOT, "b")], 4, 3),
        sync(4),
    ];
    let history = history(&before, &chain);
    let tree = without(&history, "btrfs", &[2]).unwrap();
    let found = |name: &str| tree.lookup(ROOT, name.as_bytes());
    assert_eq!((found("a"), found("b"), found("c")), (Some(2), Some(4), None));
    for model in ["xfs", "ext4", "zfs", "syncline"] {
        assert!(without(&history, model, &[2]).is_none(), "{model}");
    }
}

#[test]
fn btrfs_logs_a_new_file_without_an_older_one_that_had_its_name_for_a_while() {
    let before = [mkdir(ROOT, "d", 2), file(2, "b", 3)];
    let changes = [
        rename(2, "b", 2, "a", 3),
        rename(2, "a", ROOT, "c", 3),
        file(2, "a", 4),
        write(4, 0, b"new", 0),
        sync(4),
    ];
    let history = history(&before, &changes);
    let tree = without(&history, "btrfs", &[1, 2]).unwrap();
    assert_eq!(paths(&tree), ["d", "d/a", "d/b"]);
    // Once the older one has the name, it loses the name only for its next one.
    for lost in [&[1][..], &[2], &[1, 2]] {
        let tree = without(&history, "btrfs", lost).unwrap();
        assert!(tree.walk().iter().any(|(_, ino)| *ino == 3), "{lost:?}: {:?}", paths(&tree));
        assert_eq!(tree.lookup(2, b"a"), Some(4), "{lost:?}");
    }
}

#[test]
fn btrfs_logs_new_files_of_a_synced_directory_with_their_attributes() {
    let before = [mkdir(ROOT, "d", 2), mkdir(ROOT, "e", 3)];
    let chmod = Action::Attributes { ino: 4, mode: Some(0o600), uid: None, gid: None, mtime_ns: None };
    let changes = [file(2, "new", 4), mkdir(3, "other", 5), (chmod, Vec::new()), sync(2)];
    let history = history(&before, &changes);
    let tree = without(&history, "btrfs", &[2]).unwrap();
    assert_eq!(
        (paths(&tree), tree.node(4).unwrap().mode),
        (vec!["d".into(), "d/new".into(), "e".into()], 0o600)
    );
}

#[test]
fn btrfs_gives_a_logged_file_a_name_that_others_had_for_a_while() {
    let before = [mkdir(ROOT, "d", 2), file(ROOT, "a", 3)];
    let unlink = (Action::Unlink { parent: 2, name: name("c"), ino: 3 }, Vec::new());
    let changes =
        [rename(ROOT, "a", 2, "c", 3), unlink, file(ROOT, "b", 4), sync(4), rename(ROOT, "b", 2, "c", 4)];
    let history = history(&before, &changes);
    let tree = without(&history, "btrfs", &[1, 2]).unwrap();
    assert_eq!(paths(&tree), ["a", "d", "d/c"]);
    assert_eq!(tree.lookup(2, b"c"), Some(4));
}

#[test]
fn btrfs_logs_no_trace_of_a_name_that_a_synced_file_had_for_a_while() {
    let before = [file(ROOT, "a", 2), file(ROOT, "b", 3)];
    let over = rename_over([(ROOT, "b"), (ROOT, "a")], 3, 2);
    let history_with = |last: (Action, Vec<u8>)| history(&before, &[sync(3), over.clone(), sync(3), last]);
    let back = history_with(rename(ROOT, "a", ROOT, "b", 3));
    assert_eq!(paths(&without(&back, "btrfs", &[2]).unwrap()), ["a", "b"]);
    let on = history_with(rename(ROOT, "a", ROOT, "c", 3));
    let tree = without(&on, "btrfs", &[2]).unwrap();
    assert_eq!((tree.lookup(ROOT, b"a"), tree.lookup(ROOT, b"c")), (Some(2), Some(3)));
    let unlink = (Action::Unlink { parent: ROOT, name: name("a"), ino: 3 }, Vec::new());
    let gone = history_with(unlink);
    assert_eq!(without(&gone, "btrfs", &[2]).unwrap().walk(), [(b"a".to_vec(), 2)]);
    // Without the last change the synced name is there.
    for history in [&back, &on, &gone] {
        assert_eq!(without(history, "btrfs", &[4]).unwrap().lookup(ROOT, b"a"), Some(3));
        assert!(without(history, "btrfs", &[2, 4]).is_none_or(|tree| tree.lookup(ROOT, b"a") == Some(3)));
    }
}

#[test]
fn btrfs_logs_a_file_without_the_renames_of_the_one_that_it_replaced() {
    let before = [mkdir(ROOT, "d", 2), file(ROOT, "a", 3), file(2, "b", 4)];
    let changes = [rename(ROOT, "a", 2, "a", 3), rename_over([(2, "b"), (2, "a")], 4, 3), sync(4)];
    let history = history(&before, &changes);
    let tree = without(&history, "btrfs", &[1]).unwrap();
    assert_eq!(
        (tree.lookup(ROOT, b"a"), tree.lookup(2, b"a"), tree.lookup(2, b"b")),
        (Some(3), Some(4), None)
    );
}

#[test]
fn btrfs_loses_no_file_to_half_of_a_rename_or_to_the_removal_of_a_link() {
    let before = [mkdir(ROOT, "d", 2), file(ROOT, "b", 3), file(2, "c", 4)];
    let changes = [rename(ROOT, "b", 2, "a", 3), rename(2, "c", ROOT, "b", 4)];
    let swapped = history(&before, &changes);
    let begin = swapped.recording.begin;
    let lost = BTreeMap::from([(begin, None), (begin + 1, Some(Part::Linked))]);
    let tree = left(&swapped, "btrfs", &lost);
    assert!(tree.is_none_or(|tree| tree.walk().iter().any(|(_, ino)| *ino == 3)));

    let before = [mkdir(ROOT, "e", 2)];
    let link = (Action::Link { ino: 3, parent: ROOT, name: name("b") }, Vec::new());
    let unlink = (Action::Unlink { parent: 2, name: name("z"), ino: 3 }, Vec::new());
    let linked = history(&before, &[file(2, "z", 3), sync(2), link, unlink]);
    let tree = without(&linked, "btrfs", &[3]);
    assert!(tree.is_none_or(|tree| tree.walk().iter().any(|(_, ino)| *ino == 3)));
}

#[test]
fn btrfs_logs_the_file_that_has_the_old_name_of_another_one() {
    let before = [mkdir(ROOT, "d", 2), file(2, "b", 3)];
    let changes = [file(ROOT, "x", 4), rename(2, "b", 2, "a", 3), file(2, "b", 5), sync(3)];
    let history = history(&before, &changes);
    let tree = without(&history, "btrfs", &[1]).unwrap();
    assert_eq!(paths(&tree), ["d", "d/a", "d/b"]);
    assert_eq!(paths(&without(&history, "btrfs", &[1, 3]).unwrap()), ["d", "d/a"]);
}

#[test]
fn btrfs_keeps_what_a_name_in_between_would_have_replaced() {
    let before = [mkdir(ROOT, "d", 2), file(2, "b", 3)];
    let unlink = (Action::Unlink { parent: 2, name: name("b"), ino: 3 }, Vec::new());
    let link = (Action::Link { ino: 4, parent: 2, name: name("b") }, Vec::new());
    let changes = [unlink, file(ROOT, "c", 4), link, rename(2, "b", 2, "c", 4), sync(4)];
    let history = history(&before, &changes);
    let tree = without(&history, "btrfs", &[1]).unwrap();
    assert_eq!(paths(&tree), ["c", "d", "d/b", "d/c"]);
    assert_eq!((tree.lookup(2, b"b"), tree.lookup(2, b"c")), (Some(3), Some(4)));
}

#[test]
fn btrfs_takes_no_name_that_another_file_has_got() {
    let before = [mkdir(ROOT, "d", 2), file(ROOT, "a", 3)];
    let link = (Action::Link { ino: 3, parent: 2, name: name("a") }, Vec::new());
    let changes = [
        link,
        write(3, 0, b"data", 0),
        sync(3),
        rename(2, "a", 2, "c", 3),
        file(2, "a", 4),
        rename(2, "c", 2, "b", 3),
        sync(4),
    ];
    let history = history(&before, &changes);
    for lost in [&[4][..], &[6], &[4, 6]] {
        let Some(tree) = without(&history, "btrfs", lost) else { continue };
        assert_eq!(tree.lookup(2, b"a"), Some(4), "{lost:?}: {:?}", paths(&tree));
    }
}

#[test]
fn btrfs_keeps_a_file_that_was_linked_to_its_old_name_again() {
    let before = [mkdir(ROOT, "d", 2), file(ROOT, "b", 3)];
    let link = (Action::Link { ino: 3, parent: 2, name: name("b") }, Vec::new());
    let unlink = (Action::Unlink { parent: 2, name: name("c"), ino: 3 }, Vec::new());
    let changes = [rename(ROOT, "b", 2, "b", 3), rename(2, "b", 2, "c", 3), sync(3), link, unlink];
    let history = history(&before, &changes);
    for lost in [&[2][..], &[4], &[5], &[2, 4], &[2, 5], &[4, 5]] {
        let Some(tree) = without(&history, "btrfs", lost) else { continue };
        assert!(tree.walk().iter().any(|(_, ino)| *ino == 3), "{lost:?}");
        let links = tree.walk().iter().filter(|(_, ino)| *ino == 3).count();
        assert_eq!(tree.node(3).unwrap().links as usize, links, "{lost:?}");
    }
}

#[test]
fn btrfs_logs_a_rename_with_the_size_and_without_the_names_in_between() {
    let before = [mkdir(ROOT, "d", 2), file(2, "b", 3), file(ROOT, "a", 4), write(4, 0, b"data", 0)];
    let unlink = (Action::Unlink { parent: 2, name: name("b"), ino: 3 }, Vec::new());
    let changes = [
        write(4, 0, b"more", 4),
        sync(4),
        unlink,
        truncate(4, 4, 0),
        rename(ROOT, "a", 2, "b", 4),
        rename(2, "b", 2, "c", 4),
    ];
    let history = history(&before, &changes);
    let tree = without(&history, "btrfs", &[3, 5]).unwrap();
    assert_eq!(paths(&tree), ["d", "d/b", "d/c"]);
    assert_eq!((tree.lookup(2, b"b"), tree.lookup(2, b"c")), (Some(3), Some(4)));
    assert!(bytes(&tree, 4).is_empty());
}

#[test]
fn btrfs_logs_the_size_of_a_file_that_was_cut_and_not_what_it_got_then() {
    let before = [mkdir(ROOT, "dir", 2), file(ROOT, "a", 3), write(3, 0, &[b'A'; 8192], 0)];
    let changes = [rename(ROOT, "a", 2, "b", 3), truncate(3, 8192, 0), write(3, 0, &[b'B'; 100], 0), sync(2)];
    let cut = |changes: &[(Action, Vec<u8>)], at: usize, size: u64| {
        let history = history(&before, changes);
        let begin = history.recording.begin;
        left(
            &history,
            "btrfs",
            &BTreeMap::from([(begin + at, Some(Part::Before(size))), (begin + at + 1, None)]),
        )
    };
    assert_eq!(bytes(&cut(&changes, 1, 100).expect("it is in the log"), 3), [b'A'; 100]);
    // The log makes no file longer, and has nothing of a file whose directory was not synced.
    let longer = [rename(ROOT, "a", 2, "b", 3), truncate(3, 8192, 0), write(3, 0, &[b'B'; 9000], 0), sync(2)];
    assert!(cut(&longer, 1, 9000).is_none());
    assert!(cut(&changes[1..], 0, 100).is_none());
}

#[test]
fn btrfs_logs_the_directories_of_all_names_of_a_file_that_got_one() {
    let before = [mkdir(ROOT, "one", 2), mkdir(ROOT, "two", 3), file(2, "a", 4)];
    let link = (Action::Link { ino: 4, parent: 3, name: name("a") }, Vec::new());
    let changes = [mkdir(3, "lost", 5), file(2, "new", 6), link, sync(4)];
    let tree = without(&history(&before, &changes), "btrfs", &[1]).expect("its directory need not be logged");
    assert_eq!(paths(&tree), ["one", "one/a", "one/new", "two", "two/a"]);
}

#[test]
fn btrfs_logs_a_new_file_without_the_first_of_its_names() {
    let before = [mkdir(ROOT, "one", 2), mkdir(ROOT, "two", 3), file(3, "b", 4)];
    let unlink = (Action::Unlink { parent: 3, name: name("b"), ino: 4 }, Vec::new());
    let changes = [unlink, file(3, "b", 5), rename(3, "b", 2, "c", 5), sync(2)];
    let tree =
        without(&history(&before, &changes), "btrfs", &[1]).expect("only the other directory is logged");
    assert_eq!(paths(&tree), ["one", "one/c", "two", "two/b"]);
    assert_eq!((tree.lookup(2, b"c"), tree.lookup(3, b"b")), (Some(5), Some(4)));
    // A name that a file still has is logged, and so is how another one lost it.
    let changes = [&changes[..2], &[sync(5)]].concat();
    assert!(without(&history(&before, &changes), "btrfs", &[1]).is_none());
}

#[test]
fn btrfs_logs_no_name_that_another_file_has_taken() {
    let before = [mkdir(ROOT, "d", 2), file(2, "a", 3), file(ROOT, "b", 4)];
    let link = (Action::Link { ino: 4, parent: 2, name: name("c") }, Vec::new());
    let changes = [link, rename_over([(2, "a"), (2, "c")], 3, 4), sync(4)];
    let tree = without(&history(&before, &changes), "btrfs", &[1, 2]).expect("it has one name by then");
    assert_eq!(paths(&tree), ["b", "d", "d/a"]);
    assert!(without(&history(&before, &changes[..1]), "btrfs", &[1]).is_some());
    let synced = [&changes[..1], &changes[2..]].concat();
    assert!(without(&history(&before, &synced), "btrfs", &[1]).is_none());
}

#[test]
fn btrfs_takes_a_removal_back_that_only_the_next_file_of_that_name_made_durable() {
    let before = [mkdir(ROOT, "one", 2), mkdir(ROOT, "two", 3), file(3, "b", 4)];
    let unlink = (Action::Unlink { parent: 3, name: name("b"), ino: 4 }, Vec::new());
    let changes = [unlink, file(3, "b", 5), sync(5), rename(3, "b", 2, "c", 5), sync(5)];
    assert!(without(&history(&before, &changes[..3]), "btrfs", &[1]).is_none());
    let tree = without(&history(&before, &changes), "btrfs", &[1]).expect("the log has only the last name");
    assert_eq!(paths(&tree), ["one", "one/c", "two", "two/b"]);
    assert_eq!((tree.lookup(2, b"c"), tree.lookup(3, b"b")), (Some(5), Some(4)));
}

#[test]
fn btrfs_logs_a_file_that_gave_its_name_up_with_the_name_that_it_has_then() {
    let before = [mkdir(ROOT, "one", 2), file(ROOT, "b", 3), write(3, 0, b"content", 0)];
    let changes = [
        truncate(3, 7, 3),
        rename(ROOT, "b", ROOT, "c", 3),
        file(ROOT, "b", 4),
        rename(ROOT, "c", 2, "c", 3),
        sync(4),
    ];
    let tree = without(&history(&before, &changes), "btrfs", &[1]).expect("its names need not wait");
    assert_eq!(
        (paths(&tree), bytes(&tree, 3)),
        (vec!["b".into(), "one".into(), "one/c".into()], b"content".into())
    );
}

#[test]
fn btrfs_removes_a_logged_name_whatever_its_former_files_have_lost() {
    let before = [file(ROOT, "b", 2)];
    let unlink = |ino: Ino| (Action::Unlink { parent: ROOT, name: name("c"), ino }, Vec::new());
    let changes = [rename(ROOT, "b", ROOT, "c", 2), unlink(2), file(ROOT, "c", 3), sync(3), unlink(3)];
    let tree = without(&history(&before, &changes), "btrfs", &[1, 2]).expect("the last file was in the log");
    assert_eq!(paths(&tree), ["b"]);
}

#[test]
fn btrfs_moves_a_file_that_has_not_got_a_name_it_only_removed() {
    let before = [mkdir(ROOT, "one", 2), mkdir(ROOT, "two", 3), file(2, "a", 4)];
    let changes = [
        file(2, "c", 5),
        rename(2, "a", 3, "c", 4),
        sync(3),
        rename_over([(2, "c"), (3, "c")], 5, 4),
        rename(3, "c", 3, "a", 5),
    ];
    let history = history(&before, &changes);
    let begin = history.recording.begin;
    let parts = BTreeMap::from([(begin + 1, Some(Part::Linked)), (begin + 3, Some(Part::Unlinked))]);
    let tree = left(&history, "btrfs", &parts).expect("only its last name is logged");
    assert_eq!(paths(&tree), ["one", "one/a", "two", "two/a"]);
}

#[test]
fn btrfs_logs_no_rename_of_the_directories_above_a_synced_file() {
    let before = [mkdir(ROOT, "d", 2), file(2, "f", 3), write(3, 0, b"1", 0)];
    let changes = [rename(ROOT, "d", ROOT, "e", 2), write(3, 1, b"2", 1), sync(3)];
    let tree = without(&history(&before, &changes), "btrfs", &[1]).expect("the directory was there before");
    assert_eq!((paths(&tree), bytes(&tree, 3)), (vec!["d".into(), "d/f".into()], b"12".into()));
    assert!(without(&history(&before, &changes), "ext4", &[1]).is_none());
    // A directory has one name.
    let before = [mkdir(ROOT, "d", 2), mkdir(ROOT, "e", 3)];
    let history = history(&before, &[rename(ROOT, "d", 3, "d", 2), sync(3)]);
    let begin = history.recording.begin;
    assert!(left(&history, "btrfs", &BTreeMap::from([(begin, Some(Part::Linked))])).is_none());
}

#[test]
fn btrfs_loses_a_file_that_was_moved_to_a_new_directory_when_its_name_is_used_again() {
    let before = [file(ROOT, "log", 2)];
    let moves = [mkdir(ROOT, "old", 3), rename(ROOT, "log", 3, "log", 2)];
    let reuses = [file(ROOT, "log", 4), sync(4)];
    let changes = [&moves[..], &reuses].concat();
    let tree = without(&history(&before, &changes), "btrfs", &[1]).expect("nothing has synced the directory");
    assert_eq!((paths(&tree), tree.lookup(ROOT, b"log")), (vec!["log".into()], Some(4)));
    // With the directory synced first, it is somewhere.
    let synced = [&moves[..], &[sync(3)], &reuses].concat();
    assert!(without(&history(&before, &synced), "btrfs", &[1]).is_none());
    assert!(without(&history(&before, &synced), "btrfs", &[2]).is_none_or(|tree| paths(&tree).len() > 1));
}

#[test]
fn btrfs_logs_a_new_file_with_a_name_that_is_logged() {
    let before = [mkdir(ROOT, "d", 2), file(2, "a", 3), file(ROOT, "b", 4)];
    let unlink = (Action::Unlink { parent: ROOT, name: name("b"), ino: 4 }, Vec::new());
    let chmod = Action::Attributes { ino: 3, mode: Some(0o600), uid: None, gid: None, mtime_ns: None };
    let changes = [(chmod, Vec::new()), sync(2), unlink, file(2, "new", 5), rename(2, "new", 2, "c", 5)];
    let tree = without(&history(&before, &changes), "btrfs", &[3]).expect("its directory is in the log");
    assert_eq!(paths(&tree), ["b", "d", "d/a", "d/c"]);
}

#[test]
fn btrfs_logs_the_last_name_of_a_file_and_nothing_of_what_it_had_replaced() {
    let before = [mkdir(ROOT, "one", 2), mkdir(ROOT, "two", 3), file(2, "a", 4), file(3, "b", 5)];
    let over = rename_over([(3, "b"), (2, "a")], 5, 4);
    let changes = [over, rename(2, "a", 3, "c", 5), sync(3)];
    let tree =
        without(&history(&before, &changes), "btrfs", &[1]).expect("the other directory is not logged");
    assert_eq!(paths(&tree), ["one", "one/a", "two", "two/c"]);
}

#[test]
fn btrfs_may_keep_a_name_that_a_synced_file_has_lost() {
    let before = [file(ROOT, "a", 2)];
    let link = (Action::Link { ino: 2, parent: ROOT, name: name("b") }, Vec::new());
    let unlink = (Action::Unlink { parent: ROOT, name: name("a"), ino: 2 }, Vec::new());
    let changes = [link, sync(2), unlink, sync(2)];
    let tree = without(&history(&before, &changes), "btrfs", &[3]).expect("the log adds names");
    assert_eq!(paths(&tree), ["a", "b"]);
}

#[test]
fn btrfs_logs_a_name_with_how_another_file_lost_it() {
    let before = [file(ROOT, "a", 2), file(ROOT, "b", 3)];
    let unlink = |text: &str, ino| (Action::Unlink { parent: ROOT, name: name(text), ino }, Vec::new());
    let changes =
        [unlink("b", 3), unlink("a", 2), file(ROOT, "c", 4), sync(4), rename(ROOT, "c", ROOT, "a", 4)];
    let history = history(&before, &changes);
    let tree = without(&history, "btrfs", &[1]).unwrap();
    assert_eq!((tree.lookup(ROOT, b"a"), tree.lookup(ROOT, b"b")), (Some(4), Some(3)));
}

#[test]
fn btrfs_does_not_log_the_old_directories_above_a_file() {
    let before = [mkdir(ROOT, "d", 2), mkdir(ROOT, "e", 3), file(2, "a", 4), file(3, "b", 5)];
    let link = (Action::Link { ino: 4, parent: 3, name: name("c") }, Vec::new());
    let changes = [link, sync(4), rename_over([(3, "b"), (2, "a")], 5, 4)];
    let history = history(&before, &changes);
    let at = history.recording.begin + 2;
    let tree = left(&history, "btrfs", &BTreeMap::from([(at, Some(Part::Unlinked))])).unwrap();
    assert_eq!(paths(&tree), ["d", "e", "e/b", "e/c"]);
}

#[test]
fn btrfs_logs_a_name_in_a_directory_whatever_became_of_the_names_above_it() {
    let before = [mkdir(ROOT, "d", 2), mkdir(ROOT, "e", 3), file(2, "a", 4), file(3, "b", 5)];
    let changes = [rename(ROOT, "d", ROOT, "c", 2), sync(5), rename(3, "b", 2, "b", 5), sync(4)];
    let changes = [vec![write(5, 0, b"data", 0)], changes.to_vec()].concat();
    let history = history(&before, &changes);
    let tree = without(&history, "btrfs", &[2]).unwrap();
    assert_eq!(paths(&tree), ["d", "d/a", "d/b", "e"]);
}

#[test]
fn btrfs_gives_a_synced_file_a_name_of_which_the_removal_is_lost() {
    let before = [mkdir(ROOT, "d", 2), file(2, "b", 3)];
    let unlink = (Action::Unlink { parent: 2, name: name("b"), ino: 3 }, Vec::new());
    let changes = [
        rename(ROOT, "d", ROOT, "e", 2),
        unlink,
        file(ROOT, "new", 4),
        sync(4),
        rename(ROOT, "new", 2, "b", 4),
    ];
    let history = history(&before, &changes);
    let tree = without(&history, "btrfs", &[1, 2]).unwrap();
    assert_eq!(paths(&tree), ["d", "d/b"]);
    assert_eq!(tree.lookup(2, b"b"), Some(4));
}

#[test]
fn btrfs_does_not_log_the_first_name_of_a_new_file_whatever_became_of_its_removal() {
    let before = [mkdir(ROOT, "d", 2), file(2, "a", 3)];
    let link = (Action::Link { ino: 4, parent: 2, name: name("c") }, Vec::new());
    let unlink = (Action::Unlink { parent: 2, name: name("a"), ino: 4 }, Vec::new());
    let changes = [file(ROOT, "c", 4), link, rename_over([(ROOT, "c"), (2, "a")], 4, 3), unlink, sync(4)];
    let history = history(&before, &changes);
    let at = |number: usize| history.recording.begin + number - 1;
    let lost = BTreeMap::from([(at(1), Some(Part::Unnamed)), (at(3), None), (at(4), None)]);
    let tree = left(&history, "btrfs", &lost).unwrap();
    assert_eq!(paths(&tree), ["d", "d/a", "d/c"]);
    assert_eq!([tree.lookup(2, b"a"), tree.lookup(2, b"c")], [Some(3), Some(4)]);
}

#[test]
fn btrfs_may_log_the_removal_of_a_name_without_the_changes_before_it() {
    let before = [mkdir(ROOT, "d", 2), file(2, "a", 3), file(ROOT, "b", 4)];
    let link = (Action::Link { ino: 3, parent: ROOT, name: name("c") }, Vec::new());
    let unlink = |parent, text: &str, ino| (Action::Unlink { parent, name: name(text), ino }, Vec::new());
    let history = history(&before, &[unlink(ROOT, "b", 4), link, unlink(2, "a", 3), sync(3)]);
    let tree = without(&history, "btrfs", &[1]).unwrap();
    assert_eq!(paths(&tree), ["b", "c", "d"]);
}

#[test]
fn btrfs_logs_the_entries_of_new_directories_in_a_synced_one() {
    let before = [mkdir(ROOT, "d", 2), file(2, "a", 3), file(2, "b", 4)];
    let changes =
        [rename(ROOT, "d", ROOT, "e", 2), write(4, 0, b"data", 0), rename(2, "a", 2, "c", 3), sync(ROOT)];
    let tree = without(&history(&before, &changes), "btrfs", &[2]).unwrap();
    assert_eq!(paths(&tree), ["e", "e/b", "e/c"]);
}

#[test]
fn btrfs_keeps_the_file_that_a_synced_one_had_replaced_before_another_file_replaced_that() {
    let before = [mkdir(ROOT, "d", 2), mkdir(ROOT, "e", 3), file(2, "a", 4), file(3, "b", 5)];
    let changes = [
        file(3, "c", 6),
        rename_over([(3, "c"), (2, "a")], 6, 4),
        sync(6),
        rename_over([(3, "b"), (2, "a")], 5, 6),
    ];
    let history = history(&before, &changes);
    let at = |number: usize| history.recording.begin + number - 1;
    let lost = BTreeMap::from([(at(1), Some(Part::Unnamed)), (at(2), None), (at(4), Some(Part::Unlinked))]);
    let tree = left(&history, "btrfs", &lost).unwrap();
    assert_eq!(paths(&tree), ["d", "d/a", "e", "e/b"]);
    assert_eq!(tree.lookup(2, b"a"), Some(4));
}

#[test]
fn btrfs_logs_a_file_that_replaced_a_new_one_without_that_and_its_other_name() {
    let before = [mkdir(ROOT, "d", 2), mkdir(ROOT, "e", 3), file(2, "a", 4)];
    let link = (Action::Link { ino: 5, parent: 3, name: name("c") }, Vec::new());
    let changes = [file(2, "b", 5), link, rename_over([(2, "a"), (2, "b")], 4, 5), sync(4)];
    let history = history(&before, &changes);
    for lost in [1, 2] {
        let tree = without(&history, "btrfs", &[lost]).unwrap();
        assert_eq!(paths(&tree), ["d", "d/b", "e"], "a file that is there has a name");
    }
}

#[test]
fn btrfs_logs_a_file_that_left_a_logged_directory_with_how_another_lost_its_name() {
    let before = [mkdir(ROOT, "d", 2), mkdir(ROOT, "e", 3), file(2, "a", 4), file(3, "b", 5)];
    let changes = [
        file(2, "b", 6),
        sync(2),
        truncate(6, 0, 6000),
        rename(3, "b", 3, "a", 5),
        rename(2, "a", 3, "b", 4),
    ];
    let tree = without(&history(&before, &changes), "btrfs", &[3]).unwrap();
    assert_eq!(paths(&tree), ["d", "d/b", "e", "e/a", "e/b"]);
}

#[test]
fn btrfs_logs_the_entries_of_the_directories_of_a_linked_file_with_their_sizes() {
    let before = [mkdir(ROOT, "d", 2), mkdir(ROOT, "e", 3), file(2, "a", 4), write(4, 0, &[7; 9000], 0)];
    let before = [&before[..], &[file(3, "b", 5)]].concat();
    let link = (Action::Link { ino: 5, parent: 2, name: name("c") }, Vec::new());
    let changes =
        [rename(2, "a", 3, "c", 4), write(5, 0, b"data", 0), truncate(4, 9000, 8000), sync(5), link];
    let history = history(&before, &changes);
    let lost = BTreeMap::from([(history.recording.begin, Some(Part::Linked))]);
    let tree = left(&history, "btrfs", &lost).unwrap();
    assert_eq!(paths(&tree), ["d", "d/a", "d/c", "e", "e/b", "e/c"]);
    assert_eq!(bytes(&tree, 4).len(), 8000);
}

#[test]
fn btrfs_logs_the_removal_of_a_name_that_another_file_may_have_kept() {
    let before = [mkdir(ROOT, "d", 2), mkdir(ROOT, "e", 3), file(2, "b", 4)];
    let unlink = |ino| (Action::Unlink { parent: 2, name: name("b"), ino }, Vec::new());
    let link = (Action::Link { ino: 5, parent: 3, name: name("b") }, Vec::new());
    let changes = [unlink(4), file(2, "c", 5), link, sync(5), rename(2, "c", 2, "b", 5), unlink(5)];
    let tree = without(&history(&before, &changes), "btrfs", &[1, 5]).unwrap();
    assert_eq!(paths(&tree), ["d", "d/b", "e", "e/b"]);
    assert_eq!([tree.lookup(2, b"b"), tree.lookup(3, b"b")], [Some(4), Some(5)]);
}

#[test]
fn btrfs_logs_a_file_whose_name_was_taken_with_its_size_and_none_of_its_names_in_between() {
    let before = [mkdir(ROOT, "d", 2), mkdir(ROOT, "e", 3), file(2, "a", 4), write(4, 0, &[7; 9000], 0)];
    let cut = [truncate(4, 9000, 900), rename(2, "a", 3, "b", 4), write(4, 900, b"data", 900)];
    let taken = history(&before, &[&cut[..], &[file(2, "a", 5), sync(5)]].concat());
    let begin = taken.recording.begin;
    let lost = BTreeMap::from([(begin, Some(Part::Before(904))), (begin + 2, None)]);
    assert_eq!(bytes(&left(&taken, "btrfs", &lost).unwrap(), 4), [7; 904]);

    let before = [&before[..], &[file(3, "b", 5)]].concat();
    let moves = [rename_over([(2, "a"), (3, "b")], 4, 5), rename(3, "b", 2, "c", 4)];
    let moved = history(&before, &[&moves[..], &[mkdir(2, "a", 6), sync(6)]].concat());
    let tree = without(&moved, "btrfs", &[1]).unwrap();
    assert_eq!(paths(&tree), ["d", "d/a", "d/c", "e", "e/b"]);
}

#[test]
fn btrfs_logs_a_file_that_leaves_a_logged_directory_without_its_next_name() {
    let before = [mkdir(ROOT, "d", 2), mkdir(ROOT, "e", 3), file(2, "a", 4), file(3, "b", 5)];
    let changes = [
        mkdir(3, "a", 6),
        sync(3),
        rename_over([(3, "b"), (2, "a")], 5, 4),
        file(2, "b", 7),
        rename(2, "a", 6, "c", 5),
    ];
    let tree = without(&history(&before, &changes), "btrfs", &[3, 4]).unwrap();
    assert_eq!(paths(&tree), ["d", "d/a", "e", "e/a", "e/a/c"]);
}
