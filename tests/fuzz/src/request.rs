//! Arbitrary bytes as a certificate request, which anybody who reaches a manager may send.

use warren_security::{CertificateRequest, RequestError};

/// Bytes are refused, or are a request that its key signed, with one id.
pub fn run(bytes: &[u8]) {
    accepted(bytes);
}

/// What an input is, for the test of the corpus; `None` if it is no request.
pub fn accepted(bytes: &[u8]) -> Option<&'static str> {
    let text = std::str::from_utf8(bytes).ok()?;
    match CertificateRequest::parse(text) {
        Ok(request) => {
            let again = CertificateRequest::parse(text).expect("it was read before");
            assert_eq!((again.node_id(), again.key_hash()), (request.node_id(), request.key_hash()));
            Some("request")
        }
        Err(RequestError::Signature) => Some("forged"),
        Err(RequestError::Key { .. }) => Some("key of another kind"),
        Err(RequestError::TooLarge { .. } | RequestError::NotARequest(_)) => None,
    }
}
