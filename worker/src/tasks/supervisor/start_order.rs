//! The order of starts when an agent starts, perhaps with its node and without a manager: tasks of bootstrap services
//! first, as far as the agent knows its tasks.

use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use warren_types::{DesiredTaskState, ServiceName, TaskAssignment, TaskState};

use super::TaskSupervisor;

/// For how long an agent holds back other tasks at most. After that managers alone decide: they place no new tasks on
/// a node whose bootstrap services have not started.
const START_ORDER_LIMIT: Duration = Duration::from_secs(60);

impl TaskSupervisor {
    fn awaited_service(&self) -> MutexGuard<'_, Option<ServiceName>> {
        self.awaited_service.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The service that the start of a task waits for now.
    pub(super) fn awaited_by(&self, task: Option<&TaskAssignment>) -> Option<ServiceName> {
        self.awaited_service().clone().filter(|_| task.is_some_and(|task| !task.bootstrap))
    }

    /// A bootstrap service whose task on this node should run and has not started yet.
    fn find_awaited(&self) -> Option<ServiceName> {
        let desired_state = self.desired_state.borrow();
        let is_awaited = |task: &&Arc<TaskAssignment>| {
            let has_started = || {
                let last = self.reporter.latest(&task.id);
                last.is_some_and(|last| last.ready || last.state == TaskState::Complete)
            };
            task.bootstrap && task.desired == DesiredTaskState::Running && !has_started()
        };
        desired_state.tasks.values().find(is_awaited).map(|task| task.service.clone())
    }

    /// Before any actor starts.
    pub(super) fn begin_start_order(&self) {
        *self.awaited_service() = self.find_awaited();
    }

    /// Tells the actors what their start waits for, until everything has started that they can wait for.
    pub(super) async fn watch_start_order(self: Arc<Self>) {
        let (mut desired_state, stop) = (self.desired_state.clone(), self.shutdown.token());
        let mut reported = self.reporter.reported();
        let limit = tokio::time::sleep(START_ORDER_LIMIT);
        tokio::pin!(limit);
        loop {
            desired_state.borrow_and_update();
            reported.borrow_and_update();
            let awaited = self.find_awaited().filter(|_| !limit.is_elapsed());
            let is_over =
                limit.is_elapsed() || (awaited.is_none() && !self.desired_state.borrow().tasks.is_empty());
            self.hold_back_starts(awaited);
            if is_over {
                return;
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = &mut limit => {}
                changed = desired_state.changed() => if changed.is_err() { return },
                _ = reported.changed() => {}
            }
        }
    }

    fn hold_back_starts(&self, awaited: Option<ServiceName>) {
        let actors = self.actors();
        if *self.awaited_service() == awaited {
            return;
        }
        if let Some(service) = &awaited {
            tracing::info!(%service, "other tasks start after this bootstrap service");
        }
        *self.awaited_service() = awaited;
        for handle in actors.values() {
            handle.update(|inputs| {
                let awaited = self.awaited_by(inputs.desired.as_deref());
                let is_changed = inputs.awaited_service != awaited;
                inputs.awaited_service = awaited;
                is_changed
            });
        }
    }
}
