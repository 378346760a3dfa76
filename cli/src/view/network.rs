//! A network.

use std::collections::BTreeMap;

use serde::Serialize;
use warren_proto::v1;
use warren_types::Timestamp;

use super::{TimeView, age, joined_names, short_id};
use crate::output::{Column, FilterKey, ListedRow, TableRow, column, has_label, wide};

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NetworkInfoView {
    id: String,
    name: String,
    version: u64,
    created_at: TimeView,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    labels: BTreeMap<String, String>,
    /// Its tasks reach nothing outside the cluster.
    internal: bool,
    /// Services that are in it.
    services: Vec<String>,
}

impl From<v1::Network> for NetworkInfoView {
    fn from(wire: v1::Network) -> Self {
        let v1::Network { id, name, version, created_at, labels, internal, services } = wire;
        Self { id, name, version, created_at: TimeView::new(created_at), labels, internal, services }
    }
}

impl TableRow for NetworkInfoView {
    const COLUMNS: &'static [Column] = &[
        column("NAME"),
        column("INTERNAL"),
        column("SERVICES"),
        column("AGE"),
        wide("LABELS"),
        wide("VERSION"),
        column("ID"),
    ];

    fn cells(&self, wide: bool, now: Timestamp) -> Vec<String> {
        let labels: Vec<String> = self.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        vec![
            self.name.clone(),
            if self.internal { "yes" } else { "" }.to_owned(),
            joined_names(&self.services, wide),
            age(self.created_at.0, now),
            labels.join(","),
            self.version.to_string(),
            if wide { self.id.clone() } else { short_id(&self.id) },
        ]
    }
}

impl ListedRow for NetworkInfoView {
    const FILTER_KEYS: &'static [FilterKey<Self>] = &[
        ("name", |it, name| it.name.contains(name)),
        ("id", |it, id| it.id.starts_with(id)),
        ("label", |it, label| has_label(&it.labels, label)),
        ("internal", |it, text| text == it.internal.to_string()),
        ("service", |it, service| it.services.iter().any(|name| name == service)),
    ];

    fn key(&self) -> String {
        self.name.clone()
    }
}
