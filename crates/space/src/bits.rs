//! Converting between runs of blocks and words of bits.

use syncline_format::{BlockAddr, BlockRun};

/// The words that a run touches, each as its number and the run's bits in it.
pub(crate) fn words_of(run: BlockRun) -> impl Iterator<Item = (u64, u64)> {
    let (start, end) = (run.start, run.end());
    (start / 64..end.div_ceil(64)).map(move |word| {
        let first = word * 64;
        let low = start.saturating_sub(first);
        let high = (end - first).min(64);
        (word, ones(high - low) << low)
    })
}

/// The lowest `count` bits, up to 64.
fn ones(count: u64) -> u64 {
    if count >= 64 { u64::MAX } else { (1 << count) - 1 }
}

/// Appends the set bits of `mask` in word `word` to `runs`, joining adjacent runs.
pub(crate) fn push_bits(runs: &mut Vec<BlockRun>, word: u64, mut mask: u64) {
    while mask != 0 {
        let low = mask.trailing_zeros();
        let count = (mask >> low).trailing_ones();
        push_run(runs, BlockRun::new(word * 64 + u64::from(low), u64::from(count)));
        mask &= !(ones(u64::from(count)) << low);
    }
}

/// Appends a run, joining it to the last one if they are adjacent.
pub(crate) fn push_run(runs: &mut Vec<BlockRun>, run: BlockRun) {
    match runs.last_mut() {
        Some(last) if last.end() == run.start => last.blocks += run.blocks,
        _ => runs.push(run),
    }
}

/// The runs in order of address, with adjacent ones joined.
pub(crate) fn sorted_and_joined(mut runs: Vec<BlockRun>) -> Vec<BlockRun> {
    runs.sort_unstable();
    let mut joined = Vec::with_capacity(runs.len());
    runs.into_iter().for_each(|run| push_run(&mut joined, run));
    joined
}

/// The parts of `runs` outside `others`, and the parts that both have. Both lists are ordered by
/// address and disjoint.
pub(crate) fn split_by(runs: &[BlockRun], others: &[BlockRun]) -> (Vec<BlockRun>, Vec<BlockRun>) {
    let (mut rest, mut both) = (Vec::new(), Vec::new());
    for run in runs {
        let mut at = run.start;
        let first = others.partition_point(|other| other.end() <= run.start);
        for common in others[first..].iter().map_while(|other| clip(*other, *run)) {
            if common.start > at {
                rest.push(BlockRun::new(at, common.start - at));
            }
            at = common.end();
            both.push(common);
        }
        if at < run.end() {
            rest.push(BlockRun::new(at, run.end() - at));
        }
    }
    (rest, both)
}

/// Total number of blocks in the runs.
pub(crate) fn blocks_of(runs: &[BlockRun]) -> u64 {
    runs.iter().map(|run| run.blocks).sum()
}

/// The part of `run` that lies in `within`.
pub(crate) fn clip(run: BlockRun, within: BlockRun) -> Option<BlockRun> {
    let start = run.start.max(within.start);
    let end: BlockAddr = run.start.saturating_add(run.blocks).min(within.end());
    (start < end).then(|| BlockRun::new(start, end - start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_and_its_words_say_the_same() {
        for (start, blocks) in [(0, 1), (0, 64), (63, 2), (5, 200), (64, 64), (127, 1), (1, 63)] {
            let run = BlockRun::new(start, blocks);
            let mut back = Vec::new();
            words_of(run).for_each(|(word, mask)| push_bits(&mut back, word, mask));
            assert_eq!(back, [run]);
        }
    }

    #[test]
    fn runs_outside_or_beyond_every_number_are_cut_off() {
        let within = BlockRun::new(10, 10);
        assert_eq!(clip(BlockRun::new(0, u64::MAX), within), Some(within));
        assert_eq!(clip(BlockRun::new(15, u64::MAX), within), Some(BlockRun::new(15, 5)));
        assert_eq!(clip(BlockRun::new(20, 5), within), None);
        assert_eq!(clip(BlockRun::new(12, 0), within), None);
    }
}
