//! Texts of a spec that differ from task to task: `{{.Task.Slot}}` and what else a task knows of itself.
//!
//! A text is literal but for actions in double braces: a field ([`Field`]) or a string in double quotes, which is
//! how literal braces are written: `{{"{{"}}`. Blanks inside the braces do not matter.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use crate::spec::is_label_key;

/// A parsed text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template(Vec<Part>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(String),
    Field(Field),
}

/// What a template may ask for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Field {
    /// `.Service.ID`
    ServiceId,
    /// `.Service.Name`
    ServiceName,
    /// `.Service.Labels.KEY`
    ServiceLabel(String),
    /// `.Task.ID`
    TaskId,
    /// `.Task.Name`: service and slot, `web.3`.
    TaskName,
    /// `.Task.Slot`
    TaskSlot,
    /// `.Node.ID`
    NodeId,
    /// `.Node.Hostname`: the node's name.
    NodeHostname,
    /// `.Node.Labels.KEY`
    NodeLabel(String),
}

/// What fields stand for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TemplateValues<'a> {
    /// The service's id.
    pub service_id: String,
    /// Its name.
    pub service_name: &'a str,
    /// Its labels, at least those that are asked for.
    pub service_labels: &'a BTreeMap<String, String>,
    /// The task's id.
    pub task_id: String,
    /// Its slot.
    pub slot: u32,
    /// What is known of the node; `None` before there is one.
    pub node: Option<NodeValues<'a>>,
}

/// What fields of the node stand for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeValues<'a> {
    /// The node's id.
    pub id: String,
    /// Its name.
    pub hostname: &'a str,
    /// Its labels, people's over its own.
    pub labels: &'a BTreeMap<String, String>,
}

/// A text that is no template.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseTemplateError {
    /// Braces that are not closed.
    #[error("{0:?} opens braces that are not closed; write {{{{\"{{{{\"}}}} for the braces themselves")]
    Open(String),
    /// Not a field.
    #[error(
        "{{{{{0}}}}} is no field; there are .Service.ID, .Service.Name, .Service.Labels.KEY, .Task.ID, .Task.Name, \
         .Task.Slot, .Node.ID, .Node.Hostname and .Node.Labels.KEY"
    )]
    Unknown(String),
}

/// A field that stands for nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExpandError {
    /// The service has no such label.
    #[error("the service has no label {0}")]
    NoServiceLabel(String),
    /// The node has no such label.
    #[error("the node has no label {0}")]
    NoNodeLabel(String),
    /// The task has no node yet.
    #[error("{{{{{0}}}}} is known only on a node")]
    NoNode(Field),
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ServiceId => f.write_str(".Service.ID"),
            Self::ServiceName => f.write_str(".Service.Name"),
            Self::ServiceLabel(key) => write!(f, ".Service.Labels.{key}"),
            Self::TaskId => f.write_str(".Task.ID"),
            Self::TaskName => f.write_str(".Task.Name"),
            Self::TaskSlot => f.write_str(".Task.Slot"),
            Self::NodeId => f.write_str(".Node.ID"),
            Self::NodeHostname => f.write_str(".Node.Hostname"),
            Self::NodeLabel(key) => write!(f, ".Node.Labels.{key}"),
        }
    }
}

impl FromStr for Field {
    type Err = ParseTemplateError;

    fn from_str(text: &str) -> Result<Self, ParseTemplateError> {
        let label =
            |prefix: &str| text.strip_prefix(prefix).filter(|key| is_label_key(key)).map(str::to_owned);
        Ok(match text {
            ".Service.ID" => Self::ServiceId,
            ".Service.Name" => Self::ServiceName,
            ".Task.ID" => Self::TaskId,
            ".Task.Name" => Self::TaskName,
            ".Task.Slot" => Self::TaskSlot,
            ".Node.ID" => Self::NodeId,
            ".Node.Hostname" => Self::NodeHostname,
            _ => match (label(".Service.Labels."), label(".Node.Labels.")) {
                (Some(key), _) => Self::ServiceLabel(key),
                (None, Some(key)) => Self::NodeLabel(key),
                (None, None) => return Err(ParseTemplateError::Unknown(text.chars().take(64).collect())),
            },
        })
    }
}

/// A part of a text as it stands there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece<'a> {
    /// Literal.
    Text(&'a str),
    /// Stands for something.
    Field(Field),
}

/// The parts of a text, without copies of it: for one that nobody may keep.
#[derive(Debug, Clone)]
pub struct Pieces<'a> {
    rest: &'a str,
}

impl<'a> Pieces<'a> {
    /// Those of `text`.
    pub fn of(text: &'a str) -> Self {
        Self { rest: text }
    }

    /// What was not looked at yet. After an error it begins with what is wrong.
    pub fn rest(&self) -> &'a str {
        self.rest
    }

    /// The action that `self.rest` begins with, and what follows it.
    fn action(&self) -> Result<(Piece<'a>, &'a str), ParseTemplateError> {
        let open = || ParseTemplateError::Open(self.rest.chars().take(64).collect());
        let inner = self.rest[2..].trim_start_matches([' ', '\t']);
        if let Some(quoted) = inner.strip_prefix('"') {
            let (quoted, after) = quoted.split_once('"').ok_or_else(open)?;
            let after = after.trim_start_matches([' ', '\t']).strip_prefix("}}").ok_or_else(open)?;
            return Ok((Piece::Text(quoted), after));
        }
        let (field, after) = inner.split_once("}}").ok_or_else(open)?;
        Ok((Piece::Field(field.trim_end_matches([' ', '\t']).parse()?), after))
    }
}

impl<'a> Iterator for Pieces<'a> {
    type Item = Result<Piece<'a>, ParseTemplateError>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.rest.find("{{") {
            None if self.rest.is_empty() => None,
            Some(0) => Some(self.action().map(|(piece, after)| {
                self.rest = after;
                piece
            })),
            next => {
                let (text, after) = self.rest.split_at(next.unwrap_or(self.rest.len()));
                self.rest = after;
                Some(Ok(Piece::Text(text)))
            }
        }
    }
}

impl FromStr for Template {
    type Err = ParseTemplateError;

    fn from_str(text: &str) -> Result<Self, ParseTemplateError> {
        let mut parts = Vec::new();
        for piece in Pieces::of(text) {
            match (piece?, parts.last_mut()) {
                (Piece::Text(""), _) => {}
                (Piece::Text(text), Some(Part::Text(before))) => before.push_str(text),
                (Piece::Text(text), _) => parts.push(Part::Text(text.to_owned())),
                (Piece::Field(field), _) => parts.push(Part::Field(field)),
            }
        }
        Ok(Self(parts))
    }
}

impl Template {
    /// The fields that it asks for, each once.
    pub fn fields(&self) -> BTreeSet<&Field> {
        fn field(part: &Part) -> Option<&Field> {
            match part {
                Part::Field(field) => Some(field),
                Part::Text(_) => None,
            }
        }
        self.0.iter().filter_map(field).collect()
    }

    /// The text for one task.
    ///
    /// # Errors
    /// A field that stands for nothing.
    pub fn expand(&self, values: &TemplateValues<'_>) -> Result<String, ExpandError> {
        let mut text = String::new();
        for part in &self.0 {
            match part {
                Part::Text(literal) => text.push_str(literal),
                Part::Field(field) => text.push_str(&field.value(values)?),
            }
        }
        Ok(text)
    }
}

impl Field {
    /// What it stands for.
    ///
    /// # Errors
    /// It stands for nothing.
    pub fn value(&self, values: &TemplateValues<'_>) -> Result<String, ExpandError> {
        let node = || values.node.as_ref().ok_or_else(|| ExpandError::NoNode(self.clone()));
        Ok(match self {
            Field::ServiceId => values.service_id.clone(),
            Field::ServiceName => values.service_name.to_owned(),
            Field::ServiceLabel(key) => {
                let found = values.service_labels.get(key);
                found.cloned().ok_or_else(|| ExpandError::NoServiceLabel(key.clone()))?
            }
            Field::TaskId => values.task_id.clone(),
            Field::TaskName => format!("{}.{}", values.service_name, values.slot),
            Field::TaskSlot => values.slot.to_string(),
            Field::NodeId => node()?.id.clone(),
            Field::NodeHostname => node()?.hostname.to_owned(),
            Field::NodeLabel(key) => {
                let found = node()?.labels.get(key);
                found.cloned().ok_or_else(|| ExpandError::NoNodeLabel(key.clone()))?
            }
        })
    }
}

/// Whether the text has anything to expand; most do not, and need no values.
pub fn is_template(text: &str) -> bool {
    text.contains("{{")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expand(text: &str) -> Result<String, String> {
        let template: Template = text.parse().map_err(|e: ParseTemplateError| e.to_string())?;
        let labels = BTreeMap::from([("com.example/app".to_owned(), "shop".to_owned())]);
        let node_labels = BTreeMap::from([("zone".to_owned(), "a".to_owned())]);
        let node = NodeValues { id: "n1".into(), hostname: "host-1", labels: &node_labels };
        let values = TemplateValues {
            service_id: "s1".into(),
            service_name: "web",
            service_labels: &labels,
            task_id: "s1-7".into(),
            slot: 3,
            node: Some(node),
        };
        template.expand(&values).map_err(|e| e.to_string())
    }

    #[track_caller]
    fn check(text: &str, wanted: &str) {
        assert_eq!(expand(text).as_deref(), Ok(wanted), "{text}");
    }

    #[track_caller]
    fn refused(text: &str, wanted: &str) {
        let error = expand(text).unwrap_err();
        assert!(error.contains(wanted), "{text}: {error}");
    }

    #[test]
    fn fields_stand_for_what_the_task_knows() {
        check("plain } text {", "plain } text {");
        check("{{.Service.Name}}-{{ .Task.Slot }}", "web-3");
        check("{{.Service.ID}} {{.Task.ID}} {{.Task.Name}}", "s1 s1-7 web.3");
        check("{{.Node.ID}}/{{.Node.Hostname}}/{{.Node.Labels.zone}}", "n1/host-1/a");
        check("{{.Service.Labels.com.example/app}}", "shop");
        check(r#"{{"{{"}}.Task.Slot}}"#, "{{.Task.Slot}}");
        check("", "");
    }

    #[test]
    fn what_stands_for_nothing_is_named() {
        refused("{{.Task.Slto}}", "{{.Task.Slto}} is no field; there are .Service.ID");
        refused("a {{.Task.Slot", "opens braces that are not closed");
        refused(r#"{{"x"#, "opens braces");
        refused("{{}}", "{{}} is no field");
        refused("{{.Node.Labels.rack}}", "the node has no label rack");
        refused("{{.Service.Labels.x}}", "the service has no label x");
        refused("{{.Service.Labels.}}", "is no field");
    }

    #[test]
    fn pieces_are_parts_of_the_text_and_stop_at_what_is_wrong() {
        let pieces: Result<Vec<_>, _> = Pieces::of(r#"a{{.Task.Slot}}{{"{{"}}b"#).collect();
        let slot = Piece::Field(Field::TaskSlot);
        assert_eq!(pieces, Ok(vec![Piece::Text("a"), slot, Piece::Text("{{"), Piece::Text("b")]));
        let mut pieces = Pieces::of("a{{.Task.ID}}b{{.Nope}}c");
        let error = pieces.find_map(Result::err).unwrap();
        assert_eq!((error, pieces.rest()), (ParseTemplateError::Unknown(".Nope".into()), "{{.Nope}}c"));
    }

    #[test]
    fn a_task_without_a_node_has_no_node_fields() {
        let template: Template = "{{.Node.Hostname}}".parse().unwrap();
        let labels = BTreeMap::new();
        let values = TemplateValues {
            service_id: String::new(),
            service_name: "web",
            service_labels: &labels,
            task_id: String::new(),
            slot: 1,
            node: None,
        };
        let error = template.expand(&values).unwrap_err();
        assert_eq!(error.to_string(), "{{.Node.Hostname}} is known only on a node");
        assert_eq!(template.fields().len(), 1);
    }
}
