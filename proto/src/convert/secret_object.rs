//! Secrets, configs and credentials: references in specs, and metadata. Callers convert their data, which is not shown.

use std::fmt;
use std::str::FromStr;

use warren_types::secret_object::MAX_SECRET_OBJECT_SIZE;
use warren_types::{
    Login, SecretObject, SecretObjectKind, SecretObjectMount, SecretObjectVersion, Violation, Violations,
};

use super::fields::FieldReader;
use super::wire_form::{WireForm, convert_by_wire_form, field, wire_structs};
use crate::v1;

wire_structs! {
    SecretObjectMount as SecretObjectMount { source, target, uid, gid, mode, template };
    SecretObjectVersion as SecretObjectVersion { kind, name, id, version_number: number };
}
convert_by_wire_form! { SecretObjectMount SecretObjectVersion }

/// Checks the data of a secret object in a request: not empty, not too large; that of a credential is a
/// login. The violation's path is `data`.
///
/// # Errors
/// The violations, which contain none of the data.
pub fn check_secret_object_data(kind: Option<SecretObjectKind>, data: &[u8]) -> Result<(), Violation> {
    let what = kind.map_or("secret object", SecretObjectKind::as_str);
    let invalid = |message: String| Err(Violation::new("data", message));
    match data.len() {
        0 => invalid(format!("is empty; a {what} has 1 to {MAX_SECRET_OBJECT_SIZE} bytes")),
        found if found > MAX_SECRET_OBJECT_SIZE => {
            invalid(format!("has {found} bytes, and a {what} has at most {MAX_SECRET_OBJECT_SIZE} (1 MiB)"))
        }
        _ if kind != Some(SecretObjectKind::Credential) => Ok(()),
        _ => match std::str::from_utf8(data).map(str::parse::<Login>) {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => invalid(error.to_string()),
            Err(_) => invalid("is not text; a credential has a user name and a password".to_owned()),
        },
    }
}

/// Metadata of a secret object; `services` are the names of those that use it.
impl From<&SecretObject> for v1::SecretObject {
    fn from(content: &SecretObject) -> Self {
        Self {
            id: content.id.to_string(),
            kind: v1::SecretObjectKind::from(content.kind).into(),
            name: content.name.to_string(),
            version: content.version,
            created_at: content.created_at.0,
            updated_at: content.updated_at.0,
            labels: content.labels.clone(),
            version_number: content.current_version(),
            size: content.size(),
            stored_versions: content.versions.keys().copied().collect(),
            services: Vec::new(),
            user: String::new(),
            token_only: false,
        }
    }
}

/// A text with a canonical form, for messages that are not converted as a whole.
///
/// # Errors
/// The field at `path` is invalid.
pub fn parse_field<T: FromStr<Err: std::fmt::Display>>(path: &str, text: &str) -> Result<T, Violations> {
    let mut fields = FieldReader::default();
    let parsed = fields.parse(path, text);
    fields.finish(parsed)
}

/// As `#[derive(Debug)]`, but with the length of the data instead of the data.
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

/// As `#[derive(Debug)]`, without the key.
impl fmt::Debug for v1::UnlockKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key: _, id, pending_managers } = self;
        let mut shown = f.debug_struct("UnlockKey");
        shown.field("id", id).field("pending_managers", pending_managers).finish_non_exhaustive()
    }
}

/// As `#[derive(Debug)]`, without the password.
impl fmt::Debug for v1::RegistryLogin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { user, password: _ } = self;
        f.debug_struct("RegistryLogin").field("user", user).finish_non_exhaustive()
    }
}

/// As `#[derive(Debug)]`, without the token.
impl fmt::Debug for v1::RepositoryToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { registry, repository, user, token: _, valid_for_ms } = self;
        let mut shown = f.debug_struct("RepositoryToken");
        shown.field("registry", registry).field("repository", repository).field("user", user);
        shown.field("valid_for_ms", valid_for_ms).finish_non_exhaustive()
    }
}

debug_without_data! {
    CreateSecretObjectRequest { id, kind, name, labels }
    UpdateSecretObjectRequest { kind, reference, version }
    SecretObjectData { version_number }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_is_bounded_and_login_is_parsed() {
        let check = |kind, data: &[u8]| {
            check_secret_object_data(Some(kind), data).map_err(|violations| violations.to_string())
        };
        let most = vec![0; MAX_SECRET_OBJECT_SIZE];
        assert_eq!(check(SecretObjectKind::Secret, &most), Ok(()));
        assert_eq!(check(SecretObjectKind::Config, b"\xff"), Ok(()));
        assert_eq!(check(SecretObjectKind::Credential, b"ann\nhunter2"), Ok(()));
        assert_eq!(check(SecretObjectKind::Credential, b":token-only\nann\nhunter2"), Ok(()));
        let large = check(SecretObjectKind::Secret, &[most, vec![0]].concat()).unwrap_err();
        assert_eq!(large, "data: has 1048577 bytes, and a secret has at most 1048576 (1 MiB)");
        for data in [&b""[..], b"hunter2", b"\nhunter2", b"ann\n", b"\xff\nhunter2"] {
            let found = check(SecretObjectKind::Credential, data).unwrap_err();
            assert!(found.starts_with("data: ") && !found.contains("hunter2"), "{found}");
        }
    }

    #[test]
    fn debug_output_hides_data() {
        let data = prost::bytes::Bytes::from_static(b"hunter2");
        let name = "db".to_owned();
        let create = v1::CreateSecretObjectRequest { name, data: data.clone(), ..Default::default() };
        let update = v1::UpdateSecretObjectRequest { data: data.clone(), ..Default::default() };
        let read = v1::SecretObjectData { version_number: 3, data };
        let key = v1::UnlockKey { key: "hunter2".to_owned(), id: "7".to_owned(), ..Default::default() };
        let (user, password) = ("ann".to_owned(), "hunter2".to_owned());
        let login = v1::RegistryLogin { user, password };
        let token = v1::RepositoryToken { token: "hunter2".to_owned(), ..Default::default() };
        let shown = format!("{login:?} {token:?} {key:?} {create:?} {update:?} {read:?}");
        assert!(!shown.contains("hunter2") && !shown.contains("104, 117"), "{shown}");
        assert!(shown.ends_with("SecretObjectData { version_number: 3, data: 7 bytes }"), "{shown}");
        assert!(shown.contains("\"db\""), "{shown}");
    }
}
