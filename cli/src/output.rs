//! Prints what was found: tables for people, documents for programs. Standard output has nothing else.

use std::io::{self, Write};

use comfy_table::{ContentArrangement, Table, presets};
use serde::Serialize;
use warren_types::Timestamp;

use crate::args::Format;
use crate::failure::{Exit, Failure};

/// A column of a table.
#[derive(Debug, Clone, Copy)]
pub struct Column {
    /// In capitals.
    pub title: &'static str,
    /// Only for wide screens.
    pub wide: bool,
}

/// Something that has a line in a table.
pub trait Row: Serialize {
    /// The columns, in order.
    const COLUMNS: &'static [Column];

    /// A text per column. `wide` asks for whole ids; ages are counted from `now`.
    fn cells(&self, wide: bool, now: Timestamp) -> Vec<String>;
}

/// A column that is always there.
pub const fn column(title: &'static str) -> Column {
    Column { title, wide: false }
}

/// A column for wide screens.
pub const fn wide(title: &'static str) -> Column {
    Column { title, wide: true }
}

/// A table as it is printed, for what redraws it.
pub fn drawn<T: Row>(format: Format, items: &[T], now: Timestamp) -> String {
    table(items, format == Format::Wide, now)
}

/// Prints a list: as a table, or as one array.
pub fn list<T: Row>(format: Format, items: &[T], now: Timestamp) -> Result<(), Failure> {
    match format {
        Format::Table => print(&table(items, false, now)),
        Format::Wide => print(&table(items, true, now)),
        Format::Json | Format::Yaml => document(format, &items),
    }
}

/// Prints one thing in full: as JSON if that was asked for, else as YAML.
pub fn document<T: Serialize>(format: Format, item: &T) -> Result<(), Failure> {
    print(&render(format, item)?)
}

/// Prints things in full: one as itself, several as one array.
pub fn documents<T: Serialize>(format: Format, items: &[T]) -> Result<(), Failure> {
    match items {
        [one] => document(format, one),
        items => document(format, &items),
    }
}

fn render<T: Serialize>(format: Format, item: &T) -> Result<String, Failure> {
    let broken = |why: String| Failure::new(Exit::Failed, "the answer was not printed", why, "");
    match format {
        Format::Json => {
            let text = serde_json::to_string_pretty(item).map_err(|why| broken(why.to_string()))?;
            Ok(text + "\n")
        }
        _ => serde_saphyr::to_string(item).map_err(|why| broken(why.to_string())),
    }
}

/// Prints text as it is.
pub fn print(text: &str) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        // Whoever reads has seen enough (`| head`).
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        Err(error) => Err(Failure::new(Exit::Failed, "the answer was not printed", error, "")),
        Ok(()) => Ok(()),
    }
}

/// Columns side by side, without borders; a title even when there are no rows.
fn table<T: Row>(items: &[T], wide: bool, now: Timestamp) -> String {
    let shown = |i: &usize| wide || !T::COLUMNS[*i].wide;
    let columns: Vec<usize> = (0..T::COLUMNS.len()).filter(shown).collect();
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(columns.iter().map(|i| T::COLUMNS[*i].title));
    for item in items {
        let cells = item.cells(wide, now);
        table.add_row(columns.iter().map(|i| one_line(&cells[*i])));
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 3));
    }
    let lines = table.lines().map(|line| line.trim_end().to_owned() + "\n");
    lines.collect()
}

/// A reason may quote several lines of something; a row of a table is one.
fn one_line(text: &str) -> String {
    let words: Vec<&str> =
        text.split(['\n', '\r', '\t']).map(str::trim).filter(|part| !part.is_empty()).collect();
    words.join(" ")
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A table as it is printed.
    pub fn shown<T: Row>(items: &[T], wide: bool, now: Timestamp) -> String {
        table(items, wide, now)
    }

    /// One row as it is printed for wide screens, on its side: a line per column.
    pub fn upright<T: Row>(item: &T, now: Timestamp) -> String {
        let cells = T::COLUMNS.iter().zip(item.cells(true, now));
        let lines = cells.map(|(column, cell)| format!("{} {}", column.title, one_line(&cell)));
        lines.map(|line| line.trim_end().to_owned() + "\n").collect()
    }

    /// A document as it is printed.
    pub fn rendered<T: Serialize>(format: Format, item: &T) -> String {
        render(format, item).unwrap()
    }

    #[derive(Serialize)]
    struct Line(&'static str);

    impl Row for Line {
        const COLUMNS: &'static [Column] = &[column("A"), wide("B"), column("REASON")];

        fn cells(&self, wide: bool, _: Timestamp) -> Vec<String> {
            vec![self.0.to_owned(), wide.to_string(), "two\n  lines".to_owned()]
        }
    }

    #[test]
    fn rows_have_one_line_and_no_blanks_at_their_end() {
        let lines = [Line("x"), Line("longer")];
        assert_eq!(
            shown(&lines, false, Timestamp(0)),
            "A        REASON\nx        two lines\nlonger   two lines\n"
        );
        let first = shown(&lines, true, Timestamp(0));
        assert_eq!(first.lines().nth(1), Some("x        true   two lines"));
        assert_eq!(shown::<Line>(&[], false, Timestamp(0)), "A   REASON\n");
    }
}
