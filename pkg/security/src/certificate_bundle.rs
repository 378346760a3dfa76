//! PEM text with certificates and a private key.

use zeroize::Zeroizing;

use crate::{MaterialError, PrivateKey};

/// Certificates and the private key that belongs to the first of them, as one file holds them: in two
/// files, a crash between two writes could leave a certificate beside another's key.
#[derive(Debug)]
pub(crate) struct CertificateBundle {
    pub(crate) certificates: String,
    pub(crate) key: PrivateKey,
}

impl CertificateBundle {
    pub(crate) fn parse(text: &str) -> Result<Self, MaterialError> {
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
