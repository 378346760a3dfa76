//! How a task is found to be well.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::Violations;

/// The longest period, timeout or start period.
const LONGEST: Duration = Duration::from_secs(24 * 3600);
/// The shortest period between two checks.
pub const MIN_HEALTH_INTERVAL: Duration = Duration::from_millis(100);
/// The shortest timeout.
pub const MIN_HEALTH_TIMEOUT: Duration = Duration::from_millis(10);
/// How many headers a check may send.
const MAX_HEADERS: usize = 32;
/// The most failures in a row.
const MAX_RETRIES: u32 = 100;

/// A check that the worker runs again and again. A task is ready with the first check that succeeds, and unhealthy,
/// so that it gets no traffic and is replaced, with `retries` failures in a row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HealthCheck {
    /// What is asked.
    pub probe: Probe,
    /// From the start of one check to the start of the next, if it is through by then.
    #[serde(default = "default_interval", with = "crate::text::duration")]
    pub interval: Duration,
    /// A check that takes longer has failed.
    #[serde(default = "default_timeout", with = "crate::text::duration")]
    pub timeout: Duration,
    /// Failures in a row that make it unhealthy.
    #[serde(default = "default_retries")]
    pub retries: u32,
    /// Failures before the first success do not count so long after the start.
    #[serde(default, with = "crate::text::duration")]
    pub start_period: Duration,
    /// As `interval`, until the first success within the start period, and before it without one.
    #[serde(default = "default_start_interval", with = "crate::text::duration")]
    pub start_interval: Duration,
}

/// What is asked, from inside the container's network.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum Probe {
    /// An HTTP/1.1 GET that is answered with a status of 200 to 399. Redirects are followed on the same host and port.
    #[serde(rename_all = "camelCase")]
    Http {
        /// In the container.
        port: u16,
        /// Begins with `/`; may have a query.
        path: String,
        /// Sent as well; `Host` replaces the default of `localhost`.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        headers: Vec<HttpHeader>,
    },
    /// A connection that is accepted.
    #[serde(rename_all = "camelCase")]
    Tcp {
        /// In the container.
        port: u16,
    },
    /// A program in the container that ends with 0.
    #[serde(rename_all = "camelCase")]
    Exec {
        /// Program and arguments.
        command: Vec<String>,
    },
}

/// A header of a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HttpHeader {
    /// A token (RFC 9110).
    pub name: String,
    /// Visible ASCII, blanks and tabs.
    pub value: String,
}

fn default_interval() -> Duration {
    Duration::from_secs(30)
}

fn default_timeout() -> Duration {
    Duration::from_secs(5)
}

fn default_retries() -> u32 {
    3
}

fn default_start_interval() -> Duration {
    Duration::from_secs(1)
}

impl HealthCheck {
    /// With the default periods.
    pub fn new(probe: Probe) -> Self {
        Self {
            probe,
            interval: default_interval(),
            timeout: default_timeout(),
            retries: default_retries(),
            start_period: Duration::ZERO,
            start_interval: default_start_interval(),
        }
    }

    /// Everything wrong with it; paths are relative to it.
    pub(super) fn validate(&self) -> Violations {
        let mut wrong = Violations::default();
        wrong.nest("probe", self.probe.validate());
        let mut within = |path: &str, found: Duration, least: Duration| {
            if !(least..=LONGEST).contains(&found) {
                wrong.add(path, format!("{found:?} is not between {least:?} and 24 hours"));
            }
        };
        within("interval", self.interval, MIN_HEALTH_INTERVAL);
        within("timeout", self.timeout, MIN_HEALTH_TIMEOUT);
        within("startPeriod", self.start_period, Duration::ZERO);
        within("startInterval", self.start_interval, MIN_HEALTH_INTERVAL);
        if !(1..=MAX_RETRIES).contains(&self.retries) {
            wrong.add("retries", format!("{} is not between 1 and {MAX_RETRIES}", self.retries));
        }
        wrong
    }
}

impl Probe {
    fn validate(&self) -> Violations {
        let mut wrong = Violations::default();
        match self {
            Self::Http { port, path, headers } => {
                if *port == 0 {
                    wrong.add("http.port", "0 is not a port; give one of 1 to 65535");
                }
                let plain = |b: u8| b.is_ascii_graphic() && b != b'#';
                if !path.starts_with('/') || path.len() > 2048 || !path.bytes().all(plain) {
                    let message = format!("{path:?} is not a path that begins with / and is percent-encoded");
                    wrong.add("http.path", message);
                }
                if headers.len() > MAX_HEADERS {
                    wrong.add("http.headers", format!("{} are more than {MAX_HEADERS}", headers.len()));
                }
                for (i, HttpHeader { name, value }) in headers.iter().enumerate() {
                    let token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
                    if name.is_empty() || name.len() > 128 || !name.bytes().all(token) {
                        wrong.add(
                            format!("http.headers[{i}].name"),
                            format!("{name:?} is not a header's name"),
                        );
                    }
                    let visible = |b: u8| b.is_ascii_graphic() || b == b' ' || b == b'\t';
                    if value.len() > 4096 || !value.bytes().all(visible) {
                        wrong.add(
                            format!("http.headers[{i}].value"),
                            "is not a header's value: visible ASCII",
                        );
                    }
                    let framing = ["content-length", "transfer-encoding", "connection", "upgrade"];
                    if framing.iter().any(|fixed| name.eq_ignore_ascii_case(fixed)) {
                        let message = format!("{name} is set by the check itself");
                        wrong.add(format!("http.headers[{i}].name"), message);
                    }
                }
            }
            Self::Tcp { port: 0 } => wrong.add("tcp.port", "0 is not a port; give one of 1 to 65535"),
            Self::Tcp { .. } => {}
            Self::Exec { command } => {
                if command.first().is_none_or(String::is_empty) {
                    wrong.add("exec.command", "is empty; give a program of the image");
                }
                if command.iter().any(|word| word.contains('\0')) {
                    wrong.add("exec.command", "a NUL byte cannot be passed to a program");
                }
            }
        }
        wrong
    }
}
