//! Finds where a run of free blocks of a given length may start, without reading the whole map.
//!
//! It is a segment tree over the chunks of the live map. Each node holds *upper bounds* on the free
//! run at the start, at the end and anywhere in the stretch it covers. Taking blocks leaves bounds
//! that are too high, which is harmless; a search that such a bound misleads makes it exact.
//! Freeing blocks makes the chunk's bounds exact at once. So taking blocks costs nothing here, and
//! a search that finds nothing pays once for each chunk that changed.

/// Upper bounds on the free runs of a stretch of blocks, in blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Bound {
    /// Bound on the run at the start.
    pub(crate) prefix: u64,
    /// Bound on the run at the end.
    pub(crate) suffix: u64,
    /// Bound on any run.
    pub(crate) longest: u64,
}

impl Bound {
    /// The bounds of a stretch of `blocks` free blocks.
    pub(crate) fn free(blocks: u64) -> Self {
        Self { prefix: blocks, suffix: blocks, longest: blocks }
    }

    /// The bounds of two neighbours of `blocks` blocks each.
    fn join(left: Self, right: Self, blocks: u64) -> Self {
        Self {
            prefix: if left.prefix == blocks { blocks + right.prefix } else { left.prefix },
            suffix: if right.suffix == blocks { blocks + left.suffix } else { right.suffix },
            longest: left.longest.max(right.longest).max(left.suffix + right.prefix),
        }
    }
}

/// The tree: node 1 is the root, nodes `2 * n` and `2 * n + 1` are the halves of node `n`, chunks
/// are the leaves.
#[derive(Clone)]
pub(crate) struct RunBounds {
    nodes: Vec<Bound>,
    leaves: usize,
    chunk_blocks: u64,
}

/// A free run that reaches the end of the part already searched.
struct Carry {
    blocks: u64,
    chunk: usize,
}

impl RunBounds {
    /// A tree over chunks of `chunk_blocks` blocks with these bounds.
    pub(crate) fn new(chunk_blocks: u64, chunks: impl ExactSizeIterator<Item = Bound>) -> Self {
        let leaves = chunks.len().next_power_of_two();
        let mut nodes = vec![Bound::default(); 2 * leaves];
        nodes[leaves..].iter_mut().zip(chunks).for_each(|(leaf, bound)| *leaf = bound);
        let mut bounds = Self { nodes, leaves, chunk_blocks };
        for node in (1..leaves).rev() {
            bounds.join_halves(node);
        }
        bounds
    }

    /// Upper bound on the longest free run of the map.
    pub(crate) fn longest(&self) -> u64 {
        self.nodes[1].longest
    }

    /// Sets the bounds of one chunk.
    pub(crate) fn set(&mut self, chunk: usize, bound: Bound) {
        let mut node = self.leaves + chunk;
        if self.nodes[node] == bound {
            return;
        }
        self.nodes[node] = bound;
        while node > 1 {
            node /= 2;
            let before = self.nodes[node];
            self.join_halves(node);
            if self.nodes[node] == before {
                return;
            }
        }
    }

    /// The first chunk from `from` on in which a free run of `want` blocks may start.
    pub(crate) fn candidate(&self, from: usize, want: u64) -> Option<usize> {
        let mut carry = Carry { blocks: 0, chunk: from };
        self.search(1, 0, self.leaves, from, want, &mut carry)
    }

    fn join_halves(&mut self, node: usize) {
        // Nodes on a level are numbered from a power of two, so the depth gives the number of
        // chunks under one.
        let chunks = self.leaves >> node.ilog2();
        let half_blocks = chunks as u64 / 2 * self.chunk_blocks;
        self.nodes[node] = Bound::join(self.nodes[2 * node], self.nodes[2 * node + 1], half_blocks);
    }

    /// Searches the chunks under `node` from chunk `from` on; `node` covers `chunks` chunks
    /// beginning at `first`.
    fn search(
        &self,
        node: usize,
        first: usize,
        chunks: usize,
        from: usize,
        want: u64,
        carry: &mut Carry,
    ) -> Option<usize> {
        if first + chunks <= from {
            return None;
        }
        if first < from {
            let half = chunks / 2;
            return self
                .search(2 * node, first, half, from, want, carry)
                .or_else(|| self.search(2 * node + 1, first + half, half, from, want, carry));
        }
        let bound = self.nodes[node];
        if carry.blocks + bound.prefix >= want {
            return Some(if carry.blocks > 0 { carry.chunk } else { first });
        }
        if bound.longest >= want {
            return Some(self.descend(node, first, chunks, want));
        }
        let blocks = chunks as u64 * self.chunk_blocks;
        if bound.suffix < blocks {
            *carry =
                Carry { blocks: bound.suffix, chunk: self.start_of_suffix(first + chunks, bound.suffix) };
        } else {
            carry.chunk = if carry.blocks > 0 { carry.chunk } else { first };
            carry.blocks += blocks;
        }
        None
    }

    /// The first chunk under `node`, whose bound is at least `want`, where such a run may start.
    fn descend(&self, mut node: usize, mut first: usize, mut chunks: usize, want: u64) -> usize {
        while chunks > 1 {
            chunks /= 2;
            let (left, right) = (self.nodes[2 * node], self.nodes[2 * node + 1]);
            node *= 2;
            if left.longest >= want {
                continue;
            }
            if left.suffix + right.prefix >= want {
                return self.start_of_suffix(first + chunks, left.suffix);
            }
            node += 1;
            first += chunks;
        }
        first
    }

    /// The chunk where a run of `blocks` starts that ends where chunk `end` begins.
    fn start_of_suffix(&self, end: usize, blocks: u64) -> usize {
        end - blocks.div_ceil(self.chunk_blocks) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CHUNK: usize = 4;

    fn bound(free: &[bool]) -> Bound {
        let run = |iter: &mut dyn Iterator<Item = &bool>| iter.take_while(|free| **free).count() as u64;
        let longest = free.split(|free| !free).map(<[bool]>::len).max().unwrap_or(0) as u64;
        Bound { prefix: run(&mut free.iter()), suffix: run(&mut free.iter().rev()), longest }
    }

    proptest! {
        #[test]
        fn exact_bounds_find_the_first_run(
            mut map in prop::collection::vec(any::<bool>(), 0..15 * CHUNK),
            from in 0..15_usize,
            want in 1..12_u64,
            later in prop::collection::vec((0..15 * CHUNK, any::<bool>()), 0..10),
        ) {
            map.resize(map.len().next_multiple_of(CHUNK).max(CHUNK), false);
            let chunks: Vec<Bound> = map.chunks(CHUNK).map(bound).collect();
            let mut bounds = RunBounds::new(CHUNK as u64, chunks.into_iter());
            for (at, free) in later {
                let at = at % map.len();
                map[at] = free;
                let chunk = at / CHUNK;
                bounds.set(chunk, bound(&map[chunk * CHUNK..][..CHUNK]));
            }
            let fits = |start: usize| {
                map.get(start..start + want as usize).is_some_and(|run| run.iter().all(|free| *free))
            };
            let expected = (from * CHUNK..map.len()).find(|start| fits(*start)).map(|start| start / CHUNK);
            prop_assert_eq!(bounds.candidate(from, want), expected);
            prop_assert_eq!(bounds.longest(), bound(&map).longest);
        }
    }
}
