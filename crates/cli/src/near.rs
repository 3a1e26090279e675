//! The word that somebody may have meant, as clap finds it for commands and long options.

/// Words less alike than this are not suggested; clap has the same.
const ALIKE: f64 = 0.7;

/// The known word that is most like an unknown one.
pub fn nearest<'a>(word: &str, known: &[&'a str]) -> Option<&'a str> {
    let alike = known.iter().map(|name| (strsim::jaro(word, name), *name));
    let near = alike.filter(|(alike, _)| *alike > ALIKE);
    near.max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, name)| name)
}
