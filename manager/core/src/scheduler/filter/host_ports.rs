//! A host port of a node belongs to one service; tasks of that service share it.

use std::collections::BTreeMap;

use super::{Candidate, Filter, Group, Phrase};

pub(super) struct HostPorts;

/// The first port that another service has there, and its name.
fn taken(group: &Group<'_>, node: &Candidate<'_>) -> Option<(u16, String)> {
    let foreign = |port| node.opener(group, port).filter(|opener| *opener != group.service.id);
    let (port, owner) =
        group.revision.ports.iter().find_map(|port| Some((port.host_port, foreign(port)?)))?;
    let name = group.state.service(&owner).map(|service| service.spec.name.to_string());
    Some((port, name.unwrap_or_else(|| owner.to_string())))
}

impl Filter for HostPorts {
    fn admits(&self, group: &Group<'_>, node: &Candidate<'_>) -> bool {
        group.revision.ports.is_empty() || taken(group, node).is_none()
    }

    fn explain(&self, group: &Group<'_>, refused: &[&Candidate<'_>]) -> Vec<Phrase> {
        let mut counts: BTreeMap<(u16, String), usize> = BTreeMap::new();
        for conflict in refused.iter().filter_map(|node| taken(group, node)) {
            *counts.entry(conflict).or_default() += 1;
        }
        let phrase = |((port, owner), nodes)| {
            Phrase::of(nodes, "has", "have", format!("host port {port} open for service {owner}"))
        };
        counts.into_iter().filter_map(phrase).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduler::View;
    use crate::state::{Command, NewTask, Outcome, State};
    use warren_types::*;

    /// Service 1, `web`, has port 80 open on node 1. Node 2 has nothing. Today no two services can publish
    /// one port, so the second comes from a revision that no service has.
    fn state() -> (State, Revision) {
        let at = Timestamp(1);
        let mut state = State::new();
        let mut run = |command| {
            let outcome = state.apply(1, state.applied().index + 1, &command);
            assert!(matches!(outcome, Outcome::Applied { .. }), "{outcome:?}");
        };
        let (protocol, mode) = (Protocol::Tcp, PublishMode::Host);
        let port = PublishedPort { host_ip: None, host_port: 80, container_port: 80, protocol, mode };
        let spec = |name: &str, ports| ServiceSpec {
            name: name.parse().unwrap(),
            labels: BTreeMap::new(),
            mode: Mode::Replicated { replicas: 1 },
            task: TaskSpec::new("demo:1".parse().unwrap()),
            ports,
            placement: Placement::default(),
            replace_after: Default::default(),
        };
        let text = String::new;
        let resources = Resources { cpu: MilliCpu(1000), memory: Bytes(1 << 30) };
        let ranges = vec!["10.0.0.0/8".parse().unwrap()];
        run(Command::CreateCluster { id: ClusterId(Id(1)), ranges, level: 1, at });
        for number in 1..=2 {
            let description = NodeDescription {
                resources,
                disk: Bytes(0),
                os: text(),
                labels: BTreeMap::new(),
                architecture: text(),
                kernel: text(),
                runtime: text(),
                version: text(),
                address: text(),
            };
            let (id, name) = (NodeId(Id(number)), format!("node-{number}").parse().unwrap());
            run(Command::RegisterNode {
                id,
                name,
                role: NodeRole::Worker,
                description: description.clone(),
                at,
            });
            run(Command::OpenSession { node: id, description, manager: 1, at });
        }
        let service = ServiceId(Id(1));
        run(Command::CreateService { id: service, spec: spec("web", vec![port]), at });
        run(Command::CreateService { id: ServiceId(Id(2)), spec: spec("api", vec![]), at });
        let slots = vec![NewTask {
            slot: 1,
            not_before: None,
            desired: Desired::Running,
            replaces: None,
            bound_to: None,
        }];
        run(Command::CreateTasks { term: 1, service, revision: 1, slots, at });
        let placements = vec![(TaskId { service, number: 1 }, NodeId(Id(1)))];
        run(Command::AssignTasks { term: 1, placements, at });
        let revision = state.service(&service).unwrap().revision.as_ref().clone();
        (state, revision)
    }

    fn admitted(view: &View<'_>, group: &Group<'_>) -> Vec<bool> {
        view.candidates.iter().map(|node| HostPorts.admits(group, node)).collect()
    }

    #[test]
    fn a_port_belongs_to_one_service_per_node() {
        let (state, revision) = state();
        let mut view = View::new(&state);
        let group = |number| {
            let service = state.service(&ServiceId(Id(number))).unwrap();
            Group {
                state: &state,
                service,
                revision: &revision,
                tasks: Vec::new(),
                bound_to: None,
                replaces_on: None,
                volumes: Default::default(),
            }
        };
        let (web, api) = (group(1), group(2));
        assert_eq!((admitted(&view, &web), admitted(&view, &api)), (vec![true, true], vec![false, true]));
        // What the plan opens counts as well, and stays shared within the service.
        view.candidates[1].take(&api);
        assert_eq!((admitted(&view, &web), admitted(&view, &api)), (vec![true, false], vec![false, true]));
    }

    #[test]
    fn the_refusal_names_port_and_service() {
        let (state, revision) = state();
        let view = View::new(&state);
        let service = state.service(&ServiceId(Id(2))).unwrap();
        let group = Group {
            state: &state,
            service,
            revision: &revision,
            tasks: Vec::new(),
            bound_to: None,
            replaces_on: None,
            volumes: Default::default(),
        };
        let phrases = HostPorts.explain(&group, &[&view.candidates[0]]);
        let words: Vec<_> =
            phrases.iter().map(|phrase| format!("{} {}", phrase.nodes, phrase.words)).collect();
        assert_eq!(words, ["1 has host port 80 open for service web"]);
    }
}
