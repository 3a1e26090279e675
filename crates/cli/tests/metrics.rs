//! Figures for monitoring: `stats --watch`, `stats --prometheus`, `syncline metrics`, and the
//! dashboard.

use crate::skip_if;
use crate::support::{LIMIT, Mount, Place, eventually, no_fuse, program, run, stop, wait};
use rustix::process::{Pid, Signal, kill_process};
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};
use syncline_nbdlab::Pace;

fn ground() -> (Place, Mount) {
    let place = Place::with_image("64MiB");
    let mount = place.mount("mount");
    (place, mount)
}

fn sync_some(mount: &Mount, name: &str, times: usize) {
    let mut file = File::create(mount.path.join(name)).unwrap();
    for _ in 0..times {
        file.write_all(&[7; 8192]).unwrap();
        file.sync_all().unwrap();
    }
}

/// The samples of a metrics text, and the metrics whose type and help it gives.
struct Told {
    samples: HashMap<String, f64>,
    types: HashMap<String, String>,
    helps: HashSet<String>,
}

impl Told {
    fn parse(text: &str) -> Self {
        let mut told = Self { samples: HashMap::new(), types: HashMap::new(), helps: HashSet::new() };
        assert_eq!(text.lines().last(), Some("# EOF"));
        for line in text.lines() {
            let words: Vec<&str> = line.splitn(4, ' ').collect();
            match (words[0], words[1]) {
                ("#", "TYPE") => {
                    assert!(told.types.insert(words[2].into(), words[3].into()).is_none(), "twice: {line}");
                }
                ("#", "HELP") => {
                    assert!(told.helps.insert(words[2].into()) && !words[3].is_empty(), "{line}")
                }
                ("#", "UNIT") => assert!(words[2].ends_with(&format!("_{}", words[3])), "{line}"),
                ("#", word) => assert_eq!(word, "EOF"),
                _ => {
                    let (series, value) = line.rsplit_once(' ').unwrap();
                    let value = if value == "+Inf" { f64::INFINITY } else { value.parse().unwrap() };
                    assert!(told.samples.insert(series.into(), value).is_none(), "twice: {line}");
                }
            }
        }
        told
    }

    /// The names of all series, as a query uses them.
    fn names(&self) -> HashSet<&str> {
        self.samples.keys().map(|series| series.split('{').next().unwrap()).collect()
    }

    fn value(&self, name: &str, mount: &Path) -> f64 {
        self.samples[&format!("{name}{{mountpoint=\"{}\"}}", mount.display())]
    }
}

fn told(mount: &Mount) -> Told {
    let mut command = program();
    command.arg("stats").arg(&mount.path).arg("--prometheus");
    Told::parse(&run(command).ok().out)
}

#[test]
fn the_text_for_prometheus_keeps_its_rules_and_says_what_happened() {
    skip_if!(no_fuse());
    let (_place, mount) = ground();
    let before = told(&mount);
    let begun = Instant::now();
    sync_some(&mount, "file", 20);
    let took = begun.elapsed().as_secs_f64();
    let after = told(&mount);
    for (name, sort) in &after.types {
        assert!(after.helps.contains(name), "{name} has no help");
        let ending = match sort.as_str() {
            "counter" => "_total",
            "info" => "_info",
            "histogram" => "_bucket",
            _ => "",
        };
        assert!(after.names().contains(format!("{name}{ending}").as_str()), "{name} has no series");
    }
    for name in after.names() {
        let stem =
            ["_total", "_info", "_sum", "_count", "_bucket"].iter().find_map(|end| name.strip_suffix(end));
        assert!(
            stem.is_some_and(|stem| after.types.contains_key(stem)) || after.types.contains_key(name),
            "{name}"
        );
        assert!(name.starts_with("syncline_"), "{name}");
    }
    let more = |name| after.value(name, &mount.path) - before.value(name, &mount.path);
    assert_eq!(more("syncline_fsyncs_total"), 20.0);
    assert_eq!(more("syncline_written_bytes_total"), 20.0 * 8192.0);
    assert_eq!(more("syncline_fsync_duration_seconds_count"), 20.0);
    assert!(more("syncline_flushes_issued_total") >= 20.0);
    let sum = more("syncline_fsync_duration_seconds_sum");
    assert!(sum > 0.0 && sum <= took, "{sum} of {took} seconds");
    // The buckets of a histogram add up.
    let label = format!("{{le=\"+Inf\",mountpoint=\"{}\"}}", mount.path.display());
    let all = after.samples[&format!("syncline_fsync_duration_seconds_bucket{label}")];
    assert_eq!(all, after.value("syncline_fsync_duration_seconds_count", &mount.path));
    assert_eq!(after.value("syncline_up", &mount.path), 1.0);
    mount.unmount().ok();
}

#[test]
fn every_query_of_the_dashboard_names_metrics_that_exist() {
    skip_if!(no_fuse());
    let (_place, mount) = ground();
    let told = told(&mount);
    mount.unmount().ok();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/grafana/syncline.json");
    let dashboard: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let mut queries = Vec::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().unwrap() {
            queries.push(target["expr"].as_str().unwrap().to_owned());
        }
    }
    queries.push(dashboard["templating"]["list"][1]["definition"].as_str().unwrap().to_owned());
    assert!(queries.len() > 25);
    for query in &queries {
        let words = query.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
        let names: Vec<&str> = words.filter(|word| word.starts_with("syncline_")).collect();
        assert!(!names.is_empty(), "{query}");
        for name in names {
            assert!(told.names().contains(name), "there is no {name}: {query}");
        }
    }
}

/// A server of metrics; ended when dropped.
struct Server {
    child: Child,
    address: String,
}

impl Server {
    fn start(directories: &[&Path]) -> Self {
        let mut command = program();
        command.arg("metrics").args(directories).args(["--listen", "127.0.0.1:0"]);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("http://").and_then(|line| line.strip_suffix("/metrics"));
        Self { child, address: address.expect(&line).to_owned() }
    }

    fn ask(&self, request: &str) -> (String, String) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        write!(stream, "{request} HTTP/1.0\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
        (head.to_owned(), body.to_owned())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn metrics_are_served_until_a_signal_comes() {
    skip_if!(no_fuse());
    let (place, mount) = ground();
    let elsewhere = place.directory("elsewhere");
    let mut server = Server::start(&[&mount.path, &elsewhere]);
    sync_some(&mount, "file", 5);
    let (head, body) = server.ask("GET /metrics");
    assert!(head.contains(" 200 ") && head.contains("application/openmetrics-text"), "{head}");
    let told = Told::parse(&body);
    assert_eq!(told.value("syncline_fsyncs_total", &mount.path), 5.0);
    assert_eq!(told.value("syncline_up", &mount.path), 1.0);
    assert_eq!(told.value("syncline_up", &elsewhere), 0.0);
    assert!(server.ask("GET /other").0.contains(" 404 "));
    assert!(server.ask("POST /metrics").0.contains(" 405 "));
    // A mount that goes away is down; one that comes back is up.
    let path = mount.path.clone();
    mount.unmount().ok();
    assert_eq!(Told::parse(&server.ask("GET /metrics").1).value("syncline_up", &path), 0.0);
    let mount = Mount::new(&place.image(), &path, &[]);
    assert_eq!(Told::parse(&server.ask("GET /metrics").1).value("syncline_up", &path), 1.0);
    let mut second = program();
    second.arg("metrics").arg(&path).args(["--listen", &server.address]);
    run(second).fails(1, &["cannot listen at", "--listen"]);
    kill_process(Pid::from_child(&server.child), Signal::TERM).unwrap();
    assert_eq!(wait(&mut server.child, LIMIT), Some(0));
    mount.unmount().ok();
}

/// A daemon that does not answer is down; the others are reported all the same.
#[test]
fn a_daemon_that_hangs_hides_no_other() {
    skip_if!(no_fuse());
    let (_place, mount) = ground();
    let (_elsewhere, stopped) = ground();
    let ups = |server: &Server| {
        let pace = Pace::start();
        let told = Told::parse(&server.ask("GET /metrics").1);
        pace.assert_within(Duration::from_secs(12));
        [&mount.path, &stopped.path].map(|path| told.value("syncline_up", path))
    };
    let early = Server::start(&[&stopped.path, &mount.path]);
    assert_eq!(ups(&early), [1.0, 1.0]);
    let daemon = stopped.pid();
    stop(daemon);
    let late = Server::start(&[&stopped.path, &mount.path]);
    for server in [&early, &late, &early] {
        assert_eq!(ups(server), [1.0, 0.0]);
    }
    kill_process(daemon, Signal::CONT).unwrap();
    for server in [&early, &late] {
        eventually("an answer", || ups(server) == [1.0, 1.0]);
    }
    drop((early, late));
    stopped.unmount().ok();
    mount.unmount().ok();
}

#[test]
fn lines_are_printed_while_the_mount_is_there() {
    skip_if!(no_fuse());
    let (_place, mount) = ground();
    for json in [false, true] {
        let mut command = program();
        command.arg("stats").arg(&mount.path).args(["--watch", "0.5"]).args(json.then_some("--json"));
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        if json {
            let figures = lines.next().unwrap();
            sync_some(&mount, "file", 10);
            let more = lines.next().unwrap();
            let [first, second]: [serde_json::Value; 2] =
                [figures, more].map(|line| serde_json::from_str(&line).unwrap());
            assert!((0.4..10.0).contains(&first["seconds"].as_f64().unwrap()), "{first}");
            assert!(second["syncs"]["fsyncs_per_second"].as_f64().unwrap() > 0.0, "{second}");
        } else {
            let heading = lines.next().unwrap();
            assert!(heading.starts_with("fsync/s fdata/s") && heading.contains("joined elided"), "{heading}");
            for line in lines.by_ref().take(2) {
                assert_eq!(line.split_whitespace().count(), 15, "{line}");
            }
        }
        // The reader closes the pipe.
        drop(lines);
        assert_eq!(wait(&mut child, LIMIT), Some(0));
    }
    let mut command = program();
    command.arg("stats").arg(&mount.path).args(["--watch", "0.2"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    (0..3).for_each(|_| drop(lines.next().expect("it watches").unwrap()));
    mount.unmount().ok();
    assert_eq!(wait(&mut child, LIMIT), Some(6));
    let mut error = String::new();
    child.stderr.take().unwrap().read_to_string(&mut error).unwrap();
    assert!(error.contains("it was unmounted"), "{error}");
}

/// Number of threads, and memory in KiB, of a process.
fn taken(pid: u32) -> (u64, u64) {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let number = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.split_whitespace().next().unwrap().parse().unwrap()
    };
    (number("Threads:"), number("VmRSS:"))
}

/// Slow, huge and many: what clients do costs little, and keeps nobody from being answered.
#[test]
fn a_client_takes_neither_memory_nor_threads_nor_time_from_the_others() {
    let place = Place::new();
    let server = Server::start(&[place.path()]);
    let pid = server.child.id();
    let answered = || {
        let pace = Pace::start();
        let (head, body) = server.ask("GET /metrics");
        assert!(head.contains(" 200 ") && body.ends_with("# EOF\n"), "{head}");
        pace.assert_within(Duration::from_secs(5));
    };
    answered();
    let before = taken(pid);
    // A client that sends a head without end. It gets a refusal, if it sees an answer at all.
    let mut huge = TcpStream::connect(&server.address).unwrap();
    huge.write_all(b"GET /metrics HTTP/1.1\r\n").unwrap();
    let field = format!("X-Field: {}\r\n", "x".repeat(64 << 10));
    let sent = (0..6400).take_while(|_| huge.write_all(field.as_bytes()).is_ok()).count();
    assert!(sent < 200, "{sent} times 64 KiB were taken");
    answered();
    // A client that sends too many fields, and one that sends a body without end.
    let mut fields = TcpStream::connect(&server.address).unwrap();
    let _ = fields.write_all(format!("GET /metrics HTTP/1.1\r\n{}\r\n", "A: b\r\n".repeat(1000)).as_bytes());
    let mut answer = Vec::new();
    let _ = fields.read_to_end(&mut answer);
    assert!(
        answer.is_empty() || answer.starts_with(b"HTTP/1.1 431 "),
        "{}",
        String::from_utf8_lossy(&answer)
    );
    let mut body = TcpStream::connect(&server.address).unwrap();
    body.write_all(b"POST /metrics HTTP/1.1\r\nContent-Length: 1000000000\r\n\r\n").unwrap();
    let sent = (0..1000).take_while(|_| body.write_all(&[b'x'; 64 << 10]).is_ok()).count();
    assert!(sent < 200, "{sent} times 64 KiB were taken");
    answered();
    // Many clients that send nothing, or little, and one that reads nothing. More than the server
    // keeps.
    let mut idle: Vec<TcpStream> = (0..300).map(|_| TcpStream::connect(&server.address).unwrap()).collect();
    for (index, stream) in idle.iter_mut().enumerate() {
        if index % 2 == 0 {
            let _ = stream.write_all(b"GET /metrics HTTP/1.1\r\nX-Slow: ");
        }
    }
    answered();
    let after = taken(pid);
    assert!(after.0 <= before.0 + 1, "threads: {before:?} {after:?}");
    assert!(after.1 <= before.1 + (16 << 10), "KiB: {before:?} {after:?}");
    // Slow clients are not waited for without end.
    let pace = Pace::start();
    let stays_max = Duration::from_secs(30);
    let last = idle.last_mut().unwrap();
    last.set_read_timeout(Some(LIMIT)).unwrap();
    while pace.elapsed() < stays_max {
        let _ = last.write_all(b"x");
        match last.read(&mut [0; 1024]) {
            Ok(1..) => {}
            Ok(0) => break,
            Err(error) if error.kind() == ErrorKind::ConnectionReset => break,
            // This process was stopped for a moment.
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => panic!("{error}"),
        }
    }
    pace.assert_within(stays_max);
    answered();
}
