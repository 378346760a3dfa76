//! Prints results to standard output: tables or documents, and nothing else.

mod listing;
mod template;

use std::borrow::Cow;
use std::io::{self, IsTerminal, Write};
use std::iter;

use serde::Serialize;
use unicode_width::UnicodeWidthStr;
use warren_daemon::printable;
use warren_types::Timestamp;

use crate::args::OutputFormat;
use crate::failure::{CommandError, ExitKind};

pub use listing::{FilterKey, ListContent, ListedRow, Listing, has_label};

/// A column of a table.
#[derive(Debug, Clone, Copy)]
pub struct Column {
    /// Title in capitals.
    pub title: &'static str,
    /// Only with `-o wide`.
    pub wide: bool,
    /// Measured again and again: another value is no change of the row.
    pub measured: bool,
}

impl Column {
    /// The column, with values that are measured.
    pub const fn measured(self) -> Self {
        Self { measured: true, ..self }
    }
}

/// A row of a table.
pub trait TableRow: Serialize {
    /// The columns, in order.
    const COLUMNS: &'static [Column];

    /// A text per column. `wide` selects full ids; ages are relative to `now`.
    fn cells(&self, wide: bool, now: Timestamp) -> Vec<String>;
}

/// Blanks between two columns.
const GAP: usize = 3;

/// A column of every table.
pub const fn column(title: &'static str) -> Column {
    Column { title, wide: false, measured: false }
}

/// A column of wide tables.
pub const fn wide(title: &'static str) -> Column {
    Column { title, wide: true, measured: false }
}

/// Renders a table without printing it.
pub fn table_text<T: TableRow>(format: OutputFormat, items: &[T], now: Timestamp) -> String {
    let wide = format == OutputFormat::Wide;
    table_of(items, wide, wide, now)
}

/// Prints a list as a table or as one array.
pub fn print_list<T: TableRow>(
    format: OutputFormat,
    items: &[T],
    now: Timestamp,
) -> Result<(), CommandError> {
    match format {
        OutputFormat::Table | OutputFormat::Wide => print(&table_text(format, items, now)),
        OutputFormat::Json | OutputFormat::Yaml => print_document(format, &items),
    }
}

/// Prints a document, as YAML unless JSON was requested.
pub fn print_document<T: Serialize>(format: OutputFormat, item: &T) -> Result<(), CommandError> {
    print(&render(format, item)?)
}

/// Prints documents: one alone, several as one array.
pub fn print_documents<T: Serialize>(format: OutputFormat, items: &[T]) -> Result<(), CommandError> {
    match items {
        [one] => print_document(format, one),
        items => print_document(format, &items),
    }
}

fn render<T: Serialize>(format: OutputFormat, item: &T) -> Result<String, CommandError> {
    let broken = |why: String| CommandError::new(ExitKind::Failed, "the answer was not printed", why, "");
    match format {
        OutputFormat::Json => {
            let text = serde_json::to_string_pretty(item).map_err(|why| broken(why.to_string()))?;
            Ok(text + "\n")
        }
        _ => serde_saphyr::to_string(item).map_err(|why| broken(why.to_string())),
    }
}

/// Prints text: to a terminal with control characters escaped, because parts of it may be those of a node.
pub fn print(text: &str) -> Result<(), CommandError> {
    let mut stdout = io::stdout().lock();
    let text = if stdout.is_terminal() { printable(text) } else { Cow::Borrowed(text) };
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        // The reader closed the pipe (`| head`).
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        Err(error) => Err(CommandError::new(ExitKind::Failed, "the answer was not printed", error, "")),
        Ok(()) => Ok(()),
    }
}

/// A table of all columns, or of those that are not wide; `full` selects full ids.
fn table_of<T: TableRow>(items: &[T], wide: bool, full: bool, now: Timestamp) -> String {
    let is_shown = |column: &Column| wide || !column.wide;
    let shown = T::COLUMNS.iter().filter(|column| is_shown(column));
    let titles: Vec<&str> = shown.map(|column| column.title).collect();
    let row = |item: &T| {
        let cells = item.cells(full, now).into_iter().zip(T::COLUMNS);
        cells.filter(|(_, column)| is_shown(column)).map(|(cell, _)| cell).collect()
    };
    text_table(&titles, items.iter().map(row))
}

/// Aligned columns without borders; the titles are printed without rows too.
fn text_table<S: AsRef<str>>(titles: &[S], rows: impl Iterator<Item = Vec<String>>) -> String {
    let titles = titles.iter().map(|title| one_line(title.as_ref())).collect();
    let rows = rows.map(|cells| cells.into_iter().map(into_one_line).collect());
    let lines: Vec<Vec<String>> = iter::once(titles).chain(rows).collect();
    let mut widths = vec![0; lines[0].len()];
    for line in &lines {
        for (width, cell) in widths.iter_mut().zip(line) {
            *width = text_width(cell).max(*width);
        }
    }
    let mut text = String::new();
    for line in &lines {
        let start = text.len();
        for (cell, width) in line.iter().zip(&widths) {
            text.push_str(cell);
            text.extend(iter::repeat_n(' ', width - text_width(cell) + GAP));
        }
        text.truncate(start + text[start..].trim_end().len());
        text.push('\n');
    }
    text
}

/// How many columns of a terminal a text takes.
fn text_width(text: &str) -> usize {
    if text.is_ascii() { text.len() } else { text.width() }
}

/// As [`one_line`], without a copy of the many cells that are one line.
fn into_one_line(cell: String) -> String {
    let is_kept = cell.trim().len() == cell.len() && !cell.contains(char::is_control);
    if is_kept { cell } else { one_line(&cell) }
}

/// Joins lines, since a row is one line.
pub fn one_line(text: &str) -> String {
    const BREAKS: [char; 3] = ['\n', '\r', '\t'];
    if !text.contains(BREAKS) {
        return printable(text.trim()).into_owned();
    }
    let words: Vec<&str> = text.split(BREAKS).map(str::trim).filter(|part| !part.is_empty()).collect();
    printable(&words.join(" ")).into_owned()
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// Renders a table.
    pub fn table_text_of<T: TableRow>(items: &[T], wide: bool, now: Timestamp) -> String {
        table_of(items, wide, wide, now)
    }

    /// Renders one wide row with a line per column.
    pub fn vertical<T: TableRow>(item: &T, now: Timestamp) -> String {
        let cells = T::COLUMNS.iter().zip(item.cells(true, now));
        let lines = cells.map(|(column, cell)| format!("{} {}", column.title, one_line(&cell)));
        lines.map(|line| line.trim_end().to_owned() + "\n").collect()
    }

    /// Renders a document.
    pub fn rendered<T: Serialize>(format: OutputFormat, item: &T) -> String {
        render(format, item).unwrap()
    }

    #[derive(Serialize)]
    struct Line(&'static str);

    impl TableRow for Line {
        const COLUMNS: &'static [Column] = &[column("A"), wide("B"), column("REASON")];

        fn cells(&self, wide: bool, _: Timestamp) -> Vec<String> {
            vec![self.0.to_owned(), wide.to_string(), "two\n  lines".to_owned()]
        }
    }

    #[test]
    fn rows_have_one_line_and_no_blanks_at_their_end() {
        let lines = [Line("x"), Line("longer")];
        assert_eq!(
            table_text_of(&lines, false, Timestamp(0)),
            "A        REASON\nx        two lines\nlonger   two lines\n"
        );
        let first = table_text_of(&lines, true, Timestamp(0));
        assert_eq!(first.lines().nth(1), Some("x        true   two lines"));
        assert_eq!(table_text_of::<Line>(&[], false, Timestamp(0)), "A   REASON\n");
    }

    #[test]
    fn columns_are_as_wide_as_a_terminal_shows_them() {
        let rows = [["a", "1"], ["", ""], ["\u{65e5}\u{672c}", "\u{e9}"], ["\x1b[1m", "2"]];
        let rows = rows.into_iter().map(|cells| cells.map(str::to_owned).to_vec());
        let expected = "X           Y\na           1\n\n\u{65e5}\u{672c}        \u{e9}\n\\u{1b}[1m   2\n";
        assert_eq!(text_table(&["X", "Y"], rows), expected);
    }
}
