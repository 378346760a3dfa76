//! Certificates as PEM text (RFC 7468).

use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;

use crate::IdentityError;

/// Why PEM text is not the certificate and key that were wanted. Says nothing of key bytes.
#[derive(Debug, thiserror::Error)]
pub enum MaterialError {
    /// The text is broken.
    #[error("broken PEM text: {0}")]
    Pem(String),
    /// A section was not there, or was there too often.
    #[error("expected {wanted}, found {found}")]
    Count {
        /// What was wanted, in words.
        wanted: &'static str,
        /// How many there were.
        found: usize,
    },
    /// The certificate does not say who it belongs to.
    #[error("unusable certificate")]
    Identity(#[from] IdentityError),
    /// The certificate is not one of an authority.
    #[error("expected the certificate of a certificate authority, found another one")]
    NotAnAuthority,
    /// Another authority issued it.
    #[error("the certificate was not issued by the authority of this cluster: {0}")]
    NotIssued(String),
    /// The key is not of a kind this crate makes.
    #[error("unusable private key, expected PKCS #8 of ECDSA P-256: {0}")]
    Key(String),
    /// The key is sealed, and was to be read as it is.
    #[error("the private key is locked: run `warren manager unlock` on this machine")]
    Sealed,
    /// The key is sealed, and does not open.
    #[error(
        "the private key does not open with the member key of this manager: it is damaged, or belongs elsewhere"
    )]
    SealedElsewhere,
    /// The key is another certificate's.
    #[error("the private key does not belong to the certificate: use the pair that was issued together")]
    KeyMismatch,
}

/// One certificate as text.
pub(crate) fn write_certificate(certificate: &CertificateDer<'_>) -> String {
    let config = ::pem::EncodeConfig::new().set_line_ending(::pem::LineEnding::LF);
    ::pem::encode_config(&::pem::Pem::new("CERTIFICATE", certificate.to_vec()), config)
}

/// All certificates in the text; at least one.
pub(crate) fn parse_certificates(text: &str) -> Result<Vec<CertificateDer<'static>>, MaterialError> {
    let certificates = CertificateDer::pem_slice_iter(text.as_bytes())
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| MaterialError::Pem(error.to_string()))?;
    if certificates.is_empty() {
        return Err(MaterialError::Count { wanted: "at least one certificate", found: 0 });
    }
    Ok(certificates)
}
