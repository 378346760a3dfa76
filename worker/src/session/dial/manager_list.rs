//! The managers to dial, and their order.
//!
//! Each node uses its own order, derived from its id, so that the nodes of a lost manager spread over the
//! others. A manager's own node starts with that manager. Managers that are only configured come last:
//! announced addresses are newer.

use sha2::{Digest, Sha256};
use warren_types::{ManagerAddress, NodeId};

/// The known managers of a node, each as `host:port`.
#[derive(Debug, Clone)]
pub(super) struct ManagerList {
    node: NodeId,
    /// The manager of this node, if it has one.
    local: Option<String>,
    configured: Vec<String>,
    discovered: Vec<String>,
    /// Dialled since the last good session, including its manager.
    attempted: Vec<String>,
}

impl ManagerList {
    /// With the configured managers.
    pub fn new(node: NodeId, reported: Vec<String>) -> Self {
        Self { node, local: None, configured: reported, discovered: Vec::new(), attempted: Vec::new() }
    }

    /// The same, where the configured one is the node's own manager.
    pub fn for_manager_node(self) -> Self {
        Self { local: self.configured.first().cloned(), ..self }
    }

    /// Replaces the announced managers.
    pub fn set_discovered(&mut self, managers: &[ManagerAddress]) {
        self.discovered = managers.iter().map(ToString::to_string).collect();
    }

    /// Each once, in dial order.
    fn dial_order(&self) -> Vec<String> {
        let place = |manager: &String| -> [u8; 32] {
            let of_node = Sha256::new().chain_update(self.node.0.0.to_be_bytes());
            of_node.chain_update(manager.as_bytes()).finalize().into()
        };
        let mut learned = self.discovered.clone();
        learned.sort_by_cached_key(place);
        let mut reported = self.configured.clone();
        reported.sort_by_cached_key(place);
        let mut all: Vec<String> = Vec::new();
        for manager in self.local.iter().cloned().chain(learned).chain(reported) {
            if !all.contains(&manager) {
                all.push(manager);
            }
        }
        all
    }

    /// Number of known managers.
    pub fn len(&self) -> usize {
        self.dial_order().len()
    }

    /// The next one to dial: each once before any is repeated. `None` without managers.
    pub fn next(&mut self) -> Option<String> {
        let all = self.dial_order();
        let untried = all.iter().find(|manager| !self.attempted.contains(manager));
        let next = match untried {
            Some(next) => next.clone(),
            None => {
                self.attempted.clear();
                all.into_iter().next()?
            }
        };
        self.attempted.push(next.clone());
        Some(next)
    }

    /// Records the end of a good session with this manager: the others come first.
    pub fn record_good_session(&mut self, manager: &str) {
        self.attempted = vec![manager.to_owned()];
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use warren_types::Id;

    use super::*;

    fn set_discovered(directory: &mut ManagerList, ports: &[u16]) {
        let managers: Vec<ManagerAddress> =
            ports.iter().map(|port| format!("m:{port}").parse().unwrap()).collect();
        directory.set_discovered(&managers);
    }

    fn dial_round(directory: &mut ManagerList, times: usize) -> Vec<String> {
        std::iter::repeat_with(|| directory.next().unwrap()).take(times).collect()
    }

    #[test]
    fn each_manager_is_dialled_once_per_round() {
        let mut directory = ManagerList::new(NodeId(Id(7)), vec!["a:1".into(), "m:2".into()]);
        assert_eq!(directory.len(), 2);
        set_discovered(&mut directory, &[1, 2, 3]);
        let first = dial_round(&mut directory, 4);
        assert_eq!(first.iter().collect::<BTreeSet<_>>().len(), directory.len());
        assert_eq!(first[3], "a:1", "what only a person named");
        assert_eq!(dial_round(&mut directory, 4), first, "the same order again");
        assert_eq!(ManagerList::new(NodeId(Id(7)), Vec::new()).next(), None);
    }

    #[test]
    fn last_used_manager_is_last_and_local_one_first() {
        let mut directory = ManagerList::new(NodeId(Id(7)), Vec::new());
        set_discovered(&mut directory, &[1, 2, 3]);
        for left in ["m:1", "m:2", "m:3"] {
            directory.record_good_session(left);
            let order = dial_round(&mut directory, 3);
            assert!(!order[..2].contains(&left.to_owned()), "{left}: {order:?}");
        }
        let mut own = ManagerList::new(NodeId(Id(7)), vec!["127.0.0.1:8080".into()]).for_manager_node();
        set_discovered(&mut own, &[1, 2, 3]);
        assert_eq!(dial_round(&mut own, 4)[0], "127.0.0.1:8080");
        own.record_good_session("m:2");
        assert_eq!(dial_round(&mut own, 3)[0], "127.0.0.1:8080");
        own.record_good_session("127.0.0.1:8080");
        assert_ne!(dial_round(&mut own, 1)[0], "127.0.0.1:8080");
    }

    #[test]
    fn nodes_spread_over_managers() {
        let mut firsts = [0; 3];
        for node in 0..300 {
            let mut directory = ManagerList::new(NodeId(Id(node)), Vec::new());
            set_discovered(&mut directory, &[1, 2, 3]);
            let first = directory.next().unwrap();
            firsts[first[2..].parse::<usize>().unwrap() - 1] += 1;
        }
        assert!(firsts.iter().all(|count| *count > 70), "{firsts:?}");
    }

    #[test]
    fn removed_manager_is_not_dialled() {
        let mut directory = ManagerList::new(NodeId(Id(7)), Vec::new());
        set_discovered(&mut directory, &[1, 2, 3]);
        dial_round(&mut directory, 2);
        set_discovered(&mut directory, &[2]);
        assert_eq!(dial_round(&mut directory, 3), ["m:2", "m:2", "m:2"]);
    }
}
