//! The terminal: acquired, drawn on, read from, and restored whatever happens.

use super::page;
use super::state::State;
use crate::failure::Failure;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long a signal may go unnoticed.
const NOTICE: Duration = Duration::from_millis(100);
/// How long a signal waits for an orderly end.
const PATIENCE: Duration = Duration::from_secs(1);

/// Shows pages until the user quits, a signal comes or the mount is gone. The terminal is restored
/// at the end of this function, and by a hook when something panics.
pub fn watch(state: &mut State) -> Result<(), Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    end_by_signal(stop.clone())?;
    let taken = ratatui::try_init();
    let outcome = taken.map_err(Failure::from).and_then(|terminal| renew_until(terminal, state, &stop));
    // If the terminal is gone this fails, and there is no one to tell.
    let _ = ratatui::try_restore();
    outcome
}

/// Signals end the program in an orderly way. If the terminal is gone, a read from it may never
/// return; then the process exits anyway.
fn end_by_signal(stop: Arc<AtomicBool>) -> Result<(), Failure> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    std::thread::Builder::new().name("syncline-signals".into()).spawn(move || {
        if signals.forever().next().is_some() {
            stop.store(true, Ordering::Relaxed);
            std::thread::sleep(PATIENCE);
            // If the terminal is gone this fails.
            let _ = ratatui::try_restore();
            std::process::exit(0);
        }
    })?;
    Ok(())
}

fn renew_until(mut terminal: DefaultTerminal, state: &mut State, stop: &AtomicBool) -> Result<(), Failure> {
    let mut changed = true;
    while !stop.load(Ordering::Relaxed) {
        if state.due().is_some_and(|due| Instant::now() >= due) {
            state.renew()?;
            changed = true;
        }
        if changed {
            terminal.draw(|frame| page::draw(frame, state))?;
        }
        let wait =
            state.due().map_or(NOTICE, |due| due.saturating_duration_since(Instant::now()).min(NOTICE));
        changed = event::poll(wait)?;
        if changed && !goes_on(state, &event::read()?) {
            break;
        }
    }
    Ok(())
}

/// Handles a key; returns false if it quits.
fn goes_on(state: &mut State, event: &Event) -> bool {
    let Event::Key(key) = event else { return true };
    if key.kind == KeyEventKind::Release {
        return true;
    }
    match key.code {
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return false,
        KeyCode::Char('q') => return false,
        KeyCode::Esc if !state.helping => return false,
        KeyCode::Esc => state.helping = false,
        KeyCode::Char('h' | '?') => state.helping = !state.helping,
        KeyCode::Char('p' | ' ') => state.paused = !state.paused,
        KeyCode::Char('+') => state.slower(),
        KeyCode::Char('-') => state.faster(),
        KeyCode::Char('s') => state.sort_otherwise(),
        _ => {}
    }
    true
}
