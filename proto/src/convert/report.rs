//! Reports of tasks.

use warren_types::{TaskExit, TaskReport, Violation, Violations};

use super::fields::FieldReader;
use super::wire_form::{WireForm, convert_by_wire_form, field, required_messages, wire_structs};
use crate::v1;

impl From<v1::TaskExit> for TaskExit {
    fn from(wire: v1::TaskExit) -> Self {
        Self { code: wire.code, out_of_memory: wire.out_of_memory }
    }
}

impl From<TaskExit> for v1::TaskExit {
    fn from(exit: TaskExit) -> Self {
        Self { code: exit.code, out_of_memory: exit.out_of_memory }
    }
}

wire_structs! {
    TaskReport as TaskReport {
        task_id: task, attempt, state, since, reason, ready, exit, removed, next_attempt, image, health
    };
}
convert_by_wire_form! { TaskReport }
required_messages! { TaskReport as TaskReport }

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_report_names_field() {
        let wire = v1::TaskReport { task_id: "x".into(), state: 1, ..Default::default() };
        let paths = TaskReport::try_from(wire).unwrap_err().0.into_iter().map(|v| v.path);
        assert_eq!(paths.collect::<Vec<_>>(), ["taskId", "state"]);
    }
}
