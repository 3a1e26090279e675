//! On which CPUs threads run.

use std::io;

/// Binds this thread to one CPU.
pub fn pin_to_cpu(cpu: usize) -> io::Result<()> {
    allow_cpus(&[cpu])
}

/// Restricts this thread to these CPUs.
pub(crate) fn allow_cpus(cpus: &[usize]) -> io::Result<()> {
    // SAFETY: a cpu_set_t of all zeros is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    for &cpu in cpus {
        if cpu >= libc::CPU_SETSIZE as usize {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        // SAFETY: the number was checked to be inside the set.
        unsafe { libc::CPU_SET(cpu, &mut set) };
    }
    // SAFETY: the kernel reads the set; zero stands for this thread.
    match unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The CPUs that this thread may run on, in ascending order.
pub fn allowed_cpus() -> io::Result<Vec<usize>> {
    allowed_cpus_of(0)
}

/// The CPUs that a thread may run on.
pub(crate) fn allowed_cpus_of(thread: libc::pid_t) -> io::Result<Vec<usize>> {
    // SAFETY: a cpu_set_t of all zeros is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel fills the set.
    if unsafe { libc::sched_getaffinity(thread, size_of::<libc::cpu_set_t>(), &mut set) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the numbers are inside the set.
    Ok((0..libc::CPU_SETSIZE as usize).filter(|&cpu| unsafe { libc::CPU_ISSET(cpu, &set) }).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pinned_thread_is_allowed_on_its_cpu_alone() {
        let cpus = allowed_cpus().unwrap();
        let last = *cpus.last().unwrap();
        let pinned = std::thread::spawn(move || {
            pin_to_cpu(last).unwrap();
            allowed_cpus().unwrap()
        });
        assert_eq!(pinned.join().unwrap(), [last]);
        assert!(pin_to_cpu(usize::MAX).is_err());
    }
}
