use std::sync::Arc;

use warren_core::{Command, Digest, LEVEL};
use warren_types::{ClusterId, Id, ManagerId, NodeRole, Timestamp, TokenHash, TokenId};

use super::*;
use crate::agreement::Ground;

const AT: Timestamp = Timestamp(1);

/// Managers 1, 2 and 3; 4 takes the place of 3.
fn published(voters: &[u64], learners: &[u64]) -> Published {
    let hash = TokenHash([7; 32]);
    let address = |number: u8| format!("10.0.0.{number}:8080").parse().unwrap();
    let join = |id, number: u8| Command::JoinManager {
        hash,
        id: ManagerId(Id(id)),
        name: format!("m{number}").parse().unwrap(),
        address: address(number),
        level: LEVEL,
        at: AT,
    };
    let ranges = vec!["10.0.0.0/8".parse().unwrap()];
    let commands = [
        Command::CreateCluster { id: ClusterId(Id(1)), ranges, level: LEVEL, at: AT },
        Command::RegisterMember {
            member: 1,
            id: ManagerId(Id(11)),
            name: "m1".parse().unwrap(),
            address: address(1),
            level: LEVEL,
            at: AT,
        },
        Command::CreateToken {
            id: TokenId(Id(5)),
            role: NodeRole::Manager,
            hash,
            expires_at: None,
            max_uses: None,
            at: AT,
        },
        join(12, 2),
        join(13, 3),
        join(14, 3),
    ];
    let mut state = State::new();
    for (index, command) in (1..).zip(&commands) {
        let outcome = state.apply(1, index, command);
        assert!(!matches!(outcome, warren_core::Outcome::Rejected(_)), "{command:?}: {outcome:?}");
    }
    let group = ConfState { learners: learners.to_vec(), ..ConfState::of_voters(voters.to_vec()) };
    Published { members: Arc::new(group), ..Published::first(state) }
}

fn told(member: u64, leader: u64, term: u64) -> v1::StatusResponse {
    let applied = 10 + member;
    v1::StatusResponse { member, leader, term, applied, version: "1".into(), ..Default::default() }
}

fn census(told: Vec<v1::StatusResponse>) -> Census {
    let told = told.into_iter().map(|status| (status.member, status)).collect();
    Census { told, taken: true, ..Census::default() }
}

fn shown(census: &Census, published: &Published) -> Vec<v1::Manager> {
    published.state.members().map(|member| census.show(published, member)).collect()
}

#[test]
fn each_manager_is_what_the_group_and_itself_say() {
    let published = published(&[1, 2, 3], &[4]);
    let waits = v1::StatusResponse {
        waits: "manager 4 replaces manager 3, which still answers; stop that one or remove it".into(),
        waits_for: 4,
        sessions: 7,
        ..told(1, 1, 5)
    };
    let census = census(vec![waits, told(2, 1, 5), told(4, 1, 5)]);
    let managers = shown(&census, &published);
    let suffrages: Vec<_> = managers.iter().map(v1::Manager::suffrage).collect();
    let (voter, learner) = (v1::Suffrage::Voter, v1::Suffrage::Learner);
    assert_eq!(suffrages, [voter, voter, voter, learner]);
    assert!(managers.iter().all(|manager| manager.wanted() == voter));
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
            "it does not answer the manager that was asked; member 4, of the same name, takes its place",
            "manager m3 replaces manager m3, which still answers; stop that one or remove it"
        ]
    );
    assert_eq!(census.term(), 5);
}

#[test]
fn manager_that_knows_of_lost_entries_says_so_in_its_row() {
    let published = published(&[1, 2, 3], &[]);
    let lost = v1::StatusResponse { durability: "entry 8 may have been lost".into(), ..told(2, 1, 5) };
    let managers = shown(&census(vec![told(1, 1, 5), lost, told(3, 1, 5), told(4, 1, 5)]), &published);
    assert_eq!(
        (managers[0].reason.as_str(), managers[1].reason.as_str()),
        ("", "entry 8 may have been lost")
    );
}

#[test]
fn what_concerns_all_is_said_of_those_who_wait() {
    let published = published(&[1], &[2, 3]);
    let quorum = v1::StatusResponse { waits: "of the 3 voters only 1 answer".into(), ..told(1, 1, 5) };
    let managers = shown(&census(vec![quorum, told(2, 1, 5), told(3, 1, 5), told(4, 1, 5)]), &published);
    assert_eq!(managers[0].reason, "");
    assert_eq!(managers[1].reason, "of the 3 voters only 1 answer");
    assert_eq!(managers[3].suffrage(), v1::Suffrage::Unspecified, "it is not in the group yet");
}

#[test]
fn only_who_says_it_of_itself_leads_and_the_newest_term_counts() {
    let (leader, peers) = (vec![v1::PeerStatus { member: 2, matched: 9, active: true }], 1);
    let new = v1::StatusResponse { peers: leader, ..told(3, 3, 6) };
    let known = census(vec![told(1, 1, 5), told(2, 3, 6), new]);
    let (leader, found, applied) = known.leader().unwrap();
    assert_eq!((leader, found.len(), applied), (3, peers, 13));
    assert_eq!(found[0], Peer { id: 2, matched: 9, active: true, silent: false });
    assert!(census(vec![told(2, 3, 6)]).leader().is_none(), "the leader was not heard");
    assert!(census(vec![told(2, 0, 6)]).leader().is_none());
    assert!(!known.answers(4) && known.answers(3));
}

#[test]
fn a_state_that_is_not_that_of_the_others_is_told() {
    let published = published(&[1, 2, 3], &[]);
    let found = Digest { index: 9, value: 255 };
    let difference = Difference { found, wanted: 16, others: vec![1, 2], ground: Ground::Most(3) };
    let mut census = census([1, 2, 3, 4].map(|member| told(member, 1, 5)).to_vec());
    census.differ.insert(3, difference);
    let managers = shown(&census, &published);
    assert_eq!((managers[0].reason.as_str(), managers[1].reason.as_str()), ("", ""));
    let wanted = "its state after entry 9 has the digest 00000000000000ff, that of manager m1 and manager m2 has \
                  0000000000000010: remove it";
    assert!(managers[2].reason.starts_with(wanted), "{}", managers[2].reason);
}

#[test]
fn who_was_not_asked_is_neither_there_nor_away() {
    let published = published(&[1], &[]);
    let managers = shown(&Census::of_nobody(), &published);
    assert!(managers.iter().all(|manager| manager.status() == v1::ManagerStatus::Unspecified));
    assert_eq!(managers[1].reason, "");
}

#[test]
fn texts_call_managers_by_name() {
    let published = published(&[1], &[]);
    let named = |text| named(&published.state, text);
    assert_eq!(named("manager 2 is 7 entries behind"), "manager m2 is 7 entries behind");
    assert_eq!(named("manager 1, manager 9; 3"), "manager m1, manager 9; 3");
    assert_eq!(named(""), "");
}
