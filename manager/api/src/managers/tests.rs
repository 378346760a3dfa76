use warren_security::{CaDigest, PrivateKey};

use super::*;

fn valid_request() -> v1::JoinManagerRequest {
    let token = JoinToken::generate(CaDigest::from_bytes([7; 32])).unwrap();
    let key = PrivateKey::generate().unwrap();
    v1::JoinManagerRequest {
        token: token.reveal().to_string(),
        certificate_request: CertificateRequest::create(&key).unwrap(),
        name: "m2".into(),
        address: "10.0.0.2:8080".into(),
        feature_level: 2,
    }
}

fn violation_paths(wrong: Violations) -> Vec<String> {
    wrong.0.into_iter().map(|violation| violation.path).collect()
}

#[test]
fn join_with_invalid_fields_names_each() {
    let join = ManagerJoin::parse(valid_request()).unwrap();
    assert_eq!((join.name.as_str(), join.level), ("m2", 2));
    let unnamed =
        ManagerJoin::parse(v1::JoinManagerRequest { name: String::new(), ..valid_request() }).unwrap();
    assert_eq!(unnamed.name.as_str(), format!("manager-{:.8}", unnamed.id.to_string()));
    let wrong = v1::JoinManagerRequest {
        token: "x".into(),
        certificate_request: "y".into(),
        name: "_".into(),
        address: "nowhere".into(),
        feature_level: 0,
    };
    let wrong = violation_paths(ManagerJoin::parse(wrong).err().unwrap());
    assert_eq!(wrong, ["token", "certificateRequest", "name", "address"]);
}

#[test]
fn empty_update_is_rejected() {
    let request = |expected: v1::Suffrage, address: &str| v1::UpdateManagerRequest {
        reference: "m1".into(),
        version: None,
        desired_suffrage: expected.into(),
        address: address.into(),
    };
    let both = ManagerUpdate::parse(&request(v1::Suffrage::Learner, "a:1")).unwrap();
    assert_eq!(both.desired_suffrage, Some(Suffrage::Learner));
    assert_eq!(both.address, Some("a:1".parse().unwrap()));
    assert!(
        ManagerUpdate::parse(&request(v1::Suffrage::Unspecified, "a:1")).unwrap().desired_suffrage.is_none()
    );
    let wrong = |request| violation_paths(ManagerUpdate::parse(&request).err().unwrap());
    assert_eq!(wrong(request(v1::Suffrage::Unspecified, "")), ["desiredSuffrage"]);
    assert_eq!(wrong(request(v1::Suffrage::Unspecified, "a")), ["address"]);
    assert_eq!(
        wrong(v1::UpdateManagerRequest { desired_suffrage: 9, ..request(v1::Suffrage::Voter, "") }),
        ["desiredSuffrage"]
    );
}
