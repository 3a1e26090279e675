//! Decides from a seed which task continues, at every operation through which threads interact.
//!
//! The seed selects one of three ways. *By chance*: every runnable task is equally likely. *In
//! bursts*: the same task continues for a while, as on a CPU. *By rank* (PCT: Burckhardt et al.,
//! ASPLOS 2010): the first in an order of all tasks runs until it waits, and at a few moments
//! chosen beforehand the running task becomes the last. Ranking finds a bug that needs a few such
//! moments with a probability that does not vanish with the length of the life; chance hardly ever
//! finds it. After a device error, some task usually becomes the last at once or soon after: few
//! steps follow an error, and a moment among them would hardly be chosen otherwise.

use crate::control::{Control, was_stirred};
use rand::seq::IndexedRandom;
use rand::{Rng, RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;
use shuttle::scheduler::{Schedule, Scheduler, Task, TaskId};
use std::sync::Arc;

/// The task that moves the clock; see [`crate::time`]. It is the first task of a life.
pub(crate) const KEEPER: usize = 1;

/// Steps after which another task must have a turn: a task that polls for others may have the first
/// rank.
const TURN_MAX: u32 = 4000;

/// One in this many steps moves the clock although other tasks can run.
const TIME_ONE_IN: u32 = 400;

/// Most steps after a rare event until the running task becomes the last.
const STIRRED_STEPS_MAX: u64 = 48;

enum Way {
    Chance,
    /// One in this many steps goes to another task.
    Bursts(u32),
    Rank {
        /// By task number; the lowest rank runs.
        ranks: Vec<u64>,
        /// Steps at which the running task becomes the last; the next such step is at the end of
        /// the list.
        changes: Vec<u64>,
        last: u64,
    },
}

/// The scheduler of all seeds of a search.
pub(crate) struct Seeded {
    control: Arc<Control>,
    rng: ChaCha8Rng,
    way: Way,
    steps: u64,
    turn: u32,
}

impl Seeded {
    /// Makes a scheduler for the seeds of `control`.
    pub(crate) fn new(control: Arc<Control>) -> Self {
        Self { control, rng: ChaCha8Rng::seed_from_u64(0), way: Way::Chance, steps: 0, turn: 0 }
    }

    fn choose(&mut self, others: &[TaskId], current: Option<TaskId>) -> TaskId {
        let current = current.filter(|current| others.contains(current));
        match &mut self.way {
            Way::Chance => some(others, &mut self.rng),
            Way::Bursts(one_in) => match current {
                Some(current) if self.rng.random_range(0..*one_in) > 0 => current,
                _ => some(others, &mut self.rng),
            },
            Way::Rank { ranks, changes, last } => {
                let most = others.iter().map(|id| usize::from(*id)).max().unwrap_or(0);
                while ranks.len() <= most {
                    ranks.push(self.rng.random_range(0..1 << 40));
                }
                if was_stirred() {
                    match self.rng.random_range(0..4) {
                        // Any task: perhaps the one that waits for the failed operation.
                        0 | 1 => {
                            *last += 1;
                            let late = self.rng.random_range(0..ranks.len());
                            ranks[late] = *last;
                        }
                        2 => {
                            changes.push(self.steps + self.rng.random_range(0..STIRRED_STEPS_MAX));
                            changes.sort_unstable_by(|a, b| b.cmp(a));
                        }
                        _ => {}
                    }
                }
                let falls = changes.last().is_some_and(|at| *at <= self.steps);
                if falls {
                    changes.pop();
                }
                if let Some(current) = current.filter(|_| falls || self.turn >= TURN_MAX) {
                    *last += 1;
                    ranks[usize::from(current)] = *last;
                }
                let first = others.iter().min_by_key(|id| ranks[usize::from(**id)]);
                first.copied().unwrap_or(others[0])
            }
        }
    }
}

fn some(others: &[TaskId], rng: &mut ChaCha8Rng) -> TaskId {
    others.choose(rng).copied().unwrap_or(others[0])
}

fn way(rng: &mut ChaCha8Rng) -> Way {
    match rng.random_range(0..8) {
        0 => Way::Chance,
        1 | 2 => Way::Bursts(1 << rng.random_range(1..8)),
        _ => {
            let length = 1_u64 << rng.random_range(6..13);
            let count = rng.random_range(1..8);
            let mut changes: Vec<u64> = (0..count).map(|_| rng.random_range(0..length)).collect();
            changes.sort_unstable_by(|a, b| b.cmp(a));
            Way::Rank { ranks: Vec::new(), changes, last: 1 << 40 }
        }
    }
}

impl Scheduler for Seeded {
    fn new_execution(&mut self) -> Option<Schedule> {
        let seed = self.control.next_seed()?;
        self.rng = ChaCha8Rng::seed_from_u64(seed ^ 0x5c4e_d01e);
        self.way = way(&mut self.rng);
        (self.steps, self.turn) = (0, 0);
        was_stirred();
        Some(Schedule::new(seed))
    }

    fn next_task(
        &mut self,
        runnable: &[&Task],
        current: Option<TaskId>,
        _is_yielding: bool,
    ) -> Option<TaskId> {
        let mut others = [TaskId::from(0); 64];
        let mut count = 0;
        for task in runnable {
            if usize::from(task.id()) != KEEPER && count < others.len() {
                others[count] = task.id();
                count += 1;
            }
        }
        let others = &others[..count];
        let keeper_waits = count < runnable.len();
        let chosen = if others.is_empty() {
            TaskId::from(KEEPER)
        } else if self.control.is_quiet() {
            // The running task stays, so that only the life itself is spent on different orders.
            match current.filter(|current| others.contains(current) && self.turn < TURN_MAX) {
                Some(current) => current,
                None => others[self.rng.random_range(0..count)],
            }
        } else {
            self.steps += 1;
            if keeper_waits && self.rng.random_range(0..TIME_ONE_IN) == 0 {
                TaskId::from(KEEPER)
            } else {
                self.choose(others, current)
            }
        };
        self.turn = if current == Some(chosen) { self.turn + 1 } else { 0 };
        self.control.note_step(usize::from(chosen) as u64);
        Some(chosen)
    }

    fn next_u64(&mut self) -> u64 {
        self.rng.next_u64()
    }
}
