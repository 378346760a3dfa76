//! Background loops of all managers and of the agents that are connected to them: each manager is asked for its own,
//! and for what its sessions heard.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::timeout;
use tonic::transport::Channel;
use warren_control::{LoopState, LoopStatus};
use warren_core::State;
use warren_proto::v1;
use warren_proto::v1::peers_client::PeersClient;
use warren_types::{MemberId, NodeId};

use super::Api;

/// How long another manager may take to tell of its loops; one that takes longer is named.
const WORD: Duration = Duration::from_secs(1);
/// Largest answer of another manager: of ten thousand nodes.
const MAX_ANSWER: usize = 64 << 20;

/// What each manager told, or why it did not.
type Told = BTreeMap<MemberId, Result<v1::HeardResponse, String>>;

async fn ask(client: Option<PeersClient<Channel>>) -> Result<v1::HeardResponse, String> {
    let client = client.ok_or("there is no connection to it")?;
    let request = v1::HeardRequest { loops_only: true, ..Default::default() };
    let mut client = client.max_decoding_message_size(MAX_ANSWER);
    let answer = timeout(WORD, client.heard(request)).await;
    let answer = answer.map_err(|_| format!("it does not answer within {} s", WORD.as_secs()))?;
    answer.map(tonic::Response::into_inner).map_err(|status| status.message().to_owned())
}

impl Api {
    /// The loops of everybody who can be asked, and who cannot.
    pub(super) async fn all_loops(&self) -> v1::LoopsResponse {
        let published = self.store.read();
        let state = &published.state;
        let mut asked = JoinSet::new();
        for member in state.members().map(|member| member.member).filter(|member| *member != self.member) {
            let client = self.peers.client(member);
            asked.spawn(async move { (member, ask(client).await) });
        }
        let mut told: Told = asked.join_all().await.into_iter().collect();
        told.insert(self.member, Ok(self.tell_loops()));
        merge(state, told)
    }

    /// This manager's loops, and what its sessions heard of theirs.
    pub(super) fn tell_loops(&self) -> v1::HeardResponse {
        let loops = self.loops.snapshot().into_iter().map(show).collect();
        let heard = self.registry.loops().into_iter();
        let nodes = heard.map(|(node, loops)| v1::HeardNode {
            node_id: node.to_string(),
            loops,
            ..Default::default()
        });
        v1::HeardResponse { nodes: nodes.collect(), loops }
    }
}

/// Everything that was told, by manager: its own loops first, then those of the nodes that are connected to it.
fn merge(state: &State, told: Told) -> v1::LoopsResponse {
    let mut answer = v1::LoopsResponse::default();
    for (member, told) in told {
        let manager =
            state.member(member).map_or_else(|| member.to_string(), |member| member.name.to_string());
        let v1::HeardResponse { nodes, loops } = match told {
            Ok(told) => told,
            Err(why) => {
                answer.silent.push(v1::SilentManager { name: manager, why });
                continue;
            }
        };
        answer.loops.extend(loops.into_iter().map(|own| v1::Loop { manager: manager.clone(), ..own }));
        for v1::HeardNode { node_id, loops, .. } in nodes {
            let Ok(id) = node_id.parse::<NodeId>() else { continue };
            let node = state.node(&id);
            // It went to another manager, which hears of it what is new.
            if node.is_some_and(|node| node.manager != Some(member)) {
                continue;
            }
            let node = node.map_or(node_id, |node| node.name.to_string());
            let of_node = |told| v1::Loop { node: node.clone(), manager: manager.clone(), ..told };
            answer.loops.extend(loops.into_iter().map(of_node));
        }
    }
    answer
}

fn show(status: LoopStatus) -> v1::Loop {
    let whole = |n: u128| u64::try_from(n).unwrap_or(u64::MAX);
    v1::Loop {
        name: status.name.into(),
        interval_ms: status.interval.map(|d| whole(d.as_millis())).unwrap_or_default(),
        running: status.state == LoopState::Running,
        last_run_at: status.last_run_unix_millis,
        last_duration_us: status.last_duration.map(|d| whole(d.as_micros())).unwrap_or_default(),
        last_error: status.last_failure.map(|failure| failure.error).unwrap_or_default(),
        runs: status.runs,
        failures: status.failures,
        node: String::new(),
        manager: String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use warren_core::{Command, LEVEL};
    use warren_types::{ClusterId, Id, ManagerId, NodeDescription, NodeRole, Timestamp};

    const AT: Timestamp = Timestamp(1);

    /// The manager m1, with which node n7 has its session, and n8 has none.
    fn state() -> State {
        let node = |number: u128| Command::RegisterNode {
            id: NodeId(Id(number)),
            name: format!("n{number}").parse().unwrap(),
            role: NodeRole::Worker,
            description: NodeDescription::default(),
            at: AT,
        };
        let (id, ranges) = (ClusterId(Id(1)), vec!["10.0.0.0/8".parse().unwrap()]);
        let (node_id, description) = (NodeId(Id(7)), NodeDescription::default());
        let commands = [
            Command::CreateCluster { id, ranges, level: LEVEL, at: AT },
            Command::RegisterMember {
                member: 1,
                id: ManagerId(Id(11)),
                name: "m1".parse().unwrap(),
                address: "10.0.0.1:8080".parse().unwrap(),
                level: LEVEL,
                at: AT,
            },
            node(7),
            node(8),
            Command::OpenSession { node: node_id, description, manager: 1, at: AT },
        ];
        let mut state = State::new();
        for (index, command) in (1..).zip(&commands) {
            state.apply(1, index, command);
        }
        state
    }

    fn told(own: &[&str], nodes: &[(u128, &str)]) -> v1::HeardResponse {
        let named = |name: &str| v1::Loop { name: name.to_owned(), ..Default::default() };
        let node = |(number, name): &(u128, &str)| v1::HeardNode {
            node_id: NodeId(Id(*number)).to_string(),
            loops: vec![named(name)],
            ..Default::default()
        };
        v1::HeardResponse {
            nodes: nodes.iter().map(node).collect(),
            loops: own.iter().map(|it| named(it)).collect(),
        }
    }

    #[test]
    fn each_loop_says_whose_it_is_and_who_is_silent_is_named() {
        let unreadable = v1::HeardNode { node_id: "!".into(), ..Default::default() };
        let mut first = told(&["planner"], &[(7, "relist"), (8, "old")]);
        first.nodes.push(unreadable);
        let answers = BTreeMap::from([
            (1, Ok(first)),
            (2, Ok(told(&["planner"], &[(7, "older"), (9, "unknown")]))),
            (3, Err("there is no connection to it".to_owned())),
        ]);
        let v1::LoopsResponse { loops, silent } = merge(&state(), answers);
        let whose: Vec<_> = loops.iter().map(|it| (&*it.manager, &*it.node, &*it.name)).collect();
        let unknown = NodeId(Id(9)).to_string();
        let wanted =
            [("m1", "", "planner"), ("m1", "n7", "relist"), ("2", "", "planner"), ("2", &unknown, "unknown")];
        assert_eq!(whose, wanted);
        let why = "there is no connection to it".to_owned();
        assert_eq!(silent, [v1::SilentManager { name: "3".into(), why }]);
    }
}
