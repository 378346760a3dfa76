//! How a task is found to be well.

use serde::Serialize;
use warren_types::{HealthCheck, HttpHeader, Probe};

use super::duration;

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HealthView {
    probe: ProbeView,
    interval: String,
    timeout: String,
    retries: u32,
    start_period: String,
    start_interval: String,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
enum ProbeView {
    Http {
        port: u16,
        path: String,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        headers: Vec<HeaderView>,
    },
    Tcp {
        port: u16,
    },
    Exec {
        command: Vec<String>,
    },
}

#[derive(Debug, Serialize)]
struct HeaderView {
    name: String,
    value: String,
}

impl From<&HealthCheck> for HealthView {
    fn from(check: &HealthCheck) -> Self {
        let HealthCheck { probe, interval, timeout, retries, start_period, start_interval } = check;
        let header =
            |HttpHeader { name, value }: &HttpHeader| HeaderView { name: name.clone(), value: value.clone() };
        let probe = match probe {
            Probe::Http { port, path, headers } => {
                let (path, headers) = (path.clone(), headers.iter().map(header).collect());
                ProbeView::Http { port: *port, path, headers }
            }
            Probe::Tcp { port } => ProbeView::Tcp { port: *port },
            Probe::Exec { command } => ProbeView::Exec { command: command.clone() },
        };
        Self {
            probe,
            interval: duration(*interval),
            timeout: duration(*timeout),
            retries: *retries,
            start_period: duration(*start_period),
            start_interval: duration(*start_interval),
        }
    }
}
