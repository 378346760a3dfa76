//! Networks, services with and without them, and addresses that are assigned again.

use std::collections::BTreeMap;

use warren_core::Command;
use warren_types::{
    EndpointMode, Id, NetworkId, ServiceId, ServiceMode, ServiceSpec, TaskNetworkMode, TaskSpec, Timestamp,
};

use super::global;

const AT: Timestamp = Timestamp(180);

fn create(number: u128, name: &str, internal: bool) -> Command {
    let (id, name) = (NetworkId(Id(number)), name.parse().unwrap());
    let labels = BTreeMap::from([("team".into(), "a".into())]);
    Command::CreateNetwork { id, name, labels, internal, at: AT }
}

/// A service whose tasks have no address of their own.
fn unconnected(number: u128, name: &str, network: TaskNetworkMode) -> Command {
    let task = TaskSpec { network, ..TaskSpec::new("job:1".parse().unwrap()) };
    let (name, mode) = (name.parse().unwrap(), ServiceMode::Replicated { replicas: 0 });
    let spec = ServiceSpec { name, mode, task, endpoint_mode: EndpointMode::Dnsrr, ..global() };
    Command::CreateService { id: ServiceId(Id(number)), spec, at: AT }
}

pub fn commands() -> Vec<(&'static str, Command)> {
    vec![
        ("create_network", create(40, "front", true)),
        ("create_network_to_remove", create(41, "old", false)),
        ("remove_network", Command::RemoveNetwork { id: NetworkId(Id(41)), at: AT }),
        ("create_service_without_network", unconnected(12, "batch", TaskNetworkMode::None)),
        ("create_service_on_network_of_node", unconnected(13, "proxy", TaskNetworkMode::Host)),
    ]
}

/// Nothing was withdrawn long enough ago.
pub fn release() -> Command {
    Command::ReleaseAddresses { term: 1, acknowledged: 7, at: Timestamp(300) }
}
