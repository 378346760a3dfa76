//! Who acts on what is over is refused: plans of an older term, reports of an older session.

use warren_core::{Applied, Command, Outcome, State};

/// `before` is the state that the command met.
pub fn holds(command: &Command, outcome: &Outcome, before: &State, applied: Applied) -> Result<(), String> {
    if matches!(outcome, Outcome::Rejected(_)) {
        return Ok(());
    }
    if let Some(planned) = command.planned_in().filter(|planned| *planned != applied.term) {
        return Err(format!("stale actors are refused: a plan of term {planned} counted in {applied:?}"));
    }
    match command {
        Command::ReportTasks { node, session, .. } | Command::SetNodeStatus { node, session, .. } => {
            let newest = before.node(node).map_or(0, |node| node.session);
            if newest == *session {
                return Ok(());
            }
            Err(format!("stale actors are refused: session {session} of {node} counted in session {newest}"))
        }
        _ => Ok(()),
    }
}
