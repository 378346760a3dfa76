//! Contacts of all managers, and the start of a leader's timeouts.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::mpsc;
use warren_core::liveness::RECENT_CONTACT;
use warren_core::{Command, FEATURE_LEVEL, State};
use warren_session::registry::RegisteredSession;
use warren_store::ReplicaRole;
use warren_types::{
    ClusterId, Id, ManagerId, NodeDescription, NodeId, NodeRole, NodeStatus, TokenHash, TokenId,
};

use super::*;

const AT: Timestamp = Timestamp(1);
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
const FIRST_REPLY_TIMEOUT: Duration = Duration::from_secs(1);
const REPLY_TIMEOUT: Duration = Duration::from_millis(400);
/// As the cluster has it.
const LIMIT: Duration = Duration::from_secs(8);
const NODE: NodeId = NodeId(Id(7));

/// Two managers, and a node with a session at the second.
fn state() -> State {
    let mut state = State::new();
    let (hash, description) = (TokenHash([7; 32]), NodeDescription::default());
    let register = Command::RegisterMember {
        member: 1,
        id: ManagerId(Id(11)),
        name: "m1".parse().unwrap(),
        address: "10.0.0.1:8080".parse().unwrap(),
        level: FEATURE_LEVEL,
        at: AT,
    };
    let join = Command::JoinManager {
        hash,
        id: ManagerId(Id(12)),
        name: "m2".parse().unwrap(),
        address: "10.0.0.2:8080".parse().unwrap(),
        level: FEATURE_LEVEL,
        at: AT,
    };
    let (id, ranges) = (ClusterId(Id(1)), vec!["10.0.0.0/8".parse().unwrap()]);
    let (role, token) = (NodeRole::Manager, TokenId(Id(5)));
    let name = "n7".parse().unwrap();
    let commands = [
        Command::CreateCluster { id, ranges, feature_level: FEATURE_LEVEL, at: AT },
        register,
        Command::CreateToken {
            id: token,
            role,
            hash,
            expires_at: None,
            max_uses: None,
            labels: Default::default(),
            at: AT,
        },
        join,
        Command::RegisterNode {
            id: NODE,
            name,
            role: NodeRole::Worker,
            description: description.clone(),
            taints: Default::default(),
            at: AT,
        },
        Command::OpenSession { node: NODE, description, manager: 2, at: AT },
    ];
    for (index, command) in (1..).zip(&commands) {
        let outcome = state.apply(1, index, command);
        assert!(!matches!(outcome, warren_core::ApplyOutcome::Rejected(_)), "{command:?}: {outcome:?}");
    }
    assert_eq!(state.node(&NODE).unwrap().status, NodeStatus::Ready);
    state
}

fn leader_state(term: u64) -> PublishedState {
    let role = ReplicaRole { is_leader: true, leader_id: Some(1), term, can_plan: true };
    PublishedState { role, ..PublishedState::initial(state()) }
}

/// The other manager: the age of its contact with the node.
struct ScriptedManager(Arc<AtomicU64>);

const SILENT: u64 = u64::MAX;

impl ScriptedManager {
    fn new(age: u64) -> Self {
        Self(Arc::new(AtomicU64::new(age)))
    }

    fn set_contact_age(&self, age: Duration) {
        self.0.store(u64::try_from(age.as_millis()).unwrap(), Ordering::Relaxed);
    }

    fn fetch_contacts(&self) -> FetchContacts {
        let age = self.0.clone();
        Arc::new(move |member, _| {
            assert_eq!(member, 2, "no manager queries itself");
            let age_ms = age.load(Ordering::Relaxed);
            Box::pin(async move {
                if age_ms == SILENT {
                    return std::future::pending().await;
                }
                Some(vec![v1::NodeContact {
                    node_id: NODE.to_string(),
                    session: 1,
                    age_ms,
                    network_index: 0,
                }])
            })
        })
    }
}

async fn check(listening: &LivenessMonitor, published: &PublishedState) -> Vec<Command> {
    let reported = listening.fetch(published, 1).await;
    listening.plan(published, reported, AT).commands
}

/// Evaluates every second for this time; returns the last plan.
async fn check_for(
    listening: &LivenessMonitor,
    published: &PublishedState,
    how_long: Duration,
) -> Vec<Command> {
    let end = Instant::now() + how_long;
    loop {
        let commands = check(listening, published).await;
        if Instant::now() >= end {
            return commands;
        }
        tokio::time::advance(CHECK_INTERVAL).await;
    }
}

fn is_down(commands: &[Command]) -> bool {
    matches!(commands, [Command::SetNodeStatus { node: NODE, status: NodeStatus::Down, .. }])
}

#[tokio::test(start_paused = true)]
async fn node_seen_by_other_manager_is_live() {
    let other = ScriptedManager::new(0);
    let listening = LivenessMonitor::new(SessionRegistry::default(), other.fetch_contacts());
    let published = leader_state(1);
    assert!(check_for(&listening, &published, 3 * LIMIT).await.is_empty());
    other.set_contact_age(LIMIT + Duration::from_secs(1));
    assert!(check(&listening, &published).await.is_empty(), "a word that is older says nothing");
    let commands = check_for(&listening, &published, LIMIT + CHECK_INTERVAL).await;
    assert!(is_down(&commands), "that one has no contact with it any more either");
}

#[tokio::test(start_paused = true)]
async fn node_is_down_after_contact_limit() {
    let other = ScriptedManager::new(0);
    let listening = LivenessMonitor::new(SessionRegistry::default(), other.fetch_contacts());
    let published = leader_state(1);
    assert!(check_for(&listening, &published, LIMIT).await.is_empty());
    for age in 0..=9 {
        other.set_contact_age(CHECK_INTERVAL * age);
        assert_eq!(
            is_down(&check(&listening, &published).await),
            CHECK_INTERVAL * age > LIMIT,
            "after {age} s"
        );
        tokio::time::advance(CHECK_INTERVAL).await;
    }
}

#[tokio::test(start_paused = true)]
async fn node_silence_starts_with_its_manager() {
    for (age, has_missed_a_sync) in [(RECENT_CONTACT, false), (RECENT_CONTACT + CHECK_INTERVAL, true)] {
        let other = ScriptedManager::new(0);
        other.set_contact_age(age);
        let listening = LivenessMonitor::new(SessionRegistry::default(), other.fetch_contacts());
        let published = leader_state(1);
        assert!(check_for(&listening, &published, LIMIT).await.is_empty());
        other.0.store(SILENT, Ordering::Relaxed);
        let early = check_for(&listening, &published, LIMIT - RECENT_CONTACT).await;
        assert_eq!(is_down(&early), has_missed_a_sync, "its last word was {age:?} before its manager's");
        assert!(is_down(&check_for(&listening, &published, RECENT_CONTACT + CHECK_INTERVAL).await));
    }
}

#[tokio::test(start_paused = true)]
async fn new_leader_waits_for_reports_before_judging() {
    let other = ScriptedManager::new(SILENT);
    let listening = LivenessMonitor::new(SessionRegistry::default(), other.fetch_contacts());
    let published = leader_state(1);
    let began = Instant::now();
    assert!(check(&listening, &published).await.is_empty());
    assert_eq!(began.elapsed(), FIRST_REPLY_TIMEOUT, "before it started any clock");
    check(&listening, &published).await;
    assert_eq!(began.elapsed(), FIRST_REPLY_TIMEOUT + REPLY_TIMEOUT, "later it does not wait for long");
    assert!(is_down(&check_for(&listening, &published, LIMIT).await));
    // After its re-election the leader starts without history.
    assert!(check(&listening, &leader_state(2)).await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn paused_manager_marks_no_node_down() {
    let (other, registry) = (ScriptedManager::new(SILENT), SessionRegistry::default());
    let session: RegisteredSession = registry.register(NODE, 1, mpsc::channel(1).0, Instant::now()).unwrap();
    let listening = LivenessMonitor::new(registry.clone(), other.fetch_contacts());
    let published = leader_state(1);
    assert!(check(&listening, &published).await.is_empty());
    tokio::time::advance(10 * LIMIT).await;
    assert!(check(&listening, &published).await.is_empty(), "what was said meanwhile is yet to be read");
    session.record_contact(Instant::now());
    assert!(check_for(&listening, &published, LIMIT / 2).await.is_empty());
    assert!(is_down(&check_for(&listening, &published, LIMIT).await));
}
