//! Why a location can't be understood.

/// An error in a location, with how it should look.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LocationError {
    /// It begins with `SCHEME:`, and no storage is called that.
    #[error(
        "{text}: no storage is called '{scheme}'; known are rbd:POOL/IMAGE, nbd://HOST/EXPORT, \
         nbds://HOST/EXPORT and nbd+unix:///EXPORT?socket=PATH (for a file of that name write ./{text})"
    )]
    UnknownScheme {
        /// The location.
        text: String,
        /// The scheme that it begins with.
        scheme: String,
    },
    /// Storage on the network with a name that is not UTF-8.
    #[error("{0}: it is not UTF-8; write other bytes as %XX, or ./NAME for a file")]
    NotText(String),
    /// A `%` that two hexadecimal digits do not follow, or bytes that are not UTF-8.
    #[error("{text}: '{part}' is badly encoded; write % as %25, and other bytes as %XX (UTF-8)")]
    Encoding {
        /// The location.
        text: String,
        /// The part of it.
        part: String,
    },
    /// A `#`, or a byte of value zero.
    #[error("{text}: {what} can't stand in it{}", .next)]
    Forbidden {
        /// The location.
        text: String,
        /// The character or byte, as the message names it.
        what: &'static str,
        /// How to write it instead, for the end of the message; may be empty.
        next: &'static str,
    },
    /// An NBD URI without its two slashes.
    #[error("{text}: '//' must follow '{scheme}:', as in {example} (for a file of that name write ./{text})")]
    NoAuthority {
        /// The location.
        text: String,
        /// The scheme that it begins with.
        scheme: String,
        /// How it should look.
        example: &'static str,
    },
    /// No host, or no name of one.
    #[error("{0}: a host must follow '//', as in nbd://storage.example/EXPORT or nbd://[::1]/EXPORT")]
    Host(String),
    /// `USER@HOST`.
    #[error(
        "{0}: users are not supported; a client is identified by its certificate (nbds, certfile= and keyfile=)"
    )]
    User(String),
    /// Something else than a port.
    #[error("{text}: '{port}' is no port; give a number from 1 to 65535")]
    Port {
        /// The location.
        text: String,
        /// The text in a port's place.
        port: String,
    },
    /// A host, though the server is on this one.
    #[error(
        "{text}: nbd+unix takes no host ('{host}'); write nbd+unix:///EXPORT?socket=PATH with three slashes"
    )]
    HostAndSocket {
        /// The location.
        text: String,
        /// The host.
        host: String,
    },
    /// No socket.
    #[error("{0}: the socket is missing; write nbd+unix:///EXPORT?socket=PATH")]
    NoSocket(String),
    /// The name of the export is too long for the protocol.
    #[error("{0}: the export's name is longer than 4096 bytes")]
    LongName(String),
    /// Not two or three names.
    #[error("{0}: write rbd:POOL/IMAGE or rbd:POOL/NAMESPACE/IMAGE, with / in a name as %2F")]
    RbdNames(String),
    /// A key that means nothing here.
    #[error("{text}: '{key}' is not known here; known are {known}")]
    UnknownKey {
        /// The location.
        text: String,
        /// The key.
        key: String,
        /// The known keys.
        known: String,
    },
    /// A key without a value.
    #[error("{text}: '{key}' has no value; write {key}=VALUE")]
    NoValue {
        /// The location.
        text: String,
        /// The key.
        key: String,
    },
    /// The same key twice.
    #[error("{text}: '{key}' is there twice")]
    Twice {
        /// The location.
        text: String,
        /// The key.
        key: String,
    },
    /// Something else than a time.
    #[error("{text}: wait={value} is no time; give seconds (from 1 on) or 'forever'")]
    Wait {
        /// The location.
        text: String,
        /// The text in a time's place.
        value: String,
    },
    /// A certificate without its key, or the other way round.
    #[error("{0}: certfile= and keyfile= go together; give both or neither")]
    HalfOfPair(String),
}
