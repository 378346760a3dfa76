//! Registers a manager in its cluster: its identity, its address and its node.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::time::{Instant, sleep};
use warren_bootstrap::ca::{LocalAgent, ManagerKeys, find_own_node};
use warren_control::{Backoff, system_random};
use warren_core::{Command, State};
use warren_replica::registration;
use warren_store::Store;
use warren_store::timestamp::TimestampSource;
use warren_types::{ManagerAddress, MemberId, Node, NodeName, NodeRole, PublicKeyHash};

use crate::config::LocalNode;
use crate::manager::{ManagerStartError, advertised};

/// Backoff after a failed attempt.
const MIN_RETRY_DELAY: Duration = Duration::from_millis(100);
const MAX_RETRY_DELAY: Duration = Duration::from_secs(5);
/// How long to wait for a leader before the check is repeated.
const LEADER_CHECK_INTERVAL: Duration = Duration::from_secs(3600);

/// The address of the manager `own`: the one of this start, unless the last start had the same. Then it may
/// have been changed since (`manager update --advertise`), and the stored address stays.
pub(super) fn effective_address(
    state: &State,
    own: MemberId,
    now: &ManagerAddress,
    before: Option<&ManagerAddress>,
) -> ManagerAddress {
    match state.member(own) {
        Some(member) if before == Some(now) => member.address.clone(),
        _ => now.clone(),
    }
}

/// The registration of a manager.
pub(super) struct Registration {
    pub store: Store,
    pub keys: Arc<ManagerKeys>,
    pub clock: TimestampSource,
    pub name: NodeName,
    /// The address of this start.
    pub address: ManagerAddress,
    /// The last registered address of an earlier start.
    pub previous_address: Option<ManagerAddress>,
    /// The manager's directory.
    pub dir: PathBuf,
    /// `None` for a manager without a worker.
    pub node: Option<LocalNode>,
}

impl Registration {
    /// Registers what differs from the state. Idempotent.
    ///
    /// # Errors
    /// The cluster rejects it, or is unreachable.
    pub async fn ensure(&self) -> Result<(), ManagerStartError> {
        let published = self.store.read_linearizable().await?;
        let address = effective_address(
            &published.state,
            self.store.own_id(),
            &self.address,
            self.previous_address.as_ref(),
        );
        let (member, id, at) = (self.store.own_id(), self.keys.id, self.clock.now());
        if let Some(register) = registration(&published.state, member, id, &self.name, &address, at) {
            self.store.propose(register).await?;
        }
        ensure_administrator(&self.keys, &self.clock, &self.store).await?;
        if self.previous_address.as_ref() != Some(&self.address)
            && let Err(error) = advertised::save(&self.dir, &self.address)
        {
            // The next start registers the address again and overwrites changes made by users meanwhile.
            tracing::warn!(%error, "saving the advertised address failed");
        }
        match &self.node {
            Some(node) => self.ensure_node(node).await,
            None => Ok(()),
        }
    }

    async fn ensure_node(
        &self,
        LocalNode { description, taints }: &LocalNode,
    ) -> Result<(), ManagerStartError> {
        let state = self.store.read().state.clone();
        let (name, role) = (self.name.clone(), NodeRole::Manager);
        let keys = self.keys.clone();
        let issued = {
            let (state, name, own) = (state.clone(), name.clone(), self.store.own_id());
            let host = description.address.clone();
            let id = move || find_own_node(&state, own, &name, &host);
            let ensure = move || keys.ensure_agent(id, SystemTime::now());
            tokio::task::spawn_blocking(ensure).await
        };
        let agent = issued.expect("issuing a certificate does not panic")?;
        let known = |node: &Arc<Node>| node.name == name && node.role == role;
        if !state.node(&agent.id).is_some_and(known) {
            let (id, description, taints) = (agent.id, description.clone(), taints.clone());
            let at = self.clock.now();
            self.store.propose(Command::RegisterNode { id, name, role, description, taints, at }).await?;
        }
        if let Some(key) = unlisted_key(&self.store.read().state, &agent) {
            self.store.propose(Command::SetNodeKey { id: agent.id, key, at: self.clock.now() }).await?;
        }
        Ok(())
    }

    /// Registers as soon as there is a leader, and retries until it succeeds.
    pub async fn ensure_with_retry(self) {
        let (mut pauses, chance) = (Backoff::new(MIN_RETRY_DELAY, MAX_RETRY_DELAY), system_random());
        loop {
            while !self.wait_for_leader().await {}
            let Err(error) = self.ensure().await else { return };
            tracing::warn!(%error, "registering this manager failed; retrying");
            sleep(pauses.next_delay(chance())).await;
        }
    }

    async fn wait_for_leader(&self) -> bool {
        let has_cluster = |state: &State| state.cluster().is_some();
        let is_ready = |published: &warren_store::PublishedState| {
            let leads_or_follows = published.role.leader_id.is_some() && published.write_stall.is_none();
            leads_or_follows && has_cluster(&published.state)
        };
        self.store.wait_until(is_ready, Instant::now() + LEADER_CHECK_INTERVAL).await
    }
}

/// Lists the key of this machine's administrator, after replacing one that was revoked. Idempotent.
///
/// # Errors
/// The cluster rejects it, or is unreachable.
pub(super) async fn ensure_administrator(
    keys: &Arc<ManagerKeys>,
    clock: &TimestampSource,
    store: &Store,
) -> Result<(), ManagerStartError> {
    let state = store.read().state.clone();
    let Some(own) = state.member(store.own_id()).filter(|own| !own.removing) else { return Ok(()) };
    // Without a key the administrator of this machine uses the socket.
    let key = || keys.admin().borrow().key().public_hash().ok();
    if key().is_some_and(|key| state.is_revoked(&key)) {
        let keys = keys.clone();
        let replaced = tokio::task::spawn_blocking(move || keys.replace_admin(SystemTime::now())).await;
        replaced.expect("issuing a certificate does not panic")?;
    }
    if let Some(key) = key().filter(|key| own.administrator_key != Some(*key)) {
        store.propose(Command::SetAdministratorKey { member: own.member_id, key, at: clock.now() }).await?;
    }
    Ok(())
}

/// The key of the agent, if managers do not accept it yet: that of a machine that lost its data, but not its node.
fn unlisted_key(state: &State, agent: &LocalAgent) -> Option<PublicKeyHash> {
    let (key, node) = (agent.credentials.key().public_hash().ok()?, state.node(&agent.id)?);
    (!agent.credentials.identity().is_of_node(node, &key)).then_some(key)
}

#[cfg(test)]
mod tests {
    use warren_core::FEATURE_LEVEL;
    use warren_types::{ClusterId, Id, ManagerId, Timestamp};

    use super::*;

    #[test]
    fn configured_address_is_kept_until_advertise_changes() {
        let (id, ranges, at) = (ClusterId(Id(1)), vec!["10.0.0.0/8".parse().unwrap()], Timestamp(1));
        let address = |text: &str| text.parse::<ManagerAddress>().unwrap();
        let [first, updated, moved] = ["10.0.0.1:8080", "m1.example.org:8080", "10.0.0.9:8080"].map(address);
        let register = |address| Command::RegisterMember {
            member: 1,
            id: ManagerId(Id(11)),
            name: "m1".parse().unwrap(),
            address,
            level: FEATURE_LEVEL,
            at,
        };
        let mut state = State::new();
        assert_eq!(effective_address(&state, 1, &first, Some(&first)), first, "nobody knows it yet");
        let commands = [
            Command::CreateCluster { id, ranges, feature_level: FEATURE_LEVEL, at },
            register(first.clone()),
            register(updated.clone()),
        ];
        for (index, command) in (1..).zip(&commands) {
            state.apply(1, index, command);
        }
        for (now, before, expected) in [
            (&first, Some(&first), &updated),
            (&updated, Some(&first), &updated),
            (&moved, Some(&first), &moved),
            // The directory is older than the file.
            (&first, None, &first),
        ] {
            assert_eq!(&effective_address(&state, 1, now, before), expected, "{now} after {before:?}");
        }
        assert_eq!(effective_address(&state, 2, &first, Some(&first)), first, "another member");
    }
}
