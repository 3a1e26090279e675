//! Sizes in human notation.

/// Bytes from a text such as `8GiB`, `512M` (binary, as with fallocate) or `1000000`.
pub fn parse(text: &str) -> Result<u64, String> {
    let config = parse_size::Config::new().with_binary();
    config.parse_size(text).map_err(|error| match error {
        parse_size::Error::PosOverflow => "too large".to_owned(),
        _ => "give a size such as 10MiB or 8GiB".to_owned(),
    })
}

/// A whole number of seconds.
pub fn seconds(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| "give a number of seconds, such as 60".to_owned())
}

/// Bytes for people, in binary units.
pub fn show(bytes: u64) -> String {
    indicatif::HumanBytes(bytes).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_binary() {
        assert_eq!(parse("8GiB"), Ok(8 << 30));
        assert_eq!(parse("512M"), Ok(512 << 20));
        assert_eq!(parse("4096"), Ok(4096));
        assert!(parse("many").is_err());
    }
}
