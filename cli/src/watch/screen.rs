//! A terminal on which one table is drawn again and again, in place.

use std::io::{self, Write};

use terminal_size::{Height, Width, terminal_size_of};
use warren_daemon::printable;

use crate::failure::{CommandError, ExitKind};

/// Clears the screen, hides the cursor, and cuts long lines instead of wrapping them.
const OPEN: &str = "\x1b[?25l\x1b[?7l\x1b[2J";
/// Shows the cursor and wraps lines again.
const CLOSE: &str = "\x1b[?7h\x1b[?25h";
const HOME: &str = "\x1b[H";
/// Clears the rest of the line.
const END_OF_LINE: &str = "\x1b[K";
/// Clears the rest of the screen.
const END_OF_SCREEN: &str = "\x1b[J";

/// The terminal that is standard output; it is restored when this is dropped.
pub struct WatchScreen(());

impl WatchScreen {
    pub fn open() -> io::Result<Self> {
        write(OPEN)?;
        Ok(Self(()))
    }

    /// Draws a table and notes below it. `rows` gets how many rows there is room for and returns the title, these rows
    /// and how many there are.
    pub fn draw(
        &mut self,
        rows: impl FnOnce(usize) -> Result<(String, Vec<String>, usize), CommandError>,
        notes: &[&str],
    ) -> Result<(), CommandError> {
        let height = terminal_size_of(io::stdout()).map_or(24, |(Width(_), Height(rows))| usize::from(rows));
        let (title, lines, all) = rows(height)?;
        let text = frame(height, &title, &lines, all, notes);
        write(&text)
            .map_err(|error| CommandError::new(ExitKind::Failed, "the list was not printed", error, ""))
    }
}

impl Drop for WatchScreen {
    fn drop(&mut self) {
        // A closed terminal is ignored.
        let _ = write(CLOSE);
    }
}

fn write(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()
}

/// What is written for one picture: at most `height` lines, of which the last is left to the cursor.
fn frame(height: usize, title: &str, rows: &[String], all: usize, notes: &[&str]) -> String {
    let room = height.saturating_sub(1 + title.lines().count() + notes.len());
    let shown = if all > room { room.saturating_sub(1) } else { all };
    let more = (all > shown).then(|| format!("and {} more, for which the terminal has no room", all - shown));
    let lines = title.lines().chain(rows.iter().take(shown).map(String::as_str));
    let lines = lines.chain(more.as_deref()).chain(notes.iter().copied());
    let mut text = HOME.to_owned();
    for line in lines {
        let line = printable(line.trim_end());
        // A note may have several lines.
        text += &format!("{}{END_OF_LINE}\r\n", line.split('\n').collect::<Vec<_>>().join(" "));
    }
    text + END_OF_SCREEN
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_fits_the_terminal_and_has_no_control_characters_of_rows() {
        let rows: Vec<String> = (1..=9).map(|number| format!("web.{number}\n")).collect();
        let lines = |height, all: usize, notes: &[&str]| {
            let text = frame(height, "NAME\n", &rows[..all.min(height)], all, notes);
            let text = text.strip_prefix(HOME).and_then(|text| text.strip_suffix(END_OF_SCREEN)).unwrap();
            text.split("\x1b[K\r\n").filter(|line| !line.is_empty()).map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(lines(24, 2, &["a note"]), ["NAME", "web.1", "web.2", "a note"]);
        let more = "and 8 more, for which the terminal has no room";
        assert_eq!(lines(5, 9, &["a note"]), ["NAME", "web.1", more, "a note"]);
        assert_eq!(lines(5, 3, &[]), ["NAME", "web.1", "web.2", "web.3"]);
        let evil = frame(24, "", &["a\x1b[2J\n".to_owned()], 1, &[]);
        assert!(evil.contains("a\\u{1b}[2J") && !evil.contains("a\x1b[2J"), "{evil:?}");
    }
}
