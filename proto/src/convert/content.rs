//! Secrets, configs and credentials: how specs name them, and what is said of them. Their bytes are the callers'.

use std::fmt;
use std::str::FromStr;

use warren_types::content::MAX_CONTENT;
use warren_types::{Content, ContentKind, ContentMount, ContentUse, Login, Violation, Violations};

use super::fields::{Fields, unknown_value};
use crate::v1;

/// What a content is for, from its number on the wire. The violation's path is empty: nest it.
pub fn content_kind(wire: i32) -> Result<ContentKind, Violations> {
    match v1::ContentKind::try_from(wire) {
        Ok(v1::ContentKind::Secret) => Ok(ContentKind::Secret),
        Ok(v1::ContentKind::Config) => Ok(ContentKind::Config),
        Ok(v1::ContentKind::Credential) => Ok(ContentKind::Credential),
        Ok(v1::ContentKind::Unspecified) | Err(_) => Err(unknown_value(wire, "secret, config or credential")),
    }
}

impl From<ContentKind> for v1::ContentKind {
    fn from(kind: ContentKind) -> Self {
        match kind {
            ContentKind::Secret => Self::Secret,
            ContentKind::Config => Self::Config,
            ContentKind::Credential => Self::Credential,
        }
    }
}

impl TryFrom<v1::ContentMount> for ContentMount {
    type Error = Violations;

    fn try_from(wire: v1::ContentMount) -> Result<Self, Violations> {
        let v1::ContentMount { source, target, uid, gid, mode, template } = wire;
        let mut fields = Fields::default();
        let source = fields.parse("source", &source);
        let target = (!target.is_empty()).then_some(target);
        fields.finish(source.map(|source| Self { source, target, uid, gid, mode, template }))
    }
}

impl From<&ContentMount> for v1::ContentMount {
    fn from(mount: &ContentMount) -> Self {
        let ContentMount { source, target, uid, gid, mode, template } = mount;
        Self {
            source: source.to_string(),
            target: target.clone().unwrap_or_default(),
            uid: *uid,
            gid: *gid,
            mode: *mode,
            template: *template,
        }
    }
}

impl TryFrom<v1::ContentUse> for ContentUse {
    type Error = Violations;

    fn try_from(wire: v1::ContentUse) -> Result<Self, Violations> {
        let mut fields = Fields::default();
        let kind = fields.nest("kind", content_kind(wire.kind));
        let name = fields.parse("name", &wire.name);
        let id = fields.parse("id", &wire.id);
        let built = || Some(Self { kind: kind?, name: name?, id: id?, number: wire.number });
        fields.finish(built())
    }
}

impl From<&ContentUse> for v1::ContentUse {
    fn from(used: &ContentUse) -> Self {
        let ContentUse { kind, name, id, number } = used;
        let kind = v1::ContentKind::from(*kind).into();
        Self { kind, name: name.to_string(), id: id.to_string(), number: *number }
    }
}

/// The bytes of a content as a request brings them: there are some, and not too many; of a credential they are a
/// login. The violation's path is `data`.
///
/// # Errors
/// What is wrong with them, without any of them.
pub fn content_data(kind: Option<ContentKind>, data: &[u8]) -> Result<(), Violation> {
    let what = kind.map_or("content", ContentKind::as_str);
    let wrong = |message: String| Err(Violation::new("data", message));
    match data.len() {
        0 => wrong(format!("is empty; a {what} has 1 to {MAX_CONTENT} bytes")),
        found if found > MAX_CONTENT => {
            wrong(format!("has {found} bytes, and a {what} has at most {MAX_CONTENT} (1 MiB)"))
        }
        _ if kind != Some(ContentKind::Credential) => Ok(()),
        _ => match std::str::from_utf8(data).map(str::parse::<Login>) {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => wrong(error.to_string()),
            Err(_) => wrong("is no text; a login has a user and a password".to_owned()),
        },
    }
}

/// What may be said of a content; `services` are the names of those that use it.
impl From<&Content> for v1::Content {
    fn from(content: &Content) -> Self {
        Self {
            id: content.id.to_string(),
            kind: v1::ContentKind::from(content.kind).into(),
            name: content.name.to_string(),
            version: content.version,
            created_at: content.created_at.0,
            updated_at: content.updated_at.0,
            labels: content.labels.clone(),
            number: content.number(),
            size: content.size(),
            kept: content.versions.keys().copied().collect(),
            services: Vec::new(),
            user: String::new(),
        }
    }
}

/// A text that has one spelling, for messages that are not converted as a whole.
///
/// # Errors
/// The field at `path` is wrong.
pub fn parse_field<T: FromStr<Err: std::fmt::Display>>(path: &str, text: &str) -> Result<T, Violations> {
    let mut fields = Fields::default();
    let parsed = fields.parse(path, text);
    fields.finish(parsed)
}

/// As `#[derive(Debug)]` would, but of the bytes only how many there are.
macro_rules! debug_without_data {
    ($($message:ident { $($field:ident),* })*) => {$(
        impl fmt::Debug for v1::$message {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let Self { $($field,)* data } = self;
                let data = format_args!("{} bytes", data.len());
                f.debug_struct(stringify!($message))$(.field(stringify!($field), $field))*.field("data", &data).finish()
            }
        }
    )*};
}

debug_without_data! {
    CreateContentRequest { id, kind, name, labels }
    UpdateContentRequest { kind, reference, version }
    ContentBytes { number }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_bounded_and_logins_are_logins() {
        let check = |kind, data: &[u8]| content_data(Some(kind), data).map_err(|wrong| wrong.to_string());
        let most = vec![0; MAX_CONTENT];
        assert_eq!(check(ContentKind::Secret, &most), Ok(()));
        assert_eq!(check(ContentKind::Config, b"\xff"), Ok(()));
        assert_eq!(check(ContentKind::Credential, b"ann\nhunter2"), Ok(()));
        let large = check(ContentKind::Secret, &[most, vec![0]].concat()).unwrap_err();
        assert_eq!(large, "data: has 1048577 bytes, and a secret has at most 1048576 (1 MiB)");
        for wrong in [&b""[..], b"hunter2", b"\nhunter2", b"ann\n", b"\xff\nhunter2"] {
            let found = check(ContentKind::Credential, wrong).unwrap_err();
            assert!(found.starts_with("data: ") && !found.contains("hunter2"), "{found}");
        }
    }

    #[test]
    fn no_message_shows_what_it_carries() {
        let data = prost::bytes::Bytes::from_static(b"hunter2");
        let name = "db".to_owned();
        let create = v1::CreateContentRequest { name, data: data.clone(), ..Default::default() };
        let update = v1::UpdateContentRequest { data: data.clone(), ..Default::default() };
        let read = v1::ContentBytes { number: 3, data };
        let shown = format!("{create:?} {update:?} {read:?}");
        assert!(!shown.contains("hunter2") && !shown.contains("104, 117"), "{shown}");
        assert!(shown.ends_with("ContentBytes { number: 3, data: 7 bytes }"), "{shown}");
        assert!(shown.contains("\"db\""), "{shown}");
    }
}
