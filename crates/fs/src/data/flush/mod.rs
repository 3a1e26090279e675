//! The ways of dirty data out of memory.
//!
//! A sync submits. Read it in this order: `submit`, `choose` (the way of each block), `start` (the
//! writes), `finish` (the commit), `transact` (the one transaction that every change of a file's
//! data ends with) and `ended` (the check). `many` submits several files at once, `along` small
//! files with somebody else's sync, and `standstill` all there are, for a snapshot. `writeback` is the
//! background way: `background` is the task, and `throttle` makes a writer help. `ahead` gives logged
//! blocks their places, and `load` finds them again after a crash. `promises` keeps account of the
//! flushes that syncs of class `ordered` owe. The lists of dirty files are `queue`, with its `gauge`, and
//! `small`.

pub(in crate::data) mod ahead;
pub(in crate::data) mod along;
pub(in crate::data) mod background;
pub(in crate::data) mod choose;
pub(in crate::data) mod ended;
pub(in crate::data) mod finish;
pub(in crate::data) mod gauge;
pub(in crate::data) mod load;
pub(in crate::data) mod many;
pub(in crate::data) mod promises;
pub(in crate::data) mod queue;
pub(in crate::data) mod small;
pub(in crate::data) mod standstill;
pub(in crate::data) mod start;
pub(in crate::data) mod submit;
pub(in crate::data) mod throttle;
pub(in crate::data) mod transact;
pub(in crate::data) mod writeback;
