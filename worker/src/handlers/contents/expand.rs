//! Contents that are templates. Their text may be secret, so nothing here repeats it or leaves a copy of it.

use warren_types::TemplateValues;
use warren_types::content::MAX_CONTENT;
use warren_types::template::{ExpandError, ParseTemplateError, Piece, Pieces};
use zeroize::Zeroizing;

/// Why a content has no text for the task.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unexpanded {
    #[error("is not text in UTF-8, so it cannot be a template")]
    NotText,
    #[error("opens braces in line {line} that are not closed")]
    Open { line: usize },
    #[error("asks for what is no field in line {line}; see the fields of templates, such as .Task.Slot")]
    Unknown { line: usize },
    #[error("asks for what is not there in line {line}: {source}")]
    Nothing { line: usize, source: ExpandError },
    #[error("is larger than {MAX_CONTENT} bytes when it is expanded")]
    TooLarge,
}

/// The text for one task.
pub(super) fn expand(bytes: &[u8], values: &TemplateValues<'_>) -> Result<Zeroizing<Vec<u8>>, Unexpanded> {
    let text = std::str::from_utf8(bytes).map_err(|_| Unexpanded::NotText)?;
    let mut size = 0usize;
    each(text, values, |part| {
        size = size.saturating_add(part.len());
        size <= MAX_CONTENT
    })?;
    // It never grows, which would leave copies.
    let mut expanded = Zeroizing::new(Vec::with_capacity(size));
    each(text, values, |part| {
        expanded.extend_from_slice(part.as_bytes());
        true
    })?;
    Ok(expanded)
}

/// Gives the text part by part; `take` answers `false` when it is too much.
fn each(
    text: &str,
    values: &TemplateValues<'_>,
    mut take: impl FnMut(&str) -> bool,
) -> Result<(), Unexpanded> {
    let mut pieces = Pieces::of(text);
    loop {
        let line = || 1 + text[..text.len() - pieces.rest().len()].matches('\n').count();
        let is_taken = match pieces.clone().next() {
            None => return Ok(()),
            Some(Ok(Piece::Text(part))) => take(part),
            Some(Ok(Piece::Field(field))) => {
                let value = field.value(values);
                take(&value.map_err(|source| Unexpanded::Nothing { line: line(), source })?)
            }
            Some(Err(ParseTemplateError::Open(_))) => return Err(Unexpanded::Open { line: line() }),
            Some(Err(ParseTemplateError::Unknown(_))) => return Err(Unexpanded::Unknown { line: line() }),
        };
        if !is_taken {
            return Err(Unexpanded::TooLarge);
        }
        pieces.next();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::{settings, task};
    use crate::tasks::templates::values;

    fn expanded(text: &[u8]) -> Result<String, Unexpanded> {
        let (task, node) = (task(3), settings());
        expand(text, &values(&task, &node)).map(|bytes| String::from_utf8(bytes.to_vec()).unwrap())
    }

    #[test]
    fn fields_stand_for_what_the_task_knows() {
        for (text, wanted) in [
            ("", ""),
            ("plain } { text", "plain } { text"),
            ("{{.Task.Name}} on {{ .Node.Hostname }}\n", "web.3 on n1\n"),
            (r#"{{"{{"}}.Task.Slot}} {{.Task.Slot}}"#, "{{.Task.Slot}} 3"),
            ("\u{fc}{{.Node.Labels.zone}}\u{fc}", "\u{fc}a\u{fc}"),
        ] {
            assert_eq!(expanded(text.as_bytes()).as_deref(), Ok(wanted), "{text}");
        }
    }

    #[test]
    fn what_is_wrong_is_said_by_its_line_and_without_the_text() {
        let open = "hush\nhush {{.Task.Slot";
        assert_eq!(expanded(open.as_bytes()), Err(Unexpanded::Open { line: 2 }));
        let unknown = "{{.Task.Slot}}\n\n{{hush}}hush";
        assert_eq!(expanded(unknown.as_bytes()), Err(Unexpanded::Unknown { line: 3 }));
        let nothing = expanded(b"hush {{.Node.Labels.rack}} hush").unwrap_err();
        assert_eq!(nothing.to_string(), "asks for what is not there in line 1: the node has no label rack");
        assert_eq!(expanded(b"hush \xff"), Err(Unexpanded::NotText));
        for wrong in [open, unknown, "hush {{.Node.Labels.rack}} hush"] {
            let said = format!("{:?} {0}", expanded(wrong.as_bytes()).unwrap_err());
            assert!(!said.contains("hush"), "{said}");
        }
    }

    #[test]
    fn what_is_expanded_has_a_bound_as_what_is_not() {
        let slot = "{{.Task.Slot}}";
        let fits = format!("{slot}{}", "x".repeat(MAX_CONTENT - 1));
        assert_eq!(expanded(fits.as_bytes()).map(|text| text.len()), Ok(MAX_CONTENT));
        let name = "{{.Service.ID}}";
        let over = name.repeat(MAX_CONTENT / name.len());
        assert!(over.len() <= MAX_CONTENT);
        assert_eq!(expanded(over.as_bytes()), Err(Unexpanded::TooLarge));
    }
}
