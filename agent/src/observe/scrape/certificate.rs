//! The certificate of the metrics' server: from files that may change, or of its own.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::SystemTime,
};

use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        self, ServerConfig,
        crypto::ring,
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    },
};

/// Where the certificate comes from.
pub struct Certificate {
    files: Option<(PathBuf, PathBuf)>,
    current: Mutex<Current>,
}

/// Of the chain and of the key.
type Changed = [Option<SystemTime>; 2];

struct Current {
    acceptor: TlsAcceptor,
    /// When the files of this certificate were changed last, as the file system says.
    of: Changed,
}

#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    #[error("cannot read {path:?} for the certificate of the metrics: {source}")]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{path:?} has no usable PEM for the certificate of the metrics: {source}")]
    Pem {
        path: PathBuf,
        #[source]
        source: rustls::pki_types::pem::Error,
    },
    #[error("the certificate of the metrics and its key cannot be used: {0}")]
    Unusable(#[from] rustls::Error),
    #[error("cannot make a certificate for the metrics: {0}")]
    Make(#[from] rcgen::Error),
}

// === impl Certificate ===

impl Certificate {
    /// Uses files in PEM. Changes of the files take effect at the next connection.
    ///
    /// # Errors
    /// If the files are unreadable, or do not fit each other.
    pub fn of_files(chain: PathBuf, key: PathBuf) -> Result<Self, CertificateError> {
        let current = Current { of: changed(&chain, &key), acceptor: read(&chain, &key)? };
        Ok(Self { files: Some((chain, key)), current: Mutex::new(current) })
    }

    /// Makes a certificate that no authority has signed, for as long as the agent runs. Clients cannot verify
    /// it. Also returns it.
    ///
    /// # Errors
    /// If the system has no random numbers.
    pub fn self_signed(name: &str) -> Result<(Self, CertificateDer<'static>), CertificateError> {
        let made = rcgen::generate_simple_self_signed([name.to_owned()])?;
        let chain = made.cert.der().clone();
        let key = PrivateKeyDer::Pkcs8(made.signing_key.serialize_der().into());
        let current = Current { acceptor: acceptor(vec![chain.clone()], key)?, of: [None; 2] };
        Ok((Self { files: None, current: Mutex::new(current) }, chain))
    }

    /// What accepts the next connection. Files that cannot be used leave the certificate as it is.
    pub(super) fn acceptor(&self) -> TlsAcceptor {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((chain, key)) = &self.files {
            let of = changed(chain, key);
            if of != current.of {
                // Half of a renewal fails, and is tried again at the next connection.
                match read(chain, key) {
                    Ok(acceptor) => *current = Current { acceptor, of },
                    Err(error) => tracing::warn!(%error, "keeping the certificate of before"),
                }
            }
        }
        current.acceptor.clone()
    }
}

fn changed(chain: &Path, key: &Path) -> Changed {
    [chain, key].map(|path| fs::metadata(path).and_then(|it| it.modified()).ok())
}

fn read(chain: &Path, key: &Path) -> Result<TlsAcceptor, CertificateError> {
    let text = |path: &Path| {
        fs::read(path).map_err(|source| CertificateError::Read { path: path.to_owned(), source })
    };
    let garbled = |path: &Path| {
        let path = path.to_owned();
        |source| CertificateError::Pem { path, source }
    };
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text(chain)?).collect();
    let private = PrivateKeyDer::from_pem_slice(&text(key)?).map_err(garbled(key))?;
    acceptor(certificates.map_err(garbled(chain))?, private)
}

fn acceptor(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<TlsAcceptor, CertificateError> {
    let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions()?.with_no_client_auth();
    Ok(TlsAcceptor::from(Arc::new(builder.with_single_cert(chain, key)?)))
}
