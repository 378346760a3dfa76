//! A service with tasks per value of a label has one task for each value that a node has on which it may run.

use std::collections::BTreeSet;

use warren_core::State;
use warren_types::Task;

use super::taints;

/// The label of all such services, which clients change.
const LABEL: &str = "zone";

/// Nothing has changed for a while.
pub fn check_settled(state: &State) -> Result<(), String> {
    for service in state.services().filter(|service| service.spec.per.is_some() && !service.removing) {
        let constraints = &service.revision.placement.constraints;
        let meets = |zone: &str| constraints.iter().all(|constraint| constraint.to_string().ends_with(zone));
        let zone = |task: &Task| Some(state.node(&task.node?)?.labels.get(LABEL)?.as_str());
        let admitting = state.nodes().filter(|node| taints::admits(service, node));
        let expected: BTreeSet<&str> = admitting
            .filter_map(|node| node.labels.get(LABEL))
            .map(String::as_str)
            .filter(|it| meets(it))
            .collect();
        let live: Vec<&Task> =
            state.tasks_of(&service.id).map(AsRef::as_ref).filter(|task| task.is_live()).collect();
        let found: BTreeSet<&str> =
            live.iter().filter_map(|task| task.label_value()).map(AsRef::as_ref).collect();
        let stray = live.iter().find(|task| zone(task) != task.label_value().map(AsRef::as_ref));
        if found != expected || live.len() != expected.len() || stray.is_some() {
            return Err(format!(
                "each value has one task: expected {expected:?} of {service:?}, found {live:?}"
            ));
        }
    }
    Ok(())
}
