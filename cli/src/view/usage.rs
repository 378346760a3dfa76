//! Reports of a node about a task: check results, resource usage, and versions of secrets and configs.

use std::time::Duration;

use serde::Serialize;
use warren_proto::convert::secret_object_kind;
use warren_proto::v1;
use warren_types::{Bytes, MilliCpu, Violations};

use super::{TimeView, duration, rounded_bytes};

/// A result of the health check.
#[derive(Debug, Serialize)]
pub struct CheckResultView {
    at: TimeView,
    duration: String,
    ok: bool,
    /// Truncated output.
    #[serde(skip_serializing_if = "String::is_empty")]
    output: String,
}

impl From<v1::CheckResult> for CheckResultView {
    fn from(wire: v1::CheckResult) -> Self {
        let v1::CheckResult { at, duration_us, ok, output } = wire;
        let taken = Duration::from_micros(duration_us);
        // Rounded to milliseconds above one; never shown as zero.
        let taken = if duration_us < 1000 { taken } else { Duration::from_millis(duration_us / 1000) };
        Self { at: TimeView::new(at), duration: duration(taken), ok, output }
    }
}

/// Resource usage of a task, measured by its node.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TaskUsageView {
    /// Cores, over the last few seconds.
    cpu: String,
    memory: String,
    /// Since the start of the container, like the following fields.
    received: String,
    sent: String,
    read: String,
    written: String,
    /// Processes and threads.
    pids: u32,
    #[serde(skip)]
    pub measured: v1::TaskUsage,
}

impl From<v1::TaskUsage> for TaskUsageView {
    fn from(measured: v1::TaskUsage) -> Self {
        let v1::TaskUsage {
            cpu_milli,
            memory_bytes,
            received_bytes,
            sent_bytes,
            read_bytes,
            written_bytes,
            pids,
        } = measured;
        let bytes = |bytes: u64| Bytes(bytes).to_string();
        Self {
            cpu: MilliCpu(cpu_milli).to_string(),
            memory: bytes(memory_bytes),
            received: bytes(received_bytes),
            sent: bytes(sent_bytes),
            read: bytes(read_bytes),
            written: bytes(written_bytes),
            pids,
            measured,
        }
    }
}

impl TaskUsageView {
    /// For a table: CPU, memory, received, sent, read, written, processes.
    pub fn cells(&self) -> [String; 7] {
        let v1::TaskUsage {
            cpu_milli: _,
            memory_bytes,
            received_bytes,
            sent_bytes,
            read_bytes,
            written_bytes,
            pids,
        } = self.measured;
        [
            self.cpu.clone(),
            rounded_bytes(memory_bytes),
            rounded_bytes(received_bytes),
            rounded_bytes(sent_bytes),
            rounded_bytes(read_bytes),
            rounded_bytes(written_bytes),
            pids.to_string(),
        ]
    }
}

/// One version of a secret or config.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SecretObjectVersionView {
    kind: &'static str,
    name: String,
    version_number: u64,
    id: String,
}

impl SecretObjectVersionView {
    /// All versions of a revision.
    pub fn all(wire: Vec<v1::SecretObjectVersion>) -> Result<Vec<Self>, Violations> {
        let view = |v1::SecretObjectVersion { kind, name, id, version_number }| {
            Ok(Self { kind: secret_object_kind(kind)?.as_str(), name, version_number, id })
        };
        let under = |wrong: Violations| {
            Violations(
                wrong.0.into_iter().map(|v| v.with_parent("kind").with_parent("secretObjects")).collect(),
            )
        };
        wire.into_iter().map(view).collect::<Result<_, _>>().map_err(under)
    }

    /// `secret db`.
    pub fn display_name(&self) -> String {
        format!("{} {}", self.kind, self.name)
    }

    /// Number of the version.
    pub fn number(&self) -> u64 {
        self.version_number
    }
}
