//! Signals at random moments, by seed: some stop the daemon for a while, some end it properly, some
//! kill it.

use super::writers::{verify_all, write_during};
use crate::skip_if;
use crate::support::{Place, no_fuse, wait_for_end};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::time::Duration;

const ROUNDS: u64 = 8;

/// The fate of the daemon.
#[derive(Clone, Copy, Debug)]
enum Fate {
    Killed,
    /// Stopped with requests in flight, and killed while stopped.
    StoppedAndKilled,
    /// Stopped, continued, and killed later.
    StoppedAndContinued,
    /// Asked to end: it unmounts properly.
    Terminated,
}

fn pause(rng: &mut ChaCha8Rng) {
    std::thread::sleep(Duration::from_micros(rng.random_range(1_000..300_000)));
}

fn befall(fate: Fate, daemon: Pid, rng: &mut ChaCha8Rng) {
    let send = |signal| kill_process(daemon, signal).expect("it is alive");
    // Enough for every writer to get an acknowledgement, even on a slow machine.
    std::thread::sleep(Duration::from_millis(400));
    pause(rng);
    match fate {
        Fate::Killed => send(Signal::KILL),
        Fate::StoppedAndKilled => {
            send(Signal::STOP);
            pause(rng);
            send(Signal::KILL);
        }
        Fate::StoppedAndContinued => {
            send(Signal::STOP);
            pause(rng);
            send(Signal::CONT);
            pause(rng);
            send(Signal::KILL);
        }
        // The writers still have files open: the mount is detached, and ends when they have closed
        // them.
        Fate::Terminated => return send(Signal::TERM),
    }
    wait_for_end(daemon);
}

#[test]
fn nothing_acknowledged_is_lost_whatever_signal_comes() {
    skip_if!(no_fuse());
    let seed = std::env::var("SYNCLINE_SEED").map_or_else(|_| 1, |seed| seed.parse().expect("a number"));
    println!("SYNCLINE_SEED={seed}");
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let fates = [Fate::Killed, Fate::StoppedAndKilled, Fate::StoppedAndContinued, Fate::Terminated];
    let place = Place::with_image("256MiB");
    let mut rounds = Vec::new();
    for round in 0..ROUNDS {
        let fate = fates[(round % 4) as usize];
        println!("round {round}: {fate:?}");
        let mount = place.mount(&format!("mount {round}"));
        verify_all(&mount.path, &rounds);
        let daemon = mount.pid();
        rounds.push(write_during(&mount.path, round, || befall(fate, daemon, &mut rng)));
        wait_for_end(daemon);
        drop(mount);
        place.check_clean();
    }
    let mount = place.mount("last");
    verify_all(&mount.path, &rounds);
    mount.unmount().ok();
}

/// SIGTERM and SIGQUIT are requests to end, not a crash: everything written is there, even without a
/// sync. Signals that request nothing change nothing.
#[test]
fn a_daemon_that_is_asked_to_end_writes_everything_back() {
    skip_if!(no_fuse());
    ends_well_by(Signal::TERM);
    ends_well_by(Signal::QUIT);
}

fn ends_well_by(by: Signal) {
    let place = Place::with_image("64MiB");
    let mount = place.mount("mount");
    let data: Vec<u8> = (0..3_000_000u32).map(|index| (index % 251) as u8).collect();
    fs::write(mount.path.join("unsynced"), &data).unwrap();
    let daemon = mount.pid();
    for meaningless in [Signal::USR1, Signal::USR2, Signal::ALARM] {
        kill_process(daemon, meaningless).unwrap();
    }
    assert_eq!(mount.pid(), daemon, "it goes on");
    kill_process(daemon, by).unwrap();
    wait_for_end(daemon);
    drop(mount);
    let image = place.image();
    let info = crate::support::syncline(["info".as_ref(), image.as_os_str(), "--json".as_ref()]).ok();
    let info: serde_json::Value = serde_json::from_str(&info.out).unwrap();
    assert_eq!(info["clean"], true, "{info}");
    let mount = place.mount("again");
    assert_eq!(fs::read(mount.path.join("unsynced")).unwrap(), data);
    mount.unmount().ok();
    place.check_clean();
}
