//! Why an object is as it is: a tree of causes.

use serde::Serialize;
use warren_proto::v1;
use warren_types::Timestamp;

use super::{TimeView, age, non_empty};

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WhyView {
    kind: String,
    name: String,
    id: String,
    /// `ok`, `waiting` or `problem`.
    severity: &'static str,
    desired: String,
    pub cause: CauseView,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CauseView {
    severity: &'static str,
    code: String,
    sentence: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    since: Option<TimeView>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    evidence: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    action: Option<String>,
    /// The task whose last lines of output may tell more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log_task: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub last_lines: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub causes: Vec<CauseView>,
}

fn severity(value: v1::CauseSeverity) -> &'static str {
    match value {
        v1::CauseSeverity::Ok => "ok",
        v1::CauseSeverity::Waiting => "waiting",
        v1::CauseSeverity::Problem | v1::CauseSeverity::Unspecified => "problem",
    }
}

impl From<v1::Cause> for CauseView {
    fn from(cause: v1::Cause) -> Self {
        let shown = severity(cause.severity());
        let v1::Cause { severity: _, code, sentence, since, evidence, action, log_task, causes } = cause;
        Self {
            severity: shown,
            code,
            sentence,
            since: since.map(TimeView::new),
            evidence,
            action: non_empty(action),
            log_task: non_empty(log_task),
            last_lines: Vec::new(),
            causes: causes.into_iter().map(Into::into).collect(),
        }
    }
}

impl From<v1::WhyResponse> for WhyView {
    fn from(answer: v1::WhyResponse) -> Self {
        let v1::WhyResponse { kind, id, name, desired, cause } = answer;
        let cause = CauseView::from(cause.unwrap_or_default());
        Self { kind, name, id, severity: cause.severity, desired, cause }
    }
}

impl WhyView {
    /// Whether something is wrong.
    pub fn is_problem(&self) -> bool {
        self.severity == "problem"
    }

    /// For people: each cause below that which it leads to.
    pub fn text(&self, now: Timestamp) -> String {
        let Self { kind, name, severity, desired, cause, .. } = self;
        let mut lines = vec![format!("{kind}/{name}: {severity}"), format!("desired: {desired}")];
        cause.add_lines(&mut lines, 0, now);
        lines.iter().map(|line| format!("{}\n", line.trim_end())).collect()
    }
}

impl CauseView {
    /// All causes of which a task's output may tell more, this one included.
    pub fn with_logs(&mut self) -> Vec<&mut CauseView> {
        let mut found: Vec<&mut CauseView> = Vec::new();
        let mut open = vec![self];
        while let Some(cause) = open.pop() {
            match cause.log_task.is_some() && cause.causes.is_empty() {
                true => found.push(cause),
                false => open.extend(cause.causes.iter_mut()),
            }
        }
        found
    }

    fn add_lines(&self, lines: &mut Vec<String>, depth: usize, now: Timestamp) {
        let (sentence, inner) = (&self.sentence, "  ".repeat(depth + 1));
        let since = self.since.map(|TimeView(at)| format!(" (for {}, since {at})", age(at, now)));
        let since = since.unwrap_or_default();
        lines.push(match (depth, self.severity) {
            (0, _) => format!("found: {sentence}{since}"),
            (_, "ok") => format!("{}- {sentence}{since}", "  ".repeat(depth)),
            (_, severity) => format!("{}- {severity}: {sentence}{since}", "  ".repeat(depth)),
        });
        let texts = self.evidence.iter().flat_map(|text| text.lines());
        lines.extend(texts.map(|text| format!("{inner}  {text}")));
        if !self.last_lines.is_empty() {
            lines.push(format!("{inner}  last lines of its output:"));
            lines.extend(self.last_lines.iter().map(|line| format!("{inner}    {line}")));
        }
        lines.extend(self.action.iter().map(|action| format!("{inner}  try: {action}")));
        self.causes.iter().for_each(|cause| cause.add_lines(lines, depth + 1, now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::OutputFormat;
    use crate::output::tests::rendered;

    fn answer() -> WhyView {
        let failed = v1::Cause {
            severity: v1::CauseSeverity::Problem.into(),
            code: "failed".into(),
            sentence: "web.2 failed on node w1".into(),
            since: Some(1_795_185_000_000),
            evidence: vec!["exit code 1".into()],
            action: "read why in its output".into(),
            log_task: "0abc-7".into(),
            ..Default::default()
        };
        let backoff = v1::Cause {
            severity: v1::CauseSeverity::Problem.into(),
            code: "back-off".into(),
            sentence: "web.2 is started again at 14:31".into(),
            causes: vec![failed],
            ..Default::default()
        };
        let settling = v1::Cause {
            severity: v1::CauseSeverity::Waiting.into(),
            code: "settling".into(),
            sentence: "web.3 counts as ready in 2s".into(),
            ..Default::default()
        };
        let cause = v1::Cause {
            severity: v1::CauseSeverity::Problem.into(),
            code: "degraded".into(),
            sentence: "web has 1 of 3 tasks ready".into(),
            causes: vec![backoff, settling],
            ..Default::default()
        };
        WhyView::from(v1::WhyResponse {
            kind: "service".into(),
            id: "0abc".into(),
            name: "web".into(),
            desired: "3 tasks of web:1, revision 1".into(),
            cause: Some(cause),
        })
    }

    #[test]
    fn causes_are_indented() {
        let mut view = answer();
        for cause in view.cause.with_logs() {
            cause.last_lines = vec!["fatal: no data".into()];
        }
        assert!(view.is_problem());
        insta::assert_snapshot!(view.text(Timestamp(1_795_185_005_000)), @r"
        service/web: problem
        desired: 3 tasks of web:1, revision 1
        found: web has 1 of 3 tasks ready
          - problem: web.2 is started again at 14:31
            - problem: web.2 failed on node w1 (for 5s, since 2026-11-20T14:30:00Z)
                exit code 1
                last lines of its output:
                  fatal: no data
                try: read why in its output
          - waiting: web.3 counts as ready in 2s
        ");
    }

    #[test]
    fn causes_have_stable_documents() {
        let WhyView { cause, .. } = answer();
        let failed = &cause.causes[0].causes[0];
        insta::assert_snapshot!(rendered(OutputFormat::Json, failed), @r#"
        {
          "severity": "problem",
          "code": "failed",
          "sentence": "web.2 failed on node w1",
          "since": "2026-11-20T14:30:00.000Z",
          "evidence": [
            "exit code 1"
          ],
          "action": "read why in its output",
          "logTask": "0abc-7"
        }
        "#);
    }
}
