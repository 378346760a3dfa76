//! The texts of a task that differ from those of the other tasks of its service. Paths of mounts are expanded where
//! they are made.

use std::fmt::Display;

use warren_types::spec::is_host_name;
use warren_types::template::{NodeValues, is_template};
use warren_types::{NodeSettings, TaskAssignment, Template, TemplateValues};

use crate::tasks::failure::Failure;

/// The longest host name that Linux takes (`HOST_NAME_MAX`, uname(2)).
const MAX_HOSTNAME: usize = 64;

/// What the task's templates stand for on this node.
pub(crate) fn values<'a>(task: &'a TaskAssignment, node: &'a NodeSettings) -> TemplateValues<'a> {
    TemplateValues {
        service_id: task.id.service.to_string(),
        service_name: task.service.as_str(),
        service_labels: &task.service_labels,
        task_id: task.id.to_string(),
        slot: task.slot,
        node: Some(NodeValues {
            id: node.node.to_string(),
            hostname: node.name.as_str(),
            labels: &node.labels,
        }),
    }
}

/// The task with its environment and its host name expanded. What a field stands for may change, so this is done anew
/// each time that a container is made.
pub(super) fn expand(task: &TaskAssignment, node: &NodeSettings) -> Result<TaskAssignment, Failure> {
    let values = values(task, node);
    let mut expanded = task.clone();
    for (i, var) in expanded.spec.env.iter_mut().enumerate() {
        fill(&mut var.value, &values, || format!("env[{i}].value"), ANYTHING)?;
    }
    if let Some(hostname) = &mut expanded.spec.hostname {
        fill(hostname, &values, || "hostname".to_owned(), HOST_NAME)?;
    }
    Ok(expanded)
}

/// What an expanded text must be, and that in words.
type Form = (fn(&str) -> bool, &'static str);

const ANYTHING: Form = (|_| true, "");
const HOST_NAME: Form =
    (|name| is_host_name(name, MAX_HOSTNAME), "a host name of at most 64 letters, digits, '.' and '-'");

/// Puts in place of a template what it stands for. Other texts were looked at when the spec was.
fn fill(
    text: &mut String,
    values: &TemplateValues<'_>,
    field: impl Fn() -> String,
    (fits, form): Form,
) -> Result<(), Failure> {
    if !is_template(text) {
        return Ok(());
    }
    let refused = |why: &dyn Display| Failure::permanent(format!("task.{}: {why}", field()));
    let template: Template = text.parse().map_err(|error| refused(&error))?;
    let expanded = template.expand(values).map_err(|error| refused(&error))?;
    if !fits(&expanded) {
        return Err(refused(&format_args!("{text} stands for {expanded:?} here, which is not {form}")));
    }
    *text = expanded;
    Ok(())
}

#[cfg(test)]
mod tests {
    use warren_task::Severity;
    use warren_types::spec::EnvVar;

    use warren_types::TaskSpec;

    use super::*;
    use crate::samples::{settings, task};

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
    fn what_stands_for_nothing_or_does_not_fit_is_refused_by_its_path() {
        let check = |change: &dyn Fn(&mut TaskSpec), wanted: &str| {
            let (mut task, mut node) = (task(1), settings());
            change(&mut task.spec);
            node.labels.insert("zone".into(), "../etc".into());
            let failure = expand(&task, &node).unwrap_err();
            assert_eq!(failure.severity, Severity::Permanent);
            assert!(failure.reason.starts_with(wanted), "{}", failure.reason);
        };
        let rack = vec![var("A", "{{.Node.Labels.rack}}")];
        check(&|spec| spec.env = rack.clone(), "task.env[0].value: the node has no label rack");
        let hostname = |text: &str| Some(text.to_owned());
        let wanted = "task.hostname: the service has no label x";
        check(&|spec| spec.hostname = hostname("{{.Service.Labels.x}}"), wanted);
        let stands = |field| {
            format!("task.{field}: {{{{.Node.Labels.zone}}}} stands for \"../etc\" here, which is not a")
        };
        check(&|spec| spec.hostname = hostname("{{.Node.Labels.zone}}"), &stands("hostname"));
    }
}
