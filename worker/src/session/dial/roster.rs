//! Which managers there are to dial, and in which order.
//!
//! Nodes go through them in orders of their own, made from their ids, so that the nodes of a manager that is gone
//! spread over the others. A manager's own node goes to that one first whenever it needs another. Those that only a
//! person named come last: what managers say of themselves is newer.

use sha2::{Digest, Sha256};
use warren_types::{ManagerAddress, NodeId};

/// The managers that a node knows, each as `host:port`.
#[derive(Debug, Clone)]
pub(super) struct Roster {
    node: NodeId,
    /// That of this node itself, if it has one.
    own: Option<String>,
    told: Vec<String>,
    learned: Vec<String>,
    /// Dialled since the last one whose session lasted, that one included.
    tried: Vec<String>,
}

impl Roster {
    /// Of what a person named.
    pub fn new(node: NodeId, told: Vec<String>) -> Self {
        Self { node, own: None, told, learned: Vec::new(), tried: Vec::new() }
    }

    /// The same, where what was named is the node's own manager.
    pub fn of_manager(self) -> Self {
        Self { own: self.told.first().cloned(), ..self }
    }

    /// These are the managers by now.
    pub fn learn(&mut self, managers: &[ManagerAddress]) {
        self.learned = managers.iter().map(ToString::to_string).collect();
    }

    /// Each once, in the order in which they are dialled.
    fn in_order(&self) -> Vec<String> {
        let place = |manager: &String| -> [u8; 32] {
            let of_node = Sha256::new().chain_update(self.node.0.0.to_be_bytes());
            of_node.chain_update(manager.as_bytes()).finalize().into()
        };
        let mut learned = self.learned.clone();
        learned.sort_by_cached_key(place);
        let mut told = self.told.clone();
        told.sort_by_cached_key(place);
        let mut all: Vec<String> = Vec::new();
        for manager in self.own.iter().cloned().chain(learned).chain(told) {
            if !all.contains(&manager) {
                all.push(manager);
            }
        }
        all
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.in_order().len()
    }

    /// The next one to dial: each once before any comes again. `None` when none is known.
    pub fn next(&mut self) -> Option<String> {
        let all = self.in_order();
        let untried = all.iter().find(|manager| !self.tried.contains(manager));
        let next = match untried {
            Some(next) => next.clone(),
            None => {
                self.tried.clear();
                all.into_iter().next()?
            }
        };
        self.tried.push(next.clone());
        Some(next)
    }

    /// The session with this one was a good one, and is over: the others come before it.
    pub fn lasted(&mut self, manager: &str) {
        self.tried = vec![manager.to_owned()];
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use warren_types::Id;

    use super::*;

    fn learned(roster: &mut Roster, ports: &[u16]) {
        let managers: Vec<ManagerAddress> =
            ports.iter().map(|port| format!("m:{port}").parse().unwrap()).collect();
        roster.learn(&managers);
    }

    fn round(roster: &mut Roster, times: usize) -> Vec<String> {
        std::iter::repeat_with(|| roster.next().unwrap()).take(times).collect()
    }

    #[test]
    fn each_is_dialled_once_before_any_comes_again() {
        let mut roster = Roster::new(NodeId(Id(7)), vec!["a:1".into(), "m:2".into()]);
        assert_eq!(roster.len(), 2);
        learned(&mut roster, &[1, 2, 3]);
        let first = round(&mut roster, 4);
        assert_eq!(first.iter().collect::<BTreeSet<_>>().len(), roster.len());
        assert_eq!(first[3], "a:1", "what only a person named");
        assert_eq!(round(&mut roster, 4), first, "the same order again");
        assert_eq!(Roster::new(NodeId(Id(7)), Vec::new()).next(), None);
    }

    #[test]
    fn the_one_that_was_left_comes_last_and_a_nodes_own_first() {
        let mut roster = Roster::new(NodeId(Id(7)), Vec::new());
        learned(&mut roster, &[1, 2, 3]);
        for left in ["m:1", "m:2", "m:3"] {
            roster.lasted(left);
            let order = round(&mut roster, 3);
            assert!(!order[..2].contains(&left.to_owned()), "{left}: {order:?}");
        }
        let mut own = Roster::new(NodeId(Id(7)), vec!["127.0.0.1:8080".into()]).of_manager();
        learned(&mut own, &[1, 2, 3]);
        assert_eq!(round(&mut own, 4)[0], "127.0.0.1:8080");
        own.lasted("m:2");
        assert_eq!(round(&mut own, 3)[0], "127.0.0.1:8080");
        own.lasted("127.0.0.1:8080");
        assert_ne!(round(&mut own, 1)[0], "127.0.0.1:8080");
    }

    #[test]
    fn nodes_spread_over_managers() {
        let mut firsts = [0; 3];
        for node in 0..300 {
            let mut roster = Roster::new(NodeId(Id(node)), Vec::new());
            learned(&mut roster, &[1, 2, 3]);
            let first = roster.next().unwrap();
            firsts[first[2..].parse::<usize>().unwrap() - 1] += 1;
        }
        assert!(firsts.iter().all(|count| *count > 70), "{firsts:?}");
    }

    #[test]
    fn one_that_is_gone_is_not_dialled_any_more() {
        let mut roster = Roster::new(NodeId(Id(7)), Vec::new());
        learned(&mut roster, &[1, 2, 3]);
        round(&mut roster, 2);
        learned(&mut roster, &[2]);
        assert_eq!(round(&mut roster, 3), ["m:2", "m:2", "m:2"]);
    }
}
