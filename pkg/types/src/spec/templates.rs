//! Which texts of a task are templates, and which fields they may use.

use std::collections::{BTreeMap, BTreeSet};

use super::{MountSource, TaskSpec};
use crate::Violations;
use crate::template::{Template, TemplateField, is_template};

/// What a template is used for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TemplatePurpose {
    Text,
    /// A volume outlives its tasks, so its name cannot contain a field of one.
    VolumeName,
}

/// Every text of the task that is expanded, with its path; data of secret objects is not expanded.
fn template_texts(task: &TaskSpec) -> Vec<(String, &str, TemplatePurpose)> {
    let env = task
        .env
        .iter()
        .enumerate()
        .map(|(i, var)| (format!("env[{i}].value"), &*var.value, TemplatePurpose::Text));
    let hostname = task.hostname.iter().map(|name| ("hostname".to_owned(), &**name, TemplatePurpose::Text));
    let mut texts: Vec<_> = env.chain(hostname).collect();
    for (i, mount) in task.mounts.iter().enumerate() {
        let at = |field: &str| format!("mounts[{i}].source.{field}");
        match &mount.source {
            MountSource::Bind { path, .. } => texts.push((at("bind.path"), path, TemplatePurpose::Text)),
            MountSource::Volume { name, subpath, .. } => {
                texts.push((at("volume.name"), name, TemplatePurpose::VolumeName));
                texts.extend(
                    subpath.iter().map(|path| (at("volume.subpath"), &**path, TemplatePurpose::Text)),
                );
            }
            MountSource::Tmpfs { .. } => {}
        }
    }
    texts.retain(|(_, text, _)| is_template(text));
    texts
}

/// Every template that cannot be expanded, as far as that is known before a node is assigned. Paths are
/// relative to the task.
pub(super) fn validate(task: &TaskSpec, labels: &BTreeMap<String, String>) -> Violations {
    let mut violations = Violations::default();
    for (path, text, purpose) in template_texts(task) {
        let template: Template = match text.parse() {
            Ok(template) => template,
            Err(error) => {
                violations.add(path, error);
                continue;
            }
        };
        for field in template.fields() {
            match field {
                TemplateField::ServiceLabel(key) if !labels.contains_key(key) => {
                    violations.add(&*path, format!("uses the label {key}, which the service does not have"));
                }
                TemplateField::TaskId if purpose == TemplatePurpose::VolumeName => {
                    violations
                        .add(&*path, "would be a new volume for each task; .Task.Slot survives replacement");
                }
                _ => {}
            }
        }
    }
    for (i, mount) in task.mounts.iter().enumerate() {
        if is_template(&mount.target) {
            violations.add(
                format!("mounts[{i}].target"),
                "is the same in all tasks: templates are not allowed there",
            );
        }
    }
    violations
}

/// The labels of the service that its tasks' templates use.
pub(super) fn service_labels(task: &TaskSpec) -> BTreeSet<String> {
    let templates = template_texts(task).into_iter().filter_map(|(_, text, _)| text.parse::<Template>().ok());
    let label = |field: &TemplateField| match field {
        TemplateField::ServiceLabel(key) => Some(key.clone()),
        _ => None,
    };
    templates
        .flat_map(|template| template.fields().into_iter().filter_map(label).collect::<Vec<_>>())
        .collect()
}
