//! Shows progress on stderr: a live view on a terminal, a line per change otherwise.

use std::collections::BTreeSet;
use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use warren_daemon::printable;

/// Lines of a live view below its summary: it must fit on a small terminal.
const LIVE_LINES: usize = 8;

/// Where progress is shown.
#[derive(Debug)]
pub enum ProgressOutput {
    /// Redraws the view on a terminal.
    Live(ProgressBar),
    /// Prints a line for each change.
    Plain(PrintedLines),
    /// Prints nothing.
    Quiet,
}

/// What was printed: the last summary, and the lines of each name.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct PrintedLines {
    summary: String,
    lines: BTreeSet<(String, String)>,
}

impl ProgressOutput {
    /// A live view if stderr is a terminal.
    pub fn new() -> Self {
        if !std::io::stderr().is_terminal() {
            return Self::Plain(PrintedLines::default());
        }
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        bar.set_style(ProgressStyle::with_template("{spinner} {msg}").expect("the template is valid"));
        bar.enable_steady_tick(Duration::from_millis(100));
        Self::Live(bar)
    }

    /// Shows a summary and the unfinished items, as (name, line).
    pub fn show(&mut self, summary: &str, lines: &[(String, String)]) {
        match self {
            Self::Live(bar) => bar.set_message(printable(&live_text(summary, lines)).into_owned()),
            Self::Plain(printed) => {
                printed.changed_lines(summary, lines).iter().for_each(|line| eprintln!("{}", printable(line)))
            }
            Self::Quiet => {}
        }
    }

    /// Prints the final summary.
    pub fn end(mut self, summary: &str) {
        match &mut self {
            Self::Live(bar) => {
                bar.finish_and_clear();
                eprintln!("{summary}");
            }
            Self::Plain(printed) => {
                printed.changed_lines(summary, &[]).iter().for_each(|line| eprintln!("{}", printable(line)))
            }
            Self::Quiet => {}
        }
    }
}

/// Clears the live view, so that an error starts on an empty line.
impl Drop for ProgressOutput {
    fn drop(&mut self) {
        if let Self::Live(bar) = self {
            bar.finish_and_clear();
        }
    }
}

fn live_text(summary: &str, lines: &[(String, String)]) -> String {
    let mut message = summary.to_owned();
    for (name, line) in lines.iter().take(LIVE_LINES) {
        message += &format!("\n  {name}: {line}");
    }
    if lines.len() > LIVE_LINES {
        message += &format!("\n  and {} more", lines.len() - LIVE_LINES);
    }
    message
}

impl PrintedLines {
    /// The lines that were not printed before, then the summary if it changed.
    fn changed_lines(&mut self, summary: &str, lines: &[(String, String)]) -> Vec<String> {
        let mut changed = Vec::new();
        for (name, line) in lines {
            if self.lines.insert((name.clone(), line.clone())) {
                changed.push(format!("{name}: {line}"));
            }
        }
        if self.summary != summary {
            summary.clone_into(&mut self.summary);
            changed.push(summary.to_owned());
        }
        changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(n: usize, line: &str) -> Vec<(String, String)> {
        (1..=n).map(|i| (format!("web.{i}"), line.to_owned())).collect()
    }

    #[test]
    fn only_changed_lines_are_printed() {
        let mut printed = PrintedLines::default();
        let starting = lines(2, "STARTING");
        let first = printed.changed_lines("0 of 2 ready", &starting);
        assert_eq!(first, ["web.1: STARTING", "web.2: STARTING", "0 of 2 ready"]);
        assert_eq!(printed.changed_lines("0 of 2 ready", &starting), [""; 0]);
        assert_eq!(printed.changed_lines("1 of 2 ready", &starting[1..]), ["1 of 2 ready"]);
        assert_eq!(printed.changed_lines("1 of 2 ready", &lines(1, "FAILED")), ["web.1: FAILED"]);
        assert_eq!(printed.changed_lines("1 of 2 ready", &starting), [""; 0], "a line is printed once");
    }

    #[test]
    fn a_live_view_fits_on_a_small_terminal() {
        assert_eq!(live_text("0 of 1", &lines(1, "PENDING")), "0 of 1\n  web.1: PENDING");
        let many = live_text("0 of 100", &lines(100, "PENDING"));
        assert_eq!(many.lines().count(), LIVE_LINES + 2);
        assert!(many.ends_with("  and 92 more"));
    }
}
