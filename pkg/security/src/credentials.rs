//! A certificate with its private key: what a node or a person shows to the other side.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustls::crypto::ring;
use rustls::sign::CertifiedKey;
use rustls_pki_types::PrivateKeyDer;
use rustls_pki_types::pem::PemObject;
use zeroize::Zeroizing;

use crate::identity::parse_der;
use crate::pem::{self, Bundle};
use crate::{FileError, Identity, MaterialError, PrivateKey, files};

/// A certificate issued by the cluster's authority and the key that belongs to it.
#[derive(Clone)]
pub struct Credentials {
    certificate_pem: String,
    key: PrivateKey,
    identity: Identity,
    expires_at: SystemTime,
    certified: Arc<CertifiedKey>,
}

impl Credentials {
    /// Puts an issued certificate (PEM, the holder's first) and its key together.
    pub fn new(certificate_pem: impl Into<String>, key: PrivateKey) -> Result<Self, MaterialError> {
        let certificate_pem = certificate_pem.into();
        let chain = pem::parse_certificates(&certificate_pem)?;
        let certificate = parse_der(&chain[0])?;
        let identity = Identity::try_from(&certificate)?;
        let seconds = u64::try_from(certificate.validity().not_after.timestamp()).unwrap_or(0);
        let der = PrivateKeyDer::from_pem_slice(key.pem().as_bytes());
        let der = der.map_err(|error| MaterialError::Key(error.to_string()))?;
        let signing = ring::sign::any_supported_type(&der);
        drop(Zeroizing::new(der));
        let signing = signing.map_err(|error| MaterialError::Key(error.to_string()))?;
        let certified = CertifiedKey::new(chain, signing);
        certified.keys_match().map_err(|_| MaterialError::KeyMismatch)?;
        let expires_at = UNIX_EPOCH + Duration::from_secs(seconds);
        Ok(Self { certificate_pem, key, identity, expires_at, certified: Arc::new(certified) })
    }

    /// Reads [`Credentials::to_pem`] back.
    pub fn parse(text: &str) -> Result<Self, MaterialError> {
        let Bundle { certificates, key } = Bundle::parse(text)?;
        Self::new(certificates, key)
    }

    /// Reads the file that [`Credentials::save`] wrote.
    pub fn load(path: &Path) -> Result<Self, FileError> {
        let text = files::read_private(path)?;
        Self::parse(&text).map_err(|source| FileError::Content { path: path.to_owned(), source })
    }

    /// Writes certificate and key into one file of mode 0600, replacing it as a whole.
    pub fn save(&self, path: &Path) -> Result<(), FileError> {
        files::write_private(path, self.to_pem().as_bytes())
    }

    /// Certificate and key in one PEM text. Secret.
    pub fn to_pem(&self) -> Zeroizing<String> {
        pem::join(&self.certificate_pem, &self.key)
    }

    /// The certificate; not secret.
    pub fn certificate_pem(&self) -> &str {
        &self.certificate_pem
    }

    /// The key.
    pub fn key(&self) -> &PrivateKey {
        &self.key
    }

    /// Who the certificate says its holder is.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// The end of the certificate's validity.
    pub fn expires_at(&self) -> SystemTime {
        self.expires_at
    }

    pub(crate) fn certified(&self) -> Arc<CertifiedKey> {
        Arc::clone(&self.certified)
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials")
            .field("identity", &self.identity)
            .field("expires_at", &self.expires_at)
            .finish_non_exhaustive()
    }
}
