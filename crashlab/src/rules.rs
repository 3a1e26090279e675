//! Tests of the rules, each on a few changes.

use crate::action::{Action, Ino, Name, ROOT, Stored, What};
use crate::history::History;
use crate::model::{Model, Part};
use crate::plan::Open;
use crate::recording::{Recorder, Recording};
use crate::tree::Tree;
use std::collections::BTreeMap;
use std::fs::File;

fn name(text: &str) -> Name {
    text.as_bytes().to_vec()
}

fn make(parent: Ino, text: &str, ino: Ino, what: What) -> (Action, Vec<u8>) {
    (Action::Create { parent, name: name(text), ino, what, mode: 0o755, uid: 0, gid: 0 }, Vec::new())
}

fn file(parent: Ino, text: &str, ino: Ino) -> (Action, Vec<u8>) {
    make(parent, text, ino, What::File)
}

fn mkdir(parent: Ino, text: &str, ino: Ino) -> (Action, Vec<u8>) {
    make(parent, text, ino, What::Directory)
}

fn write(ino: Ino, offset: u64, bytes: &[u8], size: u64) -> (Action, Vec<u8>) {
    let (len, stored) = (bytes.len() as u32, Stored::default());
    (Action::Write { ino, offset, len, size, mapped: false, stored }, bytes.to_vec())
}

fn truncate(ino: Ino, from: u64, to: u64) -> (Action, Vec<u8>) {
    (Action::Truncate { ino, from, to }, Vec::new())
}

fn rename(parent: Ino, text: &str, to: Ino, to_text: &str, ino: Ino) -> (Action, Vec<u8>) {
    let (name, to_name) = (name(text), name(to_text));
    (Action::Rename { parent, name, to, to_name, ino, replaced: None, exchanged: false }, Vec::new())
}

fn sync(ino: Ino) -> (Action, Vec<u8>) {
    (Action::Sync { ino, data_only: false }, Vec::new())
}

/// What a program did, after what was there.
fn history(before: &[(Action, Vec<u8>)], actions: &[(Action, Vec<u8>)]) -> History {
    let file = tempfile::NamedTempFile::new().unwrap();
    let recorder = Recorder::new(File::create(file.path()).unwrap()).unwrap();
    let begin = [(Action::Begin, Vec::new())];
    for (action, bytes) in before.iter().chain(&begin).chain(actions) {
        recorder.record(0, action.clone(), bytes);
    }
    recorder.finish().unwrap();
    History::new(Recording::open(file.path()).unwrap()).unwrap()
}

/// The tree after all actions if those with these numbers, from 1, are lost; `None` if one is durable.
fn without(history: &History, model: &str, lost: &[usize]) -> Option<Tree> {
    let begin = history.recording.begin;
    let lost = lost.iter().map(|number| (begin + number - 1, None)).collect();
    left(history, model, &lost)
}

fn left(history: &History, model: &str, lost: &BTreeMap<usize, Option<Part>>) -> Option<Tree> {
    let (events, begin) = (history.events(), history.recording.begin);
    let state = Open::at(Model::named(model).unwrap(), events, begin, events.len()).close(lost)?;
    Some(history.tree(&state).unwrap())
}

fn bytes(tree: &Tree, ino: Ino) -> Vec<u8> {
    tree.contents(ino).map_or_else(Vec::new, |contents| contents.read(0, 1 << 20).unwrap())
}

fn paths(tree: &Tree) -> Vec<String> {
    let mut paths: Vec<String> =
        tree.walk().into_iter().map(|(path, _)| String::from_utf8(path).unwrap()).collect();
    paths.sort();
    paths
}

#[test]
fn a_write_that_survives_brings_along_what_its_block_has_by_then() {
    let before = [file(ROOT, "f", 2), write(2, 0, &[b'.'; 200], 0)];
    let history =
        history(&before, &[write(2, 0, b"AA", 200), write(2, 0, b"BB", 200), write(2, 100, b"C", 200)]);
    for model in ["posix", "xfs", "ext4", "btrfs", "syncline"] {
        let Some(tree) = without(&history, model, &[1]) else { continue };
        assert_eq!(bytes(&tree, 2)[..2], *b"BB", "{model}");
        let Some(tree) = without(&history, model, &[1, 2]) else { continue };
        assert_eq!(bytes(&tree, 2)[..2], *b"BB", "{model}: the page was written after both");
    }
}

#[test]
fn bytes_of_a_lost_write_don_t_come_back_behind_a_truncate() {
    let history = history(
        &[file(ROOT, "f", 2)],
        &[write(2, 0, &[b'A'; 3000], 0), truncate(2, 3000, 0), write(2, 0, &[b'B'; 10], 0)],
    );
    for model in ["posix", "xfs", "ext4", "btrfs", "syncline"] {
        let Some(tree) = without(&history, model, &[1]) else { continue };
        assert_eq!(bytes(&tree, 2), [b'B'; 10], "{model}");
    }
}

#[test]
fn a_torn_write_brings_its_sector_along() {
    let before = [file(ROOT, "f", 2), write(2, 0, &[b'.'; 2000], 0)];
    let history = history(&before, &[write(2, 0, &[b'A'; 100], 2000), write(2, 100, &[b'B'; 1000], 2000)]);
    let begin = history.recording.begin;
    let lost = BTreeMap::from([(begin, None), (begin + 1, Some(Part::Before(512)))]);
    let tree = left(&history, "ext4", &lost).unwrap();
    assert_eq!(bytes(&tree, 2)[..600], [vec![b'A'; 100], vec![b'B'; 412], vec![b'.'; 88]].concat());
}

#[test]
fn a_linked_file_is_there_once_it_and_its_directory_are_synced() {
    let before = [mkdir(ROOT, "tmp", 2), mkdir(ROOT, "new", 3)];
    let link = (Action::Link { ino: 4, parent: 3, name: name("x") }, Vec::new());
    let history = history(&before, &[file(2, "x", 4), write(4, 0, b"mail", 0), sync(4), link, sync(3)]);
    for model in ["posix", "xfs", "ext4", "btrfs", "zfs", "syncline"] {
        if let Some(tree) = without(&history, model, &[1]) {
            assert!(paths(&tree).contains(&"new/x".to_owned()), "{model}");
        }
        assert!(without(&history, model, &[4]).is_none(), "{model}");
    }
}

#[test]
fn a_file_that_was_moved_is_in_one_place_at_least() {
    let before = [mkdir(ROOT, "d", 2), file(2, "x", 3)];
    let history = history(&before, &[mkdir(ROOT, "e", 4), rename(2, "x", 4, "x", 3), sync(4)]);
    for model in ["posix", "xfs", "ext4", "btrfs", "zfs", "syncline"] {
        for lost in [&[1][..], &[2], &[1, 2]] {
            let Some(tree) = without(&history, model, lost) else { continue };
            let paths = paths(&tree);
            assert!(
                paths.contains(&"d/x".to_owned()) || paths.contains(&"e/x".to_owned()),
                "{model}: {paths:?}"
            );
        }
    }
}

#[test]
fn a_directory_goes_only_when_it_is_empty() {
    let before = [mkdir(ROOT, "d", 2), file(2, "x", 3)];
    let rmdir = (Action::Unlink { parent: ROOT, name: name("d"), ino: 2 }, Vec::new());
    let history = history(&before, &[rename(2, "x", ROOT, "y", 3), rmdir]);
    for model in ["posix", "xfs", "ext4", "btrfs", "zfs", "syncline"] {
        let tree = without(&history, model, &[1]).unwrap();
        assert_eq!(paths(&tree), ["d", "d/x"], "{model}");
    }
}

#[test]
fn a_write_waits_for_the_truncate_that_made_room_for_it() {
    let history =
        history(&[file(ROOT, "f", 2)], &[truncate(2, 0, 1 << 20), write(2, 8192, b"data", 1 << 20)]);
    for model in ["xfs", "ext4", "btrfs", "zfs", "syncline"] {
        assert!(bytes(&without(&history, model, &[1]).unwrap(), 2).is_empty(), "{model}");
    }
}

#[test]
fn zfs_makes_names_durable_with_any_fsync_and_sizes_of_other_files_not() {
    let before = [file(ROOT, "a", 2), file(ROOT, "b", 3), write(3, 0, b"old", 0)];
    let history = history(&before, &[truncate(3, 3, 0), rename(ROOT, "b", ROOT, "c", 3), sync(2)]);
    assert!(without(&history, "zfs", &[2]).is_none());
    let tree = without(&history, "zfs", &[1]).unwrap();
    assert_eq!((paths(&tree), bytes(&tree, 3)), (vec!["a".to_owned(), "c".to_owned()], b"old".to_vec()));
    assert!(without(&history, "syncline", &[1]).is_none());
}

#[test]
fn a_size_comes_before_its_bytes_only_where_filesystems_do_that() {
    let history = history(&[file(ROOT, "f", 2)], &[write(2, 0, &[7; 100], 0)]);
    let begin = history.recording.begin;
    let lost = BTreeMap::from([(begin, Some(Part::Size))]);
    for (model, may) in [("posix", true), ("ext4", true), ("xfs", false), ("btrfs", false), ("zfs", false)] {
        assert_eq!(left(&history, model, &lost).is_some(), may, "{model}");
    }
}

#[test]
fn a_page_of_a_mapping_may_be_written_back_before_anything_else() {
    let before = [file(ROOT, "f", 2), write(2, 0, &[b'.'; 8192], 0)];
    let page = |offset: u64| {
        let stored = Stored::default();
        (Action::Write { ino: 2, offset, len: 4096, size: 8192, mapped: true, stored }, vec![b'N'; 4096])
    };
    let history = history(&before, &[page(0), page(4096)]);
    for model in ["posix", "xfs", "ext4", "btrfs", "zfs", "syncline"] {
        let tree = without(&history, model, &[1]).unwrap();
        assert_eq!((bytes(&tree, 2)[0], bytes(&tree, 2)[5000]), (b'.', b'N'), "{model}");
    }
}

/// A write through a range that was waited for, and then a sync of another file, which `changed` or not
/// after that.
fn range_and_sync_of_another(changed: bool) -> History {
    let before = [file(ROOT, "a", 2), file(ROOT, "b", 3)];
    let range = (Action::SyncRange { ino: 2, offset: 0, len: 4096 }, Vec::new());
    let written = [write(2, 0, &[b'A'; 4096], 0), write(2, 4096, &[b'B'; 10], 4096), range];
    let chmod = Action::Attributes { ino: 3, mode: Some(0o600), uid: None, gid: None, mtime_ns: None };
    let after: &[_] = if changed { &[(chmod, Vec::new()), sync(3)] } else { &[sync(3)] };
    history(&before, &[&written, after].concat())
}

#[test]
fn what_sync_file_range_has_written_is_durable_with_the_journal() {
    for model in ["posix", "xfs", "ext4", "btrfs", "zfs", "syncline"] {
        let history = range_and_sync_of_another(true);
        let is_durable = matches!(model, "xfs" | "ext4");
        assert_eq!(without(&history, model, &[1]).is_none(), is_durable, "{model}");
        assert!(without(&history, model, &[2]).is_some(), "{model}: it is behind the range");
        let history = range_and_sync_of_another(false);
        assert!(without(&history, model, &[1, 2]).is_some(), "{model}: the sync may find nothing to commit");
    }
}

#[test]
fn a_sync_of_everything_makes_everything_durable_that_was_there_before_it() {
    let before = [mkdir(ROOT, "d", 2), file(2, "x", 3)];
    let all = (Action::SyncAll, Vec::new());
    let changes = [write(3, 0, b"data", 0), rename(2, "x", ROOT, "y", 3), file(2, "z", 4)];
    let after = [all, write(4, 0, b"more", 0)];
    let history = history(&before, &[&changes[..], &after].concat());
    for model in ["posix", "xfs", "ext4", "btrfs", "zfs", "ext4-journal", "syncline"] {
        for lost in 1..=3 {
            assert!(without(&history, model, &[lost]).is_none(), "{model}: {lost}");
        }
        assert!(without(&history, model, &[5]).is_some(), "{model}");
    }
}

#[test]
fn xfs_leaves_writes_within_files_in_the_cache_of_the_disk() {
    let before = [file(ROOT, "f", 2), write(2, 0, b"old", 0), file(ROOT, "g", 3)];
    let all = || (Action::SyncAll, Vec::new());
    let changes = [write(2, 0, b"new", 3), all(), all()];
    let history_with = |syncs: &[(Action, Vec<u8>)]| history(&before, &[&changes, syncs].concat());
    for model in ["posix", "xfs", "ext4", "btrfs", "zfs", "ext4-journal", "syncline"] {
        let is_lost = without(&history_with(&[]), model, &[1]).is_some();
        assert_eq!(is_lost, model == "xfs", "{model}");
        assert!(without(&history_with(&[sync(3)]), model, &[1]).is_none(), "{model}: any fsync flushes");
    }
}

#[test]
fn an_fsync_under_data_journal_commits_up_to_the_last_change_of_its_file() {
    let before = [file(ROOT, "a", 2), file(ROOT, "b", 3)];
    let nothing = history(&before, &[write(2, 0, b"data", 0), sync(3)]);
    assert!(
        without(&nothing, "ext4-journal", &[1]).is_some(),
        "nothing of the synced file is to be committed"
    );
    let written = history(&before, &[write(2, 0, b"data", 0), write(3, 0, b"more", 0), sync(3)]);
    assert!(without(&written, "ext4-journal", &[1]).is_none());
}

#[test]
fn a_truncate_of_unsynced_data_is_lost_with_it_on_syncline_and_later_names_are_not() {
    let changes = [write(2, 0, &[b'A'; 8192], 0), truncate(2, 8192, 5000), file(ROOT, "b", 3), sync(3)];
    let history = history(&[file(ROOT, "a", 2)], &changes);
    let tree = without(&history, "syncline", &[1, 2]).unwrap();
    assert!(bytes(&tree, 2).is_empty() && tree.lookup(ROOT, b"b").is_some());
}

fn rename_over(names: [(Ino, &str); 2], ino: Ino, replaced: Ino) -> (Action, Vec<u8>) {
    let [(parent, from), (to, to_text)] = names;
    let (name, to_name, replaced) = (name(from), name(to_text), Some(replaced));
    (Action::Rename { parent, name, to, to_name, ino, replaced, exchanged: false }, Vec::new())
}

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
fn a_log_that_was_moved_away_is_somewhere_when_the_next_one_is_synced() {
    let before = [file(ROOT, "log", 2), write(2, 0, b"old", 0)];
    let changes = [rename(ROOT, "log", ROOT, "log.1", 2), file(ROOT, "log", 3), sync(3)];
    let history = history(&before, &changes);
    for model in ["posix", "xfs", "ext4", "btrfs", "zfs", "syncline"] {
        for lost in [&[1][..], &[2], &[1, 2]] {
            let Some(tree) = without(&history, model, lost) else { continue };
            assert!(tree.walk().iter().any(|(_, ino)| *ino == 2), "{model}, {lost:?}: {:?}", paths(&tree));
        }
    }
    assert!(without(&history, "btrfs", &[1]).is_none() && without(&history, "btrfs", &[2]).is_none());
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
fn a_file_that_was_replaced_many_times_can_be_synced() {
    let mut changes = vec![file(ROOT, "a", 2)];
    for ino in 3..4_000 {
        changes.push(file(ROOT, "new", ino));
        changes.push(rename_over([(ROOT, "new"), (ROOT, "a")], ino, ino - 1));
    }
    changes.push(sync(3_999));
    let history = history(&[], &changes);
    for model in ["posix", "xfs", "ext4", "btrfs", "zfs", "syncline"] {
        let tree = without(&history, model, &[]).unwrap();
        assert_eq!(tree.lookup(ROOT, b"a"), Some(3_999), "{model}");
    }
}

#[test]
fn an_fsync_of_either_file_of_an_exchange_makes_it_durable_where_names_are_in_order() {
    let before = [file(ROOT, "a", 2), file(ROOT, "b", 3)];
    let (name, to_name) = (name("a"), name("b"));
    let exchange =
        Action::Rename { parent: ROOT, name, to: ROOT, to_name, ino: 2, replaced: Some(3), exchanged: true };
    for synced in [2, 3] {
        let history = history(&before, &[(exchange.clone(), Vec::new()), sync(synced)]);
        for model in ["ext4", "btrfs", "zfs", "ext4-journal", "syncline"] {
            assert!(without(&history, model, &[1]).is_none(), "{model}, {synced}");
        }
        assert!(without(&history, "xfs", &[1]).is_some(), "within a directory it changes no file");
    }
    let history = history(&before, &[(exchange, Vec::new()), sync(ROOT)]);
    assert!(without(&history, "xfs", &[1]).is_none());
}

#[test]
fn a_file_that_replaces_another_on_ext4_has_its_size_and_perhaps_zeros() {
    let before = [file(ROOT, "s", 2), write(2, 0, b"old", 0)];
    let changes = [
        file(ROOT, "new", 3),
        write(3, 0, &[b'N'; 9000], 0),
        rename_over([(ROOT, "new"), (ROOT, "s")], 3, 2),
        sync(ROOT),
    ];
    let history = history(&before, &changes);
    let at = history.recording.begin + 1;
    for part in [None, Some(Part::Size), Some(Part::Before(4096))] {
        let tree = left(&history, "ext4", &BTreeMap::from([(at, part)])).unwrap();
        assert_eq!(bytes(&tree, 3), [0; 9000], "{part:?}");
    }
    for model in ["ext4-journal", "syncline"] {
        assert!(without(&history, model, &[2]).is_none(), "{model}");
    }
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
fn a_synced_exchange_leaves_no_trace_out() {
    let before = [file(ROOT, "a", 2), file(ROOT, "b", 3)];
    let (name, to_name) = (name("a"), name("b"));
    let exchange =
        Action::Rename { parent: ROOT, name, to: ROOT, to_name, ino: 2, replaced: Some(3), exchanged: true };
    let changes = [(exchange, Vec::new()), sync(3), sync(2), rename(ROOT, "b", ROOT, "c", 2)];
    let history = history(&before, &changes);
    let tree = without(&history, "btrfs", &[1]);
    assert!(tree.is_none_or(|tree| tree.lookup(ROOT, b"a") == Some(3)));
}

#[test]
fn half_a_rename_needs_its_file() {
    let history = history(&[mkdir(ROOT, "d", 2)], &[file(ROOT, "c", 3), rename(ROOT, "c", 2, "c", 3)]);
    let begin = history.recording.begin;
    let tree = left(&history, "btrfs", &BTreeMap::from([(begin, None), (begin + 1, Some(Part::Linked))]));
    assert!(tree.is_none_or(|tree| paths(&tree) == ["d"]));
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

fn exchange(names: [(Ino, &str); 2], inos: [Ino; 2]) -> (Action, Vec<u8>) {
    let (mut action, bytes) = rename_over(names, inos[0], inos[1]);
    if let Action::Rename { exchanged, .. } = &mut action {
        *exchanged = true;
    }
    (action, bytes)
}

#[test]
fn a_new_file_that_was_exchanged_is_there_once_it_is_synced() {
    let before = [file(ROOT, "a", 2)];
    let changes = [file(ROOT, "n", 3), exchange([(ROOT, "a"), (ROOT, "n")], [2, 3]), sync(3)];
    for model in ["ext4", "btrfs"] {
        assert!(without(&history(&before, &changes), model, &[1]).is_none(), "{model}");
    }
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
