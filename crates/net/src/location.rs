//! The location of an image, as a user writes it: a path, or storage on the network.
//!
//! Nothing is guessed. Text that begins like a kind of storage on the network is one, or an error;
//! a file of such a name is reached as `./NAME`.

mod error;
mod text;

pub use error::LocationError;
use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;
use text::{Query, Rest, encoded, encoded_path};

/// The port of NBD.
const NBD_PORT: u16 = 10809;
/// The longest name of an export (the protocol's limit of strings).
const EXPORT_MAX_BYTES: usize = 4096;

/// Where an image is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Location {
    /// A file or a block device of this host.
    Path(PathBuf),
    /// An image in a pool of a Ceph cluster.
    Rbd(RbdLocation),
    /// An export of an NBD server.
    Nbd(NbdLocation),
}

/// `rbd:POOL[/NAMESPACE]/IMAGE[?conf=FILE&id=USER&wait=SECONDS]`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RbdLocation {
    /// The pool.
    pub pool: String,
    /// The namespace in it; none is the pool's own.
    pub namespace: Option<String>,
    /// The image.
    pub image: String,
    /// The cluster's configuration, if not in its usual place.
    pub conf: Option<PathBuf>,
    /// The user, without `client.`.
    pub id: Option<String>,
    /// How long to wait for a cluster that is away.
    pub wait: Option<Wait>,
}

/// `nbd://HOST[:PORT]/EXPORT`, `nbds://...` or `nbd+unix:///EXPORT?socket=PATH`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NbdLocation {
    /// Where the server listens.
    pub address: NbdAddress,
    /// The name of the export. The empty name is the server's default one.
    pub export: String,
    /// Set for TLS.
    pub tls: Option<TlsFiles>,
    /// How long to wait for a server that is away.
    pub wait: Option<Wait>,
}

/// Where an NBD server listens.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NbdAddress {
    /// A host's name or address (IPv6 without brackets), and a port.
    Tcp(String, u16),
    /// A socket in the filesystem.
    Unix(PathBuf),
}

/// The files for TLS, in PEM.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TlsFiles {
    /// The authorities that the server's certificate may come from; none means those of the system.
    pub ca: Option<PathBuf>,
    /// This host's certificate, for servers that ask for one.
    pub cert: Option<PathBuf>,
    /// The key of that certificate.
    pub key: Option<PathBuf>,
}

/// How long to wait for a server that is away.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wait {
    /// After this long every operation fails.
    Seconds(u32),
    /// Until it is back.
    Forever,
}

impl Default for Wait {
    fn default() -> Self {
        Self::Seconds(60)
    }
}

impl Wait {
    /// As a time, if it has an end.
    pub fn limit(self) -> Option<Duration> {
        match self {
            Self::Seconds(seconds) => Some(Duration::from_secs(seconds.into())),
            Self::Forever => None,
        }
    }
}

impl Location {
    /// Parses a user's location.
    pub fn parse(text: &OsStr) -> Result<Self, LocationError> {
        let Some((scheme, rest)) = text::scheme(text.as_bytes()) else {
            return Ok(Self::Path(text.into()));
        };
        let family = scheme.split('+').next().unwrap_or_default();
        if !matches!(family, "nbd" | "nbds" | "rbd") && !rest.starts_with(b"//") {
            return Ok(Self::Path(text.into()));
        }
        let shown = text.to_string_lossy();
        let Some(text) = text.to_str() else {
            return Err(LocationError::NotText(shown.into_owned()));
        };
        let rest = Rest::new(text, &text[scheme.len() + 1..])?;
        match scheme.as_str() {
            "rbd" => RbdLocation::parse(rest).map(Self::Rbd),
            "nbd" => NbdLocation::parse_tcp(rest, false).map(Self::Nbd),
            "nbds" => NbdLocation::parse_tcp(rest, true).map(Self::Nbd),
            "nbd+unix" => NbdLocation::parse_unix(rest).map(Self::Nbd),
            _ => Err(LocationError::UnknownScheme { text: text.to_owned(), scheme }),
        }
    }
}

impl RbdLocation {
    fn parse(rest: Rest<'_>) -> Result<Self, LocationError> {
        let mut query = rest.query(&["conf", "id", "wait"])?;
        let mut names = Vec::new();
        for name in rest.path.split('/') {
            names.push(rest.name(name)?);
        }
        if names.iter().any(String::is_empty) {
            names.clear();
        }
        let names: [Option<String>; 3] = match <[String; 2]>::try_from(names) {
            Ok([pool, image]) => [Some(pool), None, Some(image)],
            Err(names) => match <[String; 3]>::try_from(names) {
                Ok(all) => all.map(Some),
                Err(_) => return Err(LocationError::RbdNames(rest.text.to_owned())),
            },
        };
        let [Some(pool), namespace, Some(image)] = names else {
            return Err(LocationError::RbdNames(rest.text.to_owned()));
        };
        let (conf, id, wait) = (query.path("conf")?, query.string("id")?, query.wait()?);
        Ok(Self { pool, namespace, image, conf, id, wait })
    }
}

impl NbdLocation {
    fn parse_tcp(rest: Rest<'_>, tls: bool) -> Result<Self, LocationError> {
        let keys: &[&str] = if tls { &["cafile", "certfile", "keyfile", "wait"] } else { &["wait"] };
        let mut query = rest.query(keys)?;
        let (authority, export) = rest.authority()?;
        let address = tcp(&rest, authority)?;
        let tls = if tls {
            let files = TlsFiles {
                ca: query.path("cafile")?,
                cert: query.path("certfile")?,
                key: query.path("keyfile")?,
            };
            if files.cert.is_some() != files.key.is_some() {
                return Err(LocationError::HalfOfPair(rest.text.to_owned()));
            }
            Some(files)
        } else {
            None
        };
        Ok(Self { address, export: export_name(&rest, export)?, tls, wait: query.wait()? })
    }

    fn parse_unix(rest: Rest<'_>) -> Result<Self, LocationError> {
        let mut query: Query = rest.query(&["socket", "wait"])?;
        let (authority, export) = rest.authority()?;
        if !authority.is_empty() {
            return Err(LocationError::HostAndSocket {
                text: rest.text.to_owned(),
                host: authority.to_owned(),
            });
        }
        let Some(socket) = query.path("socket")? else {
            return Err(LocationError::NoSocket(rest.text.to_owned()));
        };
        let address = NbdAddress::Unix(socket);
        Ok(Self { address, export: export_name(&rest, export)?, tls: None, wait: query.wait()? })
    }
}

fn tcp(rest: &Rest<'_>, authority: &str) -> Result<NbdAddress, LocationError> {
    let text = || rest.text.to_owned();
    if authority.contains('@') {
        return Err(LocationError::User(without_user(rest.text)));
    }
    let (host, port) = match authority.strip_prefix('[') {
        Some(inside) => {
            let (host, port) = inside.split_once(']').ok_or_else(|| LocationError::Host(text()))?;
            if host.parse::<std::net::Ipv6Addr>().is_err() {
                return Err(LocationError::Host(text()));
            }
            let port = match port {
                "" => None,
                port => Some(port.strip_prefix(':').ok_or_else(|| LocationError::Host(text()))?),
            };
            (host.to_owned(), port)
        }
        None => match authority.split_once(':') {
            Some((host, port)) => (rest.name(host)?, Some(port)),
            None => (rest.name(authority)?, None),
        },
    };
    if host.is_empty() || host.contains(|c: char| c.is_control() || c.is_whitespace() || c == '/') {
        return Err(LocationError::Host(text()));
    }
    let port = match port {
        None => NBD_PORT,
        Some(port) => match port.parse() {
            Ok(number) if number > 0 && port.bytes().all(|byte| byte.is_ascii_digit()) => number,
            _ => return Err(LocationError::Port { text: text(), port: port.to_owned() }),
        },
    };
    Ok(NbdAddress::Tcp(host, port))
}

/// The text without what stands between `//` and `@`, which may be a password.
fn without_user(text: &str) -> String {
    match (text.find("//"), text.rfind('@')) {
        (Some(slashes), Some(at)) if slashes < at => format!("{}...{}", &text[..slashes + 2], &text[at..]),
        _ => text.to_owned(),
    }
}

fn export_name(rest: &Rest<'_>, path: &str) -> Result<String, LocationError> {
    let name = rest.name(path)?;
    if name.len() > EXPORT_MAX_BYTES {
        return Err(LocationError::LongName(rest.text.to_owned()));
    }
    Ok(name)
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(path) => path.display().fmt(f),
            Self::Rbd(rbd) => rbd.fmt(f),
            Self::Nbd(nbd) => nbd.fmt(f),
        }
    }
}

impl fmt::Display for RbdLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rbd:{}/", encoded(self.pool.as_bytes()))?;
        if let Some(namespace) = &self.namespace {
            write!(f, "{}/", encoded(namespace.as_bytes()))?;
        }
        write!(f, "{}", encoded(self.image.as_bytes()))?;
        let conf = self.conf.as_ref().map(|path| encoded_path(path));
        let id = self.id.as_ref().map(|id| encoded(id.as_bytes()));
        text::write_query(f, [("conf", conf), ("id", id), ("wait", self.wait.map(|wait| wait.to_string()))])
    }
}

impl fmt::Display for NbdLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let export = text::encoded_export(&self.export);
        let mut socket = None;
        match (&self.address, &self.tls) {
            (NbdAddress::Tcp(host, port), tls) => {
                f.write_str(if tls.is_some() { "nbds://" } else { "nbd://" })?;
                match host.contains(':') {
                    true => write!(f, "[{host}]")?,
                    false => write!(f, "{}", encoded(host.as_bytes()))?,
                }
                if *port != NBD_PORT {
                    write!(f, ":{port}")?;
                }
                write!(f, "/{export}")?;
            }
            (NbdAddress::Unix(path), _) => {
                write!(f, "nbd+unix:///{export}")?;
                socket = Some(encoded_path(path));
            }
        }
        let files = self.tls.clone().unwrap_or_default();
        let file = |path: Option<PathBuf>| path.map(|path| encoded_path(&path));
        text::write_query(
            f,
            [
                ("socket", socket),
                ("cafile", file(files.ca)),
                ("certfile", file(files.cert)),
                ("keyfile", file(files.key)),
                ("wait", self.wait.map(|wait| wait.to_string())),
            ],
        )
    }
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Seconds(seconds) => seconds.fmt(f),
            Self::Forever => f.write_str("forever"),
        }
    }
}

#[cfg(test)]
mod tests;
