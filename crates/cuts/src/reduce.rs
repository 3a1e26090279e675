//! Reduces a failing state to the simplest one that still fails: the earliest power cut, the fewest
//! lost writes.

use crate::{CutsError, Explorer, Failing, Recording, State, Verdict};
use syncline_powercut::{Cut, Fate};

/// Most positions tried without any loss.
const POSITIONS_MAX: usize = 64;
/// Most states tried in all.
const TRIES_MAX: usize = 400;

/// The simplest failing state found from `failing`, with the judge's output, and the number of
/// states tried.
pub fn reduce(
    recording: &Recording,
    explorer: &Explorer<'_>,
    failing: &Failing,
) -> Result<(Failing, usize), CutsError> {
    let cut = recording.cut(failing.state.position);
    let mut search = Search {
        explorer,
        open: cut.open().collect(),
        cut,
        tries: 0,
        best: failing.clone(),
        from: failing.from,
    };
    if search.without_loss()? {
        return Ok((search.best, search.tries));
    }
    let mut fates = failing.state.fates(&search.cut);
    search.simplify(&mut fates)?;
    Ok((search.best, search.tries))
}

struct Search<'a, 'b> {
    explorer: &'a Explorer<'b>,
    cut: Cut,
    open: Vec<usize>,
    from: usize,
    tries: usize,
    best: Failing,
}

impl Search<'_, '_> {
    /// Judges the state with these fates; if it fails, it becomes the best.
    fn fails(&mut self, fates: &[Fate]) -> Result<bool, CutsError> {
        if self.tries >= TRIES_MAX {
            return Ok(false);
        }
        self.tries += 1;
        let state = State::earliest(self.from, &self.open, fates);
        let what = Failing { state, output: String::new(), ..self.best.clone() };
        match self.explorer.evaluate(what.clone(), &self.cut, 0)? {
            Some(Verdict::Failed(output)) => {
                self.best = Failing { output, ..what };
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// Looks for a failing power cut that loses nothing that was submitted.
    fn without_loss(&mut self) -> Result<bool, CutsError> {
        // Writes from before the stretch were submitted in any case.
        let least = self.open.iter().filter(|id| **id < self.from).count();
        let parts = (self.open.len() - least).clamp(1, POSITIONS_MAX);
        for part in 0..=parts {
            let kept = least + (self.open.len() - least) * part / parts;
            if self.fails(&vec![Fate::Kept; kept])? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Lets as many writes arrive as possible while the state still fails, many at a time first;
    /// then turns torn writes into lost ones where it still fails.
    fn simplify(&mut self, fates: &mut Vec<Fate>) -> Result<(), CutsError> {
        fates.resize(self.open.len(), Fate::Lost);
        // Writes after the last one that arrived were never submitted.
        let known = fates.iter().rposition(|fate| *fate != Fate::Lost).map_or(0, |last| last + 1);
        fates.truncate(known);
        let mut chunk = fates.len().max(1);
        while chunk > 0 {
            for begin in (0..fates.len()).step_by(chunk) {
                let end = fates.len().min(begin + chunk);
                let mut tried = fates.clone();
                tried[begin..end].fill(Fate::Kept);
                if tried != *fates && self.fails(&tried)? {
                    *fates = tried;
                }
            }
            chunk /= 2;
        }
        for index in 0..fates.len() {
            let mut tried = fates.clone();
            tried[index] = Fate::Lost;
            if matches!(fates[index], Fate::Torn(_)) && self.fails(&tried)? {
                *fates = tried;
            }
        }
        // The failing state itself, if nothing simpler failed.
        self.fails(fates).map(drop)
    }
}
