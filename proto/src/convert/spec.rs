//! Service specs.

use std::time::Duration;

use warren_types::{NodeLabel, Placement, PublishedPort, ServiceMode, ServiceSpec, Violation, Violations};

use super::fields::{FieldReader, millis};
use super::request::replicas;
use super::wire_form::{
    WireForm, convert_by_wire_form, field, number_or_zero, required_messages, wire_structs,
};
use crate::v1;

impl TryFrom<v1::ServiceSpec> for ServiceSpec {
    type Error = Violations;

    fn try_from(wire: v1::ServiceSpec) -> Result<Self, Violations> {
        let spec = stored_service_spec(wire)?;
        spec.validate().into_result(spec)
    }
}

/// A spec that was valid when it was accepted: converted, not validated again.
pub fn stored_service_spec(wire: v1::ServiceSpec) -> Result<ServiceSpec, Violations> {
    let mut fields = FieldReader::default();
    let name = fields.parse("name", &wire.name);
    let mode = match wire.mode {
        Some(v1::service_spec::Mode::Replicated(v1::Replicated { replicas: desired })) => fields
            .nest("mode.replicated", replicas(desired))
            .map(|replicas| ServiceMode::Replicated { replicas }),
        Some(v1::service_spec::Mode::Global(v1::Global {})) => Some(ServiceMode::Global),
        None => fields.add_violation("mode", "is missing; give replicated or global"),
    };
    let task = fields.required("task", wire.task);
    let ports = fields.list("ports", wire.ports);
    let placement = fields.nest("placement", wire.placement.unwrap_or_default().try_into());
    let endpoint_mode = field(&mut fields, "endpoint_mode", WireForm::from_wire(wire.endpoint_mode));
    let publish_on = field(&mut fields, "publishOn", WireForm::from_wire(wire.publish_on));
    let per = field(&mut fields, "per", <Option<NodeLabel>>::from_wire(wire.per));
    let (labels, bootstrap) = (wire.labels, wire.bootstrap);
    let replace_after = Duration::from_millis(wire.replace_after_ms);
    let update = fields.nest("update", wire.update.unwrap_or_default().try_into());
    let rollback = fields.nest("rollback", wire.rollback.unwrap_or_default().try_into());
    let built = || {
        let (name, mode, task, ports, placement) = (name?, mode?, task?, ports?, placement?);
        let (update, rollback, endpoint_mode) = (update?, rollback?, endpoint_mode?);
        let (per, publish_on) = (per?, publish_on?);
        Some(ServiceSpec {
            name,
            labels,
            mode,
            per,
            bootstrap,
            task,
            ports,
            placement,
            replace_after,
            endpoint_mode,
            publish_on,
            update,
            rollback,
        })
    };
    fields.finish(built())
}

impl From<&ServiceSpec> for v1::ServiceSpec {
    fn from(spec: &ServiceSpec) -> Self {
        let ServiceSpec {
            name,
            labels,
            mode,
            per,
            bootstrap,
            task,
            ports,
            placement,
            replace_after,
            endpoint_mode,
            publish_on,
            update,
            rollback,
        } = spec;
        let mode = match *mode {
            ServiceMode::Replicated { replicas } => {
                v1::service_spec::Mode::Replicated(v1::Replicated { replicas: i64::from(replicas) })
            }
            ServiceMode::Global => v1::service_spec::Mode::Global(v1::Global {}),
        };
        Self {
            name: name.to_string(),
            labels: labels.clone(),
            task: Some(task.into()),
            ports: ports.iter().map(Into::into).collect(),
            placement: (*placement != Placement::default()).then(|| placement.into()),
            mode: Some(mode),
            per: per.to_wire(),
            bootstrap: *bootstrap,
            replace_after_ms: millis(*replace_after),
            endpoint_mode: endpoint_mode.to_wire(),
            publish_on: publish_on.to_wire(),
            update: (!update.is_default()).then(|| update.into()),
            rollback: (!rollback.is_default()).then(|| rollback.into()),
        }
    }
}

wire_structs! {
    Placement as Placement { constraints, tolerations, max_per_node, preferences };
    PublishedPort as PublishedPort { host_ip, host_port by number_or_zero, container_port, protocol, mode, prefer_local,
        client_affinity };
}
convert_by_wire_form! { Placement PublishedPort }

/// Not validated again.
impl WireForm<v1::ServiceSpec> for ServiceSpec {
    fn to_wire(&self) -> v1::ServiceSpec {
        self.into()
    }

    fn from_wire(wire: v1::ServiceSpec) -> Result<Self, Violations> {
        stored_service_spec(wire)
    }
}

required_messages! { ServiceSpec as ServiceSpec }

#[cfg(test)]
mod tests {
    use warren_types::spec::DEFAULT_STOP_GRACE;
    use warren_types::{Bytes, TaskSpec};

    use super::*;
    use crate::v1::service_spec::Mode::Replicated;

    fn wire() -> v1::ServiceSpec {
        let port = v1::PublishedPort {
            host_ip: String::new(),
            host_port: 8080,
            container_port: 80,
            protocol: v1::Protocol::Tcp.into(),
            mode: v1::PublishMode::Host.into(),
            prefer_local: false,
            client_affinity: false,
        };
        v1::ServiceSpec {
            name: "web".into(),
            mode: Some(Replicated(v1::Replicated { replicas: 2 })),
            task: Some(v1::TaskSpec { image: "nginx:1.27".into(), ..Default::default() }),
            ports: vec![port],
            ..Default::default()
        }
    }

    #[track_caller]
    fn check(change: impl FnOnce(&mut v1::ServiceSpec), expected: &[&str]) {
        let mut spec = wire();
        change(&mut spec);
        let found = ServiceSpec::try_from(spec).err().unwrap_or_default();
        let found: Vec<String> = found.0.into_iter().map(|v| v.path).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn invalid_wire_value_is_refused_with_path() {
        check(|_| (), &[]);
        check(|s| s.name = "Web!".into(), &["name"]);
        check(|s| s.mode = None, &["mode"]);
        let replicated = |replicas| Some(Replicated(v1::Replicated { replicas }));
        check(|s| s.mode = replicated(-1), &["mode.replicated.replicas"]);
        check(|s| s.mode = replicated(i64::MAX), &["mode.replicated.replicas"]);
        check(|s| s.task = None, &["task"]);
        check(|s| s.task.as_mut().unwrap().image = String::new(), &["task.image"]);
        check(|s| s.ports[0].host_ip = "::1".into(), &["ports[0].hostIp"]);
        check(|s| s.ports[0].host_port = 65_536, &["ports[0].hostPort"]);
        check(|s| s.ports[0].container_port = 0, &["ports[0].containerPort"]);
        check(|s| s.ports[0].protocol = 0, &["ports[0].protocol"]);
        check(|s| s.ports[0].protocol = 9, &["ports[0].protocol"]);
        check(|s| s.ports[0].mode = 0, &["ports[0].mode"]);
        check(|s| s.ports[0].mode = 7, &["ports[0].mode"]);
        check(|s| s.per = "zone".into(), &["per"]);
        check(|s| s.bootstrap = true, &["bootstrap"]);
        check(|s| s.replace_after_ms = u64::MAX, &["replaceAfter"]);
        check(|s| s.publish_on = vec!["node.id exists".into(), "edge".into()], &["publishOn[1]"]);
        check(|s| s.publish_on = vec!["node.id exists".into()], &["publishOn"]);
        let alone = |time| move |s: &mut v1::ServiceSpec| s.task.as_mut().unwrap().stop_after_ms = time;
        check(alone(Some(0)), &["task.onDisconnect.stopAfter"]);
        check(alone(Some(u64::MAX)), &["task.onDisconnect.stopAfter"]);
    }

    #[test]
    fn violations_are_complete_and_ordered() {
        let change = |s: &mut v1::ServiceSpec| {
            s.name = String::new();
            s.task = None;
            s.ports[0].mode = 0;
            s.ports.push(v1::PublishedPort::default());
        };
        let second = ["ports[1].containerPort", "ports[1].protocol", "ports[1].mode"];
        check(change, &[&["name", "task", "ports[0].mode"][..], &second].concat());
    }

    #[test]
    fn stored_spec_is_not_validated() {
        let mut spec = wire();
        spec.task.as_mut().unwrap().limits =
            Some(v1::Limits { cpu_milli: None, memory_bytes: Some(1), pids: None });
        let stored = stored_service_spec(spec.clone()).unwrap();
        assert_eq!(stored.task.limits.memory, Some(Bytes(1)));
        check(|s| *s = spec, &["task.limits.memory"]);
    }

    #[test]
    fn stop_grace_defaults_and_rounds_up() {
        let read = |stop_grace_ms| {
            let wire = v1::TaskSpec { image: "a".into(), stop_grace_ms, ..Default::default() };
            TaskSpec::try_from(wire).unwrap().stop_grace
        };
        assert_eq!(read(None), DEFAULT_STOP_GRACE);
        assert_eq!(read(Some(0)), Duration::ZERO);
        assert_eq!(millis(Duration::from_nanos(1)), 1);
    }
}
