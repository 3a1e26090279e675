//! The kernel's counts of a synced write: flushes of the device, and sleeps of the thread. Unlike times,
//! they do not depend on how busy the machine is.

use super::*;
use crate::ring;

#[test]
fn a_synced_write_costs_one_flush_and_one_sleep() {
    const WRITES: u64 = 100;
    let (_place, path) = image();
    let Some(attached) = Loop::attach(&path) else {
        eprintln!("no loop device here: not tested");
        return;
    };
    let stat = Path::new("/sys/block").join(attached.0.trim_start_matches("/dev/")).join("stat");
    let flushes = || {
        let stat = fs::read_to_string(&stat).unwrap();
        stat.split_whitespace().nth(15).unwrap().parse::<u64>().unwrap()
    };
    for io_uring in [Use::Auto, Use::Never] {
        let device = open(&attached.0, OpenOptions { io_uring, ..Default::default() });
        let tracker = crate::FlushTracker::new(device);
        let write = |at: u64| {
            crate::drive(async {
                let (write, through) = tracker.write_through(at * 4096, vec![Bytes::from(vec![7; 4096])]);
                let ticket = write.wait().await.unwrap();
                match through {
                    Some(through) => through.await.unwrap(),
                    None => tracker.make_durable(ticket).await.unwrap(),
                };
            });
        };
        write(0);
        let before = (flushes(), sleeps());
        (1..=WRITES).for_each(write);
        let (flushes, sleeps) = (flushes() - before.0, sleeps() - before.1);
        assert_eq!(flushes, WRITES, "{io_uring:?}");
        let most =
            if io_uring == Use::Auto && ring::is_available() { WRITES * 5 / 4 } else { WRITES * 9 / 4 };
        assert!(sleeps <= most, "{sleeps} sleeps for {WRITES} writes, {io_uring:?}");
    }
}

/// How often this thread has waited.
fn sleeps() -> u64 {
    // SAFETY: the kernel fills the structure, for which zeros are a value.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        assert_eq!(libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage), 0);
        usage
    };
    usage.ru_nvcsw as u64
}
