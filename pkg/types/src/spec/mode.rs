//! How many tasks a service has.

use serde::{Deserialize, Serialize};

use super::ServiceSpec;
use crate::Violations;

/// The number of tasks of a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum ServiceMode {
    /// A number of interchangeable tasks in slots 1 to `replicas`.
    Replicated {
        /// Desired number of running tasks; 0 stops the service without removing it.
        replicas: u32,
    },
    /// One task on every node that may run it, with the node as its slot; or one per value of [`ServiceSpec::per`].
    Global,
}

impl Default for ServiceMode {
    fn default() -> Self {
        Self::Replicated { replicas: 1 }
    }
}

impl ServiceSpec {
    /// What only one of the modes has.
    pub(super) fn validate_mode(&self, wrong: &mut Violations) {
        if self.mode != ServiceMode::Global {
            if self.per.is_some() {
                wrong.add(
                    "per",
                    "only a global service has tasks per value of a label; leave it out, or give mode global",
                );
            }
            if self.bootstrap {
                let message = "only a global service can be a bootstrap service: it must have a task wherever others \
                               wait for it; leave it out, or give mode global";
                wrong.add("bootstrap", message);
            }
            return;
        }
        let tasks = if self.per.is_some() { "one task per value of its label" } else { "one task per node" };
        let message = format!("a global service has {tasks}; leave it out");
        if self.placement.max_per_node.is_some() {
            wrong.add("placement.maxPerNode", message.clone());
        }
        if !self.placement.preferences.is_empty() {
            wrong.add("placement.preferences", message);
        }
        if self.per.is_none() && !self.replace_after.is_zero() {
            wrong.add("replaceAfter", "tasks of a global service always wait for their nodes; leave it out");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TaskSpec;
    use crate::spec::MAX_DISCONNECT_TIME;

    #[track_caller]
    fn check(change: impl FnOnce(&mut ServiceSpec), expected: &[&str]) {
        let mut spec = ServiceSpec::new("dns".parse().unwrap(), TaskSpec::new("dns:1".parse().unwrap()));
        change(&mut spec);
        let found: Vec<String> = spec.validate().0.into_iter().map(|v| v.path).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn fields_of_another_mode_are_refused() {
        let label = || Some("node.labels.zone".parse().unwrap());
        check(|s| s.per = label(), &["per"]);
        check(|s| s.bootstrap = true, &["bootstrap"]);
        let global = ServiceMode::Global;
        check(|s| (s.mode, s.bootstrap, s.per) = (global, true, label()), &[]);
        check(
            |s| (s.mode, s.placement.max_per_node, s.per) = (global, Some(1), label()),
            &["placement.maxPerNode"],
        );
        check(|s| (s.mode, s.replace_after, s.per) = (global, MAX_DISCONNECT_TIME, label()), &[]);
    }
}
