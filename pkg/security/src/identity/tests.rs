use proptest::prelude::*;
use rcgen::{CertificateParams, KeyPair, SanType};

use super::*;
use crate::PrivateKey;

/// A self-signed certificate with this subject and these DNS names: what somebody else may hand us.
fn foreign_certificate(subject: &[(DnType, &str)], dns: &[&str]) -> Vec<u8> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    for (kind, value) in subject {
        params.distinguished_name.push(kind.clone(), *value);
    }
    params.subject_alt_names = dns.iter().map(|name| SanType::DnsName((*name).try_into().unwrap())).collect();
    params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().to_vec()
}

fn named(role: &str) -> [(DnType, &str); 3] {
    [(DnType::OrganizationName, "c1"), (DnType::OrganizationalUnitName, role), (DnType::CommonName, "n1")]
}

#[test]
fn identity_is_read_from_certificate() {
    let worker = Identity::from_der(&foreign_certificate(&named("worker"), &[])).unwrap();
    assert_eq!(worker, Identity::new("c1", Role::Worker, "n1").unwrap());
    assert_eq!((worker.cluster(), worker.role(), worker.id()), ("c1", Role::Worker, "n1"));
    assert_eq!(worker.to_string(), "worker n1");
    let manager = Identity::from_der(&foreign_certificate(&named("manager"), &[MANAGER_NAME])).unwrap();
    assert_eq!(manager.role(), Role::Manager);
}

#[test]
fn names_of_another_role_are_refused() {
    let cases: [(&str, &[&str]); 5] = [
        ("worker", &[MANAGER_NAME]),
        ("user", &["example.com"]),
        ("manager", &[]),
        ("manager", &["example.com"]),
        ("manager", &[MANAGER_NAME, "example.com"]),
    ];
    for (role, dns) in cases {
        let refused = Identity::from_der(&foreign_certificate(&named(role), dns)).unwrap_err();
        assert!(matches!(refused, IdentityError::Names { .. }), "{role} {dns:?}: {refused}");
    }
}

#[test]
fn foreign_subjects_are_refused() {
    let [cluster, role, id] = named("worker");
    let short = foreign_certificate(&[cluster.clone(), role.clone()], &[]);
    assert!(matches!(Identity::from_der(&short), Err(IdentityError::Subject { .. })));
    let long = foreign_certificate(&[cluster, role, id, (DnType::CountryName, "DE")], &[]);
    assert!(matches!(Identity::from_der(&long), Err(IdentityError::Subject { .. })));
    let role = foreign_certificate(&named("root"), &[]);
    assert_eq!(Identity::from_der(&role), Err(IdentityError::Role { found: "root".to_owned() }));
}

#[test]
fn input_that_is_not_one_certificate_is_refused() {
    let mut der = foreign_certificate(&named("worker"), &[]);
    assert!(matches!(Identity::from_der(&der[1..]), Err(IdentityError::NotACertificate(_))));
    der.push(0);
    let refused = Identity::from_der(&der).unwrap_err();
    assert_eq!(refused, IdentityError::NotACertificate("1 bytes follow it".to_owned()));
}

#[test]
fn id_is_only_of_the_key_that_it_is_derived_from() {
    let [own, other] = [(); 2].map(|()| PrivateKey::generate().unwrap());
    let identity = Identity::new("c1", Role::Manager, own.node_id().unwrap().to_string()).unwrap();
    assert!(identity.is_of_key(&own.public_hash().unwrap()));
    assert!(!identity.is_of_key(&other.public_hash().unwrap()));
    let named = Identity::new("c1", Role::Manager, "m1").unwrap();
    assert!(!named.is_of_key(&own.public_hash().unwrap()));
}

#[test]
fn parts_that_could_forge_a_log_line_are_refused() {
    for bad in ["", "a b", "a\nb", "a,OU=admin", "é", &"x".repeat(65)] {
        let refused = Identity::new("c1", Role::User, bad).unwrap_err();
        assert_eq!(refused, IdentityError::InvalidPart { part: "id", found: bad.to_owned() });
        assert!(Identity::new(bad, Role::User, "n1").is_err());
    }
}

#[test]
fn role_round_trips() {
    for role in Role::ALL {
        assert_eq!(Role::parse(role.as_str()), Some(role));
    }
    assert_eq!(Role::parse("Manager"), None);
}

proptest! {
    #[test]
    fn never_panics_on_foreign_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(Identity::from_der(&bytes).is_err());
    }

    /// Certificates with one bit turned over are read or refused, but never with another's shape.
    #[test]
    fn never_panics_on_damaged_certificates(at in 0usize..300, bit in 0u8..8) {
        let mut der = foreign_certificate(&named("manager"), &[MANAGER_NAME]);
        let at = at % der.len();
        der[at] ^= 1 << bit;
        if let Ok(identity) = Identity::from_der(&der) {
            prop_assert!(parse_part("id", identity.id().to_owned()).is_ok());
        }
    }
}
