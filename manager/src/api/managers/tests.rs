use warren_security::{CaDigest, PrivateKey};

use super::*;

fn good() -> v1::JoinManagerRequest {
    let token = Token::generate(CaDigest::from_bytes([7; 32])).unwrap();
    let key = PrivateKey::generate().unwrap();
    v1::JoinManagerRequest {
        token: token.reveal().to_string(),
        certificate_request: CertificateRequest::create(&key).unwrap(),
        name: "m2".into(),
        address: "10.0.0.2:8080".into(),
        level: 2,
    }
}

fn paths(wrong: Violations) -> Vec<String> {
    wrong.0.into_iter().map(|violation| violation.path).collect()
}

#[test]
fn who_joins_names_everything_or_hears_what_is_wrong() {
    let join = Join::parse(good()).unwrap();
    assert_eq!((join.name.as_str(), join.level), ("m2", 2));
    let unnamed = Join::parse(v1::JoinManagerRequest { name: String::new(), ..good() }).unwrap();
    assert_eq!(unnamed.name.as_str(), format!("manager-{:.8}", unnamed.id.to_string()));
    let wrong = v1::JoinManagerRequest {
        token: "x".into(),
        certificate_request: "y".into(),
        name: "_".into(),
        address: "nowhere".into(),
        level: 0,
    };
    let wrong = paths(Join::parse(wrong).err().unwrap());
    assert_eq!(wrong, ["token", "certificateRequest", "name", "address"]);
}

#[test]
fn an_update_changes_something() {
    let request = |wanted: v1::Suffrage, address: &str| v1::UpdateManagerRequest {
        reference: "m1".into(),
        version: None,
        wanted: wanted.into(),
        address: address.into(),
    };
    let both = Update::parse(&request(v1::Suffrage::Learner, "a:1")).unwrap();
    assert_eq!(both.wanted, Some(Suffrage::Learner));
    assert_eq!(both.address, Some("a:1".parse().unwrap()));
    assert!(Update::parse(&request(v1::Suffrage::Unspecified, "a:1")).unwrap().wanted.is_none());
    let wrong = |request| paths(Update::parse(&request).err().unwrap());
    assert_eq!(wrong(request(v1::Suffrage::Unspecified, "")), ["wanted"]);
    assert_eq!(wrong(request(v1::Suffrage::Unspecified, "a")), ["address"]);
    assert_eq!(wrong(v1::UpdateManagerRequest { wanted: 9, ..request(v1::Suffrage::Voter, "") }), ["wanted"]);
}
