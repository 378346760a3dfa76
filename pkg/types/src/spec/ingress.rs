//! Ports in ingress mode: which nodes open them.

use super::{MAX_CONSTRAINTS, PublishedPort, ServiceSpec};
use crate::Violations;

impl ServiceSpec {
    pub(super) fn validate_publish_on(&self, wrong: &mut Violations) {
        if !self.publish_on.is_empty() && !self.ports.iter().any(PublishedPort::is_ingress) {
            let message = "selects the nodes that open ports of mode=ingress, and the service has none; publish one, \
                           or leave it out";
            wrong.add("publishOn", message);
        }
        if self.publish_on.len() > MAX_CONSTRAINTS {
            wrong.add("publishOn", format!("{} are more than {MAX_CONSTRAINTS}", self.publish_on.len()));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::{Constraint, PublishMode, TaskSpec};

    const PORT: PublishedPort = PublishedPort {
        host_ip: None,
        host_port: 80,
        container_port: 80,
        protocol: crate::Protocol::Tcp,
        mode: PublishMode::Ingress,
        prefer_local: false,
        client_affinity: false,
    };
    const IN_HOST_MODE: PublishedPort = PublishedPort { mode: PublishMode::Host, ..PORT };

    #[track_caller]
    fn check(port: Option<PublishedPort>, tests: usize, expected: &[&str]) {
        let test: Constraint = "node.labels.edge == true".parse().unwrap();
        let task = TaskSpec::new("nginx:1.27".parse().unwrap());
        let spec = ServiceSpec {
            ports: port.into_iter().collect(),
            publish_on: vec![test; tests],
            ..ServiceSpec::new("web".parse().unwrap(), task)
        };
        let found: Vec<String> = spec.validate().0.into_iter().map(|v| v.path).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn options_of_ingress_mode_are_refused_in_host_mode() {
        check(Some(PORT), 0, &[]);
        check(Some(PublishedPort { host_ip: Some(Ipv4Addr::LOCALHOST), ..PORT }), 0, &["ports[0].hostIp"]);
        let options = PublishedPort { prefer_local: true, client_affinity: true, ..PORT };
        check(Some(options), 0, &[]);
        let in_host_mode = PublishedPort { mode: PublishMode::Host, ..options };
        check(Some(in_host_mode), 0, &["ports[0].preferLocal", "ports[0].clientAffinity"]);
    }

    #[test]
    fn only_ports_in_ingress_mode_are_opened_on_selected_nodes() {
        check(Some(PORT), MAX_CONSTRAINTS, &[]);
        check(Some(PORT), MAX_CONSTRAINTS + 1, &["publishOn"]);
        check(Some(IN_HOST_MODE), 1, &["publishOn"]);
        check(None, 1, &["publishOn"]);
    }
}
