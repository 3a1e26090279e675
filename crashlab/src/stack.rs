//! Where in a program an action was made: the stack of the thread that made it, as a recording keeps it.

use serde::{Deserialize, Serialize};

/// The longest stack that a recording may have.
pub const FRAMES_MAX: usize = 128;

/// A file with machine code: a program or a library.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Module {
    /// Its path.
    pub path: Vec<u8>,
    /// Its build id, if it has one.
    pub build_id: Option<Vec<u8>>,
    /// Its size.
    pub size: u64,
    /// The time of its last change.
    pub mtime_ns: i128,
}

/// An instruction of a module.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Place {
    /// The position of the module among the modules of the recording.
    pub module: u32,
    /// The address that the module itself gives the instruction, wherever it was loaded.
    pub address: u64,
}

/// All stacks of a recording.
#[derive(Debug, Default)]
pub struct Stacks {
    /// The modules.
    pub modules: Vec<Module>,
    /// The stacks, from the innermost frame outwards. Stack 1 is the first.
    stacks: Vec<Vec<Place>>,
}

impl Stacks {
    /// Adds a stack; false if it is impossible.
    pub fn push(&mut self, stack: Vec<Place>) -> bool {
        let is_known = |place: &Place| (place.module as usize) < self.modules.len();
        let is_possible = stack.len() <= FRAMES_MAX && stack.iter().all(is_known);
        if is_possible {
            self.stacks.push(stack);
        }
        is_possible
    }

    /// True for a stack that is there, and for zero.
    pub fn has(&self, stack: u32) -> bool {
        stack as usize <= self.stacks.len()
    }

    /// A stack; nothing for zero.
    pub fn get(&self, stack: u32) -> &[Place] {
        let at = (stack as usize).checked_sub(1);
        at.and_then(|at| self.stacks.get(at)).map(Vec::as_slice).unwrap_or_default()
    }
}
