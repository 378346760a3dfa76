//! Rejects nodes on which another service has a host port; tasks of one service share their ports.

use std::collections::BTreeMap;

use super::{Filter, FilterExplanation, NodeInfo, TaskGroup};

pub(super) struct HostPortFilter;

/// The first port that another service has there, and its name.
fn conflicting_port(group: &TaskGroup<'_>, node: &NodeInfo<'_>) -> Option<(u16, String)> {
    let foreign = |port| node.port_owner(group, port).filter(|opener| *opener != group.service.id);
    let (port, owner) =
        group.revision.ports.iter().find_map(|port| Some((port.host_port, foreign(port)?)))?;
    let name = group.state.service(&owner).map(|service| service.spec.name.to_string());
    Some((port, name.unwrap_or_else(|| owner.to_string())))
}

impl Filter for HostPortFilter {
    fn admits(&self, group: &TaskGroup<'_>, node: &NodeInfo<'_>) -> bool {
        group.revision.ports.is_empty() || conflicting_port(group, node).is_none()
    }

    fn explain(&self, group: &TaskGroup<'_>, refused: &[&NodeInfo<'_>]) -> Vec<FilterExplanation> {
        let mut counts: BTreeMap<(u16, String), usize> = BTreeMap::new();
        for conflict in refused.iter().filter_map(|node| conflicting_port(group, node)) {
            *counts.entry(conflict).or_default() += 1;
        }
        let phrase = |((port, owner), nodes)| {
            FilterExplanation::new(nodes, "has", "have", format!("host port {port} open for service {owner}"))
        };
        counts.into_iter().filter_map(phrase).collect()
    }

    fn remedy(&self, group: &TaskGroup<'_>, _: &[&NodeInfo<'_>]) -> String {
        let name = &group.service.spec.name;
        format!("publish another port with `warren service update {name} --publish-add ...`, or add a node")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduler::NodeSet;
    use crate::state::{ApplyOutcome, Command, NewTask, State};
    use warren_types::*;

    /// Service 1, `web`, has port 80 open on node 1. Node 2 has nothing. No two services can publish one
    /// port, so the second one comes from a revision that no service has.
    fn state() -> (State, Revision) {
        let at = Timestamp(1);
        let mut state = State::new();
        let mut run = |command| {
            let outcome = state.apply(1, state.applied().index + 1, &command);
            assert!(matches!(outcome, ApplyOutcome::Applied { .. }), "{outcome:?}");
        };
        let (protocol, mode) = (Protocol::Tcp, PublishMode::Host);
        let port = PublishedPort {
            host_ip: None,
            host_port: 80,
            container_port: 80,
            protocol,
            mode,
            prefer_local: false,
            client_affinity: false,
        };
        let spec = |name: &str, ports| ServiceSpec {
            mode: ServiceMode::Replicated { replicas: 1 },
            ports,
            ..ServiceSpec::new(name.parse().unwrap(), TaskSpec::new("demo:1".parse().unwrap()))
        };
        let text = String::new;
        let resources = Resources { cpu: MilliCpu(1000), memory: Bytes(1 << 30) };
        let ranges = vec!["10.0.0.0/8".parse().unwrap()];
        run(Command::CreateCluster { id: ClusterId(Id(1)), ranges, feature_level: 1, at });
        for number in 1..=2 {
            let description = NodeDescription {
                resources,
                disk: Bytes(0),
                os: text(),
                labels: BTreeMap::new(),
                architecture: text(),
                kernel: text(),
                runtime: text(),
                data_address: None,
                wireguard_key: None,
                apparmor_missing: false,
                version: text(),
                address: text(),
            };
            let (id, name) = (NodeId(Id(number)), format!("node-{number}").parse().unwrap());
            run(Command::RegisterNode {
                id,
                name,
                role: NodeRole::Worker,
                description: description.clone(),
                taints: Default::default(),
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
            desired: DesiredTaskState::Running,
            replaces: None,
            bound_to: None,
            label_value: None,
        }];
        run(Command::CreateTasks { term: 1, service, revision: 1, slots, at });
        let placements = vec![(TaskId { service, number: 1 }, NodeId(Id(1)))];
        run(Command::AssignTasks { term: 1, placements, at });
        let revision = state.service(&service).unwrap().revision.as_ref().clone();
        (state, revision)
    }

    fn admitted(view: &NodeSet<'_>, group: &TaskGroup<'_>) -> Vec<bool> {
        view.nodes.iter().map(|node| HostPortFilter.admits(group, node)).collect()
    }

    #[test]
    fn port_of_other_service_is_refused() {
        let (state, revision) = state();
        let mut view = NodeSet::new(&state);
        let group = |number| {
            let service = state.service(&ServiceId(Id(number))).unwrap();
            TaskGroup {
                state: &state,
                service,
                revision: &revision,
                tasks: Vec::new(),
                bound_to: None,
                label_value: None,
                slot: 1,
                predecessor_node: None,
                volumes: Default::default(),
            }
        };
        let (web, api) = (group(1), group(2));
        assert_eq!((admitted(&view, &web), admitted(&view, &api)), (vec![true, true], vec![false, true]));
        // Ports opened by the plan count as well, and stay shared within the service.
        view.nodes[1].reserve(&api);
        assert_eq!((admitted(&view, &web), admitted(&view, &api)), (vec![true, false], vec![false, true]));
    }

    #[test]
    fn explanation_names_port_and_service() {
        let (state, revision) = state();
        let view = NodeSet::new(&state);
        let service = state.service(&ServiceId(Id(2))).unwrap();
        let group = TaskGroup {
            state: &state,
            service,
            revision: &revision,
            tasks: Vec::new(),
            bound_to: None,
            label_value: None,
            slot: 1,
            predecessor_node: None,
            volumes: Default::default(),
        };
        let phrases = HostPortFilter.explain(&group, &[&view.nodes[0]]);
        let words: Vec<_> =
            phrases.iter().map(|phrase| format!("{} {}", phrase.nodes, phrase.text)).collect();
        assert_eq!(words, ["1 has host port 80 open for service web"]);
    }
}
