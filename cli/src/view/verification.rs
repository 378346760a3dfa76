//! The verification of a node.

use serde::Serialize;
use warren_proto::v1;
use warren_types::{NodeCheckOutcome, NodeVerification, VerificationState, Violations};

use super::TimeView;

/// The most characters of a message in a table.
const MAX_SHOWN: usize = 160;

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct VerificationView {
    pub state: VerificationState,
    since: TimeView,
    /// Failures in a row; absent for none.
    #[serde(skip_serializing_if = "is_zero")]
    failures: u32,
    /// Of the last checks.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub checks: Vec<CheckView>,
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CheckView {
    pub name: String,
    pub outcome: NodeCheckOutcome,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// What mends it, where that is known.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub hint: String,
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

impl TryFrom<v1::NodeVerification> for VerificationView {
    type Error = Violations;

    fn try_from(wire: v1::NodeVerification) -> Result<Self, Violations> {
        let NodeVerification { state, since, failures, requested: _, answered: _, results } =
            wire.try_into()?;
        let check = |result: warren_types::NodeCheckResult| CheckView {
            name: result.name,
            outcome: result.outcome,
            message: result.message,
            hint: String::new(),
        };
        let checks = results.into_iter().map(check).collect();
        Ok(Self { state, since: TimeView::new(since.0), failures, checks })
    }
}

impl VerificationView {
    /// Why the node gets no tasks, in one line; `None` for a verified one.
    pub fn problem(&self) -> Option<String> {
        let failed = self.checks.iter().find(|check| check.outcome == NodeCheckOutcome::Failed);
        let state = match self.state {
            VerificationState::Verified => return None,
            VerificationState::Unverified => "unverified".to_owned(),
            other => format!("verification {}", other.as_str()),
        };
        let Some(CheckView { name, message, .. }) = failed else { return Some(state) };
        let line = message.lines().next().unwrap_or_default();
        let times = if self.failures > 1 { format!(" {} times", self.failures) } else { String::new() };
        Some(match self.state {
            VerificationState::Failed => format!("{state}{times}: {name}: {}", cut(line)),
            _ => format!("{state}, failed{times}: {name}: {}", cut(line)),
        })
    }
}

/// One line per check, with further lines of its message and its hint below it.
pub fn report(checks: &[CheckView]) -> String {
    let mut text = String::new();
    for CheckView { name, outcome, message, hint } in checks {
        let mark = match outcome {
            NodeCheckOutcome::Passed => '\u{221a}',
            NodeCheckOutcome::Warning => '\u{203c}',
            NodeCheckOutcome::Failed => '\u{d7}',
        };
        let mut lines = message.lines();
        let first = lines.next().map(|line| format!(": {line}")).unwrap_or_default();
        text += &format!("{mark} {name}{first}\n");
        lines.for_each(|line| text += &format!("    {line}\n"));
        if !hint.is_empty() {
            text += &format!("    try: {hint}\n");
        }
    }
    text
}

fn cut(line: &str) -> String {
    match line.char_indices().nth(MAX_SHOWN) {
        Some((end, _)) => format!("{}...", &line[..end]),
        None => line.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(state: VerificationState, failures: u32, message: &str) -> VerificationView {
        let check = |name: &str, outcome, message: &str| CheckView {
            name: name.into(),
            outcome,
            message: message.into(),
            hint: String::new(),
        };
        let checks = vec![
            check("dns", NodeCheckOutcome::Passed, ""),
            check("data-plane", NodeCheckOutcome::Warning, "1 of 3 nodes not reached"),
            check("gpu", NodeCheckOutcome::Failed, message),
        ];
        VerificationView { state, since: TimeView::new(0), failures, checks }
    }

    #[test]
    fn problem_is_one_line_with_the_failing_check() {
        let problem = |state, failures| view(state, failures, "exited with code 1: no\nmore").problem();
        assert_eq!(problem(VerificationState::Verified, 0), None);
        let failed = "verification failed: gpu: exited with code 1: no";
        assert_eq!(problem(VerificationState::Failed, 1).unwrap(), failed);
        let again = "verification in progress, failed 3 times: gpu: exited with code 1: no";
        assert_eq!(problem(VerificationState::InProgress, 3).unwrap(), again);
        let new = VerificationView { checks: Vec::new(), ..view(VerificationState::Unverified, 0, "") };
        assert_eq!(new.problem().unwrap(), "unverified");
        let long = view(VerificationState::Failed, 1, &"\u{e4}".repeat(500)).problem().unwrap();
        assert!(long.ends_with("\u{e4}...") && long.chars().count() < 200, "{long}");
    }

    #[test]
    fn report_has_a_mark_for_each_check() {
        let mut checks = view(VerificationState::Failed, 1, "exited with code 1: no\nmore").checks;
        checks[2].hint = "modprobe gpu".to_owned();
        let expected = "\u{221a} dns\n\u{203c} data-plane: 1 of 3 nodes not reached\n\
                        \u{d7} gpu: exited with code 1: no\n    more\n    try: modprobe gpu\n";
        assert_eq!(report(&checks), expected);
    }
}
