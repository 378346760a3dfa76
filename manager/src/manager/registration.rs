//! A manager says to its cluster who it is, where it is reached, and which node its machine is.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::time::{Instant, sleep};
use warren_control::{Backoff, system_chance};
use warren_core::{Command, LEVEL, State};
use warren_types::{ManagerAddress, Member, MemberId, Node, NodeName, NodeRole};

use crate::ca::{Keys, node_of};
use crate::config::LocalNode;
use crate::manager::{StartError, said};
use crate::stamp::Stamp;
use crate::store::Store;

/// How long to wait after a try that failed.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// How long to wait for a leader before it is looked again whether there is one.
const LOOK: Duration = Duration::from_secs(3600);

/// Where the manager `own` is reached: what this start says, unless the last one said the same. Then people may have
/// said something else since (`manager update --advertise`), and that stays.
pub(super) fn reached_at(
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

/// What a manager says of itself.
pub(super) struct Registration {
    pub store: Store,
    pub keys: Arc<Keys>,
    pub clock: Stamp,
    pub name: NodeName,
    /// What this start says.
    pub address: ManagerAddress,
    /// What the last one said that was heard.
    pub before: Option<ManagerAddress>,
    /// The manager's directory.
    pub dir: PathBuf,
    /// `None` for a manager only.
    pub node: Option<LocalNode>,
}

impl Registration {
    /// Says what the cluster does not know yet. Harmless to repeat.
    ///
    /// # Errors
    /// The cluster refuses it, or cannot be asked.
    pub async fn ensure(&self) -> Result<(), StartError> {
        let published = self.store.read_now().await?;
        let address = reached_at(&published.state, self.store.own(), &self.address, self.before.as_ref());
        if !self.is_known(&published.state, &address) {
            let (member, id) = (self.store.own(), self.keys.id);
            let (name, at) = (self.name.clone(), self.clock.now());
            self.store
                .propose(Command::RegisterMember { member, id, name, address, level: LEVEL, at })
                .await?;
        }
        if self.before.as_ref() != Some(&self.address)
            && let Err(error) = said::keep(&self.dir, &self.address)
        {
            // The next start says it again, over what people said meanwhile.
            tracing::warn!(%error, "could not write down where this manager said that it is reached");
        }
        match &self.node {
            Some(node) => self.ensure_node(node).await,
            None => Ok(()),
        }
    }

    fn is_known(&self, state: &State, address: &ManagerAddress) -> bool {
        let same = |member: &Arc<Member>| {
            member.id == self.keys.id
                && (&member.name, &member.address, member.level) == (&self.name, address, LEVEL)
        };
        state.member(self.store.own()).is_some_and(same)
    }

    async fn ensure_node(&self, LocalNode { description }: &LocalNode) -> Result<(), StartError> {
        let state = self.store.read().state.clone();
        let (name, role) = (self.name.clone(), NodeRole::Manager);
        let keys = self.keys.clone();
        let issued = {
            let (state, name, own) = (state.clone(), name.clone(), self.store.own());
            let host = description.address.clone();
            let id = move || node_of(&state, own, &name, &host);
            let ensure = move || keys.ensure_agent(id, SystemTime::now());
            tokio::task::spawn_blocking(ensure).await
        };
        let agent = issued.expect("issuing a certificate does not panic")?;
        let known = |node: &Arc<Node>| node.name == name && node.role == role;
        if !state.node(&agent.id).is_some_and(known) {
            let (id, description, at) = (agent.id, description.clone(), self.clock.now());
            self.store.propose(Command::RegisterNode { id, name, role, description, at }).await?;
        }
        Ok(())
    }

    /// Says it as soon as there is a leader, and again until it is heard.
    pub async fn keep_trying(self) {
        let (mut pauses, chance) = (Backoff::new(FIRST_PAUSE, LONGEST_PAUSE), system_chance());
        loop {
            while !self.hears_a_leader().await {}
            let Err(error) = self.ensure().await else { return };
            tracing::warn!(%error, "the cluster does not know yet who this manager is");
            sleep(pauses.next_delay(chance())).await;
        }
    }

    async fn hears_a_leader(&self) -> bool {
        let has_cluster = |state: &State| state.cluster().is_some();
        let wanted = |published: &crate::store::Published| {
            let leads_or_follows = published.role.leader_id.is_some() && published.held.is_none();
            leads_or_follows && has_cluster(&published.state)
        };
        self.store.until(wanted, Instant::now() + LOOK).await
    }
}

#[cfg(test)]
mod tests {
    use warren_types::{ClusterId, Id, ManagerId, Timestamp};

    use super::*;

    #[test]
    fn what_people_said_of_an_address_stays_until_a_start_says_something_new() {
        let (id, ranges, at) = (ClusterId(Id(1)), vec!["10.0.0.0/8".parse().unwrap()], Timestamp(1));
        let address = |text: &str| text.parse::<ManagerAddress>().unwrap();
        let [first, updated, moved] = ["10.0.0.1:8080", "m1.example.org:8080", "10.0.0.9:8080"].map(address);
        let register = |address| Command::RegisterMember {
            member: 1,
            id: ManagerId(Id(11)),
            name: "m1".parse().unwrap(),
            address,
            level: LEVEL,
            at,
        };
        let mut state = State::new();
        assert_eq!(reached_at(&state, 1, &first, Some(&first)), first, "nobody knows it yet");
        let commands = [
            Command::CreateCluster { id, ranges, level: LEVEL, at },
            register(first.clone()),
            register(updated.clone()),
        ];
        for (index, command) in (1..).zip(&commands) {
            state.apply(1, index, command);
        }
        for (now, before, wanted) in [
            (&first, Some(&first), &updated),
            (&updated, Some(&first), &updated),
            (&moved, Some(&first), &moved),
            // The directory is from before this was written down.
            (&first, None, &first),
        ] {
            assert_eq!(&reached_at(&state, 1, now, before), wanted, "{now} after {before:?}");
        }
        assert_eq!(reached_at(&state, 2, &first, Some(&first)), first, "another member");
    }
}
