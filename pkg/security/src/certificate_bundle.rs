//! PEM text with certificates and a private key, which may be sealed.

use zeroize::Zeroizing;

use crate::{MaterialError, PrivateKey};

/// The label of the section with a sealed private key: a nonce, the ciphertext of its PEM text, and a tag.
const SEALED_LABEL: &str = "WARREN SEALED PRIVATE KEY";
const SEALED_BEGIN: &str = "-----BEGIN WARREN SEALED PRIVATE KEY-----";

/// Certificates and the private key that belongs to the first of them, as one file holds them: in two
/// files, a crash between two writes could leave a certificate beside another's key.
#[derive(Debug)]
pub(crate) struct CertificateBundle {
    pub(crate) certificates: String,
    pub(crate) key: PrivateKey,
}

impl CertificateBundle {
    pub(crate) fn parse(text: &str) -> Result<Self, MaterialError> {
        if is_sealed(text) {
            return Err(MaterialError::Sealed);
        }
        let mut certificates = String::new();
        // Never grows, so that no copy of the key is left behind in freed memory.
        let mut key = Zeroizing::new(String::with_capacity(text.len() + 1));
        let (mut in_key, mut keys) = (false, 0);
        for line in text.lines() {
            if line.starts_with("-----BEGIN ") {
                in_key = line.contains("PRIVATE KEY-----");
                keys += usize::from(in_key);
            }
            let section: &mut String = if in_key { &mut key } else { &mut certificates };
            section.push_str(line);
            section.push('\n');
        }
        if keys != 1 {
            return Err(MaterialError::Count { wanted: "one private key", found: keys });
        }
        Ok(Self { certificates, key: PrivateKey::parse(&key)? })
    }
}

/// The text of [`CertificateBundle`].
pub(crate) fn join(certificates: &str, key: &PrivateKey) -> Zeroizing<String> {
    let mut text = Zeroizing::new(String::with_capacity(certificates.len() + key.pem().len()));
    text.push_str(certificates);
    text.push_str(key.pem());
    text
}

/// Whether the private key in the text is sealed.
pub(crate) fn is_sealed(text: &str) -> bool {
    text.contains(SEALED_BEGIN)
}

/// The sealed private key in the text.
pub(crate) fn sealed_key(text: &str) -> Result<Vec<u8>, MaterialError> {
    let missing = MaterialError::Count { wanted: "one sealed private key", found: 0 };
    let section = &text[text.find(SEALED_BEGIN).ok_or(missing)?..];
    let section = ::pem::parse(section).map_err(|error| MaterialError::Pem(error.to_string()))?;
    Ok(section.into_contents())
}

/// The text of certificates with a sealed private key.
pub(crate) fn join_sealed(certificates: &str, sealed: Vec<u8>) -> String {
    let config = ::pem::EncodeConfig::new().set_line_ending(::pem::LineEnding::LF);
    certificates.to_owned() + &::pem::encode_config(&::pem::Pem::new(SEALED_LABEL, sealed), config)
}

/// The text without its private key, plain or sealed.
pub(crate) fn certificates(text: &str) -> String {
    let mut in_key = false;
    let kept = text.lines().filter(|line| {
        if line.starts_with("-----BEGIN ") {
            in_key = line.contains("PRIVATE KEY-----");
        }
        !in_key
    });
    kept.flat_map(|line| [line, "\n"]).collect()
}
