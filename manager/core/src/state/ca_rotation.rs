//! What the replacement of the certificate authority waits for, and what a manager does about it.

use warren_types::{
    CaDigest, CaPhase, CaRotation, Member, MemberId, Node, NodeStatus, PublicKeyHash, Timestamp,
};

use super::State;

/// Who has followed the replacement of an authority or of keys, and who is missing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RotationProgress<T> {
    /// How many there are.
    pub total: usize,
    /// Those without.
    pub missing: Vec<T>,
}

/// The authority that a manager uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ManagerAuthority {
    /// Its digest.
    pub digest: CaDigest,
    /// The manager trusts the one before it as well.
    pub trusts_predecessor: bool,
}

/// What a manager does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ManagerCaStep {
    /// It trusts the new authority as well, shows a certificate of it, and issues only such certificates.
    Adopt,
    /// It says so ([`super::CaCommand::RecordRenewal`]).
    Record,
    /// It trusts certificates of managers by the new authority alone.
    DropPredecessor,
}

impl State {
    /// The newest replacement of the authority.
    pub fn ca_rotation(&self) -> Option<&CaRotation> {
        self.cluster.as_ref()?.ca_rotation.as_deref()
    }

    /// The next phase, if nothing is missing for it. All managers are waited for, nodes only while they are READY.
    pub fn next_ca_phase(&self) -> Option<CaPhase> {
        match self.ca_rotation()?.phase {
            CaPhase::Managers => self.ca_managers().missing.is_empty().then_some(CaPhase::Nodes),
            CaPhase::Nodes => {
                let is_ready = |node: &&Node| node.status == NodeStatus::Ready;
                (!self.ca_nodes().missing.iter().any(is_ready)).then_some(CaPhase::Complete)
            }
            CaPhase::Complete => None,
        }
    }

    /// The managers, but for those that are being removed.
    pub fn ca_managers(&self) -> RotationProgress<&Member> {
        let remaining = || self.members.values().map(|member| &**member).filter(|member| !member.removing);
        let is_missing = |member: &&Member| {
            self.ca_rotation().is_some_and(|rotation| {
                rotation.phase == CaPhase::Managers && !rotation.managers.contains(&member.member_id)
            })
        };
        RotationProgress { total: remaining().count(), missing: remaining().filter(is_missing).collect() }
    }

    /// The nodes.
    pub fn ca_nodes(&self) -> RotationProgress<&Node> {
        let is_missing = |node: &&Node| {
            self.ca_rotation().is_some_and(|rotation| {
                rotation.phase == CaPhase::Managers || rotation.nodes.contains(&node.id)
            })
        };
        let nodes = || self.nodes.values().map(|node| &**node);
        RotationProgress { total: nodes().count(), missing: nodes().filter(is_missing).collect() }
    }

    /// The keys of users and administrators, with their names.
    pub fn ca_users(&self, now: Timestamp) -> RotationProgress<String> {
        let is_missing = |key: &PublicKeyHash| {
            self.ca_rotation()
                .is_some_and(|rotation| rotation.phase == CaPhase::Managers || rotation.keys.contains(key))
        };
        let users = self.users.values().filter(|user| !user.is_expired(now));
        let users = users.flat_map(|user| user.keys.keys().map(move |key| (*key, user.name.to_string())));
        let members = self.members.values().filter(|member| !member.removing);
        let administrators = members.filter_map(|member| {
            Some((member.administrator_key?, format!("administrator of {}", member.name)))
        });
        let all: Vec<_> = users.chain(administrators).collect();
        let total = all.len();
        let missing = all.into_iter().filter(|(key, _)| is_missing(key)).map(|(_, name)| name).collect();
        RotationProgress { total, missing }
    }

    /// What `member`, which uses `own`, does next; `None` if nothing. It is asked again after each step.
    pub fn manager_ca_step(&self, member: MemberId, own: ManagerAuthority) -> Option<ManagerCaStep> {
        let rotation = self.ca_rotation()?;
        if own.digest != rotation.digest {
            return Some(ManagerCaStep::Adopt);
        }
        match rotation.phase {
            CaPhase::Managers => {
                let is_listed = self.members.contains_key(&member) && !rotation.managers.contains(&member);
                is_listed.then_some(ManagerCaStep::Record)
            }
            CaPhase::Nodes | CaPhase::Complete => {
                own.trusts_predecessor.then_some(ManagerCaStep::DropPredecessor)
            }
        }
    }
}
