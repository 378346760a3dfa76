use std::collections::BTreeMap;

use warren_types::{Id, LoginToken, PublicKeyHash, RevokedKey, Timestamp, TokenHash, User, UserId, UserRole};

use super::{check, revoked_key, user};

#[test]
fn every_user_field_changes_hash() {
    let login = LoginToken { hash: TokenHash([1; 32]), expires_at: Timestamp(5), used_by: None };
    let given = User {
        id: UserId(Id(1)),
        name: "ann".parse().unwrap(),
        role: UserRole::Viewer,
        version: 1,
        created_at: Timestamp(1),
        expires_at: None,
        login: Some(login),
        keys: BTreeMap::from([(PublicKeyHash([1; 32]), Timestamp(2))]),
    };
    let changes: &[fn(&mut User)] = &[
        |u| u.id = UserId(Id(2)),
        |u| u.name = "bob".parse().unwrap(),
        |u| u.role = UserRole::Admin,
        |u| u.role = UserRole::Operator,
        |u| u.version = 2,
        |u| u.created_at = Timestamp(2),
        |u| u.expires_at = Some(Timestamp(0)),
        |u| u.expires_at = Some(Timestamp(1)),
        |u| u.login = None,
        |u| u.login.as_mut().unwrap().hash = TokenHash([2; 32]),
        |u| u.login.as_mut().unwrap().expires_at = Timestamp(6),
        |u| u.login.as_mut().unwrap().used_by = Some(PublicKeyHash([1; 32])),
        |u| u.keys.extend([(PublicKeyHash([2; 32]), Timestamp(2))]),
        |u| u.keys.extend([(PublicKeyHash([1; 32]), Timestamp(3))]),
        |u| u.keys.clear(),
    ];
    check(user, &given, changes);
}

#[test]
fn every_field_of_a_revoked_key_changes_hash() {
    let given = (PublicKeyHash([1; 32]), RevokedKey { holder: "ann".to_owned(), revoked_at: Timestamp(1) });
    let changes: &[fn(&mut (PublicKeyHash, RevokedKey))] = &[
        |r| r.0 = PublicKeyHash([2; 32]),
        |r| r.1.holder = "bob".to_owned(),
        |r| r.1.revoked_at = Timestamp(2),
    ];
    check(|(key, revoked)| revoked_key(key, revoked), &given, changes);
}
