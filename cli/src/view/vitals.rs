//! What a task's node says of it: what its checks said, what it uses, and which secrets and configs it sees.

use std::time::Duration;

use serde::Serialize;
use warren_proto::convert::content_kind;
use warren_proto::v1;
use warren_types::{Bytes, MilliCpu, Violations};

use super::{Time, about, duration};

/// One run of a task's check.
#[derive(Debug, Serialize)]
pub struct CheckView {
    at: Time,
    duration: String,
    ok: bool,
    /// What it said, cut.
    #[serde(skip_serializing_if = "String::is_empty")]
    output: String,
}

impl From<v1::CheckResult> for CheckView {
    fn from(wire: v1::CheckResult) -> Self {
        let v1::CheckResult { at, duration_us, ok, output } = wire;
        let taken = Duration::from_micros(duration_us);
        // Below a millisecond people do not care, and a check that took no time at all does not exist.
        let taken = if duration_us < 1000 { taken } else { Duration::from_millis(duration_us / 1000) };
        Self { at: Time::new(at), duration: duration(taken), ok, output }
    }
}

/// What a task uses, measured by its node.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct UsageView {
    /// Cores, over the last few seconds.
    cpu: String,
    memory: String,
    /// Since the container started, as the following.
    received: String,
    sent: String,
    read: String,
    written: String,
    /// Processes and threads.
    pids: u32,
    #[serde(skip)]
    pub measured: v1::TaskUsage,
}

impl From<v1::TaskUsage> for UsageView {
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

impl UsageView {
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
            about(memory_bytes),
            about(received_bytes),
            about(sent_bytes),
            about(read_bytes),
            about(written_bytes),
            pids.to_string(),
        ]
    }
}

/// One version of a secret or config.
#[derive(Debug, Clone, Serialize)]
pub struct ContentUseView {
    kind: &'static str,
    name: String,
    number: u64,
    id: String,
}

impl ContentUseView {
    /// All that a revision has.
    pub fn all(wire: Vec<v1::ContentUse>) -> Result<Vec<Self>, Violations> {
        let view = |v1::ContentUse { kind, name, id, number }| {
            Ok(Self { kind: content_kind(kind)?.as_str(), name, number, id })
        };
        let under = |wrong: Violations| {
            Violations(wrong.0.into_iter().map(|v| v.under("kind").under("contents")).collect())
        };
        wire.into_iter().map(view).collect::<Result<_, _>>().map_err(under)
    }

    /// `secret db`.
    pub fn what(&self) -> String {
        format!("{} {}", self.kind, self.name)
    }

    /// Which version.
    pub fn number(&self) -> u64 {
        self.number
    }
}
