//! Secret objects that are templates. Their text may be secret, so nothing here repeats it or leaves a copy
//! of it.

use warren_types::TemplateValues;
use warren_types::secret_object::MAX_SECRET_OBJECT_SIZE;
use warren_types::template::{ExpandError, ParseTemplateError, TemplateSegment, TemplateSegments};
use zeroize::Zeroizing;

/// A template cannot be expanded for the task.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TemplateError {
    #[error("not UTF-8 text, so it cannot be a template")]
    NotText,
    #[error("line {line}: unclosed \"{{{{\"")]
    Unterminated { line: usize },
    #[error("line {line}: unknown template field; use a field such as .Task.Slot")]
    UnknownField { line: usize },
    #[error("line {line}: field has no value: {source}")]
    NoValue { line: usize, source: ExpandError },
    #[error("larger than {MAX_SECRET_OBJECT_SIZE} bytes after expansion")]
    TooLarge,
}

/// Expands the template for one task.
pub(super) fn expand(bytes: &[u8], values: &TemplateValues<'_>) -> Result<Zeroizing<Vec<u8>>, TemplateError> {
    let text = std::str::from_utf8(bytes).map_err(|_| TemplateError::NotText)?;
    let mut size = 0usize;
    expand_parts(text, values, |part| {
        size = size.saturating_add(part.len());
        size <= MAX_SECRET_OBJECT_SIZE
    })?;
    // It never grows, which would leave copies.
    let mut expanded = Zeroizing::new(Vec::with_capacity(size));
    expand_parts(text, values, |part| {
        expanded.extend_from_slice(part.as_bytes());
        true
    })?;
    Ok(expanded)
}

/// Expands part by part; `take` returns `false` if the result is too large.
fn expand_parts(
    text: &str,
    values: &TemplateValues<'_>,
    mut take: impl FnMut(&str) -> bool,
) -> Result<(), TemplateError> {
    let mut pieces = TemplateSegments::new(text);
    loop {
        let line = || 1 + text[..text.len() - pieces.remaining().len()].matches('\n').count();
        let is_taken = match pieces.clone().next() {
            None => return Ok(()),
            Some(Ok(TemplateSegment::Text(part))) => take(part),
            Some(Ok(TemplateSegment::Field(field))) => {
                let value = field.value(values);
                take(&value.map_err(|source| TemplateError::NoValue { line: line(), source })?)
            }
            Some(Err(ParseTemplateError::UnclosedBraces(_))) => {
                return Err(TemplateError::Unterminated { line: line() });
            }
            Some(Err(ParseTemplateError::UnknownField(_))) => {
                return Err(TemplateError::UnknownField { line: line() });
            }
        };
        if !is_taken {
            return Err(TemplateError::TooLarge);
        }
        pieces.next();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{settings, task};
    use crate::tasks::templates::template_values;

    fn expanded(text: &[u8]) -> Result<String, TemplateError> {
        let (task, node) = (task(3), settings());
        expand(text, &template_values(&task, &node)).map(|bytes| String::from_utf8(bytes.to_vec()).unwrap())
    }

    #[test]
    fn fields_are_replaced_by_task_values() {
        for (text, expected) in [
            ("", ""),
            ("plain } { text", "plain } { text"),
            ("{{.Task.Name}} on {{ .Node.Hostname }}\n", "web.3 on n1\n"),
            (r#"{{"{{"}}.Task.Slot}} {{.Task.Slot}}"#, "{{.Task.Slot}} 3"),
            ("\u{fc}{{.Node.Labels.zone}}\u{fc}", "\u{fc}a\u{fc}"),
        ] {
            assert_eq!(expanded(text.as_bytes()).as_deref(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn template_error_names_line_without_secret_text() {
        let open = "hush\nhush {{.Task.Slot";
        assert_eq!(expanded(open.as_bytes()), Err(TemplateError::Unterminated { line: 2 }));
        let unknown = "{{.Task.Slot}}\n\n{{hush}}hush";
        assert_eq!(expanded(unknown.as_bytes()), Err(TemplateError::UnknownField { line: 3 }));
        let nothing = expanded(b"hush {{.Node.Labels.rack}} hush").unwrap_err();
        assert_eq!(nothing.to_string(), "line 1: field has no value: the node has no label rack");
        assert_eq!(expanded(b"hush \xff"), Err(TemplateError::NotText));
        for wrong in [open, unknown, "hush {{.Node.Labels.rack}} hush"] {
            let output = format!("{:?} {0}", expanded(wrong.as_bytes()).unwrap_err());
            assert!(!output.contains("hush"), "{output}");
        }
    }

    #[test]
    fn expanded_size_is_bounded() {
        let slot = "{{.Task.Slot}}";
        let fits = format!("{slot}{}", "x".repeat(MAX_SECRET_OBJECT_SIZE - 1));
        assert_eq!(expanded(fits.as_bytes()).map(|text| text.len()), Ok(MAX_SECRET_OBJECT_SIZE));
        let name = "{{.Service.ID}}";
        let over = name.repeat(MAX_SECRET_OBJECT_SIZE / name.len());
        assert!(over.len() <= MAX_SECRET_OBJECT_SIZE);
        assert_eq!(expanded(over.as_bytes()), Err(TemplateError::TooLarge));
    }
}
