//! TLS for `nbds://`: which authorities, which certificate of our own, which name.

use crate::location::{NbdAddress, TlsFiles};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use std::io;
use std::path::Path;
use std::sync::Arc;

/// The configuration. The files are read for each connection, so that renewed ones count.
pub(super) fn config(files: &TlsFiles) -> io::Result<Arc<ClientConfig>> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_root_certificates(authorities(files.ca.as_deref())?);
    let config = match (&files.cert, &files.key) {
        (Some(cert), Some(key)) => {
            let key_file = key;
            let key = PrivateKeyDer::from_pem_file(key).map_err(|error| unusable(key_file, "key", &error))?;
            builder
                .with_client_auth_cert(certificates(cert)?, key)
                .map_err(|error| unusable(cert, "certificate", &error))?
        }
        _ => builder.with_no_client_auth(),
    };
    Ok(Arc::new(config))
}

fn authorities(file: Option<&Path>) -> io::Result<RootCertStore> {
    let mut store = RootCertStore::empty();
    match file {
        Some(file) => {
            for certificate in certificates(file)? {
                store.add(certificate).map_err(|error| unusable(file, "authority", &error))?;
            }
        }
        None => {
            let found = rustls_native_certs::load_native_certs();
            // Some systems have certificates that rustls does not understand.
            let (added, _) = store.add_parsable_certificates(found.certs);
            if added == 0 {
                let text =
                    "this system has no certificates of authorities: install ca-certificates or give cafile=";
                return Err(io::Error::new(io::ErrorKind::NotFound, text));
            }
        }
    }
    Ok(store)
}

fn certificates(file: &Path) -> io::Result<Vec<CertificateDer<'static>>> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_file_iter(file)
        .and_then(Iterator::collect)
        .map_err(|error| unusable(file, "certificate", &error));
    match found? {
        found if found.is_empty() => Err(unusable(file, "certificate", &"there is none in it")),
        found => Ok(found),
    }
}

fn unusable(file: &Path, what: &str, why: &dyn std::fmt::Display) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidInput,
        format!("{} is no {what} in PEM that can be used: {why}", file.display()),
    )
}

/// The name that the server's certificate must have.
pub(super) fn server_name(address: &NbdAddress) -> io::Result<ServerName<'static>> {
    let NbdAddress::Tcp(host, _) = address else {
        return Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "TLS over a socket of this host is not supported",
        ));
    };
    ServerName::try_from(host.clone()).map_err(|_| {
        io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("'{host}' can't be a name in a certificate: give a DNS name or an address"),
        )
    })
}
