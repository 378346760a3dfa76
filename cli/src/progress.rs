//! Tells on stderr how something gets on: a live view on a terminal, a line per change when piped.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Lines of a live view below its summary: it must fit on a small terminal.
const LIVE_LINES: usize = 8;

/// How something gets on.
#[derive(Debug)]
pub enum Progress {
    /// Redraws one place.
    Live(ProgressBar),
    /// Adds a line for each thing that changed.
    Plain(Told),
}

/// What was last said of each thing, by its name; the summary's name is empty.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Told(BTreeMap<String, String>);

impl Progress {
    /// A live view if stderr is a terminal.
    pub fn new() -> Self {
        if !std::io::stderr().is_terminal() {
            return Self::Plain(Told::default());
        }
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        bar.set_style(ProgressStyle::with_template("{spinner} {msg}").expect("the template is valid"));
        bar.enable_steady_tick(Duration::from_millis(100));
        Self::Live(bar)
    }

    /// Shows a summary, and a line for each thing that is still to come, as (name, line).
    pub fn show(&mut self, summary: &str, lines: &[(String, String)]) {
        match self {
            Self::Live(bar) => bar.set_message(live(summary, lines)),
            Self::Plain(told) => told.news(summary, lines).iter().for_each(|line| eprintln!("{line}")),
        }
    }

    /// Ends with a last line that stays.
    pub fn end(mut self, summary: &str) {
        match &mut self {
            Self::Live(bar) => {
                bar.finish_and_clear();
                eprintln!("{summary}");
            }
            Self::Plain(told) => told.news(summary, &[]).iter().for_each(|line| eprintln!("{line}")),
        }
    }
}

/// Whoever gives up leaves a clean line for what is said next.
impl Drop for Progress {
    fn drop(&mut self) {
        if let Self::Live(bar) = self {
            bar.finish_and_clear();
        }
    }
}

fn live(summary: &str, lines: &[(String, String)]) -> String {
    let mut message = summary.to_owned();
    for (name, line) in lines.iter().take(LIVE_LINES) {
        message += &format!("\n  {name}: {line}");
    }
    if lines.len() > LIVE_LINES {
        message += &format!("\n  and {} more", lines.len() - LIVE_LINES);
    }
    message
}

impl Told {
    /// The lines that say something new.
    fn news(&mut self, summary: &str, lines: &[(String, String)]) -> Vec<String> {
        let mut news = Vec::new();
        for (name, line) in lines {
            if self.0.insert(name.clone(), line.clone()).as_ref() != Some(line) {
                news.push(format!("{name}: {line}"));
            }
        }
        if self.0.insert(String::new(), summary.to_owned()).as_deref() != Some(summary) {
            news.push(summary.to_owned());
        }
        news
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(n: usize, line: &str) -> Vec<(String, String)> {
        (1..=n).map(|i| (format!("web.{i}"), line.to_owned())).collect()
    }

    #[test]
    fn only_news_are_told() {
        let mut told = Told::default();
        let starting = lines(2, "STARTING");
        let first = told.news("0 of 2 ready", &starting);
        assert_eq!(first, ["web.1: STARTING", "web.2: STARTING", "0 of 2 ready"]);
        assert_eq!(told.news("0 of 2 ready", &starting), [""; 0]);
        assert_eq!(told.news("1 of 2 ready", &starting[1..]), ["1 of 2 ready"]);
        assert_eq!(told.news("1 of 2 ready", &lines(1, "FAILED")), ["web.1: FAILED"]);
    }

    #[test]
    fn a_live_view_fits_on_a_small_terminal() {
        assert_eq!(live("0 of 1", &lines(1, "PENDING")), "0 of 1\n  web.1: PENDING");
        let many = live("0 of 100", &lines(100, "PENDING"));
        assert_eq!(many.lines().count(), LIVE_LINES + 2);
        assert!(many.ends_with("  and 92 more"));
    }
}
