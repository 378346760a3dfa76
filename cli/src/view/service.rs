//! A service and where it stands.

use serde::Serialize;
use warren_proto::convert::stored_service_spec;
use warren_proto::v1;
use warren_types::{ServiceSpec, Timestamp, Violation};

use super::spec::SpecView;
use super::{Time, age, short_id, unreadable};
use crate::failure::Failure;
use crate::output::{Column, Row, column, wide};

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ServiceView {
    id: String,
    name: String,
    version: u64,
    created_at: Time,
    updated_at: Time,
    revision: u64,
    removing: bool,
    replicas: ReplicasView,
    spec: SpecView,
    #[serde(skip)]
    wanted: ServiceSpec,
}

#[derive(Debug, Serialize)]
struct ReplicasView {
    wanted: u32,
    running: u32,
    tasks: u32,
}

impl TryFrom<v1::Service> for ServiceView {
    type Error = Failure;

    fn try_from(wire: v1::Service) -> Result<Self, Failure> {
        let missing = || Violation::new("spec", "is missing").into();
        let spec = wire.spec.ok_or_else(missing).and_then(stored_service_spec);
        let wanted = spec.map_err(unreadable("the service"))?;
        Ok(Self {
            id: wire.id,
            name: wanted.name.to_string(),
            version: wire.version,
            created_at: Time::new(wire.created_at),
            updated_at: Time::new(wire.updated_at),
            revision: wire.revision,
            removing: wire.removing,
            replicas: ReplicasView { wanted: wanted.replicas(), running: wire.running, tasks: wire.tasks },
            spec: (&wanted).into(),
            wanted,
        })
    }
}

impl Row for ServiceView {
    const COLUMNS: &'static [Column] = &[
        column("NAME"),
        column("REPLICAS"),
        column("IMAGE"),
        column("PORTS"),
        column("AGE"),
        wide("VERSION"),
        wide("REVISION"),
        column("ID"),
    ];

    fn cells(&self, wide: bool, now: Timestamp) -> Vec<String> {
        let state = if self.removing { " (removing)" } else { "" };
        let ports: Vec<String> = self.wanted.ports.iter().map(ToString::to_string).collect();
        vec![
            self.name.clone(),
            format!("{}/{}{state}", self.replicas.running, self.replicas.wanted),
            self.wanted.task.image.to_string(),
            ports.join(", "),
            age(self.created_at.0, now),
            self.version.to_string(),
            self.revision.to_string(),
            if wide { self.id.clone() } else { short_id(&self.id) },
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Format;
    use crate::output::tests::{rendered, shown, upright};

    fn wire() -> v1::Service {
        let port = |host_ip: &str, host_port, container_port| v1::PublishedPort {
            host_ip: host_ip.into(),
            host_port,
            container_port,
            protocol: v1::Protocol::Tcp.into(),
            mode: v1::PublishMode::Host.into(),
        };
        let list =
            |items: &[&str]| Some(v1::StringList { items: items.iter().map(ToString::to_string).collect() });
        let task = v1::TaskSpec {
            image: "nginx:1.27".into(),
            command: list(&["/bin/sh"]),
            args: list(&["-c", "sleep 1"]),
            env: vec![v1::EnvVar { name: "A".into(), value: "yes".into() }],
            limits: Some(v1::Limits { cpu_milli: Some(500), memory_bytes: Some(256 << 20) }),
            reservations: Some(v1::Resources { cpu_milli: 250, memory_bytes: 0 }),
            stop_grace_ms: Some(90_000),
        };
        let spec = v1::ServiceSpec {
            name: "web".into(),
            labels: [("app".to_owned(), "shop".to_owned())].into(),
            task: Some(task),
            ports: vec![port("", 8080, 80), port("127.0.0.1", 8443, 443)],
            mode: Some(v1::service_spec::Mode::Replicated(v1::Replicated { replicas: 3 })),
        };
        v1::Service {
            id: "3k2v9x0000000000000000abc".into(),
            version: 17,
            created_at: 1_795_184_280_120,
            updated_at: 1_795_184_280_120,
            spec: Some(spec),
            revision: 1,
            removing: false,
            running: 2,
            tasks: 3,
        }
    }

    #[test]
    fn services_have_a_line_each() {
        let mut going = wire();
        going.removing = true;
        let spec = going.spec.as_mut().unwrap();
        (spec.name, spec.ports) = ("shop".into(), Vec::new());
        let services = [wire(), going].map(|service| ServiceView::try_from(service).unwrap());
        let now = Timestamp(1_795_184_280_120 + 90_000);
        insta::assert_snapshot!(shown(&services, false, now), @r"
        NAME   REPLICAS         IMAGE        PORTS                                   AGE     ID
        web    2/3              nginx:1.27   8080->80/tcp, 127.0.0.1:8443->443/tcp   1m30s   3k2v9x0000
        shop   2/3 (removing)   nginx:1.27                                           1m30s   3k2v9x0000
        ");
        insta::assert_snapshot!(upright(&services[0], now), @r"
        NAME web
        REPLICAS 2/3
        IMAGE nginx:1.27
        PORTS 8080->80/tcp, 127.0.0.1:8443->443/tcp
        AGE 1m30s
        VERSION 17
        REVISION 1
        ID 3k2v9x0000000000000000abc
        ");
    }

    #[test]
    fn documents_have_everything_and_keep_their_shape() {
        let view = ServiceView::try_from(wire()).unwrap();
        insta::assert_snapshot!(rendered(Format::Yaml, &view), @r#"
        id: 3k2v9x0000000000000000abc
        name: web
        version: 17
        createdAt: "2026-11-20T14:18:00.120Z"
        updatedAt: "2026-11-20T14:18:00.120Z"
        revision: 1
        removing: false
        replicas:
          wanted: 3
          running: 2
          tasks: 3
        spec:
          name: web
          labels:
            app: shop
          mode:
            replicated:
              replicas: 3
          task:
            image: nginx:1.27
            command:
            - /bin/sh
            args:
            - -c
            - sleep 1
            env:
            - name: A
              value: "yes"
            limits:
              cpu: "0.5"
              memory: 256MiB
            reservations:
              cpu: "0.25"
            stopGrace: 1m30s
          ports:
          - hostPort: 8080
            containerPort: 80
            protocol: tcp
            mode: host
          - hostIp: "127.0.0.1"
            hostPort: 8443
            containerPort: 443
            protocol: tcp
            mode: host
        "#);
        let list: serde_json::Value = serde_json::from_str(&rendered(Format::Json, &[&view])).unwrap();
        assert_eq!(list, serde_json::json!([view]));
    }

    #[test]
    fn what_a_later_manager_says_is_not_misread() {
        let mut later = wire();
        later.spec.as_mut().unwrap().ports[0].protocol = 9;
        let failure = ServiceView::try_from(later).unwrap_err().to_string();
        assert!(failure.contains("ports[0].protocol: value 9 is not known to this version"), "{failure}");
    }
}
