//! Tests of the rules, each on a few changes.

mod btrfs;
mod tangle;

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
