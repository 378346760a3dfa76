//! A volume.

use std::collections::BTreeMap;

use serde::Serialize;
use warren_proto::v1;
use warren_types::{Bytes, Timestamp};

use super::{TimeView, age, joined_names, non_empty, rounded_bytes, short_id};
use crate::output::{Column, FilterKey, ListedRow, TableRow, column, has_label, wide};

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct VolumeView {
    id: String,
    name: String,
    version: u64,
    created_at: TimeView,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    labels: BTreeMap<String, String>,
    driver: String,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    options: BTreeMap<String, String>,
    /// Node that holds the data; absent until the first task is placed.
    #[serde(skip_serializing_if = "Option::is_none")]
    node_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    node_name: Option<String>,
    /// The data is being deleted.
    removing: bool,
    /// When it was removed, if its data remains.
    #[serde(skip_serializing_if = "Option::is_none")]
    released_at: Option<TimeView>,
    /// Data on a node that no volume has.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    unrecorded: bool,
    /// Tasks that use it or are assigned to use it.
    users: Vec<String>,
    /// Absent if the node was not asked or did not respond.
    #[serde(skip_serializing_if = "Option::is_none")]
    size: Option<String>,
    #[serde(skip)]
    bytes: Option<u64>,
}

impl From<v1::Volume> for VolumeView {
    fn from(wire: v1::Volume) -> Self {
        let v1::Volume {
            id,
            name,
            version,
            created_at,
            labels,
            driver,
            options,
            node_id,
            node_name,
            removing,
            users,
            size_bytes: bytes,
            released_at,
            unrecorded,
        } = wire;
        Self {
            id,
            name,
            version,
            created_at: TimeView::new(created_at),
            labels,
            driver,
            options,
            node_id: non_empty(node_id),
            node_name: non_empty(node_name),
            removing,
            released_at: released_at.map(TimeView::new),
            unrecorded,
            users,
            size: bytes.map(|bytes| Bytes(bytes).to_string()),
            bytes,
        }
    }
}

impl VolumeView {
    /// Human-readable name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Unused and not being removed.
    pub fn is_unused(&self) -> bool {
        self.users.is_empty() && !self.removing && self.released_at.is_none() && !self.unrecorded
    }

    /// The data is being deleted; a failed deletion waits for a retry.
    pub fn is_removing(&self) -> bool {
        self.removing
    }
}

impl TableRow for VolumeView {
    const COLUMNS: &'static [Column] = &[
        column("NAME"),
        column("DRIVER"),
        column("NODE"),
        column("USERS"),
        column("SIZE").measured(),
        column("AGE"),
        wide("OPTIONS"),
        wide("LABELS"),
        wide("VERSION"),
        column("ID"),
    ];

    fn cells(&self, wide: bool, now: Timestamp) -> Vec<String> {
        let pairs = |map: &BTreeMap<String, String>| {
            map.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(",")
        };
        let status = match self.released_at {
            _ if self.removing => " (removing)",
            _ if self.unrecorded => " (data without a volume)",
            Some(_) => " (removed, data remains)",
            None => "",
        };
        // Only the time of a volume is known, not that of its data.
        let created = (!self.unrecorded).then(|| age(self.created_at.0, now));
        vec![
            format!("{}{status}", self.name),
            self.driver.clone(),
            // A removed node has no name.
            self.node_name.clone().or_else(|| self.node_id.clone()).unwrap_or_default(),
            joined_names(&self.users, wide),
            self.bytes.map(rounded_bytes).unwrap_or_default(),
            created.unwrap_or_default(),
            pairs(&self.options),
            pairs(&self.labels),
            self.version.to_string(),
            if wide { self.id.clone() } else { short_id(&self.id) },
        ]
    }
}

impl ListedRow for VolumeView {
    const FILTER_KEYS: &'static [FilterKey<Self>] = &[
        ("name", |it, name| it.name.contains(name)),
        ("id", |it, id| it.id.starts_with(id)),
        ("driver", |it, driver| it.driver == driver),
        ("label", |it, label| has_label(&it.labels, label)),
        ("node", |it, node| it.node_name.as_deref() == Some(node)),
        ("dangling", |it, text| text == it.is_unused().to_string()),
    ];

    fn key(&self) -> String {
        self.name.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::OutputFormat;
    use crate::output::tests::{rendered, table_text_of, vertical};

    fn wire() -> v1::Volume {
        v1::Volume {
            id: "3k2v9x0000000000000000abc".into(),
            name: "data".into(),
            version: 9,
            created_at: 1000,
            labels: [("app".to_owned(), "shop".to_owned())].into(),
            driver: "local".into(),
            options: [("mode".to_owned(), "0750".to_owned())].into(),
            node_id: "1n".into(),
            node_name: "node-1".into(),
            removing: false,
            users: vec!["web.1".into(), "web.2".into()],
            size_bytes: Some(3 << 20 | 1),
            released_at: None,
            unrecorded: false,
        }
    }

    #[test]
    fn volumes_have_a_line_each() {
        let fresh =
            v1::Volume { node_id: String::new(), node_name: String::new(), size_bytes: None, ..wire() };
        let fresh = v1::Volume { users: Vec::new(), ..fresh };
        let orphan = v1::Volume { node_name: String::new(), users: Vec::new(), removing: true, ..wire() };
        let volumes = [wire(), fresh, orphan].map(VolumeView::from);
        insta::assert_snapshot!(table_text_of(&volumes, false, Timestamp(6000)), @r"
        NAME              DRIVER   NODE     USERS          SIZE   AGE   ID
        data              local    node-1   web.1, web.2   3MiB   5s    3k2v9x0000
        data              local                                   5s    3k2v9x0000
        data (removing)   local    1n                      3MiB   5s    3k2v9x0000
        ");
        let unused = v1::Volume { users: Vec::new(), ..wire() };
        let released = v1::Volume { released_at: Some(2000), ..unused.clone() };
        let unrecorded = v1::Volume { unrecorded: true, id: String::new(), ..unused };
        let remains = [released, unrecorded].map(VolumeView::from);
        insta::assert_snapshot!(table_text_of(&remains, false, Timestamp(6000)), @r"
        NAME                           DRIVER   NODE     USERS   SIZE   AGE   ID
        data (removed, data remains)   local    node-1           3MiB   5s    3k2v9x0000
        data (data without a volume)   local    node-1           3MiB
        ");
        assert_eq!(volumes.each_ref().map(VolumeView::is_unused), [false, true, false]);
        insta::assert_snapshot!(vertical(&volumes[0], Timestamp(6000)), @r"
        NAME data
        DRIVER local
        NODE node-1
        USERS web.1, web.2
        SIZE 3MiB
        AGE 5s
        OPTIONS mode=0750
        LABELS app=shop
        VERSION 9
        ID 3k2v9x0000000000000000abc
        ");
    }

    #[test]
    fn documents_have_everything_and_keep_their_shape() {
        insta::assert_snapshot!(rendered(OutputFormat::Yaml, &VolumeView::from(wire())), @r#"
        id: 3k2v9x0000000000000000abc
        name: data
        version: 9
        createdAt: "1970-01-01T00:00:01.000Z"
        labels:
          app: shop
        driver: local
        options:
          mode: "0750"
        nodeId: 1n
        nodeName: node-1
        removing: false
        users:
        - web.1
        - web.2
        size: 3145729B
        "#);
    }
}
