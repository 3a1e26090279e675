//! The identity of this process, for hosts that find its lease.

use std::fs;
use syncline_format::lease::LeaseHolder;

/// This process on this host. A field that can't be found out is left empty: it is for messages only.
pub fn this_process() -> LeaseHolder {
    let name = rustix::system::uname();
    LeaseHolder {
        host: LeaseHolder::encode_host(&name.nodename().to_string_lossy()),
        machine_id: hex_of("/etc/machine-id"),
        boot_id: hex_of("/proc/sys/kernel/random/boot_id"),
        pid: std::process::id(),
        process_start_ticks: fs::read_to_string("/proc/self/stat").ok().and_then(start_ticks).unwrap_or(0),
    }
}

/// The 32 hex digits of a file, with or without hyphens.
fn hex_of(path: &str) -> [u8; 16] {
    fs::read_to_string(path).ok().and_then(|text| parse_hex(&text)).unwrap_or_default()
}

fn parse_hex(text: &str) -> Option<[u8; 16]> {
    let digits: Vec<u8> = text
        .trim()
        .chars()
        .filter(|c| *c != '-')
        .map(|c| Some(c.to_digit(16)? as u8))
        .collect::<Option<_>>()?;
    let bytes: Vec<u8> = digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect();
    if digits.len() == 32 { bytes.try_into().ok() } else { None }
}

/// Field 22 of `/proc/PID/stat`. The command in field 2 may contain anything, so fields are counted
/// behind its closing parenthesis.
fn start_ticks(stat: String) -> Option<u64> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_a_name_and_a_start() {
        let me = this_process();
        assert_eq!(me.pid, std::process::id());
        assert_ne!(me.host_text(), "an unnamed host");
        assert!(me.process_start_ticks > 0);
        assert_eq!(me, this_process());
    }

    #[test]
    fn ids_and_start_times_are_parsed() {
        assert_eq!(parse_hex("00ff-0102\n"), None);
        assert_eq!(parse_hex("0123456789abcdef0123456789abcde"), None, "31 digits");
        assert_eq!(parse_hex("0123456789abcdef0123456789abcdeg"), None);
        let id = parse_hex("01234567-89ab-cdef-0123-456789abcdef\n").unwrap();
        assert_eq!(id[..4], [0x01, 0x23, 0x45, 0x67]);
        let stat = "7 (a ) b) S 1 7 7 0 -1 4194560 100 0 0 0 1 2 0 0 20 0 1 0 4242 1000 50";
        assert_eq!(start_ticks(stat.into()), Some(4242));
        assert_eq!(start_ticks("nothing".into()), None);
    }
}
