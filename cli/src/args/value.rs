//! Parsers of flag values.

mod container;
mod health;
mod long_form;
mod mount;
mod network;
mod port;
mod secret_object;
mod security;
mod setting;
mod split;
mod time;

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use warren_types::OnDisconnect;

pub use container::{ModeName, device, host, host_removal, mode, role, sysctl, ulimit};
pub use health::{HttpTarget, header, http_target, shell_words};
pub use long_form::mount;
pub use mount::{bind, tmpfs, volume};
pub use network::NetworkChoice;
pub use port::{PortList, PortRemoval, port, publish, unpublish};
pub use secret_object::{config_mount, registry, secret_mount};
pub use security::{SeccompSource, SecurityOption};
pub use setting::{ResetFlags, Setting, setting, text};
pub use time::{TailLines, TokenTtl, event_start, since, tail, ttl};

/// A requested number of replicas, unchecked: a negative number is refused as a violation of the spec.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplicaCount(pub i64);

impl FromStr for ReplicaCount {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.parse().map(Self).map_err(|_| "give a whole number".to_owned())
    }
}

impl fmt::Display for ReplicaCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// `SERVICE=N`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScaleTarget {
    /// Name, id, or id prefix.
    pub service: String,
    /// Requested replicas.
    pub replicas: ReplicaCount,
}

/// An environment variable; a missing value comes from the environment of this command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EnvVariable {
    /// Not empty.
    pub name: String,
    /// `None` if not given.
    pub value: Option<String>,
}

pub fn scaling(text: &str) -> Result<ScaleTarget, String> {
    let wrong = || format!("{text:?} is not SERVICE=N, like web=3");
    let (service, replicas) = text.rsplit_once('=').ok_or_else(wrong)?;
    let replicas = replicas.parse().map_err(|_| wrong())?;
    if service.is_empty() { Err(wrong()) } else { Ok(ScaleTarget { service: service.to_owned(), replicas }) }
}

pub fn label(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("give KEY=VALUE")?;
    if key.is_empty() {
        return Err("the key is empty; give KEY=VALUE".to_owned());
    }
    Ok((key.to_owned(), value.to_owned()))
}

pub fn variable(text: &str) -> Result<EnvVariable, String> {
    let (name, value) = match text.split_once('=') {
        Some((name, value)) => (name, Some(value.to_owned())),
        None => (text, None),
    };
    if name.is_empty() {
        return Err(
            "the name is empty; give NAME=VALUE, or NAME to use the value of this environment".to_owned()
        );
    }
    Ok(EnvVariable { name: name.to_owned(), value })
}

/// Variables in a file: one per line as in `--env`, without quotes; `#` at the start of a line is a comment.
///
/// # Errors
/// The line number and the error.
pub fn variables(file: &str) -> Result<Vec<EnvVariable>, String> {
    let lines = file.lines().enumerate().map(|(i, line)| (i + 1, line.trim_start()));
    let meant = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    let read = |line: &str| match variable(line)? {
        EnvVariable { name, .. } if name.contains(char::is_whitespace) => {
            Err(format!("{name:?} has whitespace, which is not allowed in a variable name"))
        }
        variable => Ok(variable),
    };
    meant.map(|(number, line)| read(line).map_err(|why| format!("line {number}: {why}"))).collect()
}

/// A duration in whole milliseconds, like `10s`, `1m30s`, `500ms`.
pub fn on_or_off(text: &str) -> Result<bool, String> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err("give on or off".to_owned()),
    }
}

pub fn duration(text: &str) -> Result<Duration, String> {
    let duration = humantime::parse_duration(text)
        .map_err(|_| format!("{text:?} is not a duration; give one like 10s or 5m"))?;
    if duration.subsec_nanos() % 1_000_000 != 0 {
        return Err("has a precision below one millisecond".to_owned());
    }
    Ok(duration)
}

/// `keep` or `stop-after=TIME`.
pub fn on_disconnect(text: &str) -> Result<OnDisconnect, String> {
    match text.split_once('=') {
        None if text == "keep" => Ok(OnDisconnect::Keep),
        Some(("stop-after", time)) => duration(time).map(OnDisconnect::StopAfter),
        _ => Err("give keep, or stop-after=30s".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variable_values_are_unrestricted() {
        let some = |name: &str, value: &str| EnvVariable { name: name.into(), value: Some(value.into()) };
        assert_eq!(variable("A=b=c"), Ok(some("A", "b=c")));
        assert_eq!(variable("A="), Ok(some("A", "")));
        assert_eq!(variable("A"), Ok(EnvVariable { name: "A".into(), value: None }));
        assert!(variable("=b").is_err() && variable("").is_err());
        let file = "# comment\n\n  A=1\nB=two words # kept\r\nC\n";
        let expected =
            [some("A", "1"), some("B", "two words # kept"), EnvVariable { name: "C".into(), value: None }];
        assert_eq!(variables(file), Ok(expected.to_vec()));
        assert_eq!(variables("A=1\n=2").unwrap_err()[..7], *"line 2:");
        let blank = "line 1: \"export A\" has whitespace, which is not allowed in a variable name";
        assert_eq!(variables("export A=1").unwrap_err(), blank);
    }

    #[test]
    fn scalings_and_labels_are_pairs() {
        let scaling = |text| scaling(text).map(|s| (s.service, s.replicas.0));
        assert_eq!(scaling("web=3"), Ok(("web".into(), 3)));
        assert_eq!(scaling("web=-1"), Ok(("web".into(), -1)));
        for bad in ["web", "web=", "=3", "web=x", "web=1.5"] {
            assert!(scaling(bad).is_err(), "{bad}");
        }
        assert_eq!(label("a=b=c"), Ok(("a".into(), "b=c".into())));
        assert!(label("a").is_err() && label("=b").is_err());
    }

    #[test]
    fn durations_are_whole_milliseconds() {
        assert_eq!(duration("1m30s"), Ok(Duration::from_secs(90)));
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        for bad in ["", "10", "-1s", "1us", "x"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
        assert_eq!(on_disconnect("keep"), Ok(OnDisconnect::Keep));
        let half_a_minute = OnDisconnect::StopAfter(Duration::from_secs(30));
        assert_eq!(on_disconnect("stop-after=30s"), Ok(half_a_minute));
        for bad in ["stop", "stop-after", "stop-after=", "keep=1s", "30s"] {
            assert!(on_disconnect(bad).is_err(), "{bad}");
        }
    }
}
