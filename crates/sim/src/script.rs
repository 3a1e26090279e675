//! What a run consists of, piece by piece, so that a reduced run is the same one less some of it.

use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// A piece of a run that can be left out without changing what the others are.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Piece {
    /// An action of a task. Lives are counted through the whole run.
    Action {
        /// The life.
        life: u32,
        /// The task in it.
        task: u32,
        /// Its place among the task's actions.
        index: u32,
    },
    /// A fault of the device.
    Fault {
        /// The life.
        life: u32,
        /// Its place among the life's faults.
        index: u32,
    },
}

/// Which pieces of a run there are, and which of them take part.
#[derive(Default)]
pub struct Script {
    only: Option<BTreeSet<Piece>>,
    taken: Mutex<BTreeSet<Piece>>,
}

impl Script {
    /// Everything takes part.
    pub fn whole() -> Arc<Self> {
        Arc::default()
    }

    /// These take part.
    pub fn only(pieces: &[Piece]) -> Arc<Self> {
        Arc::new(Self { only: Some(pieces.iter().copied().collect()), taken: Mutex::default() })
    }

    /// True when the piece takes part; notes that it was come to.
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
