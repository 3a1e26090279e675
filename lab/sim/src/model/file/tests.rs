use super::*;

#[test]
fn unsynced_data_may_be_missing_but_not_garbled() {
    let mut file = FileHistory::default();
    file.write(1, 0, &[1; 6000]);
    file.synced(10, 1);
    file.write(2, 0, &[2; 4096]);
    let old = file.read(4096, 5000);
    assert_eq!(old, [1; 1904]);
    assert!(file.check(&[1; 6000], 0, 10).is_ok());
    assert!(file.check(&file.read(0, 6000), 0, 10).is_ok());
    assert!(file.check(&[], 0, 9).is_ok());
    assert!(file.check(&[], 0, 10).is_err());
    assert!(file.check(&[2; 6000], 0, 10).is_err());
    let mut half = [1; 6000];
    half[..2048].fill(2);
    assert!(file.check(&half, 0, 10).is_err(), "half of one block");
}

#[test]
fn a_page_is_there_or_not() {
    let found = |blocks: &[u8]| blocks.iter().flat_map(|byte| [*byte; 4096]).collect::<Vec<u8>>();
    let mut file = FileHistory::holding(&found(&[1, 1, 1, 1]));
    file.write(1, 8192, &[2; 8192]);
    file.write(2, 4096, &[3; 8192]);
    for whole in [[1, 1, 1, 1], [1, 1, 2, 2], [1, 3, 3, 2], [1, 1, 3, 2], [1, 3, 1, 1]] {
        assert!(file.check(&found(&whole), 0, 0).is_ok(), "{whole:?}");
    }
    for torn in [[1, 1, 1, 2], [1, 3, 2, 1], [1, 1, 2, 1]] {
        assert!(file.check(&found(&torn), 0, 0).is_err(), "{torn:?}");
    }
    file.write(3, 16384, &[4; 16384]);
    assert!(file.check(&found(&[1, 1, 2, 2, 4, 4, 4, 4]), 0, 0).is_ok());
    assert!(file.check(&found(&[1, 1, 2, 2, 4, 4, 4]), 0, 0).is_err(), "its size cuts it");
    file.truncate(4, 7, 7 * 4096);
    assert!(file.check(&found(&[1, 1, 2, 2, 4, 4, 4]), 7, 0).is_ok());
    assert!(file.check(&found(&[1, 1, 2, 2, 4, 4]), 7, 0).is_err());
    file.write_begun(0, 5, 16384, &[5; 8192]);
    assert!(file.check(&found(&[1, 1, 2, 2, 4, 5, 4]), 7, 0).is_err());
    file.truncate(6, 8, 6 * 4096 - 100);
    let mut cut = found(&[1, 1, 2, 2, 5, 4]);
    cut.truncate(6 * 4096 - 100);
    assert!(file.check(&cut, 8, 0).is_ok(), "a truncation within a block divides its page");
}

#[test]
fn a_copy_may_be_there_in_part() {
    let page = [[1; 4096], [2; 4096]].concat();
    let mut copied = FileHistory::default();
    copied.copied(1, 0, &page);
    assert!(copied.check(&page[..4096], 9, 0).is_ok());
    let mut written = FileHistory::default();
    written.write(1, 0, &page);
    assert!(written.check(&page[..4096], 9, 0).is_err());
}

#[test]
fn the_size_must_not_run_ahead() {
    let mut file = FileHistory::default();
    file.write(1, 0, &[1; 3 * 4096]);
    let mut hole = [1; 3 * 4096];
    hole[4096..8192].fill(0);
    assert!(file.check(&hole, 0, 0).is_err());
    assert!(file.check(&hole[..4096], 0, 0).is_ok());
    file.truncate(2, 7, 5 * 4096);
    let mut grown = [0; 5 * 4096];
    grown[..4096].fill(1);
    assert!(file.check(&grown, 7, 0).is_ok(), "a truncation upward is ordered, the data before it is not");
    assert!(file.check(&grown, 6, 0).is_err());
}

#[test]
fn what_was_cut_off_never_comes_back() {
    let mut file = FileHistory::holding(&[1; 8000]);
    file.truncate(1, 5, 5000);
    file.truncate(2, 6, 8000);
    assert!(file.check(&[1; 8000], 4, 0).is_ok());
    assert!(file.check(&[1; 5000], 5, 0).is_ok());
    assert!(file.check(&[1; 8000], 6, 0).is_err());
    assert!(file.check(&file.read(0, 8000), 6, 0).is_ok());
}

#[test]
fn a_copy_is_there_with_its_transaction_and_not_without() {
    let mut file = FileHistory::holding(&[1; 8192]);
    file.write(1, 0, &[2; 4096]);
    file.taken_over(2, 7, 4096, &[3; 8192]);
    let copied = [[2; 4096], [3; 4096], [3; 4096]].concat();
    assert!(file.check(&copied, 7, 0).is_ok());
    assert!(file.check(&copied, 6, 0).is_err(), "the copy came before its transaction");
    assert!(file.check(&[1; 8192], 6, 0).is_ok());
    assert!(file.check(&[1; 8192], 7, 0).is_err(), "the copy did not come with its transaction");
    let half = [[2; 4096], [3; 4096], [0; 4096]].concat();
    assert!(file.check(&half, 7, 0).is_err(), "half of it");
    let without_what_was_dirty = [[1; 4096], [3; 4096], [3; 4096]].concat();
    assert!(file.check(&without_what_was_dirty, 7, 0).is_err());
}

#[test]
fn what_was_cleared_is_gone_with_the_transaction() {
    let mut file = FileHistory::holding(&[1; 4 * 4096]);
    // Two writes that are no pages, so that each block stands for itself.
    file.write(1, 0, &[2; 3 * 4096]);
    file.write(1, 3 * 4096, &[2; 4096]);
    file.cleared(2, 7, &(4096..3 * 4096 - 1), 0);
    let found = |blocks: [u8; 4]| blocks.iter().flat_map(|byte| [*byte; 4096]).collect::<Vec<u8>>();
    let mut edge = found([1, 0, 0, 1]);
    edge[3 * 4096 - 1] = 2;
    assert!(file.check(&edge, 7, 0).is_ok(), "other blocks need not be there");
    assert!(file.check(&edge, 6, 0).is_err(), "before its transaction");
    edge[3 * 4096 - 1] = 1;
    assert!(file.check(&edge, 7, 0).is_err(), "the edge is what it was when the rest was cleared");
    for old in [1, 2] {
        assert!(file.check(&found([1, old, 0, 1]), 7, 0).is_err());
        assert!(file.check(&found([1, old, 2, 1]), 6, 0).is_ok());
    }
    file.cleared(3, 8, &(4 * 4096 - 10..5 * 4096), 5 * 4096);
    assert!(file.check(&file.read(0, 5 * 4096), 8, 0).is_ok());
    assert!(file.check(&file.read(0, 5 * 4096), 7, 0).is_err());
}

#[test]
fn while_a_range_is_being_cleared_each_block_is_as_it_was_or_zeros() {
    let mut file = FileHistory::holding(&[1; 3 * 4096]);
    file.clearing(1, 5, &(0..3 * 4096), 4 * 4096);
    let mut half = [1; 3 * 4096];
    half[..4096].fill(0);
    assert!(file.check(&half, 4, 0).is_err(), "not before it began");
    file.carried_by(5, 1);
    assert!(file.check(&half, 5, 0).is_ok());
    assert!(file.check(&[&half[..], &[0; 4096]].concat(), 6, 0).is_ok());
    assert!(file.check(&[2; 3 * 4096], 5, 0).is_err());
    file.cleared(2, 7, &(0..3 * 4096), 4 * 4096);
    assert!(file.check(&half, 6, 0).is_ok());
    assert!(file.check(&half, 7, 0).is_err());
    assert!(file.check(&[0; 4 * 4096], 7, 0).is_ok());
}

#[test]
fn what_was_shifted_is_there_with_the_transaction_and_not_without() {
    let mut file = FileHistory::holding(&[1; 3 * 4096]);
    file.write(1, 4096, &[2; 4096]);
    file.shifted(2, 7, &[[2; 4096], [1; 4096]].concat());
    assert!(file.check(&[[2; 4096], [1; 4096]].concat(), 7, 0).is_ok());
    assert!(file.check(&[1; 2 * 4096], 7, 0).is_err(), "without what was dirty");
    assert!(file.check(&[1; 3 * 4096], 7, 0).is_err());
    assert!(file.check(&[1; 3 * 4096], 6, 0).is_ok());
    assert!(file.check(&[[2; 4096], [1; 4096]].concat(), 6, 0).is_err(), "before its transaction");
    assert_eq!(file.read(0, 20_000), [[2; 4096], [1; 4096]].concat());
}

#[test]
fn a_hole_reads_as_zeros() {
    let mut file = FileHistory::default();
    file.write(1, 10_000, &[3; 100]);
    assert!(file.check(&file.read(0, 20_000), 0, 0).is_ok());
    file.write(2, 4096, &[4; 4096]);
    assert!(file.check(&file.read(0, 20_000), 0, 0).is_ok());
    let mut old = vec![0; 10_100];
    old[10_000..].fill(3);
    assert!(file.check(&old, 0, 0).is_ok());
}
