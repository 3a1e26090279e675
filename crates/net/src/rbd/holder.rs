//! Who has the lock of an image.

use std::fmt;

/// A client that has an image's lock.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LockHolder {
    /// Its address in the cluster, which no other client ever has: `10.0.0.7:0/3208841`.
    pub address: String,
    /// Its name in the cluster, if it is still there: `client.4123`.
    pub client: Option<String>,
    /// What a Syncline says about itself: its host and process.
    pub about: Option<String>,
}

impl fmt::Display for LockHolder {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, client, about } = self;
        match client {
            Some(client) => write!(out, "{client} at {address}")?,
            None => write!(out, "the client at {address}")?,
        }
        match about {
            Some(about) => write!(out, " ({about})"),
            None => Ok(()),
        }
    }
}

/// What this process says about itself, in the image's metadata: its address first, so that nobody
/// takes it for another holder's.
pub(super) fn introduction(address: &str) -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = host.trim();
    let host = if host.is_empty() { "without a name" } else { host };
    format!("{address} host {host}, process {}", std::process::id())
}

/// What the holder at `address` said about itself, if this is from it. Anybody may have written it,
/// so only a short line of ordinary characters counts.
pub(super) fn introduced(text: &str, address: &str) -> Option<String> {
    let about = text.strip_prefix(address)?.strip_prefix(' ')?;
    let ordinary = |c: char| c.is_ascii_graphic() || c == ' ';
    (about.len() <= 200 && about.chars().all(ordinary)).then(|| about.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_introduction_counts_for_its_own_address_only() {
        let text = introduction("10.0.0.7:0/12");
        let about = introduced(&text, "10.0.0.7:0/12").unwrap();
        assert!(about.starts_with("host ") && about.contains(&std::process::id().to_string()), "{about}");
        assert_eq!(introduced(&text, "10.0.0.7:0/1"), None);
        assert_eq!(introduced(&text, "10.0.0.8:0/12"), None);
        assert_eq!(introduced("10.0.0.7:0/12 two\nlines", "10.0.0.7:0/12"), None);
        assert_eq!(introduced(&format!("a {}", "x".repeat(201)), "a"), None);
    }

    #[test]
    fn a_holder_is_told_as_far_as_it_is_known() {
        let mut holder = LockHolder { address: "10.0.0.7:0/12".into(), client: None, about: None };
        assert_eq!(holder.to_string(), "the client at 10.0.0.7:0/12");
        holder.client = Some("client.4123".into());
        holder.about = Some("host db1, process 7".into());
        assert_eq!(holder.to_string(), "client.4123 at 10.0.0.7:0/12 (host db1, process 7)");
    }
}
