use proptest::prelude::*;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;

use super::*;

const CLUSTER: &str = "c1x";
const MINUTE: u64 = 60;
const DAY: u64 = 24 * 60 * MINUTE;

fn at(seconds: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(seconds)
}

/// 2026-11-20T00:00:00Z.
const NOW: u64 = 1_795_132_800;

fn authority() -> CertificateAuthority {
    CertificateAuthority::create(CLUSTER, at(NOW)).unwrap()
}

fn identity(role: Role) -> Identity {
    Identity::new(CLUSTER, role, "n1").unwrap()
}

fn with_certificate<T>(pem: &str, read: impl FnOnce(&X509Certificate<'_>) -> T) -> T {
    let der = &pem::parse_certificates(pem).unwrap()[0];
    read(&parse_der(der).unwrap())
}

fn validity(pem: &str) -> (i64, i64) {
    with_certificate(pem, |certificate| {
        let validity = certificate.validity();
        (validity.not_before.timestamp(), validity.not_after.timestamp())
    })
}

#[test]
fn certificate_has_identity_validity_and_usages() {
    let authority = authority();
    for (role, days, server) in [(Role::Manager, 90, true), (Role::Worker, 90, false), (Role::User, 1, false)]
    {
        let issued = authority.issue(&identity(role), at(NOW)).unwrap();
        assert_eq!(issued.identity(), &identity(role));
        assert_eq!(issued.expires_at(), at(NOW + days * DAY));
        let expected = ((NOW - 5 * MINUTE) as i64, (NOW + days * DAY) as i64);
        assert_eq!(validity(issued.certificate_pem()), expected);
        with_certificate(issued.certificate_pem(), |certificate| {
            let usage = certificate.extended_key_usage().unwrap().unwrap().value;
            assert_eq!((usage.client_auth, usage.server_auth, usage.any), (true, server, false));
            assert!(!certificate.is_ca());
        });
    }
    assert_eq!(validity(authority.certificate_pem()).1, (NOW + 20 * 365 * DAY) as i64);
}

#[test]
fn web_server_has_names_and_is_neither_client_nor_manager() {
    let names = ["10.0.0.7", "m1.example.com", MANAGER_NAME].map(str::to_owned);
    let (issued, _) = authority().issue_web_server(&names, at(NOW)).unwrap();
    with_certificate(&issued, |certificate| {
        assert!(Identity::try_from(certificate).is_err());
        let usage = certificate.extended_key_usage().unwrap().unwrap().value;
        assert_eq!((usage.client_auth, usage.server_auth, usage.any), (false, true, false));
        let names = certificate.subject_alternative_name().unwrap().unwrap().value.general_names.clone();
        let expected = [GeneralName::IPAddress(&[10, 0, 0, 7]), GeneralName::DNSName("m1.example.com")];
        assert_eq!(names, expected);
    });
}

#[test]
fn serial_numbers_differ_even_for_one_key() {
    let (authority, key) = (authority(), PrivateKey::generate().unwrap());
    let request = CertificateRequest::parse(&CertificateRequest::create(&key).unwrap()).unwrap();
    let serial = || {
        let pem = authority.sign_node(NodeRole::Worker, &request, at(NOW), Duration::MAX).unwrap();
        with_certificate(&pem, |certificate| certificate.raw_serial().to_vec())
    };
    assert_ne!(serial(), serial());
}

#[test]
fn a_request_gives_its_key_and_nothing_else() {
    let (authority, key) = (authority(), PrivateKey::generate().unwrap());
    let mut greedy = CertificateParams::new(vec![MANAGER_NAME.to_owned()]).unwrap();
    greedy.distinguished_name = identity(Role::Manager).subject();
    let greedy = greedy.serialize_request(&*key.pair().unwrap()).unwrap().pem().unwrap();
    let request = CertificateRequest::parse(&greedy).unwrap();
    let certificate = authority.sign_node(NodeRole::Worker, &request, at(NOW), Duration::MAX).unwrap();
    let id = key.node_id().unwrap().to_string();
    let issued = Credentials::new(certificate, key).unwrap();
    assert_eq!(issued.identity(), &Identity::new(CLUSTER, Role::Worker, id).unwrap());
}

#[test]
fn node_id_depends_only_on_the_key() {
    let (authority, key) = (authority(), PrivateKey::generate().unwrap());
    let request = CertificateRequest::parse(&CertificateRequest::create(&key).unwrap()).unwrap();
    for role in [NodeRole::Worker, NodeRole::Manager] {
        for _ in 0..2 {
            let pem = authority.sign_node(role, &request, at(NOW), Duration::from_secs(MINUTE)).unwrap();
            let issued = Credentials::new(pem, key.clone()).unwrap();
            let id = key.node_id().unwrap().to_string();
            assert_eq!(issued.identity(), &Identity::new(CLUSTER, role.into(), id).unwrap());
            assert_eq!((issued.issued_at(), issued.expires_at()), (at(NOW), at(NOW + MINUTE)));
            authority.roots().check_issued(&issued).unwrap();
        }
        let pem = authority.sign_node(role, &request, at(NOW), Duration::MAX).unwrap();
        assert_eq!(Credentials::new(pem, key.clone()).unwrap().expires_at(), at(NOW + 365 * DAY));
    }
}

#[test]
fn user_gets_the_requested_lifetime() {
    let (authority, key) = (authority(), PrivateKey::generate().unwrap());
    let request = CertificateRequest::parse(&CertificateRequest::create(&key).unwrap()).unwrap();
    let pem = authority.sign_user("ann", &request, at(NOW), Duration::from_secs(90 * DAY)).unwrap();
    let issued = Credentials::new(pem, key).unwrap();
    assert_eq!(issued.identity(), &Identity::new(CLUSTER, Role::User, "ann").unwrap());
    assert_eq!((issued.issued_at(), issued.expires_at()), (at(NOW), at(NOW + 90 * DAY)));
    authority.roots().check_issued(&issued).unwrap();
    // The issuing clock was ahead, or half of the lifetime is past.
    for (now, is_past) in
        [(NOW - 301, true), (NOW, false), (NOW + 45 * DAY - 1, false), (NOW + 45 * DAY, true)]
    {
        assert_eq!(issued.is_past_half(at(now)), is_past, "{now}");
    }
}

#[test]
fn renewal_is_spread_over_the_last_third() {
    let authority = authority();
    let issued = authority.issue(&identity(Role::Worker), at(NOW)).unwrap();
    assert_eq!(issued.renew_at(0), at(NOW + 60 * DAY));
    let (half, last) = (issued.renew_at(u64::MAX / 2), issued.renew_at(u64::MAX));
    assert!(at(NOW + 63 * DAY) < half && half < at(NOW + 64 * DAY), "{half:?}");
    assert!(at(NOW + 67 * DAY) < last && last < at(NOW + 68 * DAY), "{last:?}");
    for chance in [0, 1, u64::MAX / 3, u64::MAX] {
        let due = issued.renew_at(chance);
        assert!(!issued.is_renewal_due(due - Duration::from_secs(1), chance));
        assert!(issued.is_renewal_due(due, chance));
    }
    // Issued under a clock that was ahead: nobody takes it before its validity begins.
    for (now, early) in [(NOW - 301, true), (NOW - 300, false), (NOW, false)] {
        assert_eq!((issued.is_not_yet_valid(at(now)), issued.is_renewal_due(at(now), 0)), (early, early));
    }
}

#[test]
fn short_validity_has_not_ended_at_issue() {
    let (authority, key) = (authority(), PrivateKey::generate().unwrap());
    let request = CertificateRequest::parse(&CertificateRequest::create(&key).unwrap()).unwrap();
    let pem = authority.sign_node(NodeRole::Worker, &request, at(NOW), Duration::from_secs(30)).unwrap();
    let issued = Credentials::new(pem, key).unwrap();
    assert_eq!(issued.renew_at(0), at(NOW + 20));
}

#[test]
fn foreign_certificate_is_not_ours() {
    let (ours, theirs) = (authority(), authority());
    let issued = theirs.issue(&identity(Role::Worker), at(NOW)).unwrap();
    let refused = ours.roots().check_issued(&issued).unwrap_err();
    assert!(matches!(refused, MaterialError::NotIssued(_)));
    // Also with both, and long after its end.
    let both = format!("{}{}", ours.certificate_pem(), theirs.certificate_pem());
    Roots::parse(&both).unwrap().check_issued(&issued).unwrap();
    let old = ours.issue(&identity(Role::Worker), at(NOW + 3 * DAY)).unwrap();
    ours.roots().check_issued(&old).unwrap();
}

#[test]
fn issues_only_for_its_cluster_and_validity() {
    let authority = authority();
    let foreign = Identity::new("c2x", Role::User, "eve").unwrap();
    let refused = authority.issue(&foreign, at(NOW)).unwrap_err();
    assert!(matches!(refused, AuthorityError::OtherCluster { .. }));

    let end = NOW + 20 * 365 * DAY;
    let late = authority.issue(&identity(Role::User), at(end - DAY / 2)).unwrap();
    assert_eq!(late.expires_at(), at(end));
    let refused = authority.issue(&identity(Role::User), at(end)).unwrap_err();
    assert!(matches!(refused, AuthorityError::Expired));
    let refused = CertificateAuthority::create(CLUSTER, UNIX_EPOCH - Duration::from_secs(1)).unwrap_err();
    assert!(matches!(refused, AuthorityError::Clock));
    let refused = CertificateAuthority::create("two words", at(NOW)).unwrap_err();
    assert!(matches!(refused, AuthorityError::Identity(_)));
}

#[test]
fn validity_is_capped_at_the_format_limit() {
    let authority = CertificateAuthority::create(CLUSTER, at(MAX_NOT_AFTER.as_secs() + DAY)).unwrap();
    assert_eq!(validity(authority.certificate_pem()).1, MAX_NOT_AFTER.as_secs() as i64);
}

#[test]
fn an_authority_survives_its_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ca.pem");
    let authority = authority();
    authority.save(&path).unwrap();
    authority.save(&path).unwrap();
    let again = CertificateAuthority::load(&path).unwrap();
    assert_eq!((again.cluster(), again.digest()), (CLUSTER, authority.digest()));
    assert_eq!(again.roots().digests(), [authority.digest()]);
    assert_eq!(authority.digest().to_string().len(), 64);
    let issued = again.issue(&identity(Role::User), at(NOW)).unwrap();

    let refused = CertificateAuthority::parse(again.certificate_pem(), issued.key().pem()).unwrap_err();
    assert!(matches!(refused, MaterialError::KeyMismatch));
    let refused = CertificateAuthority::parse(issued.certificate_pem(), issued.key().pem()).unwrap_err();
    assert!(matches!(refused, MaterialError::NotAnAuthority));
    assert!(matches!(Roots::parse(issued.certificate_pem()), Err(MaterialError::NotAnAuthority)));
}

#[test]
fn credentials_round_trip_and_wrong_file_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("node.pem");
    let authority = authority();
    let issued = authority.issue(&identity(Role::Worker), at(NOW)).unwrap();
    issued.save(&path).unwrap();
    let again = Credentials::load(&path).unwrap();
    assert_eq!((again.identity(), again.to_pem()), (issued.identity(), issued.to_pem()));

    let other = authority.issue(&identity(Role::Worker), at(NOW)).unwrap();
    let mixed = Credentials::new(issued.certificate_pem(), other.key().clone()).unwrap_err();
    assert!(matches!(mixed, MaterialError::KeyMismatch));
    for bad in [
        "",
        issued.certificate_pem(),
        issued.key().pem(),
        &format!("{}{}", *issued.to_pem(), *other.to_pem()),
    ] {
        files::write_private(&path, bad.as_bytes()).unwrap();
        let text = Credentials::load(&path).unwrap_err().to_string();
        assert!(text.contains(path.to_str().unwrap()), "{text}");
    }
}

#[test]
fn nothing_secret_is_shown() {
    let authority = authority();
    let issued = authority.issue(&identity(Role::User), at(NOW)).unwrap();
    let shown = format!("{authority:?} {issued:?} {:?}", CertificateBundle::parse(&issued.to_pem()).unwrap());
    for secret in [authority.key(), issued.key()] {
        let body = secret.pem().lines().nth(1).unwrap();
        assert!(body.len() > 20 && !shown.contains(body));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn every_identity_reads_back_from_its_certificate(
        id in "[a-zA-Z0-9._@:+-]{1,64}", role in proptest::sample::select(Role::ALL.to_vec()),
    ) {
        let identity = Identity::new(CLUSTER, role, id).unwrap();
        let issued = authority().issue(&identity, at(NOW)).unwrap();
        let der = &pem::parse_certificates(issued.certificate_pem()).unwrap()[0];
        prop_assert_eq!(Identity::from_der(der).unwrap(), identity);
    }
}
