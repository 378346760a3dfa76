//! The templates of `--format`: the useful part of Docker's. `{{.Name}}` is the text of a column, `{{json .}}` the
//! document of the item, and `{{json .Name}}` a column as a JSON text.

use serde::Serialize;

use super::Column;

/// A parsed template.
#[derive(Debug)]
pub struct RowTemplate(Vec<Part>);

#[derive(Debug)]
enum Part {
    Text(String),
    /// The cell of a column.
    Cell(usize),
    JsonCell(usize),
    Document,
}

impl RowTemplate {
    /// Parses a template over these columns. `aliases` are other names of titles.
    ///
    /// # Errors
    /// What is wrong.
    pub fn parse(text: &str, columns: &[Column], aliases: &[(&str, &str)]) -> Result<Self, String> {
        let text = text.replace("\\t", "\t").replace("\\n", "\n");
        let (mut parts, mut rest) = (Vec::new(), text.as_str());
        while let Some((before, after)) = rest.split_once("{{") {
            let (action, following) = after.split_once("}}").ok_or("\"{{\" has no \"}}\"")?;
            parts.push(Part::Text(before.to_owned()));
            parts.push(parse_action(action.trim(), columns, aliases)?);
            rest = following;
        }
        if parts.is_empty() {
            return Err(format!("{text:?} has no field, so every line would be the same"));
        }
        parts.push(Part::Text(rest.to_owned()));
        Ok(Self(parts))
    }

    /// The fields of these columns.
    pub fn fields(columns: &[Column]) -> Vec<String> {
        columns.iter().map(|column| format!(".{}", field_name(column.title))).collect()
    }

    /// Whether it shows the document of an item.
    pub fn shows_document(&self) -> bool {
        self.0.iter().any(|part| matches!(part, Part::Document))
    }

    /// The template with the values of an item.
    pub fn expand<T: Serialize>(&self, item: &T, cells: &[String]) -> String {
        let json = |value: &dyn Fn() -> serde_json::Result<String>| value().unwrap_or_default();
        let value = |part: &Part| match part {
            Part::Text(text) => text.clone(),
            Part::Cell(index) => cells.get(*index).cloned().unwrap_or_default(),
            Part::JsonCell(index) => json(&|| serde_json::to_string(&cells.get(*index))),
            Part::Document => json(&|| serde_json::to_string(item)),
        };
        self.0.iter().map(value).collect()
    }

    /// The template with the titles of the columns.
    pub fn title(&self, columns: &[Column]) -> String {
        let title = |part: &Part| match part {
            Part::Text(text) => text.clone(),
            Part::Cell(index) | Part::JsonCell(index) => columns[*index].title.to_owned(),
            Part::Document => "JSON".to_owned(),
        };
        self.0.iter().map(title).collect()
    }
}

fn parse_action(action: &str, columns: &[Column], aliases: &[(&str, &str)]) -> Result<Part, String> {
    let field = |text: &str| {
        let name = text.strip_prefix('.').filter(|name| name.chars().all(char::is_alphanumeric));
        let name = name.ok_or_else(|| format!("{{{{{action}}}}} is not supported"))?;
        let alias = aliases.iter().find(|(alias, _)| alias.eq_ignore_ascii_case(name));
        let is_it = |column: &Column| match alias {
            Some((_, title)) => column.title == *title,
            None => field_name(column.title).eq_ignore_ascii_case(name),
        };
        let index = columns.iter().position(is_it);
        index.ok_or_else(|| format!("{{{{{action}}}}} is not a field of this list"))
    };
    match action.strip_prefix("json ").map(str::trim) {
        Some(".") => Ok(Part::Document),
        Some(inner) => field(inner).map(Part::JsonCell),
        None => field(action).map(Part::Cell),
    }
}

/// `LastUsed` for `LAST USED`; short words of capitals stay.
fn field_name(title: &str) -> String {
    const ABBREVIATIONS: [&str; 4] = ["ID", "CPU", "OS", "PIDS"];
    let word = |word: &str| match ABBREVIATIONS.contains(&word) {
        true => word.to_owned(),
        false => word[..1].to_owned() + &word[1..].to_ascii_lowercase(),
    };
    title.split(' ').map(word).collect()
}
