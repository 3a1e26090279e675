//! Finds stacks in a thread of its own. What the kernel shows of a process can wait for a page fault, which
//! can wait for an answer of this filesystem: that must not wait for the stack.

use crate::recording::Caller;
use crate::tree::Tree;
use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::Builder;
use std::time::Duration;

/// How long a change waits for its stack at first. Only such a page fault takes so long.
const PATIENCE: Duration = Duration::from_secs(2);

/// Finds the stacks of callers.
pub struct Callers {
    questions: Sender<(u32, Tree)>,
    answers: Receiver<Caller>,
    /// Nobody waits for the next answer any more.
    is_late: bool,
    /// How long the next change waits: half as long each time that it was in vain.
    patience: Duration,
}

impl Callers {
    /// Starts the thread, which ends with this. `find` finds the stack of a thread.
    pub fn new(mut find: impl FnMut(u32, &Tree) -> Caller + Send + 'static) -> io::Result<Self> {
        let (questions, asked) = channel::<(u32, Tree)>();
        let (answer, answers) = channel();
        let work = move || {
            while let Ok((thread, tree)) = asked.recv() {
                if answer.send(find(thread, &tree)).is_err() {
                    break;
                }
            }
        };
        Builder::new().name("crashlab-stacks".into()).spawn(work)?;
        Ok(Self { questions, answers, is_late: false, patience: PATIENCE })
    }

    /// The thread that waits for an answer of this filesystem, with its stack if that can be had.
    pub fn caller(&mut self, thread: u32, tree: &Tree) -> Caller {
        if thread == 0 || self.is_late && self.answers.try_recv().is_err() {
            return thread.into();
        }
        self.is_late = false;
        if self.questions.send((thread, tree.clone())).is_err() {
            return thread.into();
        }
        self.answers.recv_timeout(self.patience).unwrap_or_else(|_| {
            self.is_late = true;
            self.patience /= 2;
            thread.into()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stack_that_cannot_be_read_now_holds_up_no_other_change() {
        let (release, released) = channel::<()>();
        let find = move |thread, _: &Tree| {
            if thread == 1 {
                let _ = released.recv();
            }
            Caller { thread, stack: thread * 10, is_known: false }
        };
        let (mut callers, tree) = (Callers::new(find).unwrap(), Tree::default());
        assert_eq!(callers.caller(2, &tree).stack, 20);
        // The others pass meanwhile, without a stack.
        let stacks: Vec<u32> = [1, 2, 3].map(|thread| callers.caller(thread, &tree).stack).into();
        assert_eq!(stacks, [0, 0, 0]);
        release.send(()).unwrap();
        // The late answer is nobody's.
        while callers.is_late {
            assert!(matches!(callers.caller(2, &tree).stack, 0 | 20));
        }
        assert_eq!(callers.caller(3, &tree).stack, 30);
    }
}
