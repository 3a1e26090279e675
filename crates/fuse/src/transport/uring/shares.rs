//! Which worker serves which queue. The kernel has a queue for every possible CPU, uses none until
//! each has an entry, and puts a request into the queue of the CPU on which its caller runs.

use std::fs;
use std::io;
use std::ops::RangeInclusive;

/// The most entries of a queue. Each is a request that can be in flight; further ones wait in the
/// kernel, even behind a slow fsync.
const ENTRIES_MAX: usize = 64;
/// The fewest entries of a queue: where there are many CPUs, and for a CPU that is offline, which
/// may come online at any time.
const ENTRIES_MIN: usize = 8;
/// Limit on the payload memory of all queues together, unless it would leave them with fewer than
/// the minimum of entries. It is address space: only pages that are used take memory.
const PAYLOAD_BYTES_MAX: usize = 128 << 20;

/// A queue to serve.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Share {
    /// The number of its CPU, and of the queue.
    pub queue: u16,
    /// How many of its requests can be in flight.
    pub entries: usize,
}

/// The queues of this machine, divided among workers by the CPUs they run on.
pub fn of_this_machine(worker_cpus: &[usize], transfer_bytes_max: u32) -> io::Result<Vec<Vec<Share>>> {
    let possible = cpus("possible")?;
    // The kernel numbers queues without gaps.
    let queues = possible.len();
    Ok(divide(queues, &cpus("online")?, worker_cpus, transfer_bytes_max as usize))
}

/// The entries of the queue that has the fewest.
pub fn fewest_entries(transfer_bytes_max: u32) -> usize {
    match (cpus("possible"), cpus("online")) {
        (Ok(possible), Ok(online)) if possible.len() == online.len() => {
            entries(online.len(), transfer_bytes_max as usize)
        }
        _ => ENTRIES_MIN,
    }
}

fn entries(online: usize, transfer_bytes_max: usize) -> usize {
    (PAYLOAD_BYTES_MAX / transfer_bytes_max / online.max(1)).clamp(ENTRIES_MIN, ENTRIES_MAX)
}

fn divide(
    queues: usize,
    online: &[usize],
    worker_cpus: &[usize],
    transfer_bytes_max: usize,
) -> Vec<Vec<Share>> {
    let entries = entries(online.len(), transfer_bytes_max);
    let mut shares = vec![Vec::new(); worker_cpus.len()];
    for queue in 0..queues {
        let own = worker_cpus.iter().position(|&cpu| cpu == queue);
        let entries = if online.contains(&queue) { entries } else { ENTRIES_MIN };
        let share = Share { queue: queue as u16, entries };
        shares[own.unwrap_or(queue % worker_cpus.len())].push(share);
    }
    shares
}

/// One of the kernel's lists of CPUs.
fn cpus(list: &str) -> io::Result<Vec<usize>> {
    let path = format!("/sys/devices/system/cpu/{list}");
    let text = fs::read_to_string(&path)
        .map_err(|error| io::Error::new(error.kind(), format!("{path}: {error}")))?;
    parse(text.trim()).ok_or_else(|| io::Error::other(format!("{path} says {:?}", text.trim())))
}

/// Reads "0-3,8".
fn parse(list: &str) -> Option<Vec<usize>> {
    let range = |text: &str| -> Option<RangeInclusive<usize>> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        Some(first.parse().ok()?..=last.parse().ok().filter(|&last: &usize| last <= usize::from(u16::MAX))?)
    };
    let ranges: Vec<_> = list.split(',').map(range).collect::<Option<_>>()?;
    Some(ranges.into_iter().flatten().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    #[test]
    fn lists_of_cpus_are_read() {
        assert_eq!(parse("0"), Some(vec![0]));
        assert_eq!(parse("0-2,5,7-8"), Some(vec![0, 1, 2, 5, 7, 8]));
        assert_eq!(parse(""), None);
        assert_eq!(parse("0-"), None);
        assert_eq!(parse("0-99999999"), None);
    }

    #[test]
    fn each_queue_has_one_worker_and_that_is_its_cpus() {
        let shares = divide(2, &[0, 1], &[0, 1], MIB);
        assert_eq!(shares, [[Share { queue: 0, entries: 64 }], [Share { queue: 1, entries: 64 }]]);
        // Workers on some CPUs only, and CPUs that are offline.
        let shares = divide(8, &[0, 1, 2, 3], &[2, 3], MIB);
        assert!(shares[0].contains(&Share { queue: 2, entries: 32 }));
        assert!(shares[1].contains(&Share { queue: 3, entries: 32 }));
        let mut queues: Vec<_> = shares.concat();
        queues.sort_by_key(|share| share.queue);
        assert_eq!(queues.iter().map(|share| share.queue).collect::<Vec<_>>(), (0..8).collect::<Vec<_>>());
        let entries: Vec<_> = queues.iter().map(|share| share.entries).collect();
        assert_eq!(entries, [32, 32, 32, 32, 8, 8, 8, 8]);
    }

    #[test]
    fn many_cpus_have_fewer_entries_each() {
        let online: Vec<usize> = (0..256).collect();
        let shares = divide(256, &online, &online, MIB);
        assert!(shares.iter().all(|share| share.len() == 1 && share[0].entries == ENTRIES_MIN));
    }
}
