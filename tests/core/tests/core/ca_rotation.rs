//! The replacement of the certificate authority: a model of managers and nodes with what they trust and show, in which
//! each pair must be able to connect at any time.

use std::collections::BTreeSet;

use warren_core::{
    ApplyOutcome, CaCommand, Command, FEATURE_LEVEL, ManagerAuthority, ManagerCaStep, Refusal, State,
    reconcile_ca_rotation,
};
use warren_types::{
    CaDigest, CaHolder, CaPhase, ClusterId, Id, ManagerId, MemberId, NodeDescription, NodeId, NodeRole,
    NodeStatus, PublicKeyHash, SealedData, Timestamp, TokenHash, TokenId, UserId, UserRole,
};

const OLD: CaDigest = CaDigest::from_bytes([1; 32]);
const NEW: CaDigest = CaDigest::from_bytes([2; 32]);
const AT: Timestamp = Timestamp(1);
const TERM: u64 = 1;

fn node_id(number: u128) -> NodeId {
    NodeId(Id(number))
}

pub fn apply(state: &mut State, command: &Command) -> ApplyOutcome {
    let outcome = state.apply(TERM, state.applied().index + 1, command);
    state.check().unwrap();
    outcome
}

pub fn accept(state: &mut State, command: &Command) {
    let outcome = apply(state, command);
    assert!(!matches!(outcome, ApplyOutcome::Rejected(_)), "{command:?}: {outcome:?}");
}

fn begin(digest: CaDigest, current: CaDigest) -> Command {
    let sealed = SealedData { size: 1, fingerprint: [1; 32], sealed: vec![1] };
    Command::Ca(CaCommand::Begin { digest, sealed, current, certificate: current.to_string(), at: AT })
}

fn record(holder: CaHolder) -> Command {
    Command::Ca(CaCommand::RecordRenewal { digest: NEW, holder, at: AT })
}

fn status(state: &State, node: NodeId, status: NodeStatus) -> Command {
    let session = state.node(&node).unwrap().session;
    Command::SetNodeStatus { term: TERM, node, session, status, at: AT }
}

fn session(node: NodeId) -> Command {
    Command::OpenSession { node, description: NodeDescription::default(), manager: 1, at: AT }
}

/// A cluster with so many managers and READY nodes.
pub fn cluster(managers: u64, nodes: u128) -> State {
    let mut state = State::new();
    let (ranges, hash) = (vec!["10.0.0.0/16".parse().unwrap()], TokenHash([3; 32]));
    accept(
        &mut state,
        &Command::CreateCluster { id: ClusterId(Id(9)), ranges, feature_level: FEATURE_LEVEL, at: AT },
    );
    accept(
        &mut state,
        &Command::RegisterMember {
            member: 1,
            id: ManagerId(Id(101)),
            name: "m1".parse().unwrap(),
            address: "10.0.0.1:8080".parse().unwrap(),
            level: FEATURE_LEVEL,
            at: AT,
        },
    );
    accept(
        &mut state,
        &Command::CreateToken {
            id: TokenId(Id(5)),
            role: NodeRole::Manager,
            hash,
            expires_at: None,
            max_uses: None,
            labels: Default::default(),
            at: AT,
        },
    );
    for number in 2..=managers {
        accept(
            &mut state,
            &Command::JoinManager {
                hash,
                id: ManagerId(Id(u128::from(100 + number))),
                name: format!("m{number}").parse().unwrap(),
                address: format!("10.0.0.{number}:8080").parse().unwrap(),
                level: FEATURE_LEVEL,
                at: AT,
            },
        );
    }
    for number in 1..=nodes {
        accept(
            &mut state,
            &Command::RegisterNode {
                id: node_id(number),
                name: format!("n{number}").parse().unwrap(),
                role: NodeRole::Worker,
                description: NodeDescription::default(),
                taints: Default::default(),
                at: AT,
            },
        );
        accept(&mut state, &session(node_id(number)));
    }
    state
}

/// A manager: how many entries it has applied, and what it uses.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Manager {
    applied: usize,
    authority: CaDigest,
    trusts_predecessor: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Node {
    is_up: bool,
    shows: CaDigest,
    trusts: BTreeSet<CaDigest>,
}

/// What all of them are, and the log with the state after each entry.
#[derive(Clone)]
struct World {
    log: Vec<State>,
    managers: Vec<Manager>,
    nodes: Vec<Node>,
}

/// A new certificate has one behind it by which the old authority vouches for the new one.
fn verifies(trusted: &BTreeSet<CaDigest>, shown: CaDigest) -> bool {
    trusted.contains(&shown) || shown == NEW && trusted.contains(&OLD)
}

impl Manager {
    fn trusts(&self) -> BTreeSet<CaDigest> {
        let predecessor = self.trusts_predecessor.then_some(OLD);
        [self.authority].into_iter().chain(predecessor).collect()
    }

    /// The key of a node or user is listed, so that an earlier authority is good enough.
    fn accepts_node(&self, state: &State, shown: CaDigest) -> bool {
        verifies(&self.trusts(), shown) || state.ca_rotation().is_some() && shown == OLD
    }
}

impl World {
    fn new(managers: u64, nodes: u128, away: bool) -> Self {
        let mut state = cluster(managers, nodes);
        if away {
            let down = status(&state, node_id(nodes), NodeStatus::Down);
            accept(&mut state, &down);
        }
        let manager = Manager { applied: 0, authority: OLD, trusts_predecessor: false };
        let node = Node { is_up: true, shows: OLD, trusts: [OLD].into() };
        let mut all = vec![node.clone(); nodes as usize];
        if away {
            all.last_mut().unwrap().is_up = false;
        }
        let mut world = Self { log: vec![state], managers: vec![manager; managers as usize], nodes: all };
        world.commit(&begin(NEW, OLD));
        world
    }

    fn commit(&mut self, command: &Command) {
        let mut state = self.log.last().unwrap().clone();
        accept(&mut state, command);
        self.log.push(state);
    }

    fn key(&self) -> String {
        let log: Vec<u64> = self.log.iter().map(|state| state.digest().value).collect();
        format!("{log:?} {:?} {:?}", self.managers, self.nodes)
    }

    /// Everything that may happen next.
    fn next(&self) -> Vec<World> {
        let mut next = Vec::new();
        let newest = self.log.last().unwrap();
        for command in reconcile_ca_rotation(newest, AT).commands {
            let mut world = self.clone();
            world.commit(&command);
            next.push(world);
        }
        for (index, manager) in self.managers.iter().enumerate() {
            if manager.applied + 1 < self.log.len() {
                let mut world = self.clone();
                world.managers[index].applied += 1;
                next.push(world);
            }
            next.extend(self.step_of(index));
            for node in 0..self.nodes.len() {
                next.extend(self.renewal_of(node, index));
            }
        }
        for (index, _) in self.nodes.iter().enumerate().filter(|(_, node)| !node.is_up) {
            let mut world = self.clone();
            world.nodes[index].is_up = true;
            world.commit(&session(node_id(index as u128 + 1)));
            next.push(world);
        }
        next
    }

    fn step_of(&self, index: usize) -> Option<World> {
        let (state, member) = (&self.log[self.managers[index].applied], index as MemberId + 1);
        let Manager { authority: digest, trusts_predecessor, .. } = self.managers[index];
        let step = state.manager_ca_step(member, ManagerAuthority { digest, trusts_predecessor })?;
        let mut world = self.clone();
        match step {
            ManagerCaStep::Adopt => {
                world.managers[index].authority = NEW;
                world.managers[index].trusts_predecessor = true;
            }
            ManagerCaStep::DropPredecessor => world.managers[index].trusts_predecessor = false,
            ManagerCaStep::Record => {
                let newest = world.log.last().unwrap().ca_rotation().unwrap();
                if newest.phase != CaPhase::Managers || newest.managers.contains(&member) {
                    // It was recorded, and this manager has not applied that yet.
                    return None;
                }
                world.commit(&record(CaHolder::Manager(member)));
            }
        }
        Some(world)
    }

    /// A node with a session at that manager renews its certificate, and its next session says what it trusts.
    fn renewal_of(&self, node: usize, manager: usize) -> Option<World> {
        let (id, manager) = (node_id(node as u128 + 1), &self.managers[manager]);
        let wanted = self.log[manager.applied].node_settings(&id)?.authority?;
        if !self.nodes[node].is_up || self.nodes[node].trusts == BTreeSet::from([wanted]) {
            return None;
        }
        // The manager may not have dropped the earlier one yet: the node keeps what it trusts, and asks again later.
        let is_done = manager.trusts() == BTreeSet::from([wanted]);
        let trusts = if is_done { manager.trusts() } else { self.nodes[node].trusts.clone() };
        if self.nodes[node].trusts == trusts && self.nodes[node].shows == manager.authority {
            return None;
        }
        let mut world = self.clone();
        world.nodes[node] = Node { is_up: true, shows: manager.authority, trusts };
        if is_done && world.log.last().unwrap().ca_rotation()?.nodes.contains(&id) {
            world.commit(&record(CaHolder::Node(id)));
        }
        Some(world)
    }

    fn check(&self) {
        for (one, manager) in self.managers.iter().enumerate() {
            for (other, peer) in self.managers.iter().enumerate() {
                let connect = verifies(&manager.trusts(), peer.authority);
                assert!(connect, "managers {one} and {other} in {:?} {:?}", self.managers, self.nodes);
            }
            for (number, node) in self.nodes.iter().enumerate() {
                let state = &self.log[manager.applied];
                let connect =
                    verifies(&node.trusts, manager.authority) && manager.accepts_node(state, node.shows);
                assert!(connect, "node {number} at {one} in {:?} {:?}", self.managers, self.nodes);
            }
        }
    }

    /// Nothing is left to do: whoever has the key of the old authority is no manager for anybody.
    fn check_end(&self) {
        let state = self.log.last().unwrap();
        assert_eq!(state.ca_rotation().unwrap().phase, CaPhase::Complete);
        let expected = BTreeSet::from([NEW]);
        assert!(self.managers.iter().all(|manager| manager.trusts() == expected), "{:?}", self.managers);
        assert!(self.nodes.iter().all(|node| node.trusts == expected), "{:?}", self.nodes);
        assert!(self.nodes.iter().all(|node| !verifies(&node.trusts, OLD)));
    }
}

#[test]
fn every_pair_connects_in_every_order_of_steps() {
    for (managers, nodes, away) in [(1, 1, false), (2, 1, false), (2, 2, true), (3, 1, true)] {
        let (mut seen, mut open, mut ends) = (BTreeSet::new(), vec![World::new(managers, nodes, away)], 0);
        while let Some(world) = open.pop() {
            world.check();
            let next = world.next();
            if next.is_empty() {
                world.check_end();
                ends += 1;
            }
            open.extend(next.into_iter().filter(|next| seen.insert(next.key())));
            if seen.len() > 4_000 {
                // Deep first: thousands of orders have come to their ends by now.
                break;
            }
        }
        assert!(ends > 0, "{managers} managers, {nodes} nodes");
    }
}

#[test]
fn a_lost_manager_is_waited_for_until_it_is_removed() {
    let mut state = cluster(3, 0);
    accept(&mut state, &begin(NEW, OLD));
    for member in [1, 2] {
        accept(&mut state, &record(CaHolder::Manager(member)));
    }
    let missing: Vec<_> = state.ca_managers().missing.iter().map(|member| member.member_id).collect();
    assert_eq!((missing, state.next_ca_phase()), (vec![3], None));
    accept(&mut state, &Command::RemoveMember { member: 3, at: AT });
    assert_eq!(state.next_ca_phase(), Some(CaPhase::Nodes));
}

#[test]
fn a_node_that_is_down_is_not_waited_for() {
    let mut state = cluster(1, 2);
    accept(&mut state, &begin(NEW, OLD));
    accept(&mut state, &record(CaHolder::Manager(1)));
    assert_eq!(state.node_settings(&node_id(1)).unwrap().authority, None, "managers come first");
    let plan = reconcile_ca_rotation(&state, AT);
    plan.commands.iter().for_each(|command| accept(&mut state, command));
    assert_eq!(state.node_settings(&node_id(1)).unwrap().authority, Some(NEW));
    accept(&mut state, &record(CaHolder::Node(node_id(1))));
    assert_eq!(state.next_ca_phase(), None);
    let down = status(&state, node_id(2), NodeStatus::Down);
    accept(&mut state, &down);
    assert_eq!(state.next_ca_phase(), Some(CaPhase::Complete));
    assert_eq!((state.ca_nodes().total, state.ca_nodes().missing.len()), (2, 1));
}

#[test]
fn keys_that_are_listed_when_the_managers_are_done_count_until_they_renew() {
    let mut state = cluster(1, 0);
    let key = PublicKeyHash([7; 32]);
    accept(
        &mut state,
        &Command::CreateUser {
            id: UserId(Id(1)),
            name: "ann".parse().unwrap(),
            role: UserRole::Viewer,
            login_hash: TokenHash([8; 32]),
            login_expires_at: Timestamp(10),
            expires_at: None,
            at: AT,
        },
    );
    accept(&mut state, &Command::LoginUser { hash: TokenHash([8; 32]), key, at: AT });
    assert_eq!(state.ca_users(AT).missing, [""; 0], "nothing is replaced");
    accept(&mut state, &begin(NEW, OLD));
    accept(&mut state, &record(CaHolder::Manager(1)));
    for _ in 0..2 {
        let plan = reconcile_ca_rotation(&state, AT);
        plan.commands.iter().for_each(|command| accept(&mut state, command));
        assert_eq!((state.ca_users(AT).total, state.ca_users(AT).missing), (1, vec!["ann".to_owned()]));
    }
    accept(&mut state, &record(CaHolder::User(key)));
    assert_eq!(state.ca_users(AT).missing, [""; 0]);
}

#[test]
fn one_rotation_at_a_time_and_from_the_current_authority() {
    let newer = CaDigest::from_bytes([3; 32]);
    let mut state = cluster(1, 0);
    accept(&mut state, &begin(NEW, OLD));
    let unchanged = apply(&mut state, &begin(NEW, OLD));
    assert!(matches!(unchanged, ApplyOutcome::Unchanged { .. }), "{unchanged:?}");
    let refused = |state: &mut State, command: &Command| match apply(state, command) {
        ApplyOutcome::Rejected(Refusal::Invalid(violations)) => violations.to_string(),
        other => panic!("{other:?}"),
    };
    let early = refused(&mut state, &begin(newer, NEW));
    assert!(early.contains("is being replaced already"), "{early}");
    accept(&mut state, &record(CaHolder::Manager(1)));
    for _ in 0..2 {
        let plan = reconcile_ca_rotation(&state, AT);
        plan.commands.iter().for_each(|command| accept(&mut state, command));
    }
    assert_eq!(state.ca_rotation().unwrap().phase, CaPhase::Complete);
    let stale = refused(&mut state, &begin(newer, OLD));
    assert!(stale.contains("is not that of the cluster's CA any more"), "{stale}");
    accept(&mut state, &begin(newer, NEW));
    let rotation = state.ca_rotation().unwrap();
    assert_eq!(rotation.predecessors, [NEW.to_string(), OLD.to_string()]);
    assert_eq!((rotation.phase, rotation.trusted()), (CaPhase::Managers, None));
}
