//! A limit on warnings and errors: a failing device is reported for as long as it fails, and that
//! must not fill the disk that holds the log.
//!
//! For each place in the program, [`LINES`] lines may pass per [`WINDOW`]. The next line after that
//! says how many were left out. Lines requested by `-v` or `SYNCLINE_LOG` (information and less)
//! are not limited.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};
use tracing::field::Value;
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Interest;
use tracing::{Event, Level, Metadata, Subscriber, callsite};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

const WINDOW: Duration = Duration::from_secs(5);
const LINES: u32 = 10;

/// Passes lines within the limit on to `lines`.
pub struct Limited<L> {
    lines: L,
    window: Duration,
    places: Mutex<HashMap<callsite::Identifier, Place>>,
}

/// A place in the program that has logged something in this window.
struct Place {
    metadata: &'static Metadata<'static>,
    since: Instant,
    lines: u32,
    left_out: u64,
}

/// Lines of a place that were left out.
struct LeftOut {
    metadata: &'static Metadata<'static>,
    count: u64,
}

impl<L> Limited<L> {
    /// Limits the lines that reach `lines`.
    pub fn new(lines: L) -> Self {
        Self::with_window(lines, WINDOW)
    }

    fn with_window(lines: L, window: Duration) -> Self {
        Self { lines, window, places: Mutex::default() }
    }

    /// True if a line of this place may pass now; also returns the places whose windows have ended
    /// with lines left out.
    fn admit(&self, metadata: &'static Metadata<'static>, now: Instant) -> (bool, Vec<LeftOut>) {
        if *metadata.level() > Level::WARN {
            return (true, Vec::new());
        }
        // A panic here leaves nothing half done.
        let mut places = self.places.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let mut told = Vec::new();
        places.retain(|_, place| {
            let ended = now.duration_since(place.since) >= self.window;
            if ended && place.left_out > 0 {
                told.push(LeftOut { metadata: place.metadata, count: place.left_out });
            }
            !ended
        });
        let new = || Place { metadata, since: now, lines: 0, left_out: 0 };
        let place = places.entry(metadata.callsite()).or_insert_with(new);
        let passes = place.lines < LINES;
        match passes {
            true => place.lines += 1,
            false => place.left_out += 1,
        }
        (passes, told)
    }
}

impl<S: Subscriber, L: Layer<S>> Layer<S> for Limited<L> {
    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let (passes, told) = self.admit(event.metadata(), Instant::now());
        for LeftOut { metadata, count } in told {
            let text = format!("{count} more lines like the last of these were left out");
            let Some(message) = metadata.fields().field("message") else { continue };
            let value: &dyn Value = &text;
            // Logged as if by the place itself, so that a filter that shows its lines shows this
            // one.
            let values = [(&message, Some(value))];
            self.lines
                .on_event(&Event::new(metadata, &metadata.fields().value_set(&values)), context.clone());
        }
        if passes {
            self.lines.on_event(event, context);
        }
    }

    fn on_layer(&mut self, subscriber: &mut S) {
        self.lines.on_layer(subscriber);
    }

    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        self.lines.register_callsite(metadata)
    }

    fn enabled(&self, metadata: &Metadata<'_>, context: Context<'_, S>) -> bool {
        self.lines.enabled(metadata, context)
    }

    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        self.lines.on_new_span(attributes, id, context);
    }

    fn on_record(&self, span: &Id, values: &Record<'_>, context: Context<'_, S>) {
        self.lines.on_record(span, values, context);
    }

    fn on_enter(&self, id: &Id, context: Context<'_, S>) {
        self.lines.on_enter(id, context);
    }

    fn on_exit(&self, id: &Id, context: Context<'_, S>) {
        self.lines.on_exit(id, context);
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        self.lines.on_close(id, context);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{self, Write};
    use std::sync::Arc;
    use tracing_subscriber::fmt;
    use tracing_subscriber::layer::SubscriberExt;

    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<u8>>>);

    impl Write for Kept {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn logged(window: Duration, work: impl FnOnce()) -> Vec<String> {
        let kept = Kept::default();
        let writer = kept.clone();
        let lines = fmt::layer().with_writer(move || writer.clone()).with_ansi(false).without_time();
        let subscriber = tracing_subscriber::registry().with(Limited::with_window(lines, window));
        tracing::subscriber::with_default(subscriber, work);
        let text = String::from_utf8(kept.0.lock().unwrap().clone()).unwrap();
        text.lines().map(str::to_owned).collect()
    }

    fn fails(number: u64) {
        tracing::warn!("write {number} failed");
    }

    #[test]
    fn each_place_has_ten_lines_in_a_window_and_one_for_those_left_out() {
        let window = Duration::from_secs(1);
        let lines = logged(window, || {
            (0..1000).for_each(fails);
            tracing::error!("another place");
            (0..20).for_each(|number| tracing::info!("asked for {number}"));
            std::thread::sleep(window);
            tracing::error!("a third place");
            (1000..1005).for_each(fails);
        });
        let with = |word: &str| lines.iter().filter(|line| line.contains(word)).count();
        assert_eq!((with("failed"), with("another place"), with("asked for")), (15, 1, 20), "{lines:#?}");
        let left_out = "990 more lines like the last of these were left out";
        assert_eq!((with("left out"), with(left_out)), (1, 1), "{lines:#?}");
        let at = lines.iter().position(|line| line.contains(left_out)).unwrap();
        assert!(lines[at].contains("WARN") && lines[at + 1].contains("a third place"), "{lines:#?}");
    }
}
