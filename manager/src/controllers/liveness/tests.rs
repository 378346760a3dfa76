//! Contacts of all managers, and when a leader's clocks start.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::mpsc;
use warren_core::liveness::JUST_HEARD;
use warren_core::{Command, LEVEL, State};
use warren_types::{ClusterId, Id, ManagerId, NodeDescription, NodeRole, NodeStatus, TokenHash, TokenId};

use super::*;
use crate::session::registry::Registered;
use crate::store::Role;

const AT: Timestamp = Timestamp(1);
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
        level: LEVEL,
        at: AT,
    };
    let join = Command::JoinManager {
        hash,
        id: ManagerId(Id(12)),
        name: "m2".parse().unwrap(),
        address: "10.0.0.2:8080".parse().unwrap(),
        level: LEVEL,
        at: AT,
    };
    let (id, ranges) = (ClusterId(Id(1)), vec!["10.0.0.0/8".parse().unwrap()]);
    let (role, token) = (NodeRole::Manager, TokenId(Id(5)));
    let name = "n7".parse().unwrap();
    let commands = [
        Command::CreateCluster { id, ranges, level: LEVEL, at: AT },
        register,
        Command::CreateToken { id: token, role, hash, expires_at: None, max_uses: None, at: AT },
        join,
        Command::RegisterNode {
            id: NODE,
            name,
            role: NodeRole::Worker,
            description: description.clone(),
            at: AT,
        },
        Command::OpenSession { node: NODE, description, manager: 2, at: AT },
    ];
    for (index, command) in (1..).zip(&commands) {
        let outcome = state.apply(1, index, command);
        assert!(!matches!(outcome, warren_core::Outcome::Rejected(_)), "{command:?}: {outcome:?}");
    }
    assert_eq!(state.node(&NODE).unwrap().status, NodeStatus::Ready);
    state
}

fn leads(term: u64) -> Published {
    let role = Role { leader: true, leader_id: Some(1), term, may_plan: true };
    Published { role, ..Published::first(state()) }
}

/// The other manager, as the leader hears it: the age of its contact with the node.
struct Other(Arc<AtomicU64>);

const SILENT: u64 = u64::MAX;

impl Other {
    fn new(age: u64) -> Self {
        Self(Arc::new(AtomicU64::new(age)))
    }

    fn says(&self, age: Duration) {
        self.0.store(u64::try_from(age.as_millis()).unwrap(), Ordering::Relaxed);
    }

    fn ask(&self) -> AskContacts {
        let age = self.0.clone();
        Arc::new(move |member, _| {
            assert_eq!(member, 2, "nobody asks itself");
            let age_ms = age.load(Ordering::Relaxed);
            Box::pin(async move {
                if age_ms == SILENT {
                    return std::future::pending().await;
                }
                Some(vec![v1::Contact { node_id: NODE.to_string(), session: 1, age_ms }])
            })
        })
    }
}

async fn looks(listening: &Listening, published: &Published) -> Vec<Command> {
    let told = listening.ask(published, 1).await;
    listening.judge(published, told, AT).commands
}

/// Looks every second, for so long; what was planned the last time.
async fn looks_for(listening: &Listening, published: &Published, how_long: Duration) -> Vec<Command> {
    let end = Instant::now() + how_long;
    loop {
        let commands = looks(listening, published).await;
        if Instant::now() >= end {
            return commands;
        }
        tokio::time::advance(LISTEN).await;
    }
}

fn is_down(commands: &[Command]) -> bool {
    matches!(commands, [Command::SetNodeStatus { node: NODE, status: NodeStatus::Down, .. }])
}

#[tokio::test(start_paused = true)]
async fn a_node_that_another_manager_hears_is_not_silent() {
    let other = Other::new(0);
    let listening = Listening::new(Registry::default(), other.ask());
    let published = leads(1);
    assert!(looks_for(&listening, &published, 3 * LIMIT).await.is_empty());
    other.says(LIMIT + Duration::from_secs(1));
    assert!(looks(&listening, &published).await.is_empty(), "a word that is older says nothing");
    let commands = looks_for(&listening, &published, LIMIT + LISTEN).await;
    assert!(is_down(&commands), "that one has not heard it any more either");
}

#[tokio::test(start_paused = true)]
async fn a_node_is_down_when_its_last_word_is_too_old() {
    let other = Other::new(0);
    let listening = Listening::new(Registry::default(), other.ask());
    let published = leads(1);
    assert!(looks_for(&listening, &published, LIMIT).await.is_empty());
    for age in 0..=9 {
        other.says(LISTEN * age);
        assert_eq!(is_down(&looks(&listening, &published).await), LISTEN * age > LIMIT, "after {age} s");
        tokio::time::advance(LISTEN).await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_silence_of_nodes_begins_with_that_of_their_manager() {
    for (age, has_missed_a_sync) in [(JUST_HEARD, false), (JUST_HEARD + LISTEN, true)] {
        let other = Other::new(0);
        other.says(age);
        let listening = Listening::new(Registry::default(), other.ask());
        let published = leads(1);
        assert!(looks_for(&listening, &published, LIMIT).await.is_empty());
        other.0.store(SILENT, Ordering::Relaxed);
        let early = looks_for(&listening, &published, LIMIT - JUST_HEARD).await;
        assert_eq!(is_down(&early), has_missed_a_sync, "its last word was {age:?} before its manager's");
        assert!(is_down(&looks_for(&listening, &published, JUST_HEARD + LISTEN).await));
    }
}

#[tokio::test(start_paused = true)]
async fn a_new_leader_waits_for_everybodys_word_and_gives_nodes_their_time() {
    let other = Other::new(SILENT);
    let listening = Listening::new(Registry::default(), other.ask());
    let published = leads(1);
    let began = Instant::now();
    assert!(looks(&listening, &published).await.is_empty());
    assert_eq!(began.elapsed(), FIRST_WORD, "before it started any clock");
    looks(&listening, &published).await;
    assert_eq!(began.elapsed(), FIRST_WORD + WORD, "later it does not wait for long");
    assert!(is_down(&looks_for(&listening, &published, LIMIT).await));
    // Elected again, it knows nothing of before.
    assert!(looks(&listening, &leads(2)).await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_manager_that_stood_still_declares_nobody_dead() {
    let (other, registry) = (Other::new(SILENT), Registry::default());
    let session: Registered = registry.register(NODE, 1, mpsc::channel(1).0, Instant::now()).unwrap();
    let listening = Listening::new(registry.clone(), other.ask());
    let published = leads(1);
    assert!(looks(&listening, &published).await.is_empty());
    tokio::time::advance(10 * LIMIT).await;
    assert!(looks(&listening, &published).await.is_empty(), "what was said meanwhile is yet to be read");
    session.contact(Instant::now());
    assert!(looks_for(&listening, &published, LIMIT / 2).await.is_empty());
    assert!(is_down(&looks_for(&listening, &published, LIMIT).await));
}
