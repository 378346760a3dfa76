//! A certificate with its private key: the credentials of a node or a user.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustls::crypto::ring;
use rustls::sign::CertifiedKey;
use rustls_pki_types::PrivateKeyDer;
use rustls_pki_types::pem::PemObject;
use zeroize::Zeroizing;

use crate::certificate_bundle::{self, CertificateBundle};
use crate::identity::parse_der;
use crate::{FileError, Identity, MaterialError, PrivateKey, files, pem};

/// Certificates are valid from this long before their creation, for machines whose clocks are behind.
pub(crate) const BACKDATE: Duration = Duration::from_secs(5 * 60);

/// A certificate issued by the cluster CA, and its key.
#[derive(Clone)]
pub struct Credentials {
    certificate_pem: String,
    key: PrivateKey,
    identity: Identity,
    issued_at: SystemTime,
    expires_at: SystemTime,
    certified: Arc<CertifiedKey>,
}

/// A certificate chain (PEM, the leaf first) with its key, for TLS.
pub(crate) fn certified_key(
    certificates: &str,
    key: &PrivateKey,
) -> Result<Arc<CertifiedKey>, MaterialError> {
    let der = PrivateKeyDer::from_pem_slice(key.pem().as_bytes());
    let der = der.map_err(|error| MaterialError::Key(error.to_string()))?;
    let signing = ring::sign::any_supported_type(&der);
    drop(Zeroizing::new(der));
    let signing = signing.map_err(|error| MaterialError::Key(error.to_string()))?;
    let certified = CertifiedKey::new(pem::parse_certificates(certificates)?, signing);
    certified.keys_match().map_err(|_| MaterialError::KeyMismatch)?;
    Ok(Arc::new(certified))
}

impl Credentials {
    /// Credentials from a certificate chain (PEM, the leaf first) and its key.
    pub fn new(certificate_pem: impl Into<String>, key: PrivateKey) -> Result<Self, MaterialError> {
        let certificate_pem = certificate_pem.into();
        let chain = pem::parse_certificates(&certificate_pem)?;
        let certificate = parse_der(&chain[0])?;
        let identity = Identity::try_from(&certificate)?;
        let moment = |seconds: i64| UNIX_EPOCH + Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
        let expires_at = moment(certificate.validity().not_after.timestamp());
        let begins_at = moment(certificate.validity().not_before.timestamp());
        let issued_at = (begins_at + BACKDATE).min(expires_at);
        let certified = certified_key(&certificate_pem, &key)?;
        Ok(Self { certificate_pem, key, identity, issued_at, expires_at, certified })
    }

    /// Parses [`Credentials::to_pem`].
    pub fn parse(text: &str) -> Result<Self, MaterialError> {
        let CertificateBundle { certificates, key } = CertificateBundle::parse(text)?;
        Self::new(certificates, key)
    }

    /// Reads a file written by [`Credentials::save`].
    pub fn load(path: &Path) -> Result<Self, FileError> {
        let text = files::read_private(path)?;
        Self::parse(&text).map_err(|source| FileError::Material { path: path.to_owned(), source })
    }

    /// The identity in such a file, also while its key is sealed.
    pub fn load_identity(path: &Path) -> Result<Identity, FileError> {
        let text = files::read_private(path)?;
        let chain = pem::parse_certificates(&certificate_bundle::certificates(&text));
        let identity = chain.and_then(|chain| Ok(Identity::from_der(&chain[0])?));
        identity.map_err(|source| FileError::Material { path: path.to_owned(), source })
    }

    /// Writes certificate and key atomically to one file of mode 0600.
    pub fn save(&self, path: &Path) -> Result<(), FileError> {
        files::write_private(path, self.to_pem().as_bytes())
    }

    /// Certificate and key in one PEM text. Secret.
    pub fn to_pem(&self) -> Zeroizing<String> {
        certificate_bundle::join(&self.certificate_pem, &self.key)
    }

    /// The certificate; not secret.
    pub fn certificate_pem(&self) -> &str {
        &self.certificate_pem
    }

    /// The key.
    pub fn key(&self) -> &PrivateKey {
        &self.key
    }

    /// The identity in the certificate.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// The end of the certificate's validity.
    pub fn expires_at(&self) -> SystemTime {
        self.expires_at
    }

    /// Time of issue. Validity begins slightly earlier.
    pub fn issued_at(&self) -> SystemTime {
        self.issued_at
    }

    /// How long they are valid from [`Credentials::issued_at`] on.
    pub fn lifetime(&self) -> Duration {
        self.expires_at.duration_since(self.issued_at).unwrap_or_default()
    }

    /// Time of renewal: between two thirds and three quarters of the lifetime, spread by `chance` (any number, constant
    /// for these credentials), so that nodes that joined within a minute do not renew at the same time.
    pub fn renew_at(&self, chance: u64) -> SystemTime {
        let spread = chance as f64 / u64::MAX as f64;
        self.issued_at + self.lifetime().mul_f64(2.0 / 3.0 + spread / 12.0)
    }

    /// Whether half of the lifetime is past, or they are [not valid yet](Credentials::is_not_yet_valid).
    pub fn is_past_half(&self, now: SystemTime) -> bool {
        now >= self.issued_at + self.lifetime() / 2 || self.is_not_yet_valid(now)
    }

    /// Whether [`Credentials::renew_at`] is past, or they are [not valid yet](Credentials::is_not_yet_valid).
    pub fn is_renewal_due(&self, now: SystemTime, chance: u64) -> bool {
        now >= self.renew_at(chance) || self.is_not_yet_valid(now)
    }

    /// Whether peers with this clock accept them.
    pub fn is_valid(&self, now: SystemTime) -> bool {
        now < self.expires_at && !self.is_not_yet_valid(now)
    }

    /// Whether the validity has not begun: the issuing clock was ahead by more than certificates are backdated, and
    /// peers with a correct clock reject them.
    pub fn is_not_yet_valid(&self, now: SystemTime) -> bool {
        now + BACKDATE < self.issued_at
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
