//! A process of a task.

use std::time::Duration;

use serde::Serialize;
use warren_proto::v1;
use warren_types::{Bytes, Timestamp};

use super::{TimeView, age, duration, rounded_bytes};
use crate::output::{Column, TableRow, column, wide};

/// A process, by its ids on the node.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ProcessView {
    pid: u32,
    parent_pid: u32,
    uid: u32,
    started_at: TimeView,
    cpu_ms: u64,
    memory: String,
    command: String,
    #[serde(skip)]
    bytes: u64,
}

impl From<v1::ContainerProcess> for ProcessView {
    fn from(wire: v1::ContainerProcess) -> Self {
        let v1::ContainerProcess { pid, parent_pid, uid, started_at, cpu_ms, resident_bytes, command } = wire;
        let (started_at, memory) = (TimeView::new(started_at), Bytes(resident_bytes).to_string());
        Self { pid, parent_pid, uid, started_at, cpu_ms, memory, command, bytes: resident_bytes }
    }
}

impl TableRow for ProcessView {
    const COLUMNS: &'static [Column] = &[
        column("PID"),
        wide("PARENT"),
        column("USER"),
        column("AGE"),
        column("CPU TIME"),
        column("MEMORY"),
        column("COMMAND"),
    ];

    fn cells(&self, _: bool, now: Timestamp) -> Vec<String> {
        vec![
            self.pid.to_string(),
            self.parent_pid.to_string(),
            self.uid.to_string(),
            age(self.started_at.0, now),
            duration(Duration::from_millis(self.cpu_ms)),
            rounded_bytes(self.bytes),
            self.command.clone(),
        ]
    }
}
