//! Host ports of services.

use std::borrow::Cow;

use warren_types::spec::AUTOMATIC_PORTS;
use warren_types::{PublishedPort, ServiceId, ServiceSpec};

use crate::state::{Refusal, State};

/// No other service publishes one of the ports.
pub(super) fn check(state: &State, id: ServiceId, ports: &[PublishedPort]) -> Result<(), Refusal> {
    for port in ports {
        let owner = state.index.other_publisher(port, id).and_then(|id| state.services.get(&id));
        if let Some(owner) = owner {
            return Err(Refusal::PortTaken { port: *port, owner: owner.spec.name.clone() });
        }
    }
    Ok(())
}

/// The spec with a host port for each port that leaves it open: the one that the service has for it, or a free one.
pub(super) fn choose_automatic<'a>(
    state: &State,
    id: ServiceId,
    spec: &'a ServiceSpec,
) -> Result<Cow<'a, ServiceSpec>, Refusal> {
    if spec.ports.iter().all(|port| port.host_port != 0) {
        return Ok(Cow::Borrowed(spec));
    }
    let mut chosen = spec.clone();
    let known = state.services.get(&id).map(|service| &service.spec.ports[..]).unwrap_or_default();
    for place in 0..chosen.ports.len() {
        let port = chosen.ports[place];
        if port.host_port != 0 {
            continue;
        }
        let with = |host_port| PublishedPort { host_port, ..port };
        let is_free = |number: &u16| {
            let candidate = with(*number);
            !chosen.ports.iter().any(|other| other.conflicts_with(&candidate))
                && state.index.other_publisher(&candidate, id).is_none()
        };
        let same = |other: &&PublishedPort| {
            with(other.host_port) == **other && AUTOMATIC_PORTS.contains(&other.host_port)
        };
        let own = known.iter().filter(same).map(|other| other.host_port);
        let found = own.chain(AUTOMATIC_PORTS).find(is_free);
        chosen.ports[place].host_port =
            found.ok_or_else(|| Refusal::AutomaticPortsExhausted { service: spec.name.clone() })?;
    }
    Ok(Cow::Owned(chosen))
}
