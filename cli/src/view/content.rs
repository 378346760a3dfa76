//! A secret, a config, or the credential of a registry: never its bytes, but for configs.

use std::collections::BTreeMap;

use serde::Serialize;
use warren_proto::v1;
use warren_types::Timestamp;

use super::{Time, about, age, named, short_id};
use crate::output::{Column, Row, column, wide};

/// A secret or config.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ContentView {
    id: String,
    name: String,
    version: u64,
    created_at: Time,
    updated_at: Time,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    labels: BTreeMap<String, String>,
    /// Of its current version, from 1.
    number: u64,
    /// Bytes of that version.
    size: u32,
    /// Numbers of the versions that are kept.
    kept: Vec<u64>,
    /// Names of the services that use it.
    services: Vec<String>,
    /// What it holds, of a config that was asked for.
    #[serde(flatten)]
    data: Option<DataView>,
}

/// The bytes of a config.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum DataView {
    /// As text, if it is one.
    Data(String),
    /// Else in base64.
    DataBase64(String),
}

impl DataView {
    /// Text as it is, everything else in base64.
    pub fn new(bytes: &[u8]) -> Self {
        match std::str::from_utf8(bytes) {
            Ok(text) => Self::Data(text.to_owned()),
            Err(_) => Self::DataBase64(base64(bytes)),
        }
    }
}

/// RFC 4648, section 4.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let group = |three: &[u8]| {
        let at = |i: usize| u32::from(three.get(i).copied().unwrap_or(0));
        let bits = at(0) << 16 | at(1) << 8 | at(2);
        let digit = move |i: usize| match i > three.len() {
            true => '=',
            false => char::from(DIGITS[(bits >> (18 - 6 * i) & 63) as usize]),
        };
        [digit(0), digit(1), digit(2), digit(3)]
    };
    bytes.chunks(3).flat_map(group).collect()
}

impl From<v1::Content> for ContentView {
    fn from(wire: v1::Content) -> Self {
        // The kind is the one that was asked for, and only a credential has a user.
        let v1::Content {
            id,
            kind: _,
            name,
            version,
            created_at,
            updated_at,
            labels,
            number,
            size,
            kept,
            services,
            user: _,
        } = wire;
        let (created_at, updated_at) = (Time::new(created_at), Time::new(updated_at));
        Self { id, name, version, created_at, updated_at, labels, number, size, kept, services, data: None }
    }
}

impl ContentView {
    /// With what it holds.
    pub fn with_data(self, bytes: &[u8]) -> Self {
        Self { data: Some(DataView::new(bytes)), ..self }
    }
}

impl Row for ContentView {
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
            self.number.to_string(),
            about(self.size.into()),
            format!("{} ago", age(self.updated_at.0, now)),
            named(&self.services, wide),
            age(self.created_at.0, now),
            labels.join(","),
            self.version.to_string(),
            if wide { self.id.clone() } else { short_id(&self.id) },
        ]
    }
}

/// Who the machines are to a registry. How long its password is, is nobody's business.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RegistryView {
    id: String,
    host: String,
    user: String,
    version: u64,
    created_at: Time,
    updated_at: Time,
}

impl From<v1::Content> for RegistryView {
    fn from(wire: v1::Content) -> Self {
        let v1::Content { id, name: host, user, version, created_at, updated_at, .. } = wire;
        let (created_at, updated_at) = (Time::new(created_at), Time::new(updated_at));
        Self { id, host, user, version, created_at, updated_at }
    }
}

impl Row for RegistryView {
    const COLUMNS: &'static [Column] =
        &[column("HOST"), column("USER"), column("UPDATED"), wide("AGE"), wide("VERSION"), column("ID")];

    fn cells(&self, wide: bool, now: Timestamp) -> Vec<String> {
        vec![
            self.host.clone(),
            self.user.clone(),
            format!("{} ago", age(self.updated_at.0, now)),
            age(self.created_at.0, now),
            self.version.to_string(),
            if wide { self.id.clone() } else { short_id(&self.id) },
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Format;
    use crate::output::tests::{rendered, shown};

    fn wire() -> v1::Content {
        v1::Content {
            id: "3k2v9x0000000000000000abc".into(),
            kind: v1::ContentKind::Config.into(),
            name: "db".into(),
            version: 9,
            created_at: 1000,
            updated_at: 4000,
            labels: [("app".to_owned(), "shop".to_owned())].into(),
            number: 3,
            size: 2048,
            kept: vec![2, 3],
            services: ["web", "api", "a", "b", "c"].map(str::to_owned).into(),
            user: String::new(),
        }
    }

    #[test]
    fn contents_have_a_line_each() {
        let unused = v1::Content { services: Vec::new(), labels: [].into(), ..wire() };
        let contents = [wire(), unused].map(ContentView::from);
        insta::assert_snapshot!(shown(&contents, false, Timestamp(9000)), @r"
        NAME   NUMBER   SIZE   UPDATED   SERVICES                   ID
        db     3        2KiB   5s ago    web, api, a and 2 others   3k2v9x0000
        db     3        2KiB   5s ago                               3k2v9x0000
        ");
        insta::assert_snapshot!(rendered(Format::Yaml, &ContentView::from(wire()).with_data(b"a: 1\n")), @r#"
        id: 3k2v9x0000000000000000abc
        name: db
        version: 9
        createdAt: "1970-01-01T00:00:01.000Z"
        updatedAt: "1970-01-01T00:00:04.000Z"
        labels:
          app: shop
        number: 3
        size: 2048
        kept:
        - 2
        - 3
        services:
        - web
        - api
        - a
        - b
        - c
        data: |
          a: 1
        "#);
        let document = serde_json::to_value(ContentView::from(wire())).unwrap();
        assert!(document.get("data").is_none() && document.get("dataBase64").is_none());
    }

    #[test]
    fn what_is_no_text_is_in_base64() {
        for (bytes, wanted) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(base64(bytes.as_bytes()), wanted);
        }
        assert_eq!(DataView::new(b"\xff\xfe"), DataView::DataBase64("//4=".to_owned()));
        let document = serde_json::to_value(ContentView::from(wire()).with_data(b"\xff")).unwrap();
        assert_eq!(document["dataBase64"], "/w==");
    }

    #[test]
    fn registries_say_the_user_and_nothing_of_the_password() {
        let wire = v1::Content { name: "ghcr.io".into(), user: "ann".into(), size: 11, ..wire() };
        insta::assert_snapshot!(shown(&[RegistryView::from(wire.clone())], false, Timestamp(9000)), @r"
        HOST      USER   UPDATED   ID
        ghcr.io   ann    5s ago    3k2v9x0000
        ");
        let document = serde_json::to_value(RegistryView::from(wire)).unwrap();
        let keys: Vec<&str> = document.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(keys, ["createdAt", "host", "id", "updatedAt", "user", "version"]);
    }
}
