//! Who is silent: the leader asks all managers whom they heard of, and judges.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use warren_core::{Hearing, Plan};
use warren_proto::v1;
use warren_types::{MemberId, NodeId, Timestamp};

use crate::peers::{MAX_MESSAGE, Peers};
use crate::session::Registry;
use crate::store::Published;

/// Nodes are judged this often.
const LISTEN: Duration = Duration::from_secs(1);
/// A new leader waits so long for all managers to say whom they heard of, before it starts any clock.
const FIRST_WORD: Duration = Duration::from_secs(1);
/// Later each is waited for so long: who does not answer says it the next time.
const WORD: Duration = Duration::from_millis(400);
/// Asks a manager, in the name of the leader of a term, whom it heard of; `None` when it does not say.
pub type AskContacts = Arc<
    dyn Fn(MemberId, u64) -> Pin<Box<dyn Future<Output = Option<Vec<v1::Contact>>> + Send>> + Send + Sync,
>;

/// Asks the other managers by calls.
pub fn ask_peers(peers: Peers) -> AskContacts {
    Arc::new(move |member, term| {
        let client = peers.control(member);
        Box::pin(async move {
            let answer =
                client?.max_decoding_message_size(MAX_MESSAGE).contacts(v1::ContactsRequest { term }).await;
            let failed =
                |status: &tonic::Status| tracing::debug!(member, %status, "whom it heard of is not known");
            Some(answer.inspect_err(failed).ok()?.into_inner().contacts)
        })
    })
}

/// When nodes were heard, by any manager.
pub struct Listening {
    registry: Registry,
    ask: AskContacts,
    /// Silence is measured from here, on a clock that does not jump.
    started: Instant,
    hearing: Mutex<Hearing>,
}

/// What other managers told.
#[derive(Debug)]
pub struct Told {
    asked: Instant,
    /// How long ago each node was heard, by each of them that answered.
    ages: BTreeMap<MemberId, Vec<(NodeId, Duration)>>,
}

impl Listening {
    /// Listens to the sessions in `registry`, and to those that `ask` tells of.
    pub fn new(registry: Registry, ask: AskContacts) -> Self {
        Self { registry, ask, started: Instant::now(), hearing: Mutex::default() }
    }

    /// Asks every other manager, as far as they answer in time. `published` is that of the leader, who is `own`.
    pub async fn ask(&self, published: &Published, own: MemberId) -> Told {
        let asked = Instant::now();
        let members = published.state.members().map(|member| member.member);
        let others = members.filter(|member| *member != own).collect();
        let term = published.role.term;
        let within = if self.hearing().has_listened(term) { WORD } else { FIRST_WORD };
        Told { asked, ages: self.ask_all(others, term, within).await }
    }

    /// Judges all nodes by what was just told, and by the sessions here. `published` is the newest of the leader.
    pub fn judge(&self, published: &Published, told: Told, now: Timestamp) -> Plan {
        let (state, term) = (&published.state, published.role.term);
        let contacts = self.registry.contacts().into_iter();
        let here = contacts.map(|contact| (contact.node, contact.at.saturating_duration_since(self.started)));
        let judgement = self.hearing().judge(state, term, self.started.elapsed(), here, told.ages);
        let pause = LISTEN.saturating_sub(told.asked.elapsed());
        let recheck_after = judgement.recheck_after.map_or(pause, |next| next.min(pause));
        Plan { commands: judgement.commands(state, now), recheck_after: Some(recheck_after) }
    }

    fn hearing(&self) -> MutexGuard<'_, Hearing> {
        self.hearing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How long ago each node was heard by each of `others`, as far as they say so in time.
    async fn ask_all(
        &self,
        others: Vec<MemberId>,
        term: u64,
        within: Duration,
    ) -> BTreeMap<MemberId, Vec<(NodeId, Duration)>> {
        let mut asked = JoinSet::new();
        for member in others {
            let answer = timeout(within, (self.ask)(member, term));
            asked.spawn(async move { Some((member, answer.await.ok()??)) });
        }
        let contact = |v1::Contact { node_id, age_ms, .. }| {
            Some((node_id.parse().ok()?, Duration::from_millis(age_ms)))
        };
        let told = asked.join_all().await.into_iter().flatten();
        told.map(|(member, contacts)| (member, contacts.into_iter().filter_map(contact).collect())).collect()
    }
}

#[cfg(test)]
mod tests;
