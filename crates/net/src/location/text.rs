//! The text of a location: its scheme, its encoded parts, its query.

use super::{LocationError, Wait};
use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, percent_encode};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// Characters that stand encoded in a name or in a value.
const ENCODED: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'%')
    .add(b'&')
    .add(b'#')
    .add(b'?')
    .add(b'+')
    .add(b'=')
    .add(b'/')
    .add(b'@')
    .add(b':');
/// The same in values that are paths, and in an export's name.
const ENCODED_BUT_SLASH: &AsciiSet = &ENCODED.remove(b'/').remove(b':');

/// The scheme that a text begins with, in lower case, and what follows its colon. None if the text
/// begins with something else.
pub(super) fn scheme(text: &[u8]) -> Option<(String, &[u8])> {
    let colon = text.iter().position(|&byte| byte == b':')?;
    let (scheme, rest) = (&text[..colon], &text[colon + 1..]);
    let of_scheme = |byte: &u8| byte.is_ascii_alphanumeric() || b"+-.".contains(byte);
    let is_scheme = scheme.first().is_some_and(u8::is_ascii_alphabetic) && scheme.iter().all(of_scheme);
    is_scheme.then(|| (String::from_utf8_lossy(scheme).to_ascii_lowercase(), rest))
}

/// A location, split behind its scheme.
pub(super) struct Rest<'a> {
    /// All of the location.
    pub(super) text: &'a str,
    /// In front of the query.
    pub(super) path: &'a str,
    query: Option<&'a str>,
}

impl<'a> Rest<'a> {
    pub(super) fn new(text: &'a str, rest: &'a str) -> Result<Self, LocationError> {
        if rest.contains('#') {
            return Err(LocationError::Forbidden {
                text: text.to_owned(),
                what: "#",
                next: "; write it as %23",
            });
        }
        let (path, query) = match rest.split_once('?') {
            Some((path, query)) => (path, Some(query)),
            None => (rest, None),
        };
        Ok(Self { text, path, query })
    }

    /// Splits what follows `//` into host and port, and the path without its first slash.
    pub(super) fn authority(&self) -> Result<(&'a str, &'a str), LocationError> {
        let Some(both) = self.path.strip_prefix("//") else {
            let scheme = self.text.split(':').next().unwrap_or_default().to_ascii_lowercase();
            let example = match scheme.as_str() {
                "nbd" => "nbd://HOST/EXPORT",
                "nbds" => "nbds://HOST/EXPORT",
                _ => "nbd+unix:///EXPORT?socket=PATH",
            };
            return Err(LocationError::NoAuthority { text: self.text.to_owned(), scheme, example });
        };
        Ok(both.split_once('/').unwrap_or((both, "")))
    }

    /// Decodes a name.
    pub(super) fn name(&self, part: &str) -> Result<String, LocationError> {
        let encoding = || LocationError::Encoding { text: self.text.to_owned(), part: part.to_owned() };
        String::from_utf8(self.bytes(part)?).map_err(|_| encoding())
    }

    fn bytes(&self, part: &str) -> Result<Vec<u8>, LocationError> {
        let bytes = decode(part)
            .ok_or_else(|| LocationError::Encoding { text: self.text.to_owned(), part: part.to_owned() })?;
        if bytes.contains(&0) {
            return Err(LocationError::Forbidden {
                text: self.text.to_owned(),
                what: "a byte of value zero",
                next: "",
            });
        }
        Ok(bytes)
    }

    /// The query, of which these keys are known.
    pub(super) fn query(&self, known: &[&'static str]) -> Result<Query, LocationError> {
        let text = || self.text.to_owned();
        let mut values = BTreeMap::new();
        for pair in self.query.into_iter().flat_map(|query| query.split('&')).filter(|pair| !pair.is_empty())
        {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let Some(&known) = known.iter().find(|&&known| known == key) else {
                let known = known.iter().map(|key| format!("{key}=")).collect::<Vec<_>>().join(", ");
                return Err(LocationError::UnknownKey { text: text(), key: key.to_owned(), known });
            };
            if value.is_empty() {
                return Err(LocationError::NoValue { text: text(), key: key.to_owned() });
            }
            if values.insert(known, self.bytes(value)?).is_some() {
                return Err(LocationError::Twice { text: text(), key: key.to_owned() });
            }
        }
        Ok(Query { text: text(), values })
    }
}

/// Decodes `%XX`; none if a `%` has no two digits.
pub(super) fn decode(part: &str) -> Option<Vec<u8>> {
    let mut pieces = part.split('%');
    pieces.next();
    let is_code =
        |piece: &str| piece.len() >= 2 && piece.bytes().take(2).all(|byte| byte.is_ascii_hexdigit());
    pieces.all(is_code).then(|| percent_decode_str(part).collect())
}

/// The values behind the `?`.
pub(super) struct Query {
    text: String,
    values: BTreeMap<&'static str, Vec<u8>>,
}

impl Query {
    pub(super) fn path(&mut self, key: &str) -> Result<Option<PathBuf>, LocationError> {
        Ok(self.values.remove(key).map(|bytes| OsString::from_vec(bytes).into()))
    }

    pub(super) fn string(&mut self, key: &str) -> Result<Option<String>, LocationError> {
        let Some(bytes) = self.values.remove(key) else { return Ok(None) };
        String::from_utf8(bytes)
            .map(Some)
            .map_err(|_| LocationError::Encoding { text: self.text.clone(), part: key.to_owned() })
    }

    pub(super) fn wait(&mut self) -> Result<Option<Wait>, LocationError> {
        let Some(value) = self.string("wait")? else { return Ok(None) };
        if value == "forever" {
            return Ok(Some(Wait::Forever));
        }
        match value.parse() {
            Ok(seconds) if seconds > 0 && value.bytes().all(|byte| byte.is_ascii_digit()) => {
                Ok(Some(Wait::Seconds(seconds)))
            }
            _ => Err(LocationError::Wait { text: self.text.clone(), value }),
        }
    }
}

/// A name as it stands in a location.
pub(super) fn encoded(bytes: &[u8]) -> String {
    percent_encode(bytes, ENCODED).to_string()
}

/// A path as it stands in a query.
pub(super) fn encoded_path(path: &Path) -> String {
    percent_encode(path.as_os_str().as_bytes(), ENCODED_BUT_SLASH).to_string()
}

/// An export's name as it stands in a location.
pub(super) fn encoded_export(name: &str) -> String {
    percent_encode(name.as_bytes(), ENCODED_BUT_SLASH).to_string()
}

/// Writes those of the values that there are.
pub(super) fn write_query<const N: usize>(
    f: &mut fmt::Formatter<'_>,
    values: [(&str, Option<String>); N],
) -> fmt::Result {
    let there = values.into_iter().filter_map(|(key, value)| Some((key, value?)));
    for (index, (key, value)) in there.enumerate() {
        write!(f, "{}{key}={value}", if index == 0 { '?' } else { '&' })?;
    }
    Ok(())
}
