//! The word that somebody may have meant, as clap finds it for commands and long options.

/// Words less alike than this are not suggested; clap has the same.
const ALIKE: f64 = 0.7;

/// The known word that is most like an unknown one. One that is half as long just happens to have the same
/// letters.
pub fn nearest<'a>(word: &str, known: &[&'a str]) -> Option<&'a str> {
    let as_long = known.iter().filter(|name| word.len() < 2 * name.len());
    let alike = as_long.map(|name| (strsim::jaro(word, name), *name));
    let near = alike.filter(|(alike, _)| *alike > ALIKE);
    near.max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, name)| name)
}
