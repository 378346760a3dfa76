//! Health checks.

use std::time::Duration;

use warren_types::{HealthCheck, HttpHeader, Probe, Violations};

use super::fields::{FieldReader, millis};
use crate::v1;

impl TryFrom<v1::HealthCheck> for HealthCheck {
    type Error = Violations;

    fn try_from(wire: v1::HealthCheck) -> Result<Self, Violations> {
        use v1::health_check::Probe as Wire;
        let mut fields = FieldReader::default();
        let port = |fields: &mut FieldReader, path: &str, port: u32| match u16::try_from(port) {
            Ok(port) => Some(port),
            Err(_) => fields.add_violation(path, format!("{port} is not a port; give one of 1 to 65535")),
        };
        let probe = match wire.probe {
            Some(Wire::Http(v1::HttpProbe { port: number, path, headers })) => {
                let headers = headers.into_iter();
                let headers =
                    headers.map(|v1::HttpHeader { name, value }| HttpHeader { name, value }).collect();
                port(&mut fields, "probe.http.port", number).map(|port| Probe::Http { port, path, headers })
            }
            Some(Wire::Tcp(v1::TcpProbe { port: number })) => {
                port(&mut fields, "probe.tcp.port", number).map(|port| Probe::Tcp { port })
            }
            Some(Wire::Exec(v1::ExecProbe { command })) => Some(Probe::Exec { command }),
            None => fields.add_violation("probe", "is missing; give http, tcp or exec"),
        };
        let built = probe.map(|probe| {
            let given = Self::new(probe);
            Self {
                interval: wire.interval_ms.map_or(given.interval, Duration::from_millis),
                timeout: wire.timeout_ms.map_or(given.timeout, Duration::from_millis),
                retries: wire.retries.unwrap_or(given.retries),
                start_period: Duration::from_millis(wire.start_period_ms),
                start_interval: wire.start_interval_ms.map_or(given.start_interval, Duration::from_millis),
                probe: given.probe,
            }
        });
        fields.finish(built)
    }
}

impl From<&HealthCheck> for v1::HealthCheck {
    fn from(check: &HealthCheck) -> Self {
        use v1::health_check::Probe as Wire;
        let HealthCheck { probe, interval, timeout, retries, start_period, start_interval } = check;
        let header = |HttpHeader { name, value }: &HttpHeader| v1::HttpHeader {
            name: name.clone(),
            value: value.clone(),
        };
        let wire = match probe {
            Probe::Http { port, path, headers } => Wire::Http(v1::HttpProbe {
                port: u32::from(*port),
                path: path.clone(),
                headers: headers.iter().map(header).collect(),
            }),
            Probe::Tcp { port } => Wire::Tcp(v1::TcpProbe { port: u32::from(*port) }),
            Probe::Exec { command } => Wire::Exec(v1::ExecProbe { command: command.clone() }),
        };
        let defaults = HealthCheck::new(Probe::Tcp { port: 0 });
        let period = |value: Duration, default: Duration| (value != default).then(|| millis(value));
        Self {
            probe: Some(wire),
            interval_ms: period(*interval, defaults.interval),
            timeout_ms: period(*timeout, defaults.timeout),
            retries: (*retries != defaults.retries).then_some(*retries),
            start_period_ms: millis(*start_period),
            start_interval_ms: period(*start_interval, defaults.start_interval),
        }
    }
}
