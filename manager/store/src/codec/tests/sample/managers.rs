//! Managers: the first one, a replaced one and its replacement, and one that is being removed.

use warren_core::{Command, FEATURE_LEVEL};
use warren_types::{Id, ManagerId, MemberId, NodeRole, Suffrage, Timestamp, TokenHash, TokenId};

const AT: Timestamp = Timestamp(250);
const HASH: TokenHash = TokenHash([3; 32]);

fn join(id: u128, name: &str, address: &str) -> Command {
    let (name, address) = (name.parse().unwrap(), address.parse().unwrap());
    Command::JoinManager { hash: HASH, id: ManagerId(Id(id)), name, address, level: FEATURE_LEVEL, at: AT }
}

/// They are entries 44 and on: the member 3 joins at 47 and has its version from there.
pub fn commands() -> Vec<(&'static str, Command)> {
    let (id, role, name) = (TokenId(Id(3)), NodeRole::Manager, "m1".parse().unwrap());
    let (first, level, address) = (ManagerId(Id(11)), FEATURE_LEVEL, "10.0.0.1:8080".parse().unwrap());
    let (expected, moved) = (Some(Suffrage::Learner), Some("m3.example.org:8080".parse().unwrap()));
    let remove = |member: MemberId| Command::RemoveMember { member, at: AT };
    vec![
        (
            "create_token_for_managers",
            Command::CreateToken {
                id,
                role,
                hash: HASH,
                expires_at: None,
                max_uses: None,
                labels: Default::default(),
                at: AT,
            },
        ),
        ("register_member", Command::RegisterMember { member: 1, id: first, name, address, level, at: AT }),
        ("join_manager", join(12, "m2", "[fd00::2]:8080")),
        ("join_manager_again", join(13, "m2", "[fd00::2]:8080")),
        ("join_third_manager", join(14, "m3", "10.0.0.3:8080")),
        ("join_fourth_manager", join(15, "m4", "10.0.0.4:8080")),
        (
            "update_member",
            Command::UpdateMember {
                member: 3,
                version: Some(47),
                desired_suffrage: expected,
                address: moved,
                at: AT,
            },
        ),
        ("remove_member", remove(4)),
        ("remove_another_member", remove(5)),
        ("delete_member", Command::DeleteMember { term: 1, member: 5 }),
    ]
}
