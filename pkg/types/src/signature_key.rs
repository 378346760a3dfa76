//! Public keys of those who sign images with cosign.

use std::fmt;
use std::str::FromStr;

use crate::base64::{decode_base64, encode_base64};
use crate::text::serde_as_text;

const BEGIN: &str = "-----BEGIN PUBLIC KEY-----";
const END: &str = "-----END PUBLIC KEY-----";
/// The most characters between them.
const MAX_BODY: usize = 1024;
/// Characters in a line of PEM (RFC 7468, section 2).
const LINE: usize = 64;

/// What is before the point in a SubjectPublicKeyInfo of P-256 (RFC 5480, section 2).
const P256: [u8; 26] = [
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86,
    0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
];
/// What is before the key in a SubjectPublicKeyInfo of Ed25519 (RFC 8410, section 4).
const ED25519: [u8; 12] = [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];
/// The first byte of a point that is not compressed (SEC 1, 2.3.3).
const UNCOMPRESSED: u8 = 4;

/// A public key, in PEM as text. Whether a point is on its curve is not checked: no signature is by one that is not.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum SignatureKey {
    /// ECDSA on P-256, as `cosign generate-key-pair` makes it: 4, x and y.
    EcdsaP256([u8; 65]),
    /// Ed25519.
    Ed25519([u8; 32]),
}

impl SignatureKey {
    /// The SubjectPublicKeyInfo in base64.
    fn body(&self) -> String {
        match self {
            Self::EcdsaP256(point) => encode_base64(&[&P256[..], point].concat()),
            Self::Ed25519(key) => encode_base64(&[&ED25519[..], key].concat()),
        }
    }
}

/// Text that is not the public key of a signer. The text itself is not part of it: it may be a private key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseSignatureKeyError {
    /// It is no PEM.
    #[error("is not a public key in PEM; give the text of cosign.pub, from its first line on")]
    Pem,
    /// It is the key of another algorithm.
    #[error(
        "is a key of another kind; give ECDSA on P-256, as `cosign generate-key-pair` makes it, or Ed25519"
    )]
    Kind,
}

impl FromStr for SignatureKey {
    type Err = ParseSignatureKeyError;

    fn from_str(text: &str) -> Result<Self, ParseSignatureKeyError> {
        let body = text.trim().strip_prefix(BEGIN).and_then(|rest| rest.strip_suffix(END));
        let der = body.filter(|body| body.len() <= MAX_BODY).and_then(decode_base64);
        let der = der.ok_or(ParseSignatureKeyError::Pem)?;
        let point: Option<[u8; 65]> = der.strip_prefix(&P256).and_then(|rest| rest.try_into().ok());
        if let Some(point) = point.filter(|point| point[0] == UNCOMPRESSED) {
            return Ok(Self::EcdsaP256(point));
        }
        let key: Option<[u8; 32]> = der.strip_prefix(&ED25519).and_then(|rest| rest.try_into().ok());
        key.map(Self::Ed25519).ok_or(ParseSignatureKeyError::Kind)
    }
}

impl fmt::Display for SignatureKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{BEGIN}")?;
        for line in self.body().as_bytes().chunks(LINE) {
            writeln!(f, "{}", String::from_utf8_lossy(line))?;
        }
        writeln!(f, "{END}")
    }
}

impl fmt::Debug for SignatureKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SignatureKey({})", self.body())
    }
}

serde_as_text!(SignatureKey);

#[cfg(test)]
mod tests {
    use super::*;

    /// Of OpenSSL.
    const ECDSA: &str = "-----BEGIN PUBLIC KEY-----
MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEUmpPtawuMTsEdQHNBOsjtJbyKgo2
rP9CwtglVkTcWulzr+jfGmls+wAZ3gOLLUFbgszImWvo9q2fRlyeyw9ifQ==
-----END PUBLIC KEY-----
";
    const EDWARDS: &str = "-----BEGIN PUBLIC KEY-----
MCowBQYDK2VwAyEAxZQ5hvQiQ/r0vSvY1tEV0N74+buz6ETKB5WCoj0zcRc=
-----END PUBLIC KEY-----
";
    const P384: &str = "-----BEGIN PUBLIC KEY-----
MHYwEAYHKoZIzj0CAQYFK4EEACIDYgAEyLRJK+KakO6WdmA5YQjTYp4R1Pxpdurj
j14lXqBmfVdPTWSobOrHV84owT4lsmlqV21nCH+c8U+fIqy98UrffNtZxPR/Rqiv
eKjjFP8yv7+NeDNrHjQcVNPlvTHAPykd
-----END PUBLIC KEY-----
";

    #[test]
    fn keys_survive_as_text() {
        for text in [ECDSA, EDWARDS] {
            let key: SignatureKey = text.parse().unwrap();
            assert_eq!(key.to_string(), text);
            assert_eq!(text.replace('\n', "\r\n").parse(), Ok(key), "as of another editor");
            assert_eq!(serde_json::from_value::<SignatureKey>(serde_json::json!(text)).unwrap(), key);
        }
        let keys = [ECDSA, EDWARDS].map(|text| text.parse::<SignatureKey>().unwrap());
        let kinds = keys.map(|key| matches!(key, SignatureKey::EcdsaP256(_)));
        assert_eq!(kinds, [true, false]);
    }

    #[test]
    fn other_texts_are_refused_without_being_shown() {
        let (pem, kind) = (ParseSignatureKeyError::Pem, ParseSignatureKeyError::Kind);
        let private = ECDSA.replace("PUBLIC", "PRIVATE");
        let two = format!("{ECDSA}{EDWARDS}");
        let long = ECDSA.replace("MFkw", &"A".repeat(2000));
        for (text, expected) in [
            ("", &pem),
            ("MFkw", &pem),
            (private.as_str(), &pem),
            (two.as_str(), &pem),
            (long.as_str(), &pem),
            (P384, &kind),
            // A compressed point, a point that is too short, and one that is too long.
            (&ECDSA.replace("DQgAE", "DQgAC"), &kind),
            (&ECDSA.replace("w9ifQ==", "w9i"), &kind),
            (&ECDSA.replace("w9ifQ==", "w9ifQAA"), &kind),
        ] {
            assert_eq!(text.parse::<SignatureKey>().as_ref(), Err(expected), "{text}");
        }
        assert!(!pem.to_string().contains("MFkw"));
    }
}
