//! Asks before something cannot be taken back.

use std::io::{BufRead, IsTerminal, Write};

use crate::failure::{Exit, Failure};

/// Asks whoever sits at the terminal; nobody else is asked. `what` is what is not done without a yes.
pub fn confirm(question: &str, what: &str) -> Result<(), Failure> {
    let stdin = std::io::stdin();
    if !stdin.is_terminal() {
        let why = "it asks first, and standard input is no terminal";
        return Err(Failure::new(Exit::Usage, what, why, "give --force to go on without being asked"));
    }
    eprint!("{question} Go on? [y/N] ");
    // A prompt that cannot be written can still be answered.
    let _ = std::io::stderr().flush();
    let mut answer = String::new();
    let failed = |error| Failure::new(Exit::Failed, what, error, "give --force to go on without being asked");
    stdin.lock().read_line(&mut answer).map_err(failed)?;
    match ["y", "yes"].contains(&answer.trim().to_ascii_lowercase().as_str()) {
        true => Ok(()),
        false => Err(Failure::new(Exit::Failed, what, "it was not confirmed", "answer y, or give --force")),
    }
}
