//! Templates in a spec that are expanded per task, such as `{{.Task.Slot}}`.
//!
//! A text is literal except for actions in double braces: a field ([`TemplateField`]) or a string in double
//! quotes, which is how literal braces are written: `{{"{{"}}`. Blanks inside the braces do not matter.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use crate::name::is_label_key;
use crate::text::shorten;

/// A parsed text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template(Vec<TemplatePart>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum TemplatePart {
    Text(String),
    Field(TemplateField),
}

/// A field that a template may use.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum TemplateField {
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

/// The values of fields.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TemplateValues<'a> {
    /// The service's id.
    pub service_id: String,
    /// Its name.
    pub service_name: &'a str,
    /// Its labels, at least those that the templates use.
    pub service_labels: &'a BTreeMap<String, String>,
    /// The task's id.
    pub task_id: String,
    /// Its slot.
    pub slot: u32,
    /// Values of the node; `None` before the task has one.
    pub node: Option<TemplateNodeValues<'a>>,
}

/// The values of a node's fields.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TemplateNodeValues<'a> {
    /// The node's id.
    pub id: String,
    /// Its name.
    pub hostname: &'a str,
    /// Its labels; the user's labels take precedence over those of the description.
    pub labels: &'a BTreeMap<String, String>,
}

/// A text that is not a template.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseTemplateError {
    /// Braces that are not closed.
    #[error("{0:?} opens braces that are not closed; write {{{{\"{{{{\"}}}} for the braces themselves")]
    UnclosedBraces(String),
    /// Not a field.
    #[error(
        "{{{{{0}}}}} is not a field; there are .Service.ID, .Service.Name, .Service.Labels.KEY, .Task.ID, .Task.Name, \
         .Task.Slot, .Node.ID, .Node.Hostname and .Node.Labels.KEY"
    )]
    UnknownField(String),
}

/// A field without a value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExpandError {
    /// The service has no such label.
    #[error("the service has no label {0}")]
    NoServiceLabel(String),
    /// The node has no such label.
    #[error("the node has no label {0}")]
    NoNodeLabel(String),
    /// The task has no node yet.
    #[error("{{{{{0}}}}} is only known on a node")]
    NoNode(TemplateField),
}

impl fmt::Display for TemplateField {
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

impl FromStr for TemplateField {
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
                (None, None) => {
                    return Err(ParseTemplateError::UnknownField(shorten(text)));
                }
            },
        })
    }
}

/// A part of a template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TemplateSegment<'a> {
    /// Literal text.
    Text(&'a str),
    /// A field.
    Field(TemplateField),
}

/// The parts of a template, borrowed from its text.
#[derive(Debug, Clone)]
pub struct TemplateSegments<'a> {
    remaining: &'a str,
}

impl<'a> TemplateSegments<'a> {
    /// The parts of `text`.
    pub fn new(text: &'a str) -> Self {
        Self { remaining: text }
    }

    /// The text not parsed yet. After an error it begins with the invalid part.
    pub fn remaining(&self) -> &'a str {
        self.remaining
    }

    /// The action at the start of `self.rest`, and the text after it.
    fn action(&self) -> Result<(TemplateSegment<'a>, &'a str), ParseTemplateError> {
        let open = || ParseTemplateError::UnclosedBraces(shorten(self.remaining));
        let inner = self.remaining[2..].trim_start_matches([' ', '\t']);
        if let Some(quoted) = inner.strip_prefix('"') {
            let (quoted, after) = quoted.split_once('"').ok_or_else(open)?;
            let after = after.trim_start_matches([' ', '\t']).strip_prefix("}}").ok_or_else(open)?;
            return Ok((TemplateSegment::Text(quoted), after));
        }
        let (field, after) = inner.split_once("}}").ok_or_else(open)?;
        Ok((TemplateSegment::Field(field.trim_end_matches([' ', '\t']).parse()?), after))
    }
}

impl<'a> Iterator for TemplateSegments<'a> {
    type Item = Result<TemplateSegment<'a>, ParseTemplateError>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.remaining.find("{{") {
            None if self.remaining.is_empty() => None,
            Some(0) => Some(self.action().map(|(piece, after)| {
                self.remaining = after;
                piece
            })),
            next => {
                let (text, after) = self.remaining.split_at(next.unwrap_or(self.remaining.len()));
                self.remaining = after;
                Some(Ok(TemplateSegment::Text(text)))
            }
        }
    }
}

impl FromStr for Template {
    type Err = ParseTemplateError;

    fn from_str(text: &str) -> Result<Self, ParseTemplateError> {
        let mut parts = Vec::new();
        for piece in TemplateSegments::new(text) {
            match (piece?, parts.last_mut()) {
                (TemplateSegment::Text(""), _) => {}
                (TemplateSegment::Text(text), Some(TemplatePart::Text(before))) => before.push_str(text),
                (TemplateSegment::Text(text), _) => parts.push(TemplatePart::Text(text.to_owned())),
                (TemplateSegment::Field(field), _) => parts.push(TemplatePart::Field(field)),
            }
        }
        Ok(Self(parts))
    }
}

impl Template {
    /// The fields that it uses, each once.
    pub fn fields(&self) -> BTreeSet<&TemplateField> {
        fn field(part: &TemplatePart) -> Option<&TemplateField> {
            match part {
                TemplatePart::Field(field) => Some(field),
                TemplatePart::Text(_) => None,
            }
        }
        self.0.iter().filter_map(field).collect()
    }

    /// Expands the template for one task.
    ///
    /// # Errors
    /// A field has no value.
    pub fn expand(&self, values: &TemplateValues<'_>) -> Result<String, ExpandError> {
        let mut text = String::new();
        for part in &self.0 {
            match part {
                TemplatePart::Text(literal) => text.push_str(literal),
                TemplatePart::Field(field) => text.push_str(&field.value(values)?),
            }
        }
        Ok(text)
    }
}

impl TemplateField {
    /// The value of the field.
    ///
    /// # Errors
    /// The field has no value.
    pub fn value(&self, values: &TemplateValues<'_>) -> Result<String, ExpandError> {
        let node = || values.node.as_ref().ok_or_else(|| ExpandError::NoNode(self.clone()));
        Ok(match self {
            TemplateField::ServiceId => values.service_id.clone(),
            TemplateField::ServiceName => values.service_name.to_owned(),
            TemplateField::ServiceLabel(key) => {
                let found = values.service_labels.get(key);
                found.cloned().ok_or_else(|| ExpandError::NoServiceLabel(key.clone()))?
            }
            TemplateField::TaskId => values.task_id.clone(),
            TemplateField::TaskName => format!("{}.{}", values.service_name, values.slot),
            TemplateField::TaskSlot => values.slot.to_string(),
            TemplateField::NodeId => node()?.id.clone(),
            TemplateField::NodeHostname => node()?.hostname.to_owned(),
            TemplateField::NodeLabel(key) => {
                let found = node()?.labels.get(key);
                found.cloned().ok_or_else(|| ExpandError::NoNodeLabel(key.clone()))?
            }
        })
    }
}

/// Whether the text has anything to expand; most texts do not, and need no values.
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
        let node = TemplateNodeValues { id: "n1".into(), hostname: "host-1", labels: &node_labels };
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
    fn check(text: &str, expected: &str) {
        assert_eq!(expand(text).as_deref(), Ok(expected), "{text}");
    }

    #[track_caller]
    fn refused(text: &str, expected: &str) {
        let error = expand(text).unwrap_err();
        assert!(error.contains(expected), "{text}: {error}");
    }

    #[test]
    fn fields_are_expanded() {
        check("plain } text {", "plain } text {");
        check("{{.Service.Name}}-{{ .Task.Slot }}", "web-3");
        check("{{.Service.ID}} {{.Task.ID}} {{.Task.Name}}", "s1 s1-7 web.3");
        check("{{.Node.ID}}/{{.Node.Hostname}}/{{.Node.Labels.zone}}", "n1/host-1/a");
        check("{{.Service.Labels.com.example/app}}", "shop");
        check(r#"{{"{{"}}.Task.Slot}}"#, "{{.Task.Slot}}");
        check("", "");
    }

    #[test]
    fn unknown_field_is_refused_by_name() {
        refused("{{.Task.Slto}}", "{{.Task.Slto}} is not a field; there are .Service.ID");
        refused("a {{.Task.Slot", "opens braces that are not closed");
        refused(r#"{{"x"#, "opens braces");
        refused("{{}}", "{{}} is not a field");
        refused("{{.Node.Labels.rack}}", "the node has no label rack");
        refused("{{.Service.Labels.x}}", "the service has no label x");
        refused("{{.Service.Labels.}}", "is not a field");
    }

    #[test]
    fn segments_borrow_text_and_stop_at_error() {
        let pieces: Result<Vec<_>, _> = TemplateSegments::new(r#"a{{.Task.Slot}}{{"{{"}}b"#).collect();
        let slot = TemplateSegment::Field(TemplateField::TaskSlot);
        assert_eq!(
            pieces,
            Ok(vec![
                TemplateSegment::Text("a"),
                slot,
                TemplateSegment::Text("{{"),
                TemplateSegment::Text("b")
            ])
        );
        let mut pieces = TemplateSegments::new("a{{.Task.ID}}b{{.Nope}}c");
        let error = pieces.find_map(Result::err).unwrap();
        assert_eq!(
            (error, pieces.remaining()),
            (ParseTemplateError::UnknownField(".Nope".into()), "{{.Nope}}c")
        );
    }

    #[test]
    fn node_field_without_node_fails() {
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
        assert_eq!(error.to_string(), "{{.Node.Hostname}} is only known on a node");
        assert_eq!(template.fields().len(), 1);
    }
}
