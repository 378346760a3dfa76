//! Asks for confirmation before an action that cannot be undone.

use std::io::{BufRead, IsTerminal, Write};

use crate::failure::{CommandError, ExitKind};

/// Asks at the terminal; fails if standard input is not one. `what` is the failure summary.
pub fn confirm(question: &str, what: &str) -> Result<(), CommandError> {
    let stdin = std::io::stdin();
    if !stdin.is_terminal() {
        let why = "confirmation is required, and standard input is not a terminal";
        return Err(CommandError::new(ExitKind::Usage, what, why, "use --force to skip the confirmation"));
    }
    eprint!("{question} Continue? [y/N] ");
    // A prompt that cannot be written can still be answered.
    let _ = std::io::stderr().flush();
    let mut answer = String::new();
    let failed =
        |error| CommandError::new(ExitKind::Failed, what, error, "use --force to skip the confirmation");
    stdin.lock().read_line(&mut answer).map_err(failed)?;
    match ["y", "yes"].contains(&answer.trim().to_ascii_lowercase().as_str()) {
        true => Ok(()),
        false => Err(CommandError::new(ExitKind::Failed, what, "not confirmed", "answer y, or use --force")),
    }
}
