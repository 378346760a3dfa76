//! Which texts of a task are templates, and what they may ask for.

use std::collections::{BTreeMap, BTreeSet};

use super::{MountSource, TaskSpec};
use crate::Violations;
use crate::template::{Field, Template, is_template};

/// What a template is for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Purpose {
    Text,
    /// A volume outlives tasks, so it cannot be called by one.
    VolumeName,
}

/// Every text of the task that is expanded, with its path; contents are not among them.
fn texts(task: &TaskSpec) -> Vec<(String, &str, Purpose)> {
    let env =
        task.env.iter().enumerate().map(|(i, var)| (format!("env[{i}].value"), &*var.value, Purpose::Text));
    let hostname = task.hostname.iter().map(|name| ("hostname".to_owned(), &**name, Purpose::Text));
    let mut texts: Vec<_> = env.chain(hostname).collect();
    for (i, mount) in task.mounts.iter().enumerate() {
        let at = |field: &str| format!("mounts[{i}].source.{field}");
        match &mount.source {
            MountSource::Bind { path, .. } => texts.push((at("bind.path"), path, Purpose::Text)),
            MountSource::Volume { name, subpath, .. } => {
                texts.push((at("volume.name"), name, Purpose::VolumeName));
                texts.extend(subpath.iter().map(|path| (at("volume.subpath"), &**path, Purpose::Text)));
            }
            MountSource::Tmpfs { .. } => {}
        }
    }
    texts.retain(|(_, text, _)| is_template(text));
    texts
}

/// Everything that cannot be expanded, as far as it is known before there is a node. Paths are relative to the task.
pub(super) fn validate(task: &TaskSpec, labels: &BTreeMap<String, String>) -> Violations {
    let mut wrong = Violations::default();
    for (path, text, purpose) in texts(task) {
        let template: Template = match text.parse() {
            Ok(template) => template,
            Err(error) => {
                wrong.add(path, error);
                continue;
            }
        };
        for field in template.fields() {
            match field {
                Field::ServiceLabel(key) if !labels.contains_key(key) => {
                    wrong.add(&*path, format!("asks for the label {key}, which the service does not have"));
                }
                Field::TaskId if purpose == Purpose::VolumeName => {
                    wrong.add(&*path, "would be a new volume for each task; .Task.Slot survives replacement");
                }
                _ => {}
            }
        }
    }
    for (i, mount) in task.mounts.iter().enumerate() {
        if is_template(&mount.target) {
            wrong.add(format!("mounts[{i}].target"), "is the same in all tasks: nothing is expanded there");
        }
    }
    wrong
}

/// The labels of the service that its tasks ask for.
pub(super) fn service_labels(task: &TaskSpec) -> BTreeSet<String> {
    let templates = texts(task).into_iter().filter_map(|(_, text, _)| text.parse::<Template>().ok());
    let label = |field: &Field| match field {
        Field::ServiceLabel(key) => Some(key.clone()),
        _ => None,
    };
    templates
        .flat_map(|template| template.fields().into_iter().filter_map(label).collect::<Vec<_>>())
        .collect()
}
