//! Join tokens.

use std::time::Duration;

use warren_core::state::MAX_TOKENS;
use warren_core::{ApplyOutcome, Command, CommandResponse, reap_tokens};
use warren_types::*;

use crate::test_cluster::*;

const HOUR: Duration = Duration::from_secs(3600);

fn token_id(number: u128) -> TokenId {
    TokenId(Id(number))
}

fn secret(number: u16) -> TokenHash {
    let mut hash = [0; 32];
    hash[..2].copy_from_slice(&number.to_be_bytes());
    TokenHash(hash)
}

fn create(
    cluster: &TestCluster,
    number: u16,
    expires_in: Option<Duration>,
    max_uses: Option<u32>,
) -> Command {
    Command::CreateToken {
        id: token_id(number.into()),
        role: NodeRole::Worker,
        hash: secret(number),
        expires_at: expires_in.map(|time| cluster.now + time),
        max_uses,
        labels: Default::default(),
        at: cluster.now,
    }
}

/// A token that gives the label.
fn create_with_label(cluster: &TestCluster, number: u16, key: &str, value: &str) -> Command {
    let mut command = create(cluster, number, None, None);
    let Command::CreateToken { labels, .. } = &mut command else { panic!() };
    labels.insert(key.to_owned(), value.to_owned());
    command
}

fn join(cluster: &TestCluster, token: u16, node: u128) -> Command {
    let (name, description) = (format!("node-{node}").parse().unwrap(), description(resources(1000, 512)));
    Command::JoinNode {
        hash: secret(token),
        id: node_id(node),
        name,
        description,
        taints: Default::default(),
        at: cluster.now,
    }
}

fn uses(cluster: &TestCluster, number: u128) -> u32 {
    cluster.state.token(&token_id(number)).unwrap().uses
}

#[test]
fn token_counts_once_per_machine() {
    let mut cluster = TestCluster::new();
    cluster.accept(create(&cluster, 1, None, Some(2)));
    let answer = cluster.accept(join(&cluster, 1, 1));
    assert!(matches!(answer, CommandResponse::Node { .. }));
    assert_eq!(
        cluster.apply(&join(&cluster, 1, 1)),
        ApplyOutcome::Unchanged { answer },
        "it may not know that it joined"
    );
    assert_eq!((uses(&cluster, 1), cluster.state.node(&node_id(1)).unwrap().role), (1, NodeRole::Worker));
    cluster.accept(join(&cluster, 1, 2));
    let refusal = cluster.refuse(join(&cluster, 1, 3));
    assert!(refusal.starts_with("the token has been used 2 times, which is its limit"), "{refusal}");
    cluster.accept(join(&cluster, 1, 2));
    assert_eq!(uses(&cluster, 1), 2);
}

#[test]
fn refused_join_does_not_use_token() {
    let mut cluster = TestCluster::with_nodes(1);
    cluster.accept(create(&cluster, 1, None, None));
    let same_name = Command::JoinNode {
        hash: secret(1),
        id: node_id(9),
        name: "node-1".parse().unwrap(),
        description: description(resources(1000, 512)),
        taints: Default::default(),
        at: cluster.now,
    };
    assert!(cluster.refuse(same_name).starts_with("node node-1 already exists"));
    assert!(cluster.refuse(join(&cluster, 2, 3)).starts_with("unknown token"));
    assert_eq!(uses(&cluster, 1), 0);
}

#[test]
fn secrets_follow_labels_of_tokens_and_not_of_agents() {
    let mut cluster = TestCluster::new();
    cluster.secret(7, "card-key", 1);
    let placement = constrained("web", 1, &["node.labels.pci == true"]).placement;
    cluster.service(1, ServiceSpec { placement, ..with_secrets("web", 1, &["card-key"]) });
    cluster.accept(create(&cluster, 1, None, None));
    cluster.accept(create_with_label(&cluster, 2, "pci", "true"));

    // A worker that says of itself that it has the label, when it joins and in its session.
    let mut labelled = join(&cluster, 2, 2);
    let mut self_labelled = join(&cluster, 1, 1);
    let Command::JoinNode { description, .. } = &mut self_labelled else { panic!() };
    description.labels.insert("pci".to_owned(), "true".to_owned());
    let (described, at) = (description.clone(), cluster.now);
    cluster.accept(self_labelled.clone());
    cluster.accept(Command::OpenSession { node: node_id(1), description: described, manager: 1, at });
    cluster.settle();
    assert_eq!(cluster.reason(1, 1), "0 of 1 nodes fit: 1 does not meet \"node.labels.pci == true\"");
    assert!(cluster.state.node(&node_id(1)).unwrap().labels.is_empty());

    // A known node gets no labels by another token.
    let Command::JoinNode { hash, .. } = &mut self_labelled else { panic!() };
    *hash = secret(2);
    cluster.accept(self_labelled);
    assert!(cluster.state.node(&node_id(1)).unwrap().labels.is_empty());

    cluster.accept(labelled.clone());
    cluster.connect(2);
    cluster.settle();
    assert_eq!(cluster.task(1, 1).node, Some(node_id(2)));

    // What users remove stays removed.
    cluster.label(2, "pci", None);
    let Command::JoinNode { at, .. } = &mut labelled else { panic!() };
    *at = cluster.now;
    cluster.accept(labelled);
    assert!(cluster.state.node(&node_id(2)).unwrap().labels.is_empty());
}

#[test]
fn labels_of_a_token_are_checked() {
    let mut cluster = TestCluster::new();
    let refusal = cluster.refuse(create_with_label(&cluster, 1, "a b", ""));
    assert!(refusal.starts_with("labels[\"a b\"]: a label's key has"), "{refusal}");
    let mut manager = create_with_label(&cluster, 1, "zone", "b");
    let Command::CreateToken { role, .. } = &mut manager else { panic!() };
    *role = NodeRole::Manager;
    assert!(cluster.refuse(manager).starts_with("labels: only workers get labels from a token"));
}

#[test]
fn tokens_expire_and_are_forgotten_a_day_later() {
    let mut cluster = TestCluster::new();
    cluster.accept(create(&cluster, 1, Some(HOUR), None));
    cluster.accept(create(&cluster, 2, None, None));
    cluster.advance_time(HOUR);
    assert!(cluster.refuse(join(&cluster, 1, 1)).starts_with("the token has expired"));
    let plan = cluster.carry_out(reap_tokens);
    assert_eq!((plan.commands.len(), plan.recheck_after), (0, Some(24 * HOUR)));
    // A plan with a clock that is ahead deletes nothing that has not expired.
    let early = Command::DeleteTokens { term: TERM, tokens: vec![token_id(1), token_id(2)], at: cluster.now };
    assert!(matches!(cluster.apply(&early), ApplyOutcome::Unchanged { .. }));
    cluster.advance_time(24 * HOUR);
    let plan = cluster.carry_out(reap_tokens);
    assert_eq!((plan.commands.len(), plan.recheck_after), (1, None));
    assert_eq!(cluster.state.tokens().map(|token| token.id).collect::<Vec<_>>(), [token_id(2)]);
    assert!(cluster.refuse(join(&cluster, 1, 1)).starts_with("unknown token"));
}

#[test]
fn create_and_remove_are_idempotent() {
    let mut cluster = TestCluster::new();
    let token = create(&cluster, 1, Some(HOUR), Some(3));
    let answer = cluster.accept(token.clone());
    assert!(matches!(answer, CommandResponse::Token { .. }));
    assert_eq!(cluster.apply(&token), ApplyOutcome::Unchanged { answer: answer.clone() });
    cluster.advance_time(Duration::from_secs(5));
    let later = create(&cluster, 1, Some(HOUR), Some(3));
    assert_eq!(
        cluster.apply(&later),
        ApplyOutcome::Unchanged { answer },
        "its end counts from another moment"
    );
    assert!(cluster.refuse(create(&cluster, 1, Some(2 * HOUR), Some(3))).contains("already exists"));
    assert!(cluster.refuse(create(&cluster, 1, None, None)).contains("already exists"));
    assert!(cluster.refuse(create_with_label(&cluster, 1, "zone", "b")).contains("already exists"));
    let Command::CreateToken { role, hash, expires_at, max_uses, labels, at, .. } = token else { panic!() };
    let stolen = Command::CreateToken { id: token_id(2), role, hash, expires_at, max_uses, labels, at };
    assert!(cluster.refuse(stolen).contains("already exists"), "a secret is of one token");
    let wrong = create(&cluster, 3, None, Some(0));
    assert!(cluster.refuse(wrong).starts_with("maxUses: 0 allows no join"));
    let wrong = create(&cluster, 3, Some(Duration::ZERO), None);
    assert!(cluster.refuse(wrong).starts_with("expiresAt: is in the past"));
    let remove = Command::RemoveToken { id: token_id(1), at: cluster.now };
    cluster.accept(remove.clone());
    assert_eq!(cluster.apply(&remove), ApplyOutcome::Unchanged { answer: CommandResponse::Done });
    assert!(cluster.refuse(join(&cluster, 1, 1)).starts_with("unknown token"));
}

#[test]
fn token_count_is_bounded() {
    let mut cluster = TestCluster::new();
    for number in 1..=u16::try_from(MAX_TOKENS).unwrap() {
        let command = create(&cluster, number, None, None);
        let index = cluster.state.applied().index + 1;
        assert!(matches!(cluster.state.apply(TERM, index, &command), ApplyOutcome::Applied { .. }));
    }
    let refusal = cluster.refuse(create(&cluster, 5000, None, None));
    assert!(refusal.starts_with("there are 1000 tokens already"), "{refusal}");
    cluster.accept(Command::RemoveToken { id: token_id(7), at: cluster.now });
    cluster.accept(create(&cluster, 5000, None, None));
}

#[test]
fn tokens_are_found_by_id_and_survive_a_snapshot() {
    let mut cluster = TestCluster::new();
    cluster.accept(create(&cluster, 1, None, None));
    cluster.accept(create(&cluster, 2, Some(HOUR), Some(1)));
    assert_eq!(warren_core::State::restore(cluster.state.export()).unwrap(), cluster.state);
    assert_eq!(cluster.state.find_token(&token_id(2).to_string()).unwrap().id, token_id(2));
    assert!(cluster.state.find_token("zz").unwrap_err().to_string().contains("token \"zz\" does not exist"));
    assert!(
        cluster
            .state
            .find_token("0")
            .unwrap_err()
            .to_string()
            .contains("is a prefix of more than one token id")
    );
    assert_eq!(cluster.state.token_by_hash(&secret(2)).unwrap().id, token_id(2));
    assert_eq!(cluster.state.tokens_after(Some(token_id(1))).count(), 1);
}
