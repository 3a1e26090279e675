//! The holder of an image's lock.

use std::fmt;

/// A client that has an image's lock.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LockHolder {
    /// Its name in the cluster, which no other client ever has: `client.4123`.
    pub client: String,
    /// Its address: `10.0.0.7:0/3208841`.
    pub address: String,
    /// The cluster has had a sign of life from it, within the last 30 s by default.
    pub alive: bool,
    /// A Syncline's own words: its host and process.
    pub about: Option<String>,
}

impl fmt::Display for LockHolder {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { client, address, about, .. } = self;
        write!(out, "{client} at {address}")?;
        match about {
            Some(about) => write!(out, " ({about})"),
            None => Ok(()),
        }
    }
}

/// This process's introduction, in the image's metadata: its name in the cluster first, so that
/// nobody takes it for another holder's.
pub(super) fn introduction(client: &str) -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = host.trim();
    let host = if host.is_empty() { "without a name" } else { host };
    format!("{client} host {host}, process {}", std::process::id())
}

/// The words of the holder of this name about itself, if the text is from it. Anybody may have
/// written it, so only a short line of ordinary characters counts.
pub(super) fn introduced(text: &str, client: &str) -> Option<String> {
    let about = text.strip_prefix(client)?.strip_prefix(' ')?;
    let ordinary = |c: char| c.is_ascii_graphic() || c == ' ';
    (about.len() <= 200 && about.chars().all(ordinary)).then(|| about.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_introduction_counts_for_its_own_client_only() {
        let text = introduction("client.41");
        let about = introduced(&text, "client.41").unwrap();
        assert!(about.starts_with("host ") && about.contains(&std::process::id().to_string()), "{about}");
        assert_eq!(introduced(&text, "client.4"), None);
        assert_eq!(introduced(&text, "client.413"), None);
        assert_eq!(introduced("client.41 two\nlines", "client.41"), None);
        assert_eq!(introduced(&format!("a {}", "x".repeat(201)), "a"), None);
    }

    #[test]
    fn a_holder_is_told_as_far_as_it_is_known() {
        let (client, address) = ("client.4123".to_owned(), "10.0.0.7:0/12".to_owned());
        let mut holder = LockHolder { client, address, alive: true, about: None };
        assert_eq!(holder.to_string(), "client.4123 at 10.0.0.7:0/12");
        holder.about = Some("host db1, process 7".into());
        assert_eq!(holder.to_string(), "client.4123 at 10.0.0.7:0/12 (host db1, process 7)");
    }
}
