//! What a user may not expect of a service that was created or updated.

use warren_client::Client;
use warren_proto::convert::data_plane;
use warren_types::catalogue::split_instance_name;
use warren_types::{DataPlane, PublishedPort, ServiceSpec};

/// `kafka-1` is also how the task in slot 1 of `kafka` is called: names resolve to the service.
pub(super) async fn warn_of_shadowed_instance(client: &Client, name: &str) {
    let Some((service, slot)) = split_instance_name(name) else { return };
    if client.services().get(service).await.is_ok() {
        eprintln!(
            "warning: {name} is also the name of the task in slot {slot} of service {service}; on networks of both it \
             leads to the service {name}"
        );
    }
}

/// Without a tunnel, nodes lead the ports of `spec` in ingress mode to their own tasks only.
pub(super) async fn warn_of_local_ports(client: &Client, spec: &ServiceSpec) {
    let ports = spec.ports.iter().filter(|port| port.is_ingress());
    let ports: Vec<String> = ports.map(PublishedPort::to_string).collect();
    if ports.is_empty() {
        return;
    }
    // The service is there; without an answer nothing is known.
    let settings = client.cluster().info().await.ok().and_then(|info| info.settings);
    let chosen = settings.and_then(|settings| data_plane(settings.data_plane?).ok());
    if chosen == Some(DataPlane::Routes) {
        eprintln!(
            "warning: with the data plane routes, a node leads {} only to tasks of {} on the node itself, and refuses \
             connections while it has none",
            ports.join(", "),
            spec.name
        );
    }
}
