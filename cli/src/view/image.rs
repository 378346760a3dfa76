//! An image on a node.

use serde::Serialize;
use warren_proto::v1;
use warren_types::{Bytes, Timestamp};

use super::{TimeView, age, rounded_bytes, short_digest};
use crate::output::{Column, FilterKey, ListedRow, TableRow, column, wide};

/// An image on a node, or removed from it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ImageView {
    image: String,
    node: String,
    size: String,
    digest: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    created_at: Option<TimeView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_used_at: Option<TimeView>,
    /// Number of tasks of the node that use it.
    tasks: u32,
    #[serde(skip)]
    bytes: u64,
}

impl ImageView {
    /// From the report of `node`.
    pub fn new(node: &str, wire: v1::ImageInfo) -> Self {
        let v1::ImageInfo { reference, digest, size_bytes, created_at, last_used_at, tasks } = wire;
        Self {
            image: reference,
            node: node.to_owned(),
            size: Bytes(size_bytes).to_string(),
            digest,
            created_at: created_at.map(TimeView::new),
            last_used_at: last_used_at.map(TimeView::new),
            tasks,
            bytes: size_bytes,
        }
    }

    /// Its size.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Sort key of lists: image, then node.
    pub fn sort_key(&self) -> (String, String) {
        (self.image.clone(), self.node.clone())
    }
}

impl TableRow for ImageView {
    const COLUMNS: &'static [Column] = &[
        column("IMAGE"),
        column("NODE"),
        column("SIZE"),
        column("TASKS"),
        column("LAST USED"),
        wide("CREATED"),
        column("DIGEST"),
    ];

    fn cells(&self, wide: bool, now: Timestamp) -> Vec<String> {
        let ago = |at: Option<TimeView>| at.map(|at| format!("{} ago", age(at.0, now)));
        vec![
            self.image.clone(),
            self.node.clone(),
            rounded_bytes(self.bytes),
            self.tasks.to_string(),
            ago(self.last_used_at).unwrap_or_else(|| "never".to_owned()),
            ago(self.created_at).unwrap_or_default(),
            if wide { self.digest.clone() } else { short_digest(&self.digest) },
        ]
    }
}

impl ListedRow for ImageView {
    const FILTER_KEYS: &'static [FilterKey<Self>] = &[
        ("reference", |it, text| it.image.contains(text)),
        ("node", |it, node| it.node == node),
        ("dangling", |it, text| text == (it.tasks == 0).to_string()),
    ];
    const FIELD_ALIASES: &'static [(&'static str, &'static str)] = &[("CreatedSince", "CREATED")];

    fn key(&self) -> String {
        self.image.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::OutputFormat;
    use crate::output::tests::{rendered, table_text_of};

    #[test]
    fn images_have_a_line_per_node() {
        let wire = v1::ImageInfo {
            reference: "docker.io/library/nginx:1.27".into(),
            digest: format!("sha256:{}", "0123456789abcdef".repeat(4)),
            size_bytes: 3 << 20,
            created_at: Some(1000),
            last_used_at: Some(4000),
            tasks: 2,
        };
        let unused = v1::ImageInfo { last_used_at: None, tasks: 0, ..wire.clone() };
        let images = [ImageView::new("n1", wire), ImageView::new("n2", unused)];
        insta::assert_snapshot!(table_text_of(&images, false, Timestamp(5000)), @r"
        IMAGE                          NODE   SIZE   TASKS   LAST USED   DIGEST
        docker.io/library/nginx:1.27   n1     3MiB   2       1s ago      0123456789ab
        docker.io/library/nginx:1.27   n2     3MiB   0       never       0123456789ab
        ");
        insta::assert_snapshot!(rendered(OutputFormat::Yaml, &images[0]), @r#"
        image: docker.io/library/nginx:1.27
        node: n1
        size: 3MiB
        digest: sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef
        createdAt: "1970-01-01T00:00:01.000Z"
        lastUsedAt: "1970-01-01T00:00:04.000Z"
        tasks: 2
        "#);
    }
}
