//! The pieces of a run, so that a reduced run is the same run without some of them.

use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// A piece of a run that can be left out without changing the others.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Piece {
    /// An action of a task. Lives are numbered through the whole run.
    Action {
        /// The life.
        life: u32,
        /// The task in it.
        task: u32,
        /// Its index among the task's actions.
        index: u32,
    },
    /// A fault of the device.
    Fault {
        /// The life.
        life: u32,
        /// Its index among the life's faults.
        index: u32,
    },
}

/// The pieces of a run, and which of them take part.
#[derive(Default)]
pub struct Script {
    only: Option<BTreeSet<Piece>>,
    taken: Mutex<BTreeSet<Piece>>,
}

impl Script {
    /// All pieces take part.
    pub fn whole() -> Arc<Self> {
        Arc::default()
    }

    /// Only these pieces take part.
    pub fn only(pieces: &[Piece]) -> Arc<Self> {
        Arc::new(Self { only: Some(pieces.iter().copied().collect()), taken: Mutex::default() })
    }

    /// True if the piece takes part; records that the run reached it.
    pub fn takes(&self, piece: Piece) -> bool {
        let takes = self.only.as_ref().is_none_or(|only| only.contains(&piece));
        if takes {
            self.taken.lock().insert(piece);
        }
        takes
    }

    /// The pieces that took part so far.
    pub fn taken(&self) -> Vec<Piece> {
        self.taken.lock().iter().copied().collect()
    }
}

impl fmt::Display for Piece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Action { life, task, index } => write!(f, "action {life} {task} {index}"),
            Self::Fault { life, index } => write!(f, "fault {life} {index}"),
        }
    }
}

impl FromStr for Piece {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("'{text}' is no piece of a run");
        let mut words = text.split_whitespace();
        let kind = words.next().ok_or_else(wrong)?;
        let numbers: Vec<u32> = words.map(str::parse).collect::<Result<_, _>>().map_err(|_| wrong())?;
        match (kind, &numbers[..]) {
            ("action", &[life, task, index]) => Ok(Self::Action { life, task, index }),
            ("fault", &[life, index]) => Ok(Self::Fault { life, index }),
            _ => Err(wrong()),
        }
    }
}
