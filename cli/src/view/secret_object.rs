//! A secret, a config, or a registry credential. Only configs show their data.

use std::collections::BTreeMap;

use serde::Serialize;
use warren_proto::v1;
use warren_types::Timestamp;
use warren_types::base64::encode_base64;

use super::{TimeView, age, joined_names, rounded_bytes, short_id};
use crate::output::{Column, FilterKey, ListedRow, TableRow, column, has_label, wide};

/// A secret or config.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SecretObjectView {
    id: String,
    name: String,
    version: u64,
    created_at: TimeView,
    updated_at: TimeView,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    labels: BTreeMap<String, String>,
    /// Current version, from 1.
    version_number: u64,
    /// Size of that version in bytes.
    size: u32,
    /// Numbers of the stored versions.
    stored_versions: Vec<u64>,
    /// Names of the services that use it.
    services: Vec<String>,
    /// Data of an inspected config.
    #[serde(flatten)]
    data: Option<ConfigDataView>,
}

/// The data of a config, as in documents.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum ConfigDataView {
    /// UTF-8 text.
    StringData(String),
    /// Other data, in base64.
    Data(String),
}

impl ConfigDataView {
    /// UTF-8 text unchanged, other data in base64.
    pub fn new(bytes: &[u8]) -> Self {
        match std::str::from_utf8(bytes) {
            Ok(text) => Self::StringData(text.to_owned()),
            Err(_) => Self::Data(encode_base64(bytes)),
        }
    }
}

impl From<v1::SecretObject> for SecretObjectView {
    fn from(wire: v1::SecretObject) -> Self {
        // The kind is that of the request; the last two fields are of credentials.
        let v1::SecretObject {
            id,
            kind: _,
            name,
            version,
            created_at,
            updated_at,
            labels,
            version_number: number,
            size,
            stored_versions: kept,
            services,
            user: _,
            token_only: _,
        } = wire;
        let (created_at, updated_at) = (TimeView::new(created_at), TimeView::new(updated_at));
        Self {
            id,
            name,
            version,
            created_at,
            updated_at,
            labels,
            version_number: number,
            size,
            stored_versions: kept,
            services,
            data: None,
        }
    }
}

impl SecretObjectView {
    /// Adds the data.
    pub fn with_data(self, bytes: &[u8]) -> Self {
        Self { data: Some(ConfigDataView::new(bytes)), ..self }
    }
}

impl TableRow for SecretObjectView {
    const COLUMNS: &'static [Column] = &[
        column("NAME"),
        column("NUMBER"),
        column("SIZE"),
        column("UPDATED"),
        column("SERVICES"),
        wide("AGE"),
        wide("LABELS"),
        wide("VERSION"),
        column("ID"),
    ];

    fn cells(&self, wide: bool, now: Timestamp) -> Vec<String> {
        let labels: Vec<String> = self.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        vec![
            self.name.clone(),
            self.version_number.to_string(),
            rounded_bytes(self.size.into()),
            format!("{} ago", age(self.updated_at.0, now)),
            joined_names(&self.services, wide),
            age(self.created_at.0, now),
            labels.join(","),
            self.version.to_string(),
            if wide { self.id.clone() } else { short_id(&self.id) },
        ]
    }
}

/// A registry credential. The size is not shown, since it reveals the length of the password.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CredentialView {
    id: String,
    host: String,
    user: String,
    /// Nodes get tokens for single repositories and never the password.
    token_only: bool,
    version: u64,
    created_at: TimeView,
    updated_at: TimeView,
}

impl From<v1::SecretObject> for CredentialView {
    fn from(wire: v1::SecretObject) -> Self {
        let v1::SecretObject { id, name: host, user, token_only, version, created_at, updated_at, .. } = wire;
        let (created_at, updated_at) = (TimeView::new(created_at), TimeView::new(updated_at));
        Self { id, host, user, token_only, version, created_at, updated_at }
    }
}

impl TableRow for CredentialView {
    const COLUMNS: &'static [Column] = &[
        column("HOST"),
        column("USER"),
        column("NODES GET"),
        column("UPDATED"),
        wide("AGE"),
        wide("VERSION"),
        column("ID"),
    ];

    fn cells(&self, wide: bool, now: Timestamp) -> Vec<String> {
        let access = if self.token_only { "tokens" } else { "tokens or password" };
        vec![
            self.host.clone(),
            self.user.clone(),
            access.to_owned(),
            format!("{} ago", age(self.updated_at.0, now)),
            age(self.created_at.0, now),
            self.version.to_string(),
            if wide { self.id.clone() } else { short_id(&self.id) },
        ]
    }
}

impl ListedRow for SecretObjectView {
    const FILTER_KEYS: &'static [FilterKey<Self>] = &[
        ("name", |it, name| it.name.starts_with(name)),
        ("id", |it, id| it.id.starts_with(id)),
        ("label", |it, label| has_label(&it.labels, label)),
    ];

    fn key(&self) -> String {
        self.name.clone()
    }
}

impl ListedRow for CredentialView {
    const FILTER_KEYS: &'static [FilterKey<Self>] =
        &[("host", |it, host| it.host.starts_with(host)), ("id", |it, id| it.id.starts_with(id))];

    fn key(&self) -> String {
        self.host.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::OutputFormat;
    use crate::output::tests::{rendered, table_text_of};

    fn wire() -> v1::SecretObject {
        v1::SecretObject {
            id: "3k2v9x0000000000000000abc".into(),
            kind: v1::SecretObjectKind::Config.into(),
            name: "db".into(),
            version: 9,
            created_at: 1000,
            updated_at: 4000,
            labels: [("app".to_owned(), "shop".to_owned())].into(),
            version_number: 3,
            size: 2048,
            stored_versions: vec![2, 3],
            services: ["web", "api", "a", "b", "c"].map(str::to_owned).into(),
            user: String::new(),
            token_only: false,
        }
    }

    #[test]
    fn secret_objects_have_a_row_each() {
        let unused = v1::SecretObject { services: Vec::new(), labels: [].into(), ..wire() };
        let secret_objects = [wire(), unused].map(SecretObjectView::from);
        insta::assert_snapshot!(table_text_of(&secret_objects, false, Timestamp(9000)), @r"
        NAME   NUMBER   SIZE   UPDATED   SERVICES                   ID
        db     3        2KiB   5s ago    web, api, a and 2 others   3k2v9x0000
        db     3        2KiB   5s ago                               3k2v9x0000
        ");
        insta::assert_snapshot!(rendered(OutputFormat::Yaml, &SecretObjectView::from(wire()).with_data(b"a: 1\n")), @r#"
        id: 3k2v9x0000000000000000abc
        name: db
        version: 9
        createdAt: "1970-01-01T00:00:01.000Z"
        updatedAt: "1970-01-01T00:00:04.000Z"
        labels:
          app: shop
        versionNumber: 3
        size: 2048
        storedVersions:
        - 2
        - 3
        services:
        - web
        - api
        - a
        - b
        - c
        stringData: |
          a: 1
        "#);
        let document = serde_json::to_value(SecretObjectView::from(wire())).unwrap();
        assert!(document.get("data").is_none() && document.get("stringData").is_none());
    }

    #[test]
    fn binary_data_is_base64() {
        assert_eq!(ConfigDataView::new(b"\xff\xfe"), ConfigDataView::Data("//4=".to_owned()));
        let document = serde_json::to_value(SecretObjectView::from(wire()).with_data(b"\xff")).unwrap();
        assert_eq!(document["data"], "/w==");
    }

    #[test]
    fn registry_shows_user_and_no_password() {
        let wire = v1::SecretObject { name: "ghcr.io".into(), user: "ann".into(), size: 11, ..wire() };
        let strict = v1::SecretObject { token_only: true, ..wire.clone() };
        let registries = [wire.clone(), strict].map(CredentialView::from);
        insta::assert_snapshot!(table_text_of(&registries, false, Timestamp(9000)), @r"
        HOST      USER   NODES GET            UPDATED   ID
        ghcr.io   ann    tokens or password   5s ago    3k2v9x0000
        ghcr.io   ann    tokens               5s ago    3k2v9x0000
        ");
        let document = serde_json::to_value(CredentialView::from(wire)).unwrap();
        let keys: Vec<&str> = document.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(keys, ["createdAt", "host", "id", "tokenOnly", "updatedAt", "user", "version"]);
    }
}
