//! Steps about networks, services that are in them, addresses that were withdrawn, and the verification of nodes.

use arbitrary::Result;
use warren_core::Command;
use warren_types::{
    DnsSettings, EndpointMode, NetworkAttachment, NetworkId, NodeCheckOutcome, NodeCheckResult, ServiceSpec,
    TaskNetworkMode, Timestamp,
};

use super::{FuzzInput, TERM};

/// The kind of the commands about the verification of a node.
const NODES: u8 = 255;

impl FuzzInput<'_> {
    pub(super) fn network_command(&mut self, kind: u8, at: Timestamp) -> Result<Command> {
        if kind == NODES {
            let (node, term) = (self.node()?, self.number(TERM, 1)?);
            let outcome = *self.0.choose(&NodeCheckOutcome::ALL)?;
            let (results, answered) =
                (vec![NodeCheckResult::new("dns", outcome, "text")], self.number(0, 200)?);
            return Ok(match self.byte()? % 3 {
                0 => Command::RequestVerification { nodes: [node].into(), at },
                1 => Command::BeginVerification { term, node, at },
                _ => Command::RecordVerification { term, node, answered, results, at },
            });
        }
        Ok(match kind % 5 {
            0 => {
                let (id, name) = (self.network()?, self.network_name()?.parse().expect("the name is valid"));
                let (labels, internal) = (self.labels()?, self.sometimes()?);
                Command::CreateNetwork { id, name, labels, internal, at }
            }
            1 => Command::RemoveNetwork { id: self.network()?, at },
            2 => {
                let (term, acknowledged) = (self.number(TERM, 1)?, self.number(0, 200)?);
                Command::ReleaseAddresses { term, acknowledged, at }
            }
            3 => Command::CreateService { id: self.service()?, spec: self.connected_spec()?, at },
            _ => {
                let (id, version, spec) = (self.service()?, self.version()?, self.connected_spec()?);
                Command::UpdateService { id, version, spec, force: self.sometimes()?, at }
            }
        })
    }

    fn connected_spec(&mut self) -> Result<ServiceSpec> {
        let mut spec = self.spec()?;
        let attachment = |input: &mut Self| {
            let network = input.network_name()?.parse().expect("the name is valid");
            let alias = |input: &mut Self| Ok(input.name()?.parse().expect("the name is valid"));
            Ok(NetworkAttachment { network, aliases: input.list(2, alias)?.into_iter().collect() })
        };
        spec.task.network = match self.byte()? % 8 {
            0 => TaskNetworkMode::Host,
            1 => TaskNetworkMode::None,
            _ => TaskNetworkMode::Networks(self.list(3, attachment)?),
        };
        spec.endpoint_mode = if self.sometimes()? { EndpointMode::Dnsrr } else { EndpointMode::Vip };
        if self.sometimes()? {
            spec.publish_on = vec!["node.labels.a exists".parse().expect("the constraint is valid")];
        }
        if self.sometimes()? {
            let servers = self.list(2, |input| Ok([10, 0, 0, input.byte()?].into()))?;
            spec.task.dns = DnsSettings { servers, searches: self.list(2, Self::short_text)? };
        }
        Ok(spec)
    }

    fn network(&mut self) -> Result<NetworkId> {
        self.id().map(NetworkId)
    }

    fn network_name(&mut self) -> Result<&'static str> {
        self.0.choose(&["default", "a", "b", "host"]).copied()
    }
}
