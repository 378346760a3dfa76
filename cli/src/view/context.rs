//! A context of the CLI: a cluster and an identity in it.

use serde::Serialize;
use warren_client::ClientTarget;
use warren_client::contexts::ClientContext;
use warren_types::Timestamp;

use crate::output::{Column, FilterKey, ListedRow, TableRow, column};

/// Without certificate and key.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ContextView {
    name: String,
    current: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    managers: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    socket: Option<String>,
}

impl ContextView {
    pub fn new(context: &ClientContext, current: Option<&str>) -> Self {
        let (managers, socket) = match &context.target {
            ClientTarget::Tcp { addresses, .. } => {
                (addresses.iter().map(ToString::to_string).collect(), None)
            }
            ClientTarget::Unix { socket } => (Vec::new(), Some(socket.display().to_string())),
        };
        let current = current == Some(context.name.as_str());
        Self { name: context.name.clone(), current, managers, socket }
    }
}

impl TableRow for ContextView {
    const COLUMNS: &'static [Column] = &[column("NAME"), column("CURRENT"), column("MANAGERS")];

    fn cells(&self, _wide: bool, _now: Timestamp) -> Vec<String> {
        let managers = self.socket.clone().unwrap_or_else(|| self.managers.join(", "));
        vec![self.name.clone(), if self.current { "*" } else { "" }.to_owned(), managers]
    }
}

impl ListedRow for ContextView {
    const FILTER_KEYS: &'static [FilterKey<Self>] = &[("name", |it, name| it.name.contains(name))];

    fn key(&self) -> String {
        self.name.clone()
    }
}
