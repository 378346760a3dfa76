use std::time::SystemTime;

use proptest::prelude::*;
use rcgen::{CertificateSigningRequest, KeyPair, KeyUsagePurpose, SigningKey};
use sha2::{Digest, Sha256};
use warren_types::{Id, NodeRole};

use super::*;
use crate::{CertificateAuthority, Identity, Role};

fn request_of(key: &KeyPair) -> CertificateSigningRequest {
    CertificateParams::default().serialize_request(key).unwrap()
}

fn pem_of(der: &[u8]) -> String {
    ::pem::encode(&::pem::Pem::new("CERTIFICATE REQUEST", der))
}

/// Says of a P-384 key that it is one of P-256, as the name of its signature and of itself.
struct MislabeledKey(KeyPair);

impl PublicKeyData for MislabeledKey {
    fn der_bytes(&self) -> &[u8] {
        self.0.der_bytes()
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &PKCS_ECDSA_P256_SHA256
    }
}

impl SigningKey for MislabeledKey {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, rcgen::Error> {
        self.0.sign(message)
    }
}

#[test]
fn the_id_is_that_of_the_key_whatever_else_is_in_the_request() {
    let key = PrivateKey::generate().unwrap();
    let plain = CertificateRequest::parse(&CertificateRequest::create(&key).unwrap()).unwrap();
    let pair = key.pair().unwrap();
    let mut greedy = CertificateParams::new(vec!["example.com".to_owned()]).unwrap();
    greedy.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    let greedy = greedy.serialize_request(&*pair).unwrap().pem().unwrap();
    let greedy = CertificateRequest::parse(&greedy).unwrap();
    assert_eq!(plain.node_id(), greedy.node_id());
    assert_eq!(plain.node_id(), key.node_id().unwrap());
    let first = Sha256::digest(pair.subject_public_key_info())[..16].try_into().unwrap();
    assert_eq!(plain.node_id(), NodeId(Id(u128::from_be_bytes(first))));
    assert_ne!(plain.node_id(), PrivateKey::generate().unwrap().node_id().unwrap());
}

#[test]
fn keys_of_the_three_kinds_get_certificates_that_verify() {
    let now = SystemTime::now();
    let authority = CertificateAuthority::create("c1x", now).unwrap();
    for kind in KEY_ALGORITHMS {
        let key = KeyPair::generate_for(kind).unwrap();
        let request = CertificateRequest::parse(&request_of(&key).pem().unwrap()).unwrap();
        let pem = authority.sign_node(NodeRole::Worker, &request, now, Role::Worker.validity()).unwrap();
        let der = &crate::pem::parse_certificates(&pem).unwrap()[0];
        let certificate = crate::identity::parse_der(der).unwrap();
        assert_eq!(certificate.public_key().raw, key.subject_public_key_info());
        assert_eq!(Identity::from_der(der).unwrap().id(), request.node_id().to_string());
    }
}

#[test]
fn damaged_request_is_refused_or_has_the_same_key() {
    let key = PrivateKey::generate().unwrap();
    let request = request_of(&key.pair().unwrap());
    let mut signature_refused = 0;
    for at in 0..request.der().len() {
        for bit in [1, 0x80] {
            let mut der = request.der().to_vec();
            der[at] ^= bit;
            match CertificateRequest::parse(&pem_of(&der)) {
                // Only what is around the signature is not signed itself.
                Ok(read) => assert_eq!(read.node_id(), key.node_id().unwrap(), "{at}"),
                Err(refused) => signature_refused += usize::from(refused == RequestError::Signature),
            }
        }
    }
    assert!(signature_refused > 100, "{signature_refused}");
}

#[test]
fn a_request_signed_by_another_key_is_refused() {
    let (one, two) = (PrivateKey::generate().unwrap(), PrivateKey::generate().unwrap());
    let spki = |key: &PrivateKey| key.pair().unwrap().subject_public_key_info();
    let mut der = request_of(&one.pair().unwrap()).der().to_vec();
    let (own, other) = (spki(&one), spki(&two));
    let at = der.windows(own.len()).position(|window| window == own).unwrap();
    der[at..at + own.len()].copy_from_slice(&other);
    assert_eq!(CertificateRequest::parse(&pem_of(&der)).unwrap_err(), RequestError::Signature);
}

#[test]
fn key_algorithm_comes_from_the_key() {
    let misnamed = MislabeledKey(KeyPair::generate_for(&PKCS_ECDSA_P384_SHA384).unwrap());
    let request = CertificateParams::default().serialize_request(&misnamed).unwrap();
    let refused = CertificateRequest::parse(&request.pem().unwrap()).unwrap_err();
    assert!(matches!(refused, RequestError::Signature | RequestError::Key { .. }), "{refused}");
}

#[test]
fn other_keys_and_other_texts_are_refused_by_name() {
    // The kind of the key in a good request is changed to one that does not exist.
    let mut other = request_of(&KeyPair::generate().unwrap()).der().to_vec();
    let ec = [0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01];
    let at = other.windows(ec.len()).position(|window| window == ec).unwrap();
    other[at + ec.len() - 1] = 2;
    let refused = CertificateRequest::parse(&pem_of(&other)).unwrap_err();
    assert_eq!(refused, RequestError::Key { found: "1.2.840.10045.2.2".to_owned() });

    let good = request_of(&KeyPair::generate().unwrap());
    let mut longer = good.der().to_vec();
    longer.push(0);
    let key = PrivateKey::generate().unwrap();
    for bad in ["", "hello", key.pem(), &pem_of(&longer), &pem_of(&good.der()[1..])] {
        let refused = CertificateRequest::parse(bad).unwrap_err();
        assert!(matches!(refused, RequestError::NotARequest(_)), "{refused}");
        assert!(!refused.to_string().contains(key.pem().lines().nth(1).unwrap()));
    }
    let long = good.pem().unwrap() + &"#".repeat(MAX_REQUEST);
    let refused = CertificateRequest::parse(&long).unwrap_err();
    assert_eq!(refused, RequestError::TooLarge { found: long.len() });
}

proptest! {
    #[test]
    fn never_panics_on_foreign_bytes(
        bytes in proptest::collection::vec(any::<u8>(), 0..600), text in any::<String>(),
    ) {
        prop_assert!(CertificateRequest::parse(&pem_of(&bytes)).is_err());
        prop_assert!(CertificateRequest::parse(&text).is_err());
    }

    /// Lengths and tags in the middle of a good request replaced, and the whole cut or doubled.
    #[test]
    fn never_panics_on_mangled_requests(
        at in 0usize..200, by in proptest::collection::vec(any::<u8>(), 1..12), cut in 0usize..400,
        twice in any::<bool>(),
    ) {
        let key = PrivateKey::generate().unwrap();
        let mut der = request_of(&key.pair().unwrap()).der().to_vec();
        let end = (at + by.len()).min(der.len());
        der.splice(at.min(end)..end, by);
        der.truncate(cut.max(1));
        if twice {
            der.extend_from_within(..);
        }
        if let Ok(read) = CertificateRequest::parse(&pem_of(&der)) {
            prop_assert_eq!(read.node_id(), key.node_id().unwrap());
        }
    }
}
