//! Verification of nodes: checks that a new node must pass before it gets tasks.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::spec::{Taint, TaintEffect, UNVERIFIED_TAINT};
use crate::text::{serde_as_text, shorten};
use crate::{DnsLabel, ImageReference, Timestamp, Violations};

/// Key of the label of nodes while verification is on: `true` on verified ones, `false` on others.
pub const VERIFIED_LABEL: &str = "warren.io/verified";
/// The most bytes of the output of a check that are kept: its end.
pub const MAX_CHECK_OUTPUT: usize = 4 << 10;
/// The most checks of users.
pub const MAX_NODE_CHECKS: usize = 32;
/// The most results of one verification.
pub const MAX_CHECK_RESULTS: usize = 64;
/// The most failures in a row after which a node can be removed.
pub const MAX_REMOVE_AFTER: u32 = 10_000;
/// The limits of [`VerificationSettings::timeout`].
const TIMEOUTS: std::ops::RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(3600);
/// The longest text of a check.
const MAX_CHECK_TEXT: usize = 4096;

/// The checks of every node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum BuiltInCheck {
    /// The name server of the node and those that it asks answer.
    Dns,
    /// The managers can be reached.
    ManagerApi,
    /// Packets of the largest size reach other nodes and come back.
    DataPlane,
    /// The registries that services use can be reached.
    Registry,
    /// The clock is that of the managers.
    Clock,
    /// The data directory can be written and has space.
    Disk,
}

impl BuiltInCheck {
    /// All of them, in the order in which they are shown.
    pub const ALL: [Self; 6] =
        [Self::Dns, Self::ManagerApi, Self::DataPlane, Self::Registry, Self::Clock, Self::Disk];

    /// Its name: `data-plane`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Dns => "dns",
            Self::ManagerApi => "manager-api",
            Self::DataPlane => "data-plane",
            Self::Registry => "registry",
            Self::Clock => "clock",
            Self::Disk => "disk",
        }
    }
}

/// A check of users: `NAME=image:IMAGE [ARG...]` or `NAME=command:SHELL COMMAND`. It passes if it exits with 0. Stored
/// and sent as text.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeCheck {
    /// Unique among the checks.
    pub name: DnsLabel,
    /// What runs on the node.
    pub program: CheckProgram,
}

/// What a [`NodeCheck`] runs.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CheckProgram {
    /// A container in the network of the node.
    Image {
        /// Its image.
        image: ImageReference,
        /// Replace the arguments of the image, unless empty. Without white space.
        args: Vec<String>,
    },
    /// A command of the node's shell, as the user of the agent.
    Command(String),
}

/// A text that is not a [`NodeCheck`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{found:?} is not a check: {reason}; give NAME=image:IMAGE [ARG...] or NAME=command:COMMAND")]
pub struct ParseNodeCheckError {
    found: String,
    reason: String,
}

fn parse_check(text: &str) -> Result<NodeCheck, String> {
    if text.len() > MAX_CHECK_TEXT || text.contains('\0') {
        return Err(format!("it has a NUL character or more than {MAX_CHECK_TEXT} bytes"));
    }
    let (name, program) = text.split_once('=').ok_or("it has no name")?;
    let name: DnsLabel = name.parse().map_err(|why| format!("{why}"))?;
    if BuiltInCheck::ALL.iter().any(|check| check.as_str() == name.as_str()) {
        return Err(format!("{name} is the name of a check of every node"));
    }
    let program = match program.split_once(':') {
        Some(("image", run)) => {
            let mut words = run.split_whitespace();
            let image = words.next().unwrap_or_default().parse().map_err(|why| format!("{why}"))?;
            CheckProgram::Image { image, args: words.map(str::to_owned).collect() }
        }
        Some(("command", command)) if !command.trim().is_empty() => {
            CheckProgram::Command(command.trim().to_owned())
        }
        _ => return Err("it has no image and no command".to_owned()),
    };
    Ok(NodeCheck { name, program })
}

impl FromStr for NodeCheck {
    type Err = ParseNodeCheckError;

    fn from_str(text: &str) -> Result<Self, ParseNodeCheckError> {
        let found = || shorten(text);
        parse_check(text).map_err(|reason| ParseNodeCheckError { found: found(), reason })
    }
}

impl fmt::Display for NodeCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, program } = self;
        match program {
            CheckProgram::Image { image, args } => {
                write!(f, "{name}=image:{image}")?;
                args.iter().try_for_each(|arg| write!(f, " {arg}"))
            }
            CheckProgram::Command(command) => write!(f, "{name}=command:{command}"),
        }
    }
}

serde_as_text!(NodeCheck);

/// Which nodes are verified, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerificationSettings {
    /// New nodes are verified.
    pub enabled: bool,
    /// A node that was not verified after this many failures in a row is removed; 0 for never.
    pub remove_after: u32,
    /// How long each check may take.
    pub timeout: Duration,
    /// The checks of users, in the order of their names.
    pub checks: Vec<NodeCheck>,
}

impl Default for VerificationSettings {
    fn default() -> Self {
        Self { enabled: false, remove_after: 0, timeout: Duration::from_secs(30), checks: Vec::new() }
    }
}

/// A change of [`VerificationSettings`]; `None` keeps the value.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct VerificationChange {
    /// See [`VerificationSettings::enabled`].
    pub enabled: Option<bool>,
    /// See [`VerificationSettings::remove_after`].
    pub remove_after: Option<u32>,
    /// See [`VerificationSettings::timeout`].
    pub timeout: Option<Duration>,
    /// Checks to set; each replaces the one with its name.
    pub check_add: Vec<NodeCheck>,
    /// Names of checks to remove; before `check_add`.
    pub check_rm: Vec<DnsLabel>,
}

impl VerificationSettings {
    pub(crate) fn changed(&self, change: &VerificationChange) -> Self {
        let VerificationChange { enabled, remove_after, timeout, check_add, check_rm } = change;
        let mut checks = self.checks.clone();
        checks.retain(|check| !check_rm.contains(&check.name));
        for added in check_add {
            checks.retain(|check| check.name != added.name);
            checks.push(added.clone());
        }
        checks.sort();
        Self {
            enabled: enabled.unwrap_or(self.enabled),
            remove_after: remove_after.unwrap_or(self.remove_after),
            timeout: timeout.unwrap_or(self.timeout),
            checks,
        }
    }

    /// Adds what is out of range; paths are relative to the settings of the cluster.
    pub(crate) fn validate(&self, wrong: &mut Violations) {
        if self.remove_after > MAX_REMOVE_AFTER {
            let found = self.remove_after;
            wrong.add("verifyRemoveAfter", format!("{found} is out of range; give 0 to {MAX_REMOVE_AFTER}"));
        }
        if !TIMEOUTS.contains(&self.timeout) {
            wrong.add("verifyTimeout", format!("{:?} is out of range; give 1s to 1h", self.timeout));
        }
        if self.checks.len() > MAX_NODE_CHECKS {
            let found = self.checks.len();
            wrong.add("verifyChecks", format!("{found} checks; at most {MAX_NODE_CHECKS} are possible"));
        }
    }
}

/// How far the verification of a node is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeVerification {
    /// The state.
    pub state: VerificationState,
    /// Since when it has been in this state.
    pub since: Timestamp,
    /// How often in a row the checks failed.
    pub failures: u32,
    /// Time of the last request of a user for a verification, in milliseconds; 0 for none.
    pub requested: u64,
    /// The request that was the last one when the checks ran last.
    pub answered: u64,
    /// The results of the last checks.
    pub results: Vec<NodeCheckResult>,
}

/// The state of the verification of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum VerificationState {
    /// It was never checked.
    Unverified,
    /// A user asked for a verification, which has not begun.
    Pending,
    /// Its checks run.
    InProgress,
    /// All checks passed.
    Verified,
    /// A check failed; all are repeated.
    Failed,
}

impl VerificationState {
    /// All states.
    pub const ALL: [Self; 5] =
        [Self::Unverified, Self::Pending, Self::InProgress, Self::Verified, Self::Failed];

    /// For people: `in progress`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unverified => "unverified",
            Self::Pending => "pending",
            Self::InProgress => "in progress",
            Self::Verified => "verified",
            Self::Failed => "failed",
        }
    }
}

/// The result of one check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeCheckResult {
    /// The name of the check.
    pub name: String,
    /// How it went.
    pub outcome: NodeCheckOutcome,
    /// What was found, and for a check of users its last output; may be empty if it passed.
    pub message: String,
}

/// How a check went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NodeCheckOutcome {
    /// All is well.
    Passed,
    /// Something is wrong that does not keep the node from running tasks.
    Warning,
    /// The node is not verified.
    Failed,
}

impl NodeCheckOutcome {
    /// All outcomes.
    pub const ALL: [Self; 3] = [Self::Passed, Self::Warning, Self::Failed];

    /// For people and metrics: `passed`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Warning => "warning",
            Self::Failed => "failed",
        }
    }
}

impl NodeCheckResult {
    /// A result, of whose message the last [`MAX_CHECK_OUTPUT`] bytes are kept.
    pub fn new(name: &str, outcome: NodeCheckOutcome, message: &str) -> Self {
        let message = message.trim_end();
        let start = message.ceil_char_boundary(message.len().saturating_sub(MAX_CHECK_OUTPUT));
        Self { name: name.to_owned(), outcome, message: message[start..].to_owned() }
    }
}

impl NodeVerification {
    /// In this state since `since`, without anything else.
    pub fn new(state: VerificationState, since: Timestamp) -> Self {
        Self { state, since, failures: 0, requested: 0, answered: 0, results: Vec::new() }
    }

    /// The first check that failed last.
    pub fn failed_check(&self) -> Option<&NodeCheckResult> {
        self.results.iter().find(|result| result.outcome == NodeCheckOutcome::Failed)
    }
}

/// The taint of a node that is not verified.
pub fn unverified_taint() -> Taint {
    Taint { key: UNVERIFIED_TAINT.to_owned(), effect: TaintEffect::NoSchedule, value: String::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_is_read_from_text_and_printed() {
        for text in
            ["gpu=image:acme/check:1 --all 2", "nfs=image:check", "mount=command:test -d /mnt && echo a=b:c"]
        {
            let check: NodeCheck = text.parse().unwrap();
            assert_eq!(check.to_string(), text);
            assert_eq!(check.to_string().parse::<NodeCheck>().unwrap(), check);
        }
        for (text, reason) in [
            ("gpu", "it has no name"),
            ("G=command:true", "not a DNS label"),
            ("dns=command:true", "dns is the name of a check of every node"),
            ("a=command: ", "it has no image and no command"),
            ("a=true", "it has no image and no command"),
            ("a=image:", "not an image reference"),
            (&format!("a=command:{}", "x".repeat(5000)), "more than 4096 bytes"),
        ] {
            let failure = text.parse::<NodeCheck>().unwrap_err().to_string();
            assert!(failure.contains(reason), "{failure}");
        }
    }

    #[test]
    fn change_replaces_checks_by_name() {
        let check = |text: &str| text.parse::<NodeCheck>().unwrap();
        let change = VerificationChange {
            check_add: vec![check("b=command:1"), check("a=command:2")],
            ..VerificationChange::default()
        };
        let first = VerificationSettings::default().changed(&change);
        assert_eq!(first.checks, [check("a=command:2"), check("b=command:1")]);
        let change = VerificationChange {
            check_add: vec![check("b=command:3")],
            check_rm: vec!["a".parse().unwrap()],
            ..VerificationChange::default()
        };
        assert_eq!(first.changed(&change).checks, [check("b=command:3")]);
    }

    #[test]
    fn end_of_long_message_is_kept() {
        let text = format!("{}\u{e4}{}\n\n", "x".repeat(10), "y".repeat(MAX_CHECK_OUTPUT - 1));
        let result = NodeCheckResult::new("a", NodeCheckOutcome::Failed, &text);
        assert_eq!(result.message, "y".repeat(MAX_CHECK_OUTPUT - 1));
    }
}
