//! Stacks, and the steps of a deployment.

use serde::Serialize;
use warren_types::Timestamp;

use crate::output::{Column, FilterKey, ListedRow, TableRow, column};

/// How many objects a stack has.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct StackView {
    pub name: String,
    pub services: usize,
    pub networks: usize,
    pub volumes: usize,
    pub secrets: usize,
    pub configs: usize,
}

impl TableRow for StackView {
    const COLUMNS: &'static [Column] = &[
        column("NAME"),
        column("SERVICES"),
        column("NETWORKS"),
        column("VOLUMES"),
        column("SECRETS"),
        column("CONFIGS"),
    ];

    fn cells(&self, _: bool, _: Timestamp) -> Vec<String> {
        let Self { name, services, networks, volumes, secrets, configs } = self;
        let counts = [services, networks, volumes, secrets, configs];
        std::iter::once(name.clone()).chain(counts.map(ToString::to_string)).collect()
    }
}

impl ListedRow for StackView {
    const FILTER_KEYS: &'static [FilterKey<Self>] = &[("name", |it, name| it.name.contains(name))];

    fn key(&self) -> String {
        self.name.clone()
    }
}

/// One step of a deployment.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct StackStepView {
    pub action: &'static str,
    pub kind: String,
    pub name: String,
}

impl TableRow for StackStepView {
    const COLUMNS: &'static [Column] = &[column("ACTION"), column("KIND"), column("NAME")];

    fn cells(&self, _: bool, _: Timestamp) -> Vec<String> {
        vec![self.action.to_owned(), self.kind.clone(), self.name.clone()]
    }
}
