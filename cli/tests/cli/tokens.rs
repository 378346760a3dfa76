//! `warren token ...`: the secret is shown once, and never sent.

use serde_json::Value;

use crate::user::CliUser;

#[test]
fn a_token_is_shown_once_and_its_hash_is_sent() {
    let person = CliUser::new();
    let given = ["--role=worker", "--ttl=24h", "--uses=3", "--label=zone=b", "--label=pci=true"];
    let ran = person.warren(&[&["token", "create"], &given[..]].concat());
    assert_eq!(ran.code, 0, "{ran:?}");
    let text = ran.stdout.trim();
    let token = warren_security::JoinToken::parse(text).unwrap();
    assert_eq!(token.authority().to_string(), "ab".repeat(32));
    assert_eq!(person.manager.hashes(), [token.hash().0.to_vec()]);
    assert!(ran.stderr.starts_with("valid for 3 machines, within "), "{ran:?}");
    assert!(ran.stderr.ends_with(&format!("  warren worker join MANAGER:8080 --token {text}\n")), "{ran:?}");

    let shown: Value = serde_json::from_str(&person.ok(&["token", "ls", "-o", "json"])).unwrap();
    assert_eq!((&shown[0]["role"], &shown[0]["maxUses"]), (&"worker".into(), &3.into()));
    assert_eq!(shown[0]["labels"], serde_json::json!({"pci": "true", "zone": "b"}));
    assert!(person.ok(&["token", "ls", "--filter", "label=zone=b"]).contains("pci=true,zone=b"));
    assert!(!shown.to_string().contains(text), "{shown}");
    let id = shown[0]["id"].as_str().unwrap();
    assert_eq!(person.ok(&["token", "rm", &id[..6]]), format!("{id}\n"));
    assert_eq!(person.ok(&["token", "ls", "-o", "json"]), "[]\n");
    person.fails(3, &["token", "rm", id]);
}

#[test]
fn programs_get_a_document() {
    let person = CliUser::new();
    let ran = person.warren(&["token", "create", "--ttl=never", "-o", "json"]);
    let shown: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!((ran.stderr.as_str(), shown.get("expiresAt")), ("", None), "{ran:?}");
    let token = shown["token"].as_str().unwrap();
    let join = format!("warren worker join MANAGER:8080 --token {token}");
    assert_eq!(shown["joinCommand"], join);
    assert!(person.ok(&["token", "ls"]).contains("never"));
    let ran = person.warren(&["token", "create", "--quiet"]);
    assert!(ran.stderr.is_empty() && warren_security::JoinToken::parse(ran.stdout.trim()).is_ok(), "{ran:?}");
}

#[test]
fn manager_token_prints_join_command() {
    let person = CliUser::new();
    let ran = person.warren(&["token", "create", "--role=manager"]);
    let join = format!("  warren manager join MANAGER:8080 --token {}\n", ran.stdout.trim());
    assert!(ran.stderr.ends_with(&join), "{ran:?}");
    let listed: Value = serde_json::from_str(&person.ok(&["token", "ls", "-o", "json"])).unwrap();
    assert_eq!(listed[0]["role"], "manager");
}

#[test]
fn invalid_token_options_are_refused() {
    let person = CliUser::new();
    let output = person.fails(2, &["token", "create", "--role=admin"]);
    assert!(output.contains("admin is not supported by this version; worker and manager are"), "{output}");
    for wrong in ["--role=x", "--ttl=0s", "--ttl=x", "--uses=0", "--uses=-1", "--label=zone", "--label=a b=c"]
    {
        person.fails(2, &["token", "create", wrong]);
    }
    assert!(person.manager.hashes().is_empty());
}
