//! Prints the lists of `ls` and `ps` by their flags: `--filter`, `--quiet`, `--format` and `--no-trunc`. `--watch` is
//! in `watch`, with the texts of this module.

use std::collections::BTreeMap;

use warren_daemon::printable;
use warren_types::Timestamp;

use super::template::RowTemplate;
use super::{TableRow, print, render, table_of, text_table};
use crate::args::{ListingArgs, OutputFormat};
use crate::failure::{CommandError, ExitKind};

/// Whether an item matches a value of a filter.
type Matches<T> = fn(&T, &str) -> bool;
/// A key of `--filter`.
pub type FilterKey<T> = (&'static str, Matches<T>);

/// A row of a list with the flags of [`ListingArgs`].
pub trait ListedRow: TableRow + Sized + 'static {
    /// What `--filter` supports.
    const FILTER_KEYS: &'static [FilterKey<Self>];
    /// Fields of Docker's templates that have another name here, with the title of their column.
    const FIELD_ALIASES: &'static [(&'static str, &'static str)] = &[];

    /// What `--quiet` prints: how other commands name the item.
    fn key(&self) -> String;
}

/// What a list shows.
pub struct ListContent<T> {
    pub items: Vec<T>,
    /// Printed below the list.
    pub below: String,
    /// Printed to standard error.
    pub notes: Vec<String>,
}

impl<T> From<Vec<T>> for ListContent<T> {
    fn from(items: Vec<T>) -> Self {
        Self { items, below: String::new(), notes: Vec::new() }
    }
}

impl<T> ListContent<T> {
    pub fn with_notes(items: Vec<T>, notes: Vec<String>) -> Self {
        Self { items, below: String::new(), notes }
    }
}

/// The checked flags of a list.
pub struct Listing<T: ListedRow> {
    output: OutputFormat,
    style: Style,
    no_trunc: bool,
    watched: bool,
    /// The values of each key: an item matches one value of every key.
    filters: BTreeMap<&'static str, (Matches<T>, Vec<String>)>,
}

enum Style {
    /// As `--output` says.
    Output,
    Quiet,
    /// One JSON document per line.
    JsonLines,
    Template(RowTemplate),
    /// A table with a column per template.
    Table(Vec<RowTemplate>),
}

impl<T: ListedRow> Listing<T> {
    /// Checks the flags. `what` is the failure summary.
    pub fn new(output: OutputFormat, args: &ListingArgs, what: &str) -> Result<Self, CommandError> {
        let ListingArgs { quiet, filter, format, no_trunc, watch } = args;
        let failed = |why: String, hint: String| CommandError::new(ExitKind::Usage, what, why, hint);
        if (*quiet || format.is_some()) && matches!(output, OutputFormat::Json | OutputFormat::Yaml) {
            let why = "--output selects documents, --quiet and --format select text".to_owned();
            return Err(failed(why, "give one of them".to_owned()));
        }
        let mut filters: BTreeMap<_, (Matches<T>, Vec<String>)> = BTreeMap::new();
        for (key, value) in filter {
            let Some((known, matches)) = T::FILTER_KEYS.iter().find(|(known, _)| known == key) else {
                let keys: Vec<&str> = T::FILTER_KEYS.iter().map(|(key, _)| *key).collect();
                let why = format!("{key:?} is not a filter of this list");
                return Err(failed(why, format!("filter by {}", keys.join(", "))));
            };
            filters.entry(*known).or_insert_with(|| (*matches, Vec::new())).1.push(value.clone());
        }
        let parse = |text: &str| {
            RowTemplate::parse(text, T::COLUMNS, T::FIELD_ALIASES).map_err(|why| {
                let fields: Vec<String> = RowTemplate::fields(T::COLUMNS);
                failed(why, format!("use {{{{json .}}}} or the fields {}", fields.join(", ")))
            })
        };
        let style = match format.as_deref() {
            None if *quiet => Style::Quiet,
            None | Some("table") => Style::Output,
            Some("json") => Style::JsonLines,
            Some(text) => match text.strip_prefix("table ") {
                Some(cells) => {
                    let cells = cells.replace("\\t", "\t");
                    Style::Table(cells.split('\t').map(|cell| parse(cell.trim())).collect::<Result<_, _>>()?)
                }
                None => Style::Template(parse(text)?),
            },
        };
        Ok(Self { output, style, no_trunc: *no_trunc, watched: *watch, filters })
    }

    /// The value of a filter that is given once, for a list that the manager filters itself.
    pub fn single(&self, key: &str) -> Option<&str> {
        match self.filters.get(key) {
            Some((_, values)) if values.len() == 1 => values.first().map(String::as_str),
            _ => None,
        }
    }

    /// Whether the items are printed as `--output` says: neither `--quiet` nor `--format`.
    pub fn is_plain(&self) -> bool {
        matches!(self.style, Style::Output)
    }

    /// Whether the list goes on: `--watch`.
    pub fn is_watched(&self) -> bool {
        self.watched
    }

    /// Whether it is one table.
    pub fn is_table(&self) -> bool {
        match self.style {
            Style::Output => matches!(self.output, OutputFormat::Table | OutputFormat::Wide),
            Style::Table(_) => true,
            Style::Quiet | Style::JsonLines | Style::Template(_) => false,
        }
    }

    /// Whether it shows documents of items, and not only texts of columns.
    pub fn shows_documents(&self) -> bool {
        match &self.style {
            Style::Output => matches!(self.output, OutputFormat::Json | OutputFormat::Yaml),
            Style::Quiet => false,
            Style::JsonLines => true,
            Style::Template(template) => template.shows_document(),
            Style::Table(templates) => templates.iter().any(RowTemplate::shows_document),
        }
    }

    /// Whether each item is a line of JSON, if it is printed alone.
    pub fn is_json(&self) -> bool {
        match self.style {
            Style::Output => self.output == OutputFormat::Json,
            Style::JsonLines => true,
            Style::Quiet | Style::Template(_) | Style::Table(_) => false,
        }
    }

    /// Whether the item matches all filters.
    pub fn matches(&self, item: &T) -> bool {
        let any =
            |(matches, values): &(Matches<T>, Vec<String>)| values.iter().any(|value| matches(item, value));
        // Labels are properties of which an item has several, so all of them must match, as in Docker.
        let all =
            |(matches, values): &(Matches<T>, Vec<String>)| values.iter().all(|value| matches(item, value));
        self.filters.iter().all(|(key, given)| if key.ends_with("label") { all(given) } else { any(given) })
    }

    /// Prints the items that match, and what belongs to them.
    pub fn print(&self, content: impl Into<ListContent<T>>, now: Timestamp) -> Result<(), CommandError> {
        let ListContent { mut items, below, notes } = content.into();
        items.retain(|item| self.matches(item));
        print(&(self.text(&items, now)? + &below))?;
        notes.iter().for_each(|note| eprintln!("{}", printable(note)));
        Ok(())
    }

    /// The title of the table, if any, and a text for each of these items: a line of the table or a document.
    pub fn rows(&self, items: &[T], now: Timestamp) -> Result<(String, Vec<String>), CommandError> {
        if self.is_table() {
            let text = self.text(items, now)?;
            let lines: Vec<&str> = text.split_inclusive('\n').collect();
            let (title, rows) = lines.split_at(lines.len() - items.len());
            return Ok((title.concat(), rows.iter().map(ToString::to_string).collect()));
        }
        let row = |item: &T| match self.style {
            Style::Output if self.output == OutputFormat::Json => {
                Ok(serde_json::to_string(item).unwrap_or_default() + "\n")
            }
            Style::Output => Ok(format!("---\n{}", render(self.output, item)?)),
            _ => self.text(std::slice::from_ref(item), now),
        };
        Ok((String::new(), items.iter().map(row).collect::<Result<_, _>>()?))
    }

    /// What must differ for a row to be another one: what is shown of it, without ages and measured values.
    pub fn compared(&self, item: &T) -> Vec<String> {
        // At this time every age is the same.
        let mut cells = item.cells(true, Timestamp(0));
        match &self.style {
            Style::Quiet => Vec::new(),
            Style::Template(template) => vec![template.expand(item, &cells)],
            Style::Table(templates) => {
                templates.iter().map(|template| template.expand(item, &cells)).collect()
            }
            Style::Output | Style::JsonLines => {
                let is_narrow = self.output == OutputFormat::Table && self.is_table();
                for (cell, column) in cells.iter_mut().zip(T::COLUMNS) {
                    if column.measured || (is_narrow && column.wide) {
                        cell.clear();
                    }
                }
                cells
            }
        }
    }

    fn text(&self, items: &[T], now: Timestamp) -> Result<String, CommandError> {
        let cells = |item: &T| {
            let cells = item.cells(self.no_trunc, now);
            cells.iter().map(|cell| printable(cell).into_owned()).collect::<Vec<_>>()
        };
        let rows = || items.iter().map(|item| (item, cells(item)));
        let lines = |line: &dyn Fn(&T, &[String]) -> String| {
            rows().map(|(item, cells)| line(item, &cells) + "\n").collect::<String>()
        };
        Ok(match &self.style {
            Style::Output => match self.output {
                OutputFormat::Table => table_of(items, false, self.no_trunc, now),
                OutputFormat::Wide => table_of(items, true, true, now),
                OutputFormat::Json | OutputFormat::Yaml => render(self.output, &items)?,
            },
            Style::Quiet => {
                // An image is on several nodes.
                let mut keys: Vec<String> = items.iter().map(T::key).collect();
                keys.dedup();
                keys.iter().map(|key| format!("{key}\n")).collect()
            }
            Style::JsonLines => lines(&|item, _| serde_json::to_string(item).unwrap_or_default()),
            Style::Template(template) => lines(&|item, cells| template.expand(item, cells)),
            Style::Table(templates) => {
                let titles: Vec<String> =
                    templates.iter().map(|template| template.title(T::COLUMNS)).collect();
                let row = |(item, cells): (&T, Vec<String>)| {
                    templates.iter().map(|template| template.expand(item, &cells)).collect()
                };
                text_table(&titles, rows().map(row))
            }
        })
    }
}

/// `KEY` or `KEY=VALUE`, as a filter of labels.
pub fn has_label(labels: &BTreeMap<String, String>, wanted: &str) -> bool {
    match wanted.split_once('=') {
        Some((key, value)) => labels.get(key).is_some_and(|found| found == value),
        None => labels.contains_key(wanted),
    }
}

#[cfg(test)]
mod tests {
    use serde::Serialize;

    use super::*;
    use crate::output::{Column, column, wide};

    #[derive(Serialize)]
    struct Animal {
        id: String,
        name: &'static str,
        legs: u32,
    }

    impl TableRow for Animal {
        const COLUMNS: &'static [Column] = &[column("NAME"), wide("LEG COUNT"), column("ID")];

        fn cells(&self, wide: bool, _: Timestamp) -> Vec<String> {
            let id = if wide { self.id.clone() } else { self.id.chars().take(3).collect() };
            vec![self.name.to_owned(), self.legs.to_string(), id]
        }
    }

    impl ListedRow for Animal {
        const FILTER_KEYS: &'static [FilterKey<Self>] =
            &[("name", |it, name| it.name.starts_with(name)), ("legs", |it, n| it.legs.to_string() == n)];
        const FIELD_ALIASES: &'static [(&'static str, &'static str)] = &[("Legs", "LEG COUNT")];

        fn key(&self) -> String {
            self.id.clone()
        }
    }

    fn listed(args: &ListingArgs) -> Result<String, String> {
        let animals = [("cat", 4), ("cow", 4), ("hen", 2)].map(|(name, legs)| Animal {
            id: format!("{name}-12345"),
            name,
            legs,
        });
        let list = Listing::<Animal>::new(OutputFormat::Table, args, "no animals were listed");
        let list = list.map_err(|failure| format!("{}; {}", failure.why, failure.hint))?;
        let shown: Vec<Animal> = animals.into_iter().filter(|animal| list.matches(animal)).collect();
        list.text(&shown, Timestamp(0)).map_err(|failure| failure.to_string())
    }

    fn formatted(format: &str) -> Result<String, String> {
        listed(&ListingArgs { format: Some(format.into()), ..ListingArgs::default() })
    }

    #[test]
    fn filters_match_one_value_of_every_key() {
        let filtered = |pairs: &[(&str, &str)]| {
            let filter = pairs.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
            listed(&ListingArgs { filter, quiet: true, ..ListingArgs::default() })
        };
        assert_eq!(filtered(&[]).unwrap(), "cat-12345\ncow-12345\nhen-12345\n");
        assert_eq!(filtered(&[("name", "c")]).unwrap(), "cat-12345\ncow-12345\n");
        assert_eq!(filtered(&[("name", "cat"), ("name", "h")]).unwrap(), "cat-12345\nhen-12345\n");
        assert_eq!(filtered(&[("name", "c"), ("legs", "2")]).unwrap(), "");
        assert_eq!(
            filtered(&[("nme", "c")]).unwrap_err(),
            "\"nme\" is not a filter of this list; filter by name, legs"
        );
    }

    #[test]
    fn templates_have_the_fields_of_columns() {
        assert_eq!(formatted(r"{{.Name}}\t{{ .Legs }}!").unwrap(), "cat\t4!\ncow\t4!\nhen\t2!\n");
        assert_eq!(formatted("{{.LegCount}}{{json .Name}}").unwrap().lines().next(), Some("4\"cat\""));
        let first = r#"{"id":"cat-12345","name":"cat","legs":4}"#;
        assert_eq!(formatted("json").unwrap().lines().next(), Some(first));
        assert_eq!(formatted("{{json .}}").unwrap().lines().next(), Some(first));
        assert_eq!(
            formatted(r"table {{.ID}}\t{{.Name}} has {{.Legs}}").unwrap(),
            "ID    NAME has LEG COUNT\ncat   cat has 4\ncow   cow has 4\nhen   hen has 2\n"
        );
        assert_eq!(formatted("table").unwrap().lines().nth(1), Some("cat    cat"));
        let whole = listed(&ListingArgs { no_trunc: true, ..ListingArgs::default() }).unwrap();
        assert_eq!(whole.lines().take(2).collect::<Vec<_>>(), ["NAME   ID", "cat    cat-12345"]);
    }

    #[test]
    fn documents_are_shown_only_where_all_fields_are() {
        for (output, format, expected) in [
            (OutputFormat::Table, None, false),
            (OutputFormat::Wide, None, false),
            (OutputFormat::Json, None, true),
            (OutputFormat::Yaml, None, true),
            (OutputFormat::Table, Some("json"), true),
            (OutputFormat::Table, Some("{{.Name}} {{json .}}"), true),
            (OutputFormat::Table, Some("{{json .Name}}"), false),
            (OutputFormat::Table, Some(r"table {{.ID}}\t{{.Name}}"), false),
            (OutputFormat::Table, Some(r"table {{.ID}}\t{{json .}}"), true),
        ] {
            let args = ListingArgs { format: format.map(str::to_owned), ..ListingArgs::default() };
            let list = Listing::<Animal>::new(output, &args, "no animals were listed");
            assert_eq!(list.map(|list| list.shows_documents()).ok(), Some(expected), "{format:?}");
        }
    }

    #[test]
    fn wrong_template_names_the_fields() {
        let fields = "use {{json .}} or the fields .Name, .LegCount, .ID";
        for (format, why) in [
            ("{{.Nme}}", "{{.Nme}} is not a field of this list"),
            ("{{.Name", "\"{{\" has no \"}}\""),
            ("{{range .}}", "{{range .}} is not supported"),
            ("name", "\"name\" has no field, so every line would be the same"),
            ("wide", "\"wide\" has no field, so every line would be the same"),
        ] {
            assert_eq!(formatted(format).unwrap_err(), format!("{why}; {fields}"));
        }
    }

    #[test]
    fn label_filters_have_a_key_and_may_have_a_value() {
        let labels = [("zone".to_owned(), "a".to_owned())].into();
        for (wanted, expected) in [("zone", true), ("zone=a", true), ("zone=b", false), ("rack", false)] {
            assert_eq!(has_label(&labels, wanted), expected, "{wanted}");
        }
    }
}
