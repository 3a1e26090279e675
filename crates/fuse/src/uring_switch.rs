//! The kernel's switch for FUSE over io_uring. It applies to the whole machine, is off unless root
//! has set it, and determines what is offered to filesystems mounted from then on.

use std::fs;
use syncline_device::{Worker, WorkerOptions};

/// Path of the switch, which reads "Y" or "N".
pub const URING_SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

/// Switches FUSE over io_uring on if the machine has it switched off, for all filesystems that are
/// mounted from then on and ask for it. True if that worked and this process can use it.
pub fn switch_uring_on() -> bool {
    // If FUSE is a module, this loads it, and the switch appears.
    drop(fs::File::open("/dev/fuse"));
    let is_off = fs::read_to_string(URING_SWITCH).is_ok_and(|state| state.trim() != "Y");
    let has_ring = || Worker::new(WorkerOptions::default()).is_ok_and(|worker| worker.has_ring());
    is_off && has_ring() && fs::write(URING_SWITCH, "Y").is_ok()
}

/// Why the kernel does not offer FUSE over io_uring, and what to do about it.
pub fn why_not_offered() -> String {
    match fs::read_to_string(URING_SWITCH) {
        Ok(state) if state.trim() == "Y" => "the kernel does not offer it".into(),
        Ok(_) => format!("it is switched off; switch it on with `echo Y > {URING_SWITCH}` as root"),
        Err(_) => "this kernel does not know it; use Linux 6.14 or newer".into(),
    }
}
