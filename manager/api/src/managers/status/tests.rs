use std::sync::Arc;

use warren_core::{Command, FEATURE_LEVEL, StateDigest};
use warren_store::state_comparison::DivergenceEvidence;
use warren_types::{ClusterId, Id, ManagerId, NodeRole, Timestamp, TokenHash, TokenId};

use super::*;

const AT: Timestamp = Timestamp(1);

/// Managers 1, 2 and 3; 4 replaces 3.
fn published(voters: &[u64], learners: &[u64]) -> PublishedState {
    let hash = TokenHash([7; 32]);
    let address = |number: u8| format!("10.0.0.{number}:8080").parse().unwrap();
    let join = |id, number: u8| Command::JoinManager {
        hash,
        id: ManagerId(Id(id)),
        name: format!("m{number}").parse().unwrap(),
        address: address(number),
        level: FEATURE_LEVEL,
        at: AT,
    };
    let ranges = vec!["10.0.0.0/8".parse().unwrap()];
    let commands = [
        Command::CreateCluster { id: ClusterId(Id(1)), ranges, feature_level: FEATURE_LEVEL, at: AT },
        Command::RegisterMember {
            member: 1,
            id: ManagerId(Id(11)),
            name: "m1".parse().unwrap(),
            address: address(1),
            level: FEATURE_LEVEL,
            at: AT,
        },
        Command::CreateToken {
            id: TokenId(Id(5)),
            role: NodeRole::Manager,
            hash,
            expires_at: None,
            max_uses: None,
            labels: Default::default(),
            at: AT,
        },
        join(12, 2),
        join(13, 3),
        join(14, 3),
    ];
    let mut state = State::new();
    for (index, command) in (1..).zip(&commands) {
        let outcome = state.apply(1, index, command);
        assert!(!matches!(outcome, warren_core::ApplyOutcome::Rejected(_)), "{command:?}: {outcome:?}");
    }
    let group = ConfState { learners: learners.to_vec(), ..ConfState::of_voters(voters.to_vec()) };
    PublishedState { members: Arc::new(group), ..PublishedState::initial(state) }
}

fn reply(member: u64, leader: u64, term: u64) -> v1::StatusResponse {
    let applied = 10 + member;
    v1::StatusResponse { member_id: member, leader, term, applied, version: "1".into(), ..Default::default() }
}

fn statuses(reported: Vec<v1::StatusResponse>) -> ManagerStatuses {
    let sent = reported.into_iter().map(|status| (status.member_id, status)).collect();
    ManagerStatuses { replies: sent, was_queried: true, ..ManagerStatuses::default() }
}

fn show_all(counts: &ManagerStatuses, published: &PublishedState) -> Vec<v1::Manager> {
    published.state.members().map(|member| counts.show(published, member)).collect()
}

#[test]
fn row_combines_group_and_own_status() {
    let published = published(&[1, 2, 3], &[4]);
    let waits = v1::StatusResponse {
        wait_reason: "manager 4 replaces manager 3, which is still active; stop or remove manager 3".into(),
        wait_member_id: 4,
        sessions: 7,
        ..reply(1, 1, 5)
    };
    let counts = statuses(vec![waits, reply(2, 1, 5), reply(4, 1, 5)]);
    let managers = show_all(&counts, &published);
    let suffrages: Vec<_> = managers.iter().map(v1::Manager::suffrage).collect();
    let (voter, learner) = (v1::Suffrage::Voter, v1::Suffrage::Learner);
    assert_eq!(suffrages, [voter, voter, voter, learner]);
    assert!(managers.iter().all(|manager| manager.desired_suffrage() == voter));
    assert_eq!(
        managers.iter().map(|manager| manager.leader).collect::<Vec<_>>(),
        [true, false, false, false]
    );
    let ready: Vec<_> = managers.iter().map(|manager| manager.status() == v1::ManagerStatus::Ready).collect();
    assert_eq!(ready, [true, true, false, true]);
    assert_eq!((managers[0].applied, managers[0].sessions, managers[2].applied), (11, 7, 0));
    let reasons: Vec<_> = managers.iter().map(|manager| manager.reason.as_str()).collect();
    assert_eq!(
        reasons,
        [
            "",
            "",
            "no reply to the queried manager; being replaced by member 4 of the same name",
            "manager m3 replaces manager m3, which is still active; stop or remove manager m3"
        ]
    );
    assert_eq!(counts.latest_term(), 5);
}

#[test]
fn lost_entries_are_shown_as_reason() {
    let published = published(&[1, 2, 3], &[]);
    let lost = v1::StatusResponse { durability: "entry 8 may have been lost".into(), ..reply(2, 1, 5) };
    let managers =
        show_all(&statuses(vec![reply(1, 1, 5), lost, reply(3, 1, 5), reply(4, 1, 5)]), &published);
    assert_eq!(
        (managers[0].reason.as_str(), managers[1].reason.as_str()),
        ("", "entry 8 may have been lost")
    );
}

#[test]
fn group_wait_reason_is_shown_on_waiting_members() {
    let published = published(&[1], &[2, 3]);
    let quorum =
        v1::StatusResponse { wait_reason: "only 1 of 3 voters are reachable".into(), ..reply(1, 1, 5) };
    let managers =
        show_all(&statuses(vec![quorum, reply(2, 1, 5), reply(3, 1, 5), reply(4, 1, 5)]), &published);
    assert_eq!(managers[0].reason, "");
    assert_eq!(managers[1].reason, "only 1 of 3 voters are reachable");
    assert_eq!(managers[3].suffrage(), v1::Suffrage::Unspecified, "it is not in the group yet");
}

#[test]
fn leader_is_self_reported_in_latest_term() {
    let (leader, peers) = (vec![v1::PeerStatus { member_id: 2, matched: 9, active: true }], 1);
    let new = v1::StatusResponse { peers: leader, ..reply(3, 3, 6) };
    let known = statuses(vec![reply(1, 1, 5), reply(2, 3, 6), new]);
    let (leader, found, applied) = known.leader().unwrap();
    assert_eq!((leader, found.len(), applied), (3, peers, 13));
    assert_eq!(found[0], PeerProgress { id: 2, matched: 9, active: true, silent: false });
    assert!(statuses(vec![reply(2, 3, 6)]).leader().is_none(), "the leader was not heard");
    assert!(statuses(vec![reply(2, 0, 6)]).leader().is_none());
    assert!(!known.is_reachable(4) && known.is_reachable(3));
}

#[test]
fn divergent_state_is_shown_as_reason() {
    let published = published(&[1, 2, 3], &[]);
    let found = StateDigest { index: 9, value: 255 };
    let difference = StateDivergence {
        actual: found,
        expected: 16,
        agreeing: vec![1, 2],
        evidence: DivergenceEvidence::Majority(3),
    };
    let mut counts = statuses([1, 2, 3, 4].map(|member| reply(member, 1, 5)).to_vec());
    counts.divergent.insert(3, difference);
    let managers = show_all(&counts, &published);
    assert_eq!((managers[0].reason.as_str(), managers[1].reason.as_str()), ("", ""));
    let desired = "state digest at index 9 is 00000000000000ff, expected 0000000000000010 as on manager m1 and \
                  manager m2: remove it";
    assert!(managers[2].reason.starts_with(desired), "{}", managers[2].reason);
}

#[test]
fn unqueried_manager_has_unknown_reachability() {
    let published = published(&[1], &[]);
    let managers = show_all(&ManagerStatuses::not_queried(), &published);
    assert!(managers.iter().all(|manager| manager.status() == v1::ManagerStatus::Unspecified));
    assert_eq!(managers[1].reason, "");
}

#[test]
fn reasons_use_manager_names() {
    let published = published(&[1], &[]);
    let named = |text| with_member_names(&published.state, text);
    assert_eq!(named("manager 2 is 7 entries behind"), "manager m2 is 7 entries behind");
    assert_eq!(named("manager 1, manager 9; 3"), "manager m1, manager 9; 3");
    assert_eq!(named(""), "");
}
