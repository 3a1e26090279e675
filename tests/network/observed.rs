//! The output of `stats`, `top`, `status`, `info` and the metrics for an image on a network.

use super::nbd::{Server, no_exports};
use crate::skip_if;
use crate::support::{Mount, Place, eventually, no_fuse, program, run, syncline};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// The output of a command about a mount.
pub fn told(mount: &Mount, words: &[&str]) -> String {
    let mut command = program();
    command.arg(words[0]).arg(&mount.path).args(&words[1..]);
    run(command).ok().out
}

/// The value of a metric of one number.
pub fn metric(text: &str, name: &str) -> Option<f64> {
    let line = text.lines().find(|line| line.split('{').next() == Some(name))?;
    line.rsplit(' ').next()?.parse().ok()
}

#[test]
fn a_server_that_starts_anew_is_seen_everywhere() {
    skip_if!(no_exports());
    let (place, mut server, image) = Server::with_filesystem();
    // More than may be dirty, so that much is written before it is flushed.
    let mount = Mount::new(&image, &place.directory("mnt"), &["-o", "memory=43MiB"]);
    let file = fs::File::create(mount.path.join("file")).unwrap();
    assert_eq!(mount.stats()["network"]["reconnects"], 0);
    let (written, end) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let writing = std::thread::spawn({
        let (written, end) = (written.clone(), end.clone());
        move || {
            while !end.load(Relaxed) {
                file.write_all_at(&vec![7; 6 << 20], 0).unwrap();
                written.store(true, Relaxed);
            }
            file.sync_all().unwrap();
        }
    });
    eventually("something is written", || written.load(Relaxed));
    // Each restart of the server forgets a different part: the server may have flushed everything
    // just before.
    let mut starts = 0_u32;
    eventually("something is written again", || {
        server.start(&[], &[]);
        starts += 1;
        eventually("it is connected again", || mount.stats()["network"]["reconnects"] == starts);
        mount.stats()["network"]["rewritten_bytes"] != 0
    });
    end.store(true, Relaxed);
    writing.join().unwrap();

    let stats = mount.stats();
    let network = &stats["network"];
    assert_eq!((&network["kind"], &network["reconnects"]), (&"nbd".into(), &starts.into()), "{network:#}");
    assert!(network["rewritten"].as_u64().unwrap() >= 1, "{network:#}");
    assert!(network["flush_ns"]["count"].as_u64().unwrap() >= 1, "{network:#}");
    assert!(network["write_ns"]["max"].as_u64() >= network["write_ns"]["p50"].as_u64(), "{network:#}");
    assert_eq!((&stats["lease"]["state"], &stats["lease"]["term"]), (&"held".into(), &2.into()));
    assert!(stats["lease"]["renewals"].as_u64().unwrap() >= 1 && stats["lost"].is_null(), "{stats:#}");
    assert!(stats["lease"]["age_ms"].as_u64().unwrap() < 8750, "{stats:#}");

    let summary = told(&mount, &["stats"]);
    for words in [
        &*image.to_string_lossy(),
        &*format!(", {starts} reconnect"),
        " written again",
        "\nnet flushes ",
        "\nlease       held for ",
    ] {
        assert!(summary.contains(words), "{words:?} is missing: {summary}");
    }
    assert!(told(&mount, &["stats", "--all"]).contains("flush (µs)"));
    let told_by_status = syncline(["status"]).ok().out;
    assert!(told_by_status.contains(&format!("{}: {}", mount.path.display(), image.display())));
    assert!(told_by_status.contains("    lease held for "), "{told_by_status}");
    assert!(told(&mount, &["info"]).contains("lease         held for "));

    let metrics = told(&mount, &["stats", "--prometheus"]);
    assert_eq!(metric(&metrics, "syncline_network_reconnects_total"), Some(f64::from(starts)), "{metrics}");
    assert_eq!(metric(&metrics, "syncline_image_lost"), Some(0.0));
    assert!(metric(&metrics, "syncline_network_rewritten_bytes_total").unwrap() >= 1.0);
    assert!(metric(&metrics, "syncline_network_flush_duration_seconds_count").unwrap() >= 1.0);
    assert!(metric(&metrics, "syncline_lease_left_seconds").unwrap() <= 8.75);
    mount.unmount().ok();
}

#[test]
fn top_has_a_line_that_fits_a_terminal() {
    skip_if!(no_exports());
    let (place, _server, image) = Server::with_filesystem();
    let mount = Mount::new(&image, &place.directory("mnt"), &[]);
    let (path, stop) = (mount.path.join("file"), std::sync::atomic::AtomicBool::new(false));
    let (page, figures) = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                fs::write(&path, vec![1; 100_000]).unwrap();
                fs::File::open(&path).unwrap().sync_all().unwrap();
            }
        });
        let page = told(&mount, &["top", "--once", "--width", "80", "--interval", "2"]);
        let figures = told(&mount, &["top", "--json", "--interval", "2"]);
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        (page, figures)
    });
    let line = page.lines().nth(1).unwrap();
    assert!(line.starts_with("net  write ") && line.ends_with(" s"), "{page}");
    for words in ["  flush ", "s/", "  reconnects 0  lease "] {
        assert!(line.contains(words), "{words:?} is missing: {line}");
    }
    assert!(line.chars().count() < 80, "not cut off: {line}");
    let figures: serde_json::Value = serde_json::from_str(&figures).unwrap();
    let network = &figures["interval"]["network"];
    assert!(network["flush_us"]["count"].as_u64().unwrap() > 0, "{figures:#}");
    assert!(figures["interval"]["lease"]["left_seconds"].as_f64().unwrap() > 0.0, "{figures:#}");

    // A sync's receipt tells how much of it was the way to the server and back.
    let explained = syncline([OsStr::new("explain"), path.as_os_str(), "--last".as_ref(), "1".as_ref()]);
    let explained = explained.ok().out;
    assert!(explained.contains("  net    "), "{explained}");
    mount.unmount().ok();
}

#[test]
fn a_file_of_this_host_has_no_network() {
    skip_if!(no_fuse());
    let place = Place::with_image("32MiB");
    let mount = place.mount("mnt");
    let stats = mount.stats();
    assert!(stats["network"].is_null() && stats["lease"].is_null() && stats["lost"].is_null());
    let metrics = told(&mount, &["stats", "--prometheus"]);
    assert_eq!(metric(&metrics, "syncline_image_lost"), Some(0.0));
    assert_eq!(metric(&metrics, "syncline_network_reconnects_total"), None);
    assert!(!told(&mount, &["stats"]).contains("network"));
    mount.unmount().ok();
}
