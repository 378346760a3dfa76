//! Describes why the health check of a running task has not succeeded.

use warren_proto::v1;
use warren_types::{HealthCheck, TaskState};

use super::{is_stopping, state};

/// Characters of the output of a check that are shown.
const MAX_OUTPUT_SHOWN: usize = 160;
/// Number of check results that managers store per task.
const RESULTS_STORED: usize = 5;

/// Prefix of the worker's reason until the first success.
const NO_SUCCESS: &str = "no health check has succeeded yet: ";

/// The line for a running task that is not ready because of its health check; `None` for other tasks.
pub fn line(task: &v1::Task) -> Option<String> {
    if state(task) != Some(TaskState::Running) || task.ready || task.lost_since.is_some() || is_stopping(task)
    {
        return None;
    }
    let problem = match task.health() {
        v1::Health::None | v1::Health::Healthy => return None,
        v1::Health::Starting => format!("health check: {}", failures_so_far(task)),
        // The worker's reason already has the prefix.
        v1::Health::Unhealthy if task.reason.starts_with("unhealthy") => task.reason.clone(),
        v1::Health::Unhealthy if task.reason.is_empty() => format!("unhealthy: {}", failures_so_far(task)),
        v1::Health::Unhealthy => format!("unhealthy: {}", task.reason),
    };
    let node = if task.node_name.is_empty() { String::new() } else { format!(", on {}", task.node_name) };
    let attempt = if task.attempt > 1 { format!(", attempt {}", task.attempt) } else { String::new() };
    Some(format!("{problem}{node}{attempt}"))
}

/// `connection refused on port 80 (2 of 3)`.
fn failures_so_far(task: &v1::Task) -> String {
    let Some(last) = task.checks.last() else {
        // The reason arrives at once, the results with the next heartbeat.
        let failure = task.reason.strip_prefix(NO_SUCCESS).map(shortened);
        return failure.unwrap_or_else(|| "no result yet".to_owned());
    };
    if last.ok {
        return "succeeded".to_owned();
    }
    let output = match shortened(&last.output) {
        empty if empty.is_empty() => "failed".to_owned(),
        output => output,
    };
    let check = task.spec.as_ref().and_then(|spec| spec.health.clone());
    let Some(check) = check.and_then(|check| HealthCheck::try_from(check).ok()) else { return output };
    let counts_from = task.state_since + u64::try_from(check.start_period.as_millis()).unwrap_or(u64::MAX);
    let failed = task.checks.iter().rev().take_while(|result| !result.ok);
    match failed.filter(|result| result.at >= counts_from).count() {
        0 => format!("{output} (does not count for {})", crate::view::duration(check.start_period)),
        count if count >= RESULTS_STORED && check.retries as usize > RESULTS_STORED => {
            format!("{output} (at least {count} of {})", check.retries)
        }
        count => format!("{output} ({} of {})", count.min(check.retries as usize), check.retries),
    }
}

/// One line of at most [`MAX_OUTPUT_SHOWN`] characters.
fn shortened(output: &str) -> String {
    let words: Vec<&str> = output.split_whitespace().collect();
    let line = words.join(" ");
    match line.char_indices().nth(MAX_OUTPUT_SHOWN) {
        None => line,
        Some((end, _)) => format!("{}…", &line[..end]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: u64 = 100_000;

    fn failed(after: u64, output: &str) -> v1::CheckResult {
        v1::CheckResult { at: AT + after, duration_us: 900, ok: false, output: output.into() }
    }

    fn task(
        health: v1::Health,
        retries: u32,
        start_period_ms: u64,
        checks: Vec<v1::CheckResult>,
    ) -> v1::Task {
        let probe = v1::health_check::Probe::Tcp(v1::TcpProbe { port: 80 });
        let check = v1::HealthCheck {
            probe: Some(probe),
            retries: Some(retries),
            start_period_ms,
            ..Default::default()
        };
        let spec = v1::TaskSpec { image: "nginx".into(), health: Some(check), ..Default::default() };
        v1::Task {
            state: v1::TaskState::Running.into(),
            state_since: AT,
            node_name: "node-1".into(),
            health: health.into(),
            spec: Some(spec),
            attempt: 1,
            checks,
            ..Default::default()
        }
    }

    #[track_caller]
    fn check(retries: u32, start_period_ms: u64, checks: Vec<v1::CheckResult>, expected: &str) {
        let task = task(v1::Health::Starting, retries, start_period_ms, checks);
        assert_eq!(line(&task).unwrap(), format!("health check: {expected}, on node-1"));
    }

    #[test]
    fn last_check_output_and_failure_count_are_shown() {
        let refused = |after| failed(after, "connection refused on port 80");
        check(3, 0, vec![], "no result yet");
        check(3, 0, vec![refused(1)], "connection refused on port 80 (1 of 3)");
        check(3, 0, vec![refused(1), refused(2)], "connection refused on port 80 (2 of 3)");
        let late = failed(3, "HTTP 503\n  from :80/");
        check(3, 0, vec![refused(1), refused(2), late], "HTTP 503 from :80/ (3 of 3)");
        check(3, 0, vec![failed(1, "")], "failed (1 of 3)");
        let five = || (1..=5).map(refused).collect::<Vec<_>>();
        check(9, 0, five(), "connection refused on port 80 (at least 5 of 9)");
        check(2, 0, five(), "connection refused on port 80 (2 of 2)");
        let free = "connection refused on port 80 (does not count for 30s)";
        check(3, 30_000, vec![refused(1), refused(29_999)], free);
        check(3, 30_000, vec![refused(29_999), refused(30_000)], "connection refused on port 80 (1 of 3)");
        let well = v1::CheckResult { ok: true, ..refused(2) };
        check(3, 0, vec![refused(1), well.clone()], "succeeded");
        check(3, 0, vec![refused(1), well, refused(3)], "connection refused on port 80 (1 of 3)");
        check(
            3,
            0,
            vec![failed(1, &"ä".repeat(200))],
            &format!("{}… (1 of 3)", "ä".repeat(MAX_OUTPUT_SHOWN)),
        );
    }

    #[test]
    fn worker_reason_is_shown_before_results() {
        let reported = |reason: &str| {
            line(&v1::Task { reason: reason.into(), ..task(v1::Health::Starting, 3, 0, vec![]) }).unwrap()
        };
        let refused = "no health check has succeeded yet: connection refused on port 80";
        assert_eq!(reported(refused), "health check: connection refused on port 80, on node-1");
        assert_eq!(reported("no health check has succeeded yet"), "health check: no result yet, on node-1");
    }

    #[test]
    fn unhealthy_task_shows_worker_reason() {
        let unhealthy = |reason: &str| v1::Task {
            reason: reason.into(),
            attempt: 2,
            ..task(v1::Health::Unhealthy, 3, 0, vec![failed(1, "HTTP 500")])
        };
        let words = "unhealthy: HTTP 500 from :80/ (3 consecutive failures)";
        assert_eq!(line(&unhealthy(words)).unwrap(), format!("{words}, on node-1, attempt 2"));
        assert_eq!(line(&unhealthy("HTTP 500")).unwrap(), "unhealthy: HTTP 500, on node-1, attempt 2");
        assert_eq!(line(&unhealthy("")).unwrap(), "unhealthy: HTTP 500 (1 of 3), on node-1, attempt 2");
    }

    #[test]
    fn only_check_state_is_described() {
        let starting = || task(v1::Health::Starting, 3, 0, vec![]);
        assert_eq!(line(&v1::Task { ready: true, ..starting() }), None);
        assert_eq!(line(&v1::Task { lost_since: Some(1), ..starting() }), None);
        assert_eq!(line(&v1::Task { state: v1::TaskState::Starting.into(), ..starting() }), None);
        assert_eq!(line(&v1::Task { health: v1::Health::None.into(), ..starting() }), None);
    }
}
