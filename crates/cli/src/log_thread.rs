//! The thread that writes a daemon's log lines. Threads that serve requests must not wait for the
//! reader of the log: otherwise a pipe that nobody reads would stop the filesystem. Lines that do
//! not fit into the queue are left out and counted.

use std::io::{self, Write};
use std::sync::{Arc, Mutex, OnceLock};
use tracing_appender::non_blocking::{ErrorCounter, NonBlocking, NonBlockingBuilder, WorkerGuard};

/// The most lines that wait.
const LINES_MAX: usize = 4096;

/// The thread and its queue.
pub struct LogThread {
    queue: NonBlocking,
    /// Dropping it writes the waiting lines, unless that takes longer than a second.
    guard: Mutex<Option<WorkerGuard>>,
}

impl LogThread {
    /// Starts writing lines to an output, each in one write. `line` makes one of a text of ours.
    pub fn start(
        output: impl Write + Send + 'static,
        line: impl Fn(&str) -> Vec<u8> + Send + 'static,
    ) -> Self {
        let left_out = Arc::new(OnceLock::new());
        let output = Told { output, line, left_out: left_out.clone(), told: 0 };
        let builder = NonBlockingBuilder::default().lossy(true).buffered_lines_limit(LINES_MAX);
        let (queue, guard) = builder.thread_name("syncline-log").finish(output);
        let _ = left_out.set(queue.error_counter());
        Self { queue, guard: Mutex::new(Some(guard)) }
    }

    /// A writer for one line, in one write.
    pub fn writer(&self) -> NonBlocking {
        self.queue.clone()
    }

    /// Writes the waiting lines.
    pub fn end(&self) {
        // A panic here leaves nothing half done.
        drop(self.guard.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take());
    }
}

/// A line of its own.
pub fn plain(text: &str) -> Vec<u8> {
    format!("{text}\n").into_bytes()
}

/// Reports how many lines were left out, before the next one.
struct Told<W, L> {
    output: W,
    line: L,
    left_out: Arc<OnceLock<ErrorCounter>>,
    told: usize,
}

impl<W: Write, L: Fn(&str) -> Vec<u8>> Write for Told<W, L> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let left_out = self.left_out.get().map_or(0, ErrorCounter::dropped_lines);
        if left_out > self.told {
            let text = format!("{} lines were left out: nobody read the log", left_out - self.told);
            self.output.write_all(&(self.line)(&text))?;
            self.told = left_out;
        }
        self.output.write(line)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.output.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::time::{Duration, Instant};

    #[test]
    fn a_pipe_that_nobody_reads_stops_nobody() {
        let (mut reader, writer) = io::pipe().unwrap();
        let thread = LogThread::start(writer, plain);
        // A line is one write, as it is from a subscriber.
        let log = |line: &str| thread.writer().write_all(line.as_bytes()).unwrap();
        let begun = Instant::now();
        for number in 0..20_000 {
            log(&format!("line {number} of many that together are more than a pipe and a queue hold\n"));
        }
        assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
        let reading = std::thread::spawn(move || {
            let mut text = String::new();
            reader.read_to_string(&mut text).map(|_| text)
        });
        // Once somebody reads, writing continues and reports the missing lines.
        let left_out = || thread.queue.error_counter().dropped_lines();
        loop {
            let before = left_out();
            log("the last line\n");
            if left_out() == before {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        thread.end();
        drop(thread);
        let text = reading.join().unwrap().unwrap();
        assert!(text.contains("line 0 of"), "{text:.200}");
        assert!(text.contains("lines were left out: nobody read the log"), "{} bytes", text.len());
        assert!(text.ends_with("the last line\n"));
    }

    /// An output that takes nothing until it may, and stores the bytes of one write.
    struct Messages {
        asked: std::sync::mpsc::Sender<()>,
        may: std::sync::mpsc::Receiver<()>,
        given: Arc<Mutex<Vec<Vec<u8>>>>,
    }

    impl Write for Messages {
        fn write(&mut self, message: &[u8]) -> io::Result<usize> {
            let _ = self.asked.send(());
            let _ = self.may.recv();
            self.given.lock().unwrap().push(message.to_vec());
            Ok(message.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn what_was_left_out_is_told_in_one_write() {
        let (go, may) = std::sync::mpsc::channel();
        let (asked, begun) = std::sync::mpsc::channel();
        let given = Arc::<Mutex<Vec<Vec<u8>>>>::default();
        let output = Messages { asked, may, given: given.clone() };
        let thread = LogThread::start(output, |text| format!("<{text}>").into());
        let log = || thread.writer().write_all(b"a line").unwrap();
        log();
        begun.recv().unwrap();
        (0..2 * LINES_MAX).for_each(|_| log());
        let left_out = thread.queue.error_counter().dropped_lines();
        drop(go);
        // It is told before the second line.
        (0..2).for_each(|_| begun.recv().unwrap());
        thread.end();
        drop(thread);
        let given = given.lock().unwrap();
        assert_eq!(given[0], b"a line");
        assert_eq!(given[1], format!("<{left_out} lines were left out: nobody read the log>").as_bytes());
    }
}
