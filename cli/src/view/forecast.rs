//! What a deployment would do.

use serde::Serialize;
use warren_proto::v1;
use warren_types::Timestamp;

use super::stack::StackStepView;
use crate::output::{Column, TableRow, column};

/// The steps, and what follows from them.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ForecastView<S = StackStepView> {
    pub steps: Vec<S>,
    pub tasks: Vec<ForecastTaskView>,
    /// What the tasks leave out.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// A task that would run, wait or be stopped.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ForecastTaskView {
    service: String,
    slot: u32,
    /// `new`, `stays` or `stops`.
    change: &'static str,
    /// Absent if no node fits.
    #[serde(skip_serializing_if = "Option::is_none")]
    node: Option<String>,
    /// Why it would not run.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

impl From<&v1::ForecastSlot> for ForecastTaskView {
    fn from(wire: &v1::ForecastSlot) -> Self {
        let v1::ForecastSlot { service_name, slot, node_name, reason, new } = wire.clone();
        let change = if new { "new" } else { "stays" };
        let (node, reason) = (super::non_empty(node_name), super::non_empty(reason));
        Self { service: service_name, slot, change, node, reason }
    }
}

impl From<&v1::ForecastStop> for ForecastTaskView {
    fn from(wire: &v1::ForecastStop) -> Self {
        let v1::ForecastStop { service_name, slot, task_id: _, node_name } = wire.clone();
        let node = super::non_empty(node_name);
        Self { service: service_name, slot, change: "stops", node, reason: None }
    }
}

impl ForecastTaskView {
    /// By service and slot; in a slot the task that stops is last.
    pub fn sort_key(&self) -> (String, u32, bool) {
        (self.service.clone(), self.slot, self.change == "stops")
    }
}

impl TableRow for ForecastTaskView {
    const COLUMNS: &'static [Column] = &[column("TASK"), column("CHANGE"), column("NODE"), column("REASON")];

    fn cells(&self, _: bool, _: Timestamp) -> Vec<String> {
        let Self { service, slot, change, node, reason } = self;
        let text = |value: &Option<String>| value.clone().unwrap_or_default();
        vec![format!("{service}.{slot}"), (*change).to_owned(), text(node), text(reason)]
    }
}

/// A difference between a document and its object.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DiffView {
    pub action: &'static str,
    pub kind: String,
    pub name: String,
    /// The version of the object that was compared; absent if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<u64>,
    /// Each changed field.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<String>,
}

impl DiffView {
    /// `update service web (version 41)`, and a line per field.
    pub fn text(&self) -> String {
        let Self { action, kind, name, version, changes } = self;
        let version = version.map(|version| format!(" (version {version})")).unwrap_or_default();
        let changes: String = changes.iter().map(|change| format!("  {change}\n")).collect();
        format!("{action} {kind} {name}{version}\n{changes}")
    }
}
