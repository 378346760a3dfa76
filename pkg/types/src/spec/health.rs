//! Health checks of a task.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::Violations;

/// The longest period, timeout or start period.
const MAX_HEALTH_DURATION: Duration = Duration::from_secs(24 * 3600);
/// The shortest period between two checks.
pub const MIN_HEALTH_INTERVAL: Duration = Duration::from_millis(100);
/// The shortest timeout.
pub const MIN_HEALTH_TIMEOUT: Duration = Duration::from_millis(10);
/// How many headers a check may send.
const MAX_HEADERS: usize = 32;
/// The most failures in a row.
const MAX_RETRIES: u32 = 1000;

/// A check that the worker repeats. A task becomes ready with the first check that succeeds. With `retries`
/// failures in a row it becomes unhealthy, receives no traffic and is replaced.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HealthCheck {
    /// How to check.
    pub probe: Probe,
    /// From the start of one check to the start of the next, unless the check is still running then.
    #[serde(default = "default_interval", with = "crate::text::duration")]
    pub interval: Duration,
    /// A check that takes longer has failed.
    #[serde(default = "default_timeout", with = "crate::text::duration")]
    pub timeout: Duration,
    /// Failures in a row that make it unhealthy.
    #[serde(default = "default_retries")]
    pub retries: u32,
    /// Failures before the first success do not count for this long after the start.
    #[serde(default, with = "crate::text::duration")]
    pub start_period: Duration,
    /// Replaces `interval` until the first success within the start period, and before it if there is no
    /// start period.
    #[serde(default = "default_start_interval", with = "crate::text::duration")]
    pub start_interval: Duration,
}

/// How to check, from inside the container's network.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum Probe {
    /// An HTTP/1.1 GET; succeeds with a status of 200 to 399. Redirects are followed on the same host and
    /// port.
    #[serde(rename_all = "camelCase")]
    Http {
        /// Port in the container.
        port: u16,
        /// Begins with `/`; may have a query.
        path: String,
        /// Additional headers; `Host` replaces the default of `localhost`.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        headers: Vec<HttpHeader>,
    },
    /// Succeeds if a connection is accepted.
    #[serde(rename_all = "camelCase")]
    Tcp {
        /// Port in the container.
        port: u16,
    },
    /// A program in the container; succeeds with exit code 0.
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
    /// A check with the default periods.
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

    /// All violations of the check; paths are relative to it.
    pub(super) fn validate(&self) -> Violations {
        let mut violations = Violations::default();
        violations.nest("probe", self.probe.validate());
        let mut within = |path: &str, found: Duration, least: Duration| {
            if !(least..=MAX_HEALTH_DURATION).contains(&found) {
                violations.add(path, format!("{found:?} is not between {least:?} and 24 hours"));
            }
        };
        within("interval", self.interval, MIN_HEALTH_INTERVAL);
        within("timeout", self.timeout, MIN_HEALTH_TIMEOUT);
        within("startPeriod", self.start_period, Duration::ZERO);
        within("startInterval", self.start_interval, MIN_HEALTH_INTERVAL);
        if !(1..=MAX_RETRIES).contains(&self.retries) {
            violations.add("retries", format!("{} is not between 1 and {MAX_RETRIES}", self.retries));
        }
        violations
    }
}

impl Probe {
    fn validate(&self) -> Violations {
        let mut violations = Violations::default();
        match self {
            Self::Http { port, path, headers } => {
                if *port == 0 {
                    violations.add("http.port", "0 is not a port; give one of 1 to 65535");
                }
                let plain = |b: u8| b.is_ascii_graphic() && b != b'#';
                if !path.starts_with('/') || path.len() > 2048 || !path.bytes().all(plain) {
                    let message = format!("{path:?} is not a path that begins with / and is percent-encoded");
                    violations.add("http.path", message);
                }
                if headers.len() > MAX_HEADERS {
                    violations.add("http.headers", format!("{} are more than {MAX_HEADERS}", headers.len()));
                }
                for (i, HttpHeader { name, value }) in headers.iter().enumerate() {
                    let token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
                    if name.is_empty() || name.len() > 128 || !name.bytes().all(token) {
                        violations.add(
                            format!("http.headers[{i}].name"),
                            format!("{name:?} is not a header's name"),
                        );
                    }
                    let visible = |b: u8| b.is_ascii_graphic() || b == b' ' || b == b'\t';
                    if value.len() > 4096 || !value.bytes().all(visible) {
                        violations.add(
                            format!("http.headers[{i}].value"),
                            "is not a header's value: visible ASCII",
                        );
                    }
                    let framing = ["content-length", "transfer-encoding", "connection", "upgrade"];
                    if framing.iter().any(|fixed| name.eq_ignore_ascii_case(fixed)) {
                        let message = format!("{name} is set by the check itself");
                        violations.add(format!("http.headers[{i}].name"), message);
                    }
                }
            }
            Self::Tcp { port: 0 } => violations.add("tcp.port", "0 is not a port; give one of 1 to 65535"),
            Self::Tcp { .. } => {}
            Self::Exec { command } => {
                if command.first().is_none_or(String::is_empty) {
                    violations.add("exec.command", "is empty; give a program of the image");
                }
                if command.iter().any(|word| word.contains('\0')) {
                    violations.add("exec.command", "a NUL byte cannot be passed to a program");
                }
            }
        }
        violations
    }
}
