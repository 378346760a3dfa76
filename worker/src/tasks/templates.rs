//! Expands templates in the environment and host name of a task. Paths of mounts are expanded where the
//! mounts are created.

use std::fmt::Display;

use warren_types::spec::is_host_name;
use warren_types::template::{TemplateNodeValues, is_template};
use warren_types::{NodeSettings, TaskAssignment, Template, TemplateValues};

use crate::tasks::failure::ActionFailure;

/// Longest host name in Linux (`HOST_NAME_MAX`, uname(2)).
const MAX_HOSTNAME: usize = 64;

/// Template values of the task on this node.
pub(crate) fn template_values<'a>(task: &'a TaskAssignment, node: &'a NodeSettings) -> TemplateValues<'a> {
    TemplateValues {
        service_id: task.id.service.to_string(),
        service_name: task.service.as_str(),
        service_labels: &task.service_labels,
        task_id: task.id.to_string(),
        slot: task.slot,
        node: Some(TemplateNodeValues {
            id: node.node.to_string(),
            hostname: node.name.as_str(),
            labels: &node.labels,
        }),
    }
}

/// The task with its environment and host name expanded. Values may change, so this is repeated for each
/// created container.
pub(super) fn expand(task: &TaskAssignment, node: &NodeSettings) -> Result<TaskAssignment, ActionFailure> {
    let values = template_values(task, node);
    let mut expanded = task.clone();
    for (i, var) in expanded.spec.env.iter_mut().enumerate() {
        expand_text(&mut var.value, &values, || format!("env[{i}].value"), ANY_TEXT)?;
    }
    if let Some(hostname) = &mut expanded.spec.hostname {
        expand_text(hostname, &values, || "hostname".to_owned(), HOST_NAME_RULE)?;
    }
    Ok(expanded)
}

/// A rule for expanded text, with its description.
type TextRule = (fn(&str) -> bool, &'static str);

const ANY_TEXT: TextRule = (|_| true, "");
const HOST_NAME_RULE: TextRule =
    (|name| is_host_name(name, MAX_HOSTNAME), "a host name of at most 64 letters, digits, '.' and '-'");

/// Expands a template. Plain text was validated with the spec.
fn expand_text(
    text: &mut String,
    values: &TemplateValues<'_>,
    field: impl Fn() -> String,
    (fits, form): TextRule,
) -> Result<(), ActionFailure> {
    if !is_template(text) {
        return Ok(());
    }
    let refused = |why: &dyn Display| ActionFailure::permanent(format!("task.{}: {why}", field()));
    let template: Template = text.parse().map_err(|error| refused(&error))?;
    let expanded = template.expand(values).map_err(|error| refused(&error))?;
    if !fits(&expanded) {
        return Err(refused(&format_args!("{text} expands to {expanded:?} on this node; expected {form}")));
    }
    *text = expanded;
    Ok(())
}

#[cfg(test)]
mod tests {
    use warren_task::FailureKind;
    use warren_types::spec::EnvVar;

    use warren_types::TaskSpec;

    use super::*;
    use crate::fixtures::{settings, task};

    fn var(name: &str, value: &str) -> EnvVar {
        EnvVar { name: name.into(), value: value.into() }
    }

    #[test]
    fn every_template_is_expanded() {
        let mut task = task(3);
        task.service_labels.insert("app".into(), "shop".into());
        task.spec.env = vec![
            var("PLAIN", "a } b"),
            var("WHERE", "{{.Node.Hostname}}/{{.Node.Labels.zone}}"),
            var("WHO", "{{.Task.Name}} of {{.Service.Labels.app}}"),
        ];
        task.spec.hostname = Some("{{.Service.Name}}-{{.Task.Slot}}".into());
        let spec = expand(&task, &settings()).unwrap().spec;
        let values: Vec<&str> = spec.env.iter().map(|var| var.value.as_str()).collect();
        assert_eq!(values, ["a } b", "n1/a", "web.3 of shop"]);
        assert_eq!(spec.hostname.as_deref(), Some("web-3"));
    }

    #[test]
    fn empty_or_invalid_expansion_is_refused_by_path() {
        let check = |change: &dyn Fn(&mut TaskSpec), desired: &str| {
            let (mut task, mut node) = (task(1), settings());
            change(&mut task.spec);
            node.labels.insert("zone".into(), "../etc".into());
            let failure = expand(&task, &node).unwrap_err();
            assert_eq!(failure.kind, FailureKind::Permanent);
            assert!(failure.reason.starts_with(desired), "{}", failure.reason);
        };
        let rack = vec![var("A", "{{.Node.Labels.rack}}")];
        check(&|spec| spec.env = rack.clone(), "task.env[0].value: the node has no label rack");
        let hostname = |text: &str| Some(text.to_owned());
        let required = "task.hostname: the service has no label x";
        check(&|spec| spec.hostname = hostname("{{.Service.Labels.x}}"), required);
        let stands = |field| {
            format!("task.{field}: {{{{.Node.Labels.zone}}}} expands to \"../etc\" on this node; expected a")
        };
        check(&|spec| spec.hostname = hostname("{{.Node.Labels.zone}}"), &stands("hostname"));
    }
}
