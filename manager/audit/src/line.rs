//! One line of the audit log.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The version that this code writes, and the newest it reads.
pub const LINE_VERSION: u32 = 1;

/// How a call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AuditOutcome {
    /// It was executed; a stream was begun.
    Allowed,
    /// The caller may not do that.
    Denied,
    /// It was permitted and failed, for example because of an invalid field.
    Failed,
    /// The caller disconnected before the answer: it may have been executed.
    #[default]
    Unknown,
}

impl AuditOutcome {
    /// As in the line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Denied => "denied",
            Self::Failed => "failed",
            Self::Unknown => "unknown",
        }
    }
}

/// Who called.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AuditCaller {
    /// `certificate`, `local` or `anonymous`; empty in lines that are not about one call.
    pub kind: String,
    /// Who the certificate was issued to.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub id: String,
    /// Name of the user, or of the node or manager with that id.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// What the caller was permitted as; the role of the certificate if it was not.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub role: String,
    /// Address and port; empty on the unix socket.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub address: String,
    /// User of the process that called over the unix socket.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
}

/// The object of a call.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AuditObject {
    /// Its noun: `service`.
    pub kind: String,
    /// Empty if the call failed before it was found.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub id: String,
    /// Its name, or how the call named it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// As the call left it; of a removed object the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<u64>,
    /// What else identifies the work: the program of an exec.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub detail: String,
}

/// One line.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AuditLine {
    /// [`LINE_VERSION`].
    pub version: u32,
    /// Increases by one from line to line of a manager: a gap shows missing lines.
    pub number: u64,
    /// When the call ended or its stream began, in milliseconds since the Unix epoch; RFC 3339 in the file.
    #[serde(serialize_with = "write_time", deserialize_with = "read_time")]
    pub time: u64,
    /// Name of the manager that received the call.
    pub manager: String,
    /// Who called.
    pub caller: AuditCaller,
    /// gRPC service and method: `Services/Create`; empty in lines that are not about one call.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub method: String,
    /// On which object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object: Option<AuditObject>,
    /// How it ended.
    pub outcome: AuditOutcome,
    /// Name of the gRPC code: `OK`, `PERMISSION_DENIED`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub code: String,
    /// Reason code of an error.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Denied calls of this caller, or renewals of the object, that have no line of their own.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub suppressed: u64,
    /// Lines that could not be written before this one.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub lost: u64,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

fn write_time<S: Serializer>(millis: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    let time = i64::try_from(*millis).ok().and_then(|millis| jiff::Timestamp::from_millisecond(millis).ok());
    serializer.collect_str(&format_args!("{:.3}", time.unwrap_or_default()))
}

fn read_time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let time: jiff::Timestamp =
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)?;
    u64::try_from(time.as_millisecond()).map_err(serde::de::Error::custom)
}

/// The version alone, which every later format keeps.
#[derive(Deserialize)]
struct LineVersion {
    version: u32,
}

impl AuditLine {
    /// Parses a line of a file.
    ///
    /// # Errors
    /// Why not, for people: it is damaged, or was written by a newer version.
    pub fn parse(text: &[u8]) -> Result<Self, String> {
        let damaged =
            |error: serde_json::Error| format!("a damaged line of the audit log is left out: {error}");
        let LineVersion { version } = serde_json::from_slice(text).map_err(damaged)?;
        if version > LINE_VERSION {
            return Err(format!(
                "a line of the audit log is left out: it has version {version}, this manager reads up to \
                 {LINE_VERSION}"
            ));
        }
        serde_json::from_slice(text).map_err(damaged)
    }

    /// Appends the line with its newline.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        serde_json::to_writer(&mut *out, self).expect("text and numbers can be written to memory");
        out.push(b'\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(crate) fn line() -> AuditLine {
        AuditLine {
            version: LINE_VERSION,
            number: 17,
            time: 1_795_185_005_120,
            manager: "m1".into(),
            caller: AuditCaller {
                kind: "certificate".into(),
                id: "alice".into(),
                name: "alice".into(),
                role: "admin".into(),
                address: "10.0.0.7:40112".into(),
                uid: None,
            },
            method: "Services/Update".into(),
            object: Some(AuditObject {
                kind: "service".into(),
                id: "0abc".into(),
                name: "web".into(),
                version: Some(812),
                detail: String::new(),
            }),
            outcome: AuditOutcome::Allowed,
            code: "OK".into(),
            ..Default::default()
        }
    }

    #[test]
    fn line_format_is_stable() {
        let mut text = Vec::new();
        line().encode(&mut text);
        let written = String::from_utf8(text.clone()).unwrap();
        let expected = concat!(
            r#"{"version":1,"number":17,"time":"2026-11-20T14:30:05.120Z","manager":"m1","caller":"#,
            r#"{"kind":"certificate","id":"alice","name":"alice","role":"admin","address":"10.0.0.7:40112"},"#,
            r#""method":"Services/Update","object":{"kind":"service","id":"0abc","name":"web","version":812},"#,
            r#""outcome":"allowed","code":"OK"}"#,
            "\n"
        );
        assert_eq!(written, expected);
        assert_eq!(AuditLine::parse(&text).unwrap(), line());
    }

    #[test]
    fn newer_and_damaged_lines_are_named() {
        let newer = AuditLine::parse(br#"{"version":2,"what":"else"}"#).unwrap_err();
        assert!(newer.contains("version 2"), "{newer}");
        let torn = AuditLine::parse(br#"{"version":1,"number":1"#).unwrap_err();
        assert!(torn.contains("damaged"), "{torn}");
    }
}
