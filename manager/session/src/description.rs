//! Validates an agent's description of its machine; the log stores it, so its size is bounded.

use tonic::Status;
use warren_proto::v1;
use warren_store::problem::status_of;
use warren_types::{NodeDescription, Violation, Violations, validate_engine_labels};

/// Longest text in a node's description, in bytes.
const MAX_TEXT: usize = 256;

/// Parses a description; the paths of violations begin with `description`.
///
/// # Errors
/// `InvalidArgument`: the description is missing, a text is too long, a label is invalid, or there are too many.
pub fn parse(wire: Option<v1::NodeDescription>) -> Result<NodeDescription, Status> {
    let wire = wire.ok_or_else(|| status_of(Violation::new("description", "is missing")))?;
    let mut wrong = Violations::default();
    let description = NodeDescription::try_from(wire).map_err(|inner| {
        wrong.nest("description", inner);
        status_of(wrong.clone())
    })?;
    let NodeDescription { os, architecture, kernel, runtime, version, address, labels, .. } = &description;
    let texts = [
        ("os", os),
        ("architecture", architecture),
        ("kernel", kernel),
        ("runtime", runtime),
        ("warrenVersion", version),
        ("address", address),
    ];
    for (path, text) in texts {
        if text.len() > MAX_TEXT {
            wrong.add(format!("description.{path}"), format!("has {} bytes, at most {MAX_TEXT}", text.len()));
        }
    }
    let mut inner = Violations::default();
    validate_engine_labels(labels, &mut inner);
    wrong.nest("description", inner);
    wrong.into_result(()).map_err(status_of)?;
    Ok(description)
}

#[cfg(test)]
mod tests {
    use warren_proto::Problem;

    use super::*;

    fn valid_description() -> v1::NodeDescription {
        v1::NodeDescription { resources: Some(v1::Resources::default()), ..Default::default() }
    }

    #[track_caller]
    fn assert_rejected(wire: Option<v1::NodeDescription>, expected: &[&str]) {
        let violations = Problem::from(&parse(wire).unwrap_err()).violations.0;
        let paths: Vec<&str> = violations.iter().map(|violation| violation.path.as_str()).collect();
        assert_eq!(paths, expected);
    }

    #[test]
    fn invalid_description_names_each_field() {
        assert!(parse(Some(valid_description())).is_ok());
        assert_rejected(None, &["description"]);
        assert_rejected(Some(v1::NodeDescription::default()), &["description.resources"]);
        let long =
            v1::NodeDescription { os: "x".repeat(257), kernel: "x".repeat(257), ..valid_description() };
        assert_rejected(Some(long), &["description.os", "description.kernel"]);
        let labels = [("no key".to_owned(), String::new())].into();
        let violations = parse(Some(v1::NodeDescription { labels, ..valid_description() })).unwrap_err();
        assert!(Problem::from(&violations).violations.0[0].path.starts_with("description.labels"));
        let labels = |count: usize, size: usize| -> std::collections::BTreeMap<String, String> {
            (0..count).map(|number| (format!("l{number:02}"), "x".repeat(size))).collect()
        };
        let with = |labels| Some(v1::NodeDescription { labels, ..valid_description() });
        assert!(parse(with(labels(64, 125))).is_ok(), "8 KiB");
        assert_rejected(with(labels(65, 0)), &["description.labels"]);
        assert_rejected(with(labels(64, 126)), &["description.labels"]);
    }
}
