//! The authorities that a member of the cluster trusts, and the digest by which a joiner recognises the right one.

use std::fmt::{self, Write};
use std::str::FromStr;

use rustls::RootCertStore;
use rustls_pki_types::CertificateDer;
use sha2::{Digest, Sha256};

use crate::identity::parse_der;
use crate::{MaterialError, hex, pem};

/// Of a digest as text.
const DIGITS: usize = 64;

/// SHA-256 of an authority's certificate in DER.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct CaDigest([u8; 32]);

impl CaDigest {
    pub(crate) fn of(der: &CertificateDer<'_>) -> Self {
        Self(Sha256::digest(der).into())
    }

    /// What [`CaDigest::as_bytes`] gave.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The 32 bytes.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

/// A text that is not the digest of an authority.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected the digest of a CA, which has {DIGITS} hexadecimal digits: {why}")]
pub struct ParseDigestError {
    why: String,
}

/// 64 lower-case hexadecimal digits.
impl fmt::Display for CaDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        hex::digits(&self.0).try_for_each(|digit| f.write_char(digit))
    }
}

/// Either case.
impl FromStr for CaDigest {
    type Err = ParseDigestError;

    fn from_str(text: &str) -> Result<Self, ParseDigestError> {
        if text.len() != DIGITS {
            return Err(ParseDigestError { why: format!("found {} characters", text.chars().count()) });
        }
        let mut bytes = [0; DIGITS / 2];
        let wrong = |index| ParseDigestError { why: format!("character {} is none", index + 1) };
        hex::parse(text.as_bytes(), &mut bytes).map_err(wrong)?;
        Ok(Self(bytes))
    }
}

impl fmt::Debug for CaDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CaDigest({self})")
    }
}

/// The certificates of the authorities that are trusted; more than one while the authority is replaced.
#[derive(Clone, Debug)]
pub struct Roots {
    pem: String,
    store: RootCertStore,
    digests: Vec<CaDigest>,
    certificates: Vec<CertificateDer<'static>>,
}

impl Roots {
    /// Reads one or more certificates of authorities from PEM.
    pub fn parse(text: &str) -> Result<Self, MaterialError> {
        let certificates = pem::parse_certificates(text)?;
        let mut store = RootCertStore::empty();
        let mut digests = Vec::with_capacity(certificates.len());
        for certificate in &certificates {
            if !parse_der(certificate)?.is_ca() {
                return Err(MaterialError::NotAnAuthority);
            }
            digests.push(CaDigest::of(certificate));
            store.add(certificate.clone()).map_err(|error| MaterialError::Pem(error.to_string()))?;
        }
        Ok(Self { pem: text.to_owned(), store, digests, certificates })
    }

    /// The one authority with this certificate.
    pub(crate) fn of(certificate: &CertificateDer<'_>) -> Result<Self, MaterialError> {
        Self::parse(&pem::write_certificate(certificate))
    }

    /// The PEM it was read from; not secret.
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// The digest of each, in order.
    pub fn digests(&self) -> &[CaDigest] {
        &self.digests
    }

    pub(crate) fn certificates(&self) -> &[CertificateDer<'static>] {
        &self.certificates
    }

    pub(crate) fn store(&self) -> RootCertStore {
        self.store.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_reads_back_in_either_case() {
        let digest = CaDigest::from_bytes(std::array::from_fn(|index| (index * 9) as u8));
        let text = digest.to_string();
        assert_eq!((text.len(), &text[..8]), (DIGITS, "0009121b"));
        assert_eq!((text.parse(), text.to_uppercase().parse()), (Ok(digest), Ok(digest)));
        for (bad, why) in [
            ("", "found 0 characters"),
            (&text[1..], "found 63 characters"),
            (&format!("{text}0"), "found 65 characters"),
            (&format!("{}x", &text[1..]), "character 64 is none"),
            (&"é".repeat(32), "character 1 is none"),
        ] {
            let refused = bad.parse::<CaDigest>().unwrap_err().to_string();
            assert!(refused.ends_with(why), "{refused}");
        }
    }
}
