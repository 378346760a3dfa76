//! Requests for a certificate (PKCS #10, RFC 2986): the key never leaves the machine that created it.

use rcgen::{
    CertificateParams, DistinguishedName, PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384, PKCS_ED25519,
    PublicKeyData, SignatureAlgorithm,
};
use rustls_pki_types::CertificateSigningRequestDer;
use rustls_pki_types::pem::PemObject;
use warren_types::{NodeId, PublicKeyHash};
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::prelude::FromDer;

use crate::identity::public_key_hash;
use crate::key::node_id;
use crate::{AuthorityError, PrivateKey};

/// A request with a key of an allowed kind takes less than a tenth of it.
const MAX_REQUEST: usize = 8 << 10;

/// The kinds of keys that certificates are issued for.
static KEY_ALGORITHMS: [&SignatureAlgorithm; 3] =
    [&PKCS_ECDSA_P256_SHA256, &PKCS_ECDSA_P384_SHA384, &PKCS_ED25519];

/// Why no certificate can be issued for a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// It is too long to be read.
    #[error("the certificate request has {found} bytes, expected at most {MAX_REQUEST}")]
    TooLarge {
        /// Its length in bytes.
        found: usize,
    },
    /// It is no request.
    #[error("expected a certificate request (PKCS #10) as PEM: {0}")]
    NotARequest(String),
    /// Its sender does not have the key, or the request was changed on its way.
    #[error("the certificate request was not signed by the key it asks a certificate for")]
    Signature,
    /// The key is of a kind that is not used.
    #[error(
        "expected a certificate request for an ECDSA key on P-256 or P-384 or an Ed25519 key, found {found}"
    )]
    Key {
        /// The object identifier of its kind.
        found: String,
    },
}

/// A request of which only the public key counts, and which was signed by that key.
#[derive(Clone, Debug)]
pub struct CertificateRequest {
    public_key: RequestPublicKey,
}

impl CertificateRequest {
    /// The request of the holder of `key`, as PEM.
    pub fn create(key: &PrivateKey) -> Result<String, AuthorityError> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        Ok(params.serialize_request(&*key.pair()?)?.pem()?)
    }

    /// Reads a request and checks that it was signed by the key it asks for. Names and everything else in it
    /// are ignored: the authority decides them.
    pub fn parse(pem: &str) -> Result<Self, RequestError> {
        if pem.len() > MAX_REQUEST {
            return Err(RequestError::TooLarge { found: pem.len() });
        }
        let der = CertificateSigningRequestDer::from_pem_slice(pem.as_bytes())
            .map_err(|error| RequestError::NotARequest(error.to_string()))?;
        let request = match X509CertificationRequest::from_der(&der) {
            Ok(([], request)) => request,
            Ok((rest, _)) => {
                return Err(RequestError::NotARequest(format!("{} bytes follow it", rest.len())));
            }
            Err(error) => return Err(RequestError::NotARequest(error.to_string())),
        };
        let asked = &request.certification_request_info.subject_pki;
        // Said before the signature is looked at, which other kinds of keys make in other ways.
        let public_key = RequestPublicKey::parse(asked.raw, &asked.subject_public_key.data);
        let found = || asked.algorithm.algorithm.to_id_string();
        let public_key = public_key.ok_or_else(|| RequestError::Key { found: found() })?;
        request.verify_signature().map_err(|_| RequestError::Signature)?;
        Ok(Self { public_key })
    }

    /// The id of the node that has the key; see [`PrivateKey::node_id`].
    pub fn node_id(&self) -> NodeId {
        node_id(&self.public_key)
    }

    /// The hash of the key.
    pub fn key_hash(&self) -> PublicKeyHash {
        public_key_hash(&self.public_key.subject_public_key_info())
    }

    pub(crate) fn public_key(&self) -> &impl PublicKeyData {
        &self.public_key
    }
}

/// The key in a request. The signing library names a key's kind after the signature beside it, which an
/// attacker chooses; here it is what the key itself says, in its one spelling, so that no key has two ids.
#[derive(Clone, Debug)]
struct RequestPublicKey {
    algorithm_kind: &'static SignatureAlgorithm,
    bits: Vec<u8>,
}

impl RequestPublicKey {
    /// `None` if it is none of [`KINDS`], exactly.
    fn parse(info: &[u8], bits: &[u8]) -> Option<Self> {
        let keys = KEY_ALGORITHMS.iter().map(|kind| Self { algorithm_kind: kind, bits: bits.to_vec() });
        keys.into_iter().find(|key| key.subject_public_key_info() == info)
    }
}

impl PublicKeyData for RequestPublicKey {
    fn der_bytes(&self) -> &[u8] {
        &self.bits
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        self.algorithm_kind
    }
}

#[cfg(test)]
mod tests;
