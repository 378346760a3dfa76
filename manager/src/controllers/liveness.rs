//! Who is silent: the leader asks all managers whom they heard of, and judges.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use warren_core::{Liveness, Plan};
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
/// A manager that judged nobody for longer stood still, and with it what it hears nodes by: it listens anew.
const STOOD_STILL: Duration = Duration::from_secs(3);
/// A node that was heard within this has missed no sync.
const JUST_HEARD: Duration = Duration::from_secs(4);

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
    heard: Mutex<Option<Heard>>,
}

/// What other managers told.
#[derive(Debug)]
pub struct Told {
    asked: Instant,
    /// How long ago each node was heard, by each of them that answered.
    ages: BTreeMap<MemberId, Vec<(NodeId, Duration)>>,
}

/// A new leader listens anew.
struct Heard {
    term: u64,
    /// When nodes were last judged.
    judged: Duration,
    liveness: Liveness,
    /// When each of the other managers last answered, and whom it had just heard by then.
    answered: BTreeMap<MemberId, (Duration, Vec<NodeId>)>,
}

impl Listening {
    /// Listens to the sessions in `registry`, and to those that `ask` tells of.
    pub fn new(registry: Registry, ask: AskContacts) -> Self {
        Self { registry, ask, started: Instant::now(), heard: Mutex::new(None) }
    }

    /// Asks every other manager, as far as they answer in time. `published` is that of the leader, who is `own`.
    pub async fn ask(&self, published: &Published, own: MemberId) -> Told {
        let asked = Instant::now();
        let members = published.state.members().map(|member| member.member);
        let others = members.filter(|member| *member != own).collect();
        let term = published.role.term;
        let within = if self.has_listened(term) { WORD } else { FIRST_WORD };
        Told { asked, ages: self.ask_all(others, term, within).await }
    }

    /// Judges all nodes by what was just told, and by the sessions here. `published` is the newest of the leader.
    pub fn judge(&self, published: &Published, told: Told, now: Timestamp) -> Plan {
        let (state, term) = (&published.state, published.role.term);
        let elapsed = self.started.elapsed();
        let mut heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        let goes_on =
            |heard: &Heard| heard.term == term && elapsed.saturating_sub(heard.judged) < STOOD_STILL;
        let listening = heard.take().filter(goes_on).map(|heard| (heard.liveness, heard.answered));
        let (mut liveness, mut answered) =
            listening.unwrap_or_else(|| (Liveness::start(state, elapsed), BTreeMap::new()));
        for contact in self.registry.contacts() {
            liveness.heard(contact.node, contact.at.saturating_duration_since(self.started));
        }
        for (member, ages) in told.ages {
            let just_heard = ages.iter().filter(|(_, age)| *age <= JUST_HEARD).map(|(node, _)| *node);
            answered.insert(member, (elapsed, just_heard.collect()));
            for (node, age) in ages {
                liveness.heard(node, elapsed.saturating_sub(age));
            }
        }
        // A manager that is gone takes along what its nodes said after its last answer, and they have yet to notice and
        // to find another one: their silence begins with its own.
        for (at, nodes) in answered.values().filter(|(at, _)| *at < elapsed) {
            nodes.iter().for_each(|node| liveness.heard(*node, *at));
        }
        let judgement = liveness.judge(state, elapsed);
        *heard = Some(Heard { term, judged: elapsed, liveness, answered });
        let pause = LISTEN.saturating_sub(told.asked.elapsed());
        let recheck_after = judgement.recheck_after.map_or(pause, |next| next.min(pause));
        Plan { commands: judgement.commands(state, now), recheck_after: Some(recheck_after) }
    }

    /// Whether this leader has judged before.
    fn has_listened(&self, term: u64) -> bool {
        let heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        heard.as_ref().is_some_and(|heard| heard.term == term)
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
