//! Stale commands are rejected: plans of an older term, reports of an older session.

use warren_core::{AppliedIndex, ApplyOutcome, Command, State};

/// `before` is the state before the command.
pub fn holds(
    command: &Command,
    outcome: &ApplyOutcome,
    before: &State,
    applied: AppliedIndex,
) -> Result<(), String> {
    if matches!(outcome, ApplyOutcome::Rejected(_)) {
        return Ok(());
    }
    if let Some(planned) = command.planner_term().filter(|planned| *planned != applied.term) {
        return Err(format!(
            "stale commands are rejected: a plan of term {planned} was applied in {applied:?}"
        ));
    }
    match command {
        Command::ReportTasks { node, session, .. } | Command::SetNodeStatus { node, session, .. } => {
            let newest = before.node(node).map_or(0, |node| node.session);
            if newest == *session {
                return Ok(());
            }
            Err(format!(
                "stale commands are rejected: a report of session {session} of {node} was applied in session {newest}"
            ))
        }
        _ => Ok(()),
    }
}
