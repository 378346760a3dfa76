use warren_types::{Id, NodeRole, Timestamp, Token, TokenHash, TokenId};

use super::{check, token};

#[test]
fn every_token_field_changes_hash() {
    let given = Token {
        id: TokenId(Id(1)),
        version: 1,
        role: NodeRole::Worker,
        hash: TokenHash([1; 32]),
        created_at: Timestamp(1),
        expires_at: None,
        uses: 0,
        max_uses: None,
        labels: Default::default(),
    };
    let changes: &[fn(&mut Token)] = &[
        |t| t.id = TokenId(Id(2)),
        |t| t.version = 2,
        |t| t.role = NodeRole::Manager,
        |t| t.hash = TokenHash([2; 32]),
        |t| t.created_at = Timestamp(2),
        |t| t.expires_at = Some(Timestamp(0)),
        |t| t.expires_at = Some(Timestamp(1)),
        |t| t.uses = 1,
        |t| t.max_uses = Some(0),
        |t| t.max_uses = Some(1),
        |t| drop(t.labels.insert("a".into(), String::new())),
    ];
    check(token, &given, changes);
}
